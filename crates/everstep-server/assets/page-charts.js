// Charts of the last hours or days: how much ran, how long it took, and what failed.

import { get, queryString } from "./api.js";
import { chart } from "./chart.js";
import { every, h } from "./dom.js";
import { duration, precisely, short } from "./format.js";
import { loader, pageHead } from "./parts.js";

const RANGES = {
  "1h": { name: "1 hour", ms: 3_600_000, bucket: 30_000 },
  "6h": { name: "6 hours", ms: 21_600_000, bucket: 180_000 },
  "24h": { name: "24 hours", ms: 86_400_000, bucket: 600_000 },
  "7d": { name: "7 days", ms: 604_800_000, bucket: 3_600_000 },
  "30d": { name: "30 days", ms: 2_592_000_000, bucket: 14_400_000 },
};
const REFRESH_MS = 10_000;

export function chartsPage({ query, signal, router, onQuery }) {
  const place = h("div", {});
  const buttons = Object.entries(RANGES).map(([id, { name }]) => h("button.chip", { type: "button", dataset: { range: id }, onclick: () => router.go(`/charts${queryString({ range: id === "1h" ? undefined : id })}`) }, name));
  let range;
  let reload;
  const load = () => {
    const to = Math.ceil(Date.now() / range.bucket) * range.bucket;
    return get("/stats", { from: new Date(to - range.ms).toISOString(), to: new Date(to).toISOString(), bucket_ms: range.bucket }, signal);
  };
  const show = (params) => {
    const id = params.get("range") in RANGES ? params.get("range") : "1h";
    range = RANGES[id];
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.range === id));
    reload = loader(place, signal, load, (stats) => draw(stats, range), "The numbers could not be loaded");
  };
  onQuery(show);
  show(query);
  every(REFRESH_MS, signal, () => place.querySelector("details[open]") || place.matches(":hover") || reload());
  return h("div.page", {}, pageHead("Charts", { lead: "How much runs, how long it takes, and what fails." }), h("div.chips.ranges", { role: "group", "aria-label": "Time range" }, buttons), place);
}

function draw({ buckets, horizon }, { bucket }) {
  const per = `per ${duration(bucket)}`;
  const blank = buckets.some(({ missing }) => missing === "retention");
  return h("div.charts", {},
    blank && h("p.muted.charts-note", { role: "note" }, `Blank before ${precisely(horizon)}: runs that ended earlier have been deleted by retention, so their numbers are not known.`),
    chart({ title: "Throughput", note: `Runs ${per}`, buckets, bucketMs: bucket, format: short, series: [
      { name: "Started", field: "started", shape: "line", class: "series-started", sum: true },
      { name: "Completed", field: "completed", shape: "area", class: "series-completed", sum: true },
    ] }),
    chart({ title: "Latency", note: "From the start of a run to its end", buckets, bucketMs: bucket, format: (ms) => (ms === 0 ? "0" : duration(ms)), series: [
      { name: "p50, half are faster", field: "p50_ms", shape: "area", class: "series-p50" },
      { name: "p95, 19 of 20 are faster", field: "p95_ms", shape: "line", class: "series-p95" },
    ] }),
    chart({ title: "Failures", note: `Runs ${per}`, buckets, bucketMs: bucket, format: short, series: [
      { name: "Failed", field: "failed", shape: "bars", class: "series-failed", sum: true },
      { name: "Cancelled", field: "cancelled", shape: "line", class: "series-cancelled", sum: true },
    ] }));
}
