// The audit log: who changed what, and what came of it. For admins.

import { get } from "./api.js";
import { h } from "./dom.js";
import { shortId } from "./format.js";
import { icon } from "./icons.js";
import { ago, clockTime, emptyState, loader, pagedTable, pageHead } from "./parts.js";
import { refusal } from "./session.js";
import { word } from "./status.js";

const PAGE = 100;
const RUN_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export function auditPage({ signal }) {
  const place = h("div", {});
  const head = pageHead("Audit log", { lead: "Every change that was asked for, newest first." });
  if (refusal("audit")) return h("div.page", {}, head, emptyState("The audit log is for admins", refusal("audit")));
  const fetchPage = (cursor) => get("/audit", { limit: PAGE, cursor }, signal);
  loader(place, signal, () => fetchPage(), (first) => {
    if (first.entries.length === 0) return emptyState("Nothing has been changed yet");
    return pagedTable("Audit log", ["When", "Who", "What", "Target", "Detail", "Outcome"], first, ({ entries }) => entries.map(row), fetchPage);
  }, "The audit log could not be loaded");
  return h("div.page", {}, head, place);
}

function row(entry) {
  const fine = entry.outcome === "done" || entry.outcome === "ok";
  return h("tr", {}, h("td", {}, clockTime(entry.at), h("p.muted", {}, ago(entry.at))), h("td", {}, entry.who), h("td", {}, h("span.name", {}, word(entry.action))),
    h("td", {}, RUN_ID.test(entry.target) ? h("a.mono", { href: `/runs/${entry.target}`, title: entry.target }, shortId(entry.target)) : h("span", {}, entry.target)),
    h("td.payload", {}, typeof entry.detail === "string" ? entry.detail : JSON.stringify(entry.detail)),
    h("td", {}, h("span.badge", { class: fine ? "s-completed" : "s-failed" }, icon(fine ? "completed" : "failed", 14), word(entry.outcome))));
}
