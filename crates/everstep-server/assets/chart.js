// A chart of values over time as SVG: axes, lines or bars, a crosshair with the values under it, and
// the same numbers as a table. Series differ by dash and by label, not only by colour. It draws what it
// is given and loads nothing.

import { freshId, h, inFrame, replace, svg } from "./dom.js";
import { moment } from "./format.js";
import { table } from "./parts.js";

const WIDTH = 900;
const HEIGHT = 220;
const TOP = 10;
const BOTTOM = 26;

/**
 * `series` are `{ name, field, shape: "line" | "area" | "bars", class }`, `format(value)` puts a value into
 * words. Points without a value are gaps.
 */
export function chart({ title, note, buckets, series, format, bucketMs }) {
  const inner = { w: WIDTH, h: HEIGHT - TOP - BOTTOM };
  const most = Math.max(0, ...buckets.flatMap((bucket) => series.map(({ field }) => bucket[field] ?? 0)));
  const { top, step } = scale(most);
  const from = buckets.length > 0 ? Date.parse(buckets[0].at) : 0;
  const to = from + buckets.length * bucketMs;
  const x = (i) => ((i + 0.5) / Math.max(1, buckets.length)) * inner.w;
  const y = (value) => TOP + inner.h - (value / top) * inner.h;
  const heading = freshId("chart");

  const drawing = svg("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-labelledby": heading, preserveAspectRatio: "none" });
  for (let value = 0; value <= top + step / 2; value += step) {
    drawing.append(svg("line.chart-grid", { x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }));
  }
  for (const one of series) drawing.append(...shapes(one, buckets, x, y, inner));
  const line = svg("line.chart-cross", { x1: 0, x2: 0, y1: TOP, y2: TOP + inner.h, visibility: "hidden" });
  drawing.append(line);

  // Labels are HTML, so that they keep their size while the drawing stretches.
  const yLabels = h("div.chart-y", { "aria-hidden": "true" });
  for (let value = 0; value <= top + step / 2; value += step) yLabels.append(h("span", { style: { top: `${(y(value) / HEIGHT) * 100}%` } }, format(value)));
  const xLabels = h("div.chart-x", { "aria-hidden": "true" }, timeTicks(from, to).map((time) => h("span", { style: { left: `${((time - from) / Math.max(1, to - from)) * 100}%` } }, label(time, to - from))));
  const tip = h("div.chart-tip", { hidden: true });
  const plot = h("div.chart-plot", { onpointermove: onMove, onpointerleave: leave }, drawing, xLabels, tip);
  const stage = h("div.chart-stage", {}, yLabels, plot);

  function onMove(event) {
    const box = plot.getBoundingClientRect();
    const i = Math.floor(((event.clientX - box.left) / box.width) * buckets.length);
    if (i < 0 || i >= buckets.length) return leave();
    return inFrame(() => {
      line.setAttribute("x1", x(i));
      line.setAttribute("x2", x(i));
      line.setAttribute("visibility", "visible");
      tip.hidden = false;
      tip.style.left = `${(x(i) / WIDTH) * 100}%`;
      tip.classList.toggle("is-right", i > buckets.length * 0.65);
      replace(tip, h("strong", {}, moment(Date.parse(buckets[i].at))), series.map((one) => h("div", {}, key(one), h("span", {}, one.name), h("b.num", {}, buckets[i][one.field] === undefined ? "–" : format(buckets[i][one.field])))));
    });
  }
  function leave() {
    line.setAttribute("visibility", "hidden");
    tip.hidden = true;
  }

  return h("figure.card.chart-card", {},
    h("figcaption", {}, h("h2", { id: heading }, title), note && h("p.muted", {}, note), h("ul.legend", {}, series.map((one) => h("li", {}, key(one), h("span", {}, one.name), h("b.num", {}, total(one, buckets, format)))))),
    buckets.length === 0 ? h("p.muted.pad", {}, "Nothing happened in this time.") : stage,
    h("details.more", {}, h("summary", {}, "As a table"), table(title, ["Time", ...series.map(({ name }) => ({ label: name, class: "num" }))],
      buckets.map((bucket) => h("tr", {}, h("td", {}, moment(Date.parse(bucket.at))), series.map(({ field }) => h("td.num", {}, bucket[field] === undefined ? "–" : format(bucket[field]))))))));
}

function shapes({ field, shape, class: name }, buckets, x, y, inner) {
  if (shape === "bars") {
    const width = Math.max(1, (inner.w / buckets.length) * 0.7);
    return buckets.map((bucket, i) => (bucket[field] > 0 ? svg("rect", { class: `chart-bar ${name}`, x: x(i) - width / 2, y: y(bucket[field]), width, height: y(0) - y(bucket[field]) }) : undefined)).filter(Boolean);
  }
  let path = "";
  let area = "";
  let begun = false;
  let last = 0;
  for (const [i, bucket] of buckets.entries()) {
    const value = bucket[field];
    if (value === undefined) {
      if (begun) area += `L${last} ${y(0)}Z`;
      begun = false;
      continue;
    }
    const point = `${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    path += `${begun ? "L" : "M"}${point}`;
    area += begun ? `L${point}` : `M${x(i).toFixed(1)} ${y(0)}L${point}`;
    begun = true;
    last = x(i).toFixed(1);
  }
  if (begun) area += `L${last} ${y(0)}Z`;
  // A value without neighbours is a line of no length; it is shown as a dot.
  const lone = buckets.flatMap((bucket, i) => (bucket[field] !== undefined && buckets[i - 1]?.[field] === undefined && buckets[i + 1]?.[field] === undefined ? [`M${x(i).toFixed(1)} ${y(bucket[field]).toFixed(1)}h0.01`] : []));
  const line = svg("g", {}, svg("path", { class: `chart-line ${name}`, d: path }), lone.length > 0 && svg("path", { class: `chart-line chart-dot ${name}`, d: lone.join("") }));
  return shape === "area" ? [svg("path", { class: `chart-area ${name}`, d: area }), line] : [line];
}

function key({ shape, class: name }) {
  return svg("svg.chart-key", { viewBox: "0 0 18 10", width: 18, height: 10, "aria-hidden": "true" },
    shape === "bars" ? svg("rect", { class: `chart-bar ${name}`, x: 4, y: 0, width: 10, height: 10 }) : svg("path", { class: `chart-line ${name}`, d: "M0 5H18" }));
}

function total({ sum, field }, buckets, format) {
  const values = buckets.map((bucket) => bucket[field]).filter((value) => value !== undefined);
  if (values.length === 0) return "–";
  return sum ? format(values.reduce((a, b) => a + b, 0)) : format(values.at(-1));
}

/** A top and a step that are pleasant to read, for four or five lines. */
function scale(most) {
  if (most <= 0) return { top: 1, step: 1 };
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((n) => n * power >= rough) * power, most < 4 ? 1 : 0);
  return { top: Math.ceil(most / step) * step, step };
}

const TIME_STEPS = [6e4, 3e5, 6e5, 9e5, 18e5, 36e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

function timeTicks(from, to) {
  const step = TIME_STEPS.find((size) => (to - from) / size <= 7) ?? TIME_STEPS.at(-1);
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let time = Math.ceil((from - shift) / step) * step + shift; time < to; time += step) found.push(time);
  return found;
}

const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const label = (time, span) => (span > 2 * 864e5 ? date : hour).format(new Date(time));
