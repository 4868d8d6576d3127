// The icons: strokes on a grid of 16, made as SVG elements. They are decoration beside a word and
// therefore hidden from screen readers; an icon never stands for a word alone.

import { svg } from "./dom.js";

const PATHS = {
  // Statuses. Each has a shape of its own, so that nobody depends on colour.
  pending: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z:dash", "M8 4.8V8l2.2 1.4"],
  running: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "M6.6 5.4 10.6 8l-4 2.6Z:fill"],
  sleeping: ["M13.4 9.6A5.9 5.9 0 0 1 6.4 2.6a5.9 5.9 0 1 0 7 7Z"],
  rolling_back: ["M5.6 2.6 2.4 5.8 5.6 9", "M2.8 5.8h6.6a4 4 0 0 1 0 8H6"],
  paused: ["M5.4 3v10", "M10.6 3v10"],
  completed: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "m5.2 8.2 2 2 3.6-4.2"],
  failed: ["M5.4 1.9h5.2l3.5 3.5v5.2l-3.5 3.5H5.4l-3.5-3.5V5.4Z", "m6 6 4 4M10 6l-4 4"],
  cancelled: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "M3.8 12.2l8.4-8.4"],
  waiting: ["M4 2h8M4 14h8", "M4.8 2c0 3 3.2 4 3.2 6s-3.2 3-3.2 6", "M11.2 2c0 3-3.2 4-3.2 6s3.2 3 3.2 6"],
  timed_out: ["M8 3a5.6 5.6 0 1 0 0 11.2A5.6 5.6 0 0 0 8 3Z", "M8 5.8v2.8l1.8 1", "M6.4 1.4h3.2"],
  exhausted: ["M5.4 1.9h5.2l3.5 3.5v5.2l-3.5 3.5H5.4l-3.5-3.5V5.4Z", "m6 6 4 4M10 6l-4 4"],
  // Pages.
  runs: ["M2 3.5h8M2 8h12M2 12.5h6"],
  schedules: ["M2.2 3.4h11.6v10.4H2.2Z", "M2.2 6.6h11.6M5.2 1.6v3M10.8 1.6v3"],
  queues: ["M2 4h4v8H2ZM8 4h3v8H8Z", "M13.5 4v8"],
  events: ["M8 6.6a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8Z:fill", "M4.6 4.6a4.8 4.8 0 0 0 0 6.8M11.4 4.6a4.8 4.8 0 0 1 0 6.8", "M2.4 2.4a8 8 0 0 0 0 11.2M13.6 2.4a8 8 0 0 1 0 11.2"],
  letters: ["M2 3.6h12v8.8H2Z", "m2.2 4 5.8 4.8L13.8 4"],
  cluster: ["M2 2h5v5H2ZM9 2h5v5H9ZM2 9h5v5H2ZM9 9h5v5H9Z"],
  charts: ["M2 13.8h12", "m2.6 10.6 3.2-3.8 3 2.2 4.4-6"],
  audit: ["M3.4 1.8h9.2v12.4H3.4Z", "M5.8 5h4.4M5.8 8h4.4M5.8 11h2.4"],
  branch: ["M4 2.4v5.2a3 3 0 0 0 3 3h5.4", "m9.8 7.8 2.8 2.8-2.8 2.8"],
  // Acts and signs.
  search: ["M7 2.4a4.6 4.6 0 1 0 0 9.2 4.6 4.6 0 0 0 0-9.2Z", "m10.4 10.4 3.4 3.4"],
  close: ["m3.6 3.6 8.8 8.8M12.4 3.6l-8.8 8.8"],
  copy: ["M5.4 5.4h8.2v8.2H5.4Z", "M10.6 5.2V2.4H2.4v8.2h2.8"],
  check: ["m3 8.6 3.2 3.2L13 4.6"],
  plus: ["M8 2.8v10.4M2.8 8h10.4"],
  minus: ["M2.8 8h10.4"],
  fit: ["M2.4 5.8V2.4h3.4M10.2 2.4h3.4v3.4M13.6 10.2v3.4h-3.4M5.8 13.6H2.4v-3.4"],
  retry: ["M13.4 8a5.4 5.4 0 1 1-1.8-4", "M13.6 1.8v3.4h-3.4"],
  play: ["M4.4 2.6 13 8l-8.6 5.4Z"],
  pause: ["M5.4 3v10", "M10.6 3v10"],
  stop: ["M3.4 3.4h9.2v9.2H3.4Z"],
  fork: ["M4 4.6v6.8M4 8c0-2 8-.6 8-3.6", "M4 1.4a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2ZM12 1.2a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2ZM4 11.4a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2Z"],
  send: ["M14 2 7 9", "M14 2 9.6 14 7 9 2 6.4Z"],
  key: ["M10.4 2.2a3.4 3.4 0 1 0 0 6.8 3.4 3.4 0 0 0 0-6.8Z", "M8 8 2.4 13.6M4.4 11.6l1.8 1.8"],
  trash: ["M2.6 4.2h10.8M6 4V2.2h4V4", "M4 4.4l.8 9.4h6.4l.8-9.4"],
  more: ["M3.4 8h.01M8 8h.01M12.6 8h.01:dot"],
  menu: ["M2 4h12M2 8h12M2 12h12"],
  down: ["m4 6 4 4 4-4"],
  right: ["m6 4 4 4-4 4"],
  up: ["m4 10 4-4 4 4"],
  out: ["M9.4 2.4h4.2v4.2M13.6 2.4 7.4 8.6", "M11.6 9.4v4H2.6v-9h4"],
  download: ["M8 2v8.4M4.4 7 8 10.4 11.6 7", "M2.4 13.6h11.2"],
  sun: ["M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6Z", "M8 1.4v1.2M8 13.4v1.2M1.4 8h1.2M13.4 8h1.2M3.3 3.3l.9.9M11.8 11.8l.9.9M12.7 3.3l-.9.9M4.2 11.8l-.9.9"],
  moon: ["M13.4 9.6A5.9 5.9 0 0 1 6.4 2.6a5.9 5.9 0 1 0 7 7Z"],
  system: ["M1.8 2.8h12.4v8.4H1.8Z", "M5.6 13.8h4.8M8 11.4v2.2"],
  help: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "M6.2 6.2A1.9 1.9 0 1 1 8 8.4v.8", "M8 11.6h.01:dot"],
  warning: ["M8 2 14.6 13.6H1.4Z", "M8 6.4v3.2", "M8 11.6h.01:dot"],
  info: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "M8 7.4v3.8", "M8 4.8h.01:dot"],
  link: ["M6.6 9.4 9.4 6.6", "M7.4 4.4 9 2.8a3 3 0 0 1 4.2 4.2l-1.6 1.6M8.6 11.6 7 13.2A3 3 0 0 1 2.8 9l1.6-1.6"],
  logout: ["M6.4 2.4H2.6v11.2h3.8", "M10.2 4.8 13.4 8l-3.2 3.2M13.2 8H6.4"],
  move: ["M2 8h11M9.6 4.6 13 8l-3.4 3.4"],
  evict: ["M8 10V2.4M4.8 5.4 8 2.2l3.2 3.2", "M2.4 13.4h11.2"],
  filter: ["M2 3h12L9.4 8.6v4.8l-2.8-1.6V8.6Z"],
  tag: ["M2.2 2.2h5.4l6.2 6.2-5.4 5.4-6.2-6.2Z", "M5 5h.01:dot"],
  clock: ["M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8Z", "M8 4.4V8l2.4 1.6"],
};

/** An icon by name; `size` in pixels. */
export function icon(name, size = 16) {
  const node = svg("svg.icon", { viewBox: "0 0 16 16", width: size, height: size, "aria-hidden": "true", focusable: "false" });
  node.classList.add(`icon-${name}`);
  for (const entry of PATHS[name] ?? PATHS.info) {
    const [d, how] = entry.split(":");
    const path = svg("path", { d });
    if (how) path.classList.add(`icon-${how === "fill" ? "solid" : how}`);
    node.append(path);
  }
  return node;
}

/** The sign of Everstep: a stair. */
export function logo(size = 22) {
  return svg("svg.logo", { viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true", focusable: "false" },
    svg("path", { d: "M3 20h5v-5.5h5V9h5V3.5h3" }));
}
