// The words and signs for statuses of runs and entries. The server's words are the ones that people
// see; here they get a capital letter, an icon and a colour class.

import { h } from "./dom.js";
import { icon } from "./icons.js";

export const STATUSES = ["pending", "running", "sleeping", "rolling_back", "paused", "completed", "failed", "cancelled"];
const ENDED = new Set(["completed", "failed", "cancelled"]);

const MEANING = {
  pending: "It waits for a runner to take it up.",
  running: "Its code is running now.",
  sleeping: "It waits for a time, a message or another run, and holds no thread.",
  rolling_back: "It undoes what it has done.",
  paused: "It stands still until somebody resumes it.",
  completed: "It has ended with a result.",
  failed: "It has ended with an error.",
  cancelled: "It was stopped.",
};

export const hasEnded = (run) => ENDED.has(run.status);

/** `rolling_back` as `Rolling back`. */
export function word(name) {
  const text = (name || "unknown").replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
}

/** Icon and word. */
export function badge(status) {
  return h("span.badge", { class: `s-${status}`, title: MEANING[status] }, icon(status, 14), h("span", {}, word(status)));
}
