// The timeline: a Gantt chart of the history, drawn to scale. Bars are placed in percent of the part
// of time that is in view, so no row is ever measured. Only visible rows are in the page. It draws; what
// a row means is in history.js, and what is chosen is told to the history view.

import { h, inFrame, replace, setText, svg } from "./dom.js";
import { duration, moment } from "./format.js";
import { isFailure, isScope, isWait, statusOf } from "./history.js";
import { icon } from "./icons.js";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6];
const PARTS = 140;
const LEAST_MS = 5;
/** About how wide a letter of a bar's label is. */
const LETTER = 6.4;
/** How much room a label of the axis has at least. */
const TICK = 84;
/** How wide a bar must be to show its attempts. */
const ATTEMPTS_PX = 8;

export class Timeline {
  #history;
  #onView;
  #from = 0;
  #to = 1;
  #start = 0;
  #end = 1;
  #fitted = true;
  #ticks = [];
  view = 0;

  constructor(history, onView, signal) {
    this.#history = history;
    this.#onView = onView;
    this.axis = h("div.axis", { "aria-hidden": "true" });
    // One set of lines behind all rows, instead of one in each.
    this.lines = h("div.grid-lines", { "aria-hidden": "true" }, h("div", {}));
    this.cursor = h("div.cursor", { hidden: true, "aria-hidden": "true" }, h("span", {}));
    this.#map = svg("svg.density", { viewBox: `0 0 ${PARTS} 28`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.#window = h("div.density-window", {});
    this.overview = h("div.overview", { title: "Drag to choose a part of the time" }, this.#map, this.#window);
    this.tools = h("div.zoom", { role: "group", "aria-label": "Zoom" },
      tool("plus", "Zoom in", () => this.zoom(0.5)), tool("minus", "Zoom out", () => this.zoom(2)), tool("fit", "Fit all", () => this.fit()));
    this.#dragOverview(signal);
    const resized = new ResizeObserver(([{ contentRect }]) => {
      this.#width = contentRect.width || this.#width;
      this.#changed();
    });
    resized.observe(this.axis);
    signal.addEventListener("abort", () => resized.disconnect());
  }

  #width = 600;

  #map;
  #window;

  /** The whole time of the run; while it is live, up to now. */
  setRange(start, end) {
    this.#start = start;
    this.#end = Math.max(end, start + LEAST_MS);
    if (this.#fitted) this.fit();
    else this.#changed();
  }

  fit() {
    const margin = (this.#end - this.#start) * 0.02;
    this.#fitted = true;
    this.#show(this.#start - margin * 0.25, this.#end + margin);
  }

  zoom(factor, around = (this.#from + this.#to) / 2) {
    const width = Math.min(this.#end - this.#start, Math.max(LEAST_MS, (this.#to - this.#from) * factor));
    const share = (around - this.#from) / (this.#to - this.#from);
    this.#fitted = false;
    this.#show(around - width * share, around + width * (1 - share));
  }

  pan(share) {
    const by = (this.#to - this.#from) * share;
    this.#fitted = false;
    this.#show(this.#from + by, this.#to + by);
  }

  /** Shows just this time, with a little around it. */
  zoomTo(start, end) {
    const margin = Math.max(LEAST_MS, end - start) * 0.1;
    this.#fitted = false;
    this.#show(start - margin, end + margin);
  }

  #show(from, to) {
    this.#from = from;
    this.#to = to;
    this.#changed();
  }

  #changed() {
    this.view += 1;
    inFrame(this.#drawAxis);
    this.#onView();
  }

  #percent(time) {
    return ((time - this.#from) / (this.#to - this.#from)) * 100;
  }

  timeAt(share) {
    return this.#from + (this.#to - this.#from) * share;
  }

  #drawAxis = () => {
    const width = this.#to - this.#from;
    const most = Math.max(2, Math.min(8, this.#width / TICK));
    const step = STEPS.find((size) => width / size <= most) ?? 2592e6;
    const ticks = [];
    for (let time = Math.ceil((this.#from - this.#start) / step) * step; time <= this.#to - this.#start; time += step) {
      if (time >= 0) ticks.push(time);
    }
    this.#ticks = ticks.map((time) => this.#percent(this.#start + time)).filter((left) => left < 97);
    replace(this.axis, ticks.slice(0, this.#ticks.length).map((time, i) => h("span", { style: { left: `${this.#ticks[i]}%` } }, time === 0 ? moment(this.#start) : `+${duration(time)}`)));
    replace(this.lines.firstChild, this.#ticks.map((left) => h("i", { style: { left: `${left}%` } })));
    const total = this.#end - this.#start;
    const left = Math.max(0, (this.#from - this.#start) / total);
    const right = Math.min(1, (this.#to - this.#start) / total);
    this.#window.style.left = `${left * 100}%`;
    this.#window.style.width = `${Math.max(0.5, (right - left) * 100)}%`;
    this.overview.classList.toggle("is-whole", this.#fitted);
  };

  /** The overview: how busy the run was over its whole time. */
  drawOverview() {
    const parts = this.#history.density(PARTS, this.#start, this.#end);
    const most = Math.max(1, ...parts.map(({ busy }) => busy));
    replace(this.#map, parts.map(({ busy, failed }, i) => {
      if (busy === 0 && !failed) return undefined;
      const height = failed && busy === 0 ? 28 : Math.max(3, (busy / most) * 26);
      return svg("rect", { x: i, y: 28 - height, width: 0.8, height, class: failed ? "density-failed" : "density-busy" });
    }));
  }

  /** The bar of a row. */
  lane(node, now) {
    const lane = h("div.lane", {});
    const end = node.end ?? now;
    const status = statusOf(node);
    const left = clamp(this.#percent(node.start));
    const right = clamp(this.#percent(end));
    if (this.#percent(end) < 0) return lane.append(h("span.off.off-left", {}, icon("right", 10))), lane;
    if (this.#percent(node.start) > 100) return lane.append(h("span.off.off-right", {}, icon("right", 10))), lane;
    const shape = isScope(node) ? "bar-scope" : isWait(node) ? "bar-wait" : "bar-work";
    const bar = h("div.bar", { class: `${shape} s-${status}${node.end === undefined ? " is-open" : ""}`, style: { left: `${left}%`, width: `${Math.max(right - left, 0.05)}%` } });
    lane.append(bar);
    // On a bar of a few pixels the ticks would hide how it ended.
    if (node.entry && (isFailure(node.entry) || ((right - left) / 100) * this.#width >= ATTEMPTS_PX)) this.#attempts(lane, node, end);
    if (node.entry?.wake_at && node.end === undefined) this.#due(lane, node, end);
    const text = h("span.bar-time", {}, duration(end - node.start), node.entry?.attempts > 1 && h("span.bar-attempts", {}, `${node.entry.attempts} attempts`));
    // Beside the bar where there is room, otherwise before it, otherwise upon it.
    const room = ((text.textContent.length * LETTER + 16) / this.#width) * 100;
    if (right + room < 100) text.style.left = `calc(${right}% + 6px)`;
    else if (left > room) text.style.right = `calc(${100 - left}% + 6px)`;
    else {
      text.style.right = `calc(${100 - right}% + 8px)`;
      text.classList.add("is-inside");
    }
    lane.append(text);
    return lane;
  }

  // Each failed attempt ends in a tick; what came before it is drawn as failed.
  #attempts(lane, node, end) {
    let from = node.start;
    for (const error of node.entry.errors) {
      const time = Math.min(Date.parse(error.at), end);
      const left = clamp(this.#percent(from));
      const right = clamp(this.#percent(time));
      if (right > 0 && left < 100) {
        lane.append(h("div.bar-failed", { style: { left: `${left}%`, width: `${Math.max(0, right - left)}%` } }),
          h("i.attempt-tick", { style: { left: `${right}%` }, title: `Attempt ${error.attempt}: ${error.message}` }));
      }
      from = time;
    }
    if (isFailure(node.entry) && !isScope(node)) lane.append(h("span.bar-end", { style: { left: `${clamp(this.#percent(end))}%` } }, icon("failed", 14)));
  }

  #due(lane, node, end) {
    const due = this.#percent(Date.parse(node.entry.wake_at));
    const left = clamp(this.#percent(end));
    lane.append(h("div.bar-due", { style: { left: `${left}%`, width: `${Math.max(0, clamp(due) - left)}%` } }));
  }

  /** Follows the pointer over `area` with a line and the time; `lanes` is where the bars are. */
  track(area, lanes, signal) {
    area.addEventListener("pointermove", (event) => {
      const box = lanes.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      this.cursor.hidden = share < 0 || share > 1;
      if (this.cursor.hidden) return;
      inFrame(() => {
        this.cursor.style.left = `${share * 100}%`;
        const time = this.timeAt(share);
        setText(this.cursor.firstChild, time >= this.#start ? `+${duration(time - this.#start)}  ${moment(time)}` : moment(time));
        this.cursor.classList.toggle("is-right", share > 0.75);
      });
    }, { signal });
    area.addEventListener("pointerleave", () => (this.cursor.hidden = true), { signal });
    area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = lanes.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt((event.clientX - box.left) / box.width));
    }, { signal, passive: false });
  }

  #dragOverview(signal) {
    let began;
    const share = (event) => {
      const box = this.overview.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    const total = () => this.#end - this.#start;
    this.overview.addEventListener("pointerdown", (event) => {
      began = share(event);
      this.overview.setPointerCapture(event.pointerId);
    }, { signal });
    this.overview.addEventListener("pointermove", (event) => {
      if (began === undefined) return;
      const now = share(event);
      if (Math.abs(now - began) < 0.005) return;
      const [a, b] = [Math.min(began, now), Math.max(began, now)];
      this.#fitted = false;
      this.#show(this.#start + a * total(), this.#start + b * total());
    }, { signal });
    this.overview.addEventListener("pointerup", (event) => {
      if (began !== undefined && Math.abs(share(event) - began) < 0.005) {
        const width = this.#to - this.#from;
        const middle = this.#start + began * total();
        this.#fitted = false;
        this.#show(middle - width / 2, middle + width / 2);
      }
      began = undefined;
    }, { signal });
    this.overview.addEventListener("dblclick", () => this.fit(), { signal });
  }
}

const clamp = (percent) => Math.max(-1, Math.min(101, percent));

function tool(sign, label, onclick) {
  return h("button.quiet.icon-only", { type: "button", "aria-label": label, title: label, onclick }, icon(sign));
}
