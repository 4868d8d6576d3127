// One entry of a history with everything that is known of it, and what can be done with it.

import { forkRun, resolveDeferred, sendMessage } from "./actions.js";
import { h } from "./dom.js";
import { bytes, duration } from "./format.js";
import { jsonBlock } from "./json-view.js";
import { actionButton, ago, clockTime, copyButton, elapsed, fact, runLink, sentence } from "./parts.js";
import { badge, hasEnded, word } from "./status.js";

export function inspect(node, run) {
  const { entry } = node;
  if (!entry) return branchOf(node);
  const waits = entry.status === "waiting" || entry.status === "running";
  return h("div.inspect", {},
    h("div.inspect-title", {}, h("code.location", {}, entry.location), copyButton(entry.location, "Copy the location")),
    h("p.inspect-kind", {}, badge(entry.status), h("span.muted", {}, word(entry.kind))),
    h("div.actions", {},
      waits && entry.kind === "listen" && actionButton({ label: "Send a message", icon: "send", can: "send", onclick: () => sendMessage(run(), node.plain) }),
      waits && entry.kind === "deferred" && actionButton({ label: "Resolve", icon: "key", can: "resolve", reason: hasEnded(run()) ? "The run has ended." : undefined, onclick: () => resolveDeferred(run(), entry.location) }),
      entry.child && h("a.button", { href: `/runs/${encodeURIComponent(entry.child)}` }, "Open the child run"),
      actionButton({ label: "Fork from this step", icon: "fork", can: "fork", onclick: () => forkRun(run(), entry.location) })),
    h("dl.facts.facts-tight", {},
      fact("Began", clockTime(entry.started_at ?? entry.created_at)),
      entry.completed_at ? fact("Ended", clockTime(entry.completed_at)) : undefined,
      fact(entry.completed_at ? "Took" : "For", elapsed(entry.started_at ?? entry.created_at, entry.completed_at)),
      fact("Attempts", String(entry.attempts)),
      entry.wake_at && fact(entry.completed_at ? "Was due" : "Due", entry.completed_at ? clockTime(entry.wake_at) : ago(entry.wake_at)),
      entry.child && fact("Child", runLink(entry.child)),
      entry.number !== undefined && fact("Taken as", `no. ${entry.number}`),
      fact("Size", bytes(entry.size))),
    entry.failure && failureBlock(entry.failure),
    entry.errors.length > 0 && attemptsBlock(entry),
    entry.value !== undefined && jsonBlock("Result", entry.value));
}

function branchOf(node) {
  return h("div.inspect", {}, h("div.inspect-title", {}, h("code.location", {}, node.location), copyButton(node.location, "Copy the location")),
    h("p.muted", {}, `A branch with ${node.children.length} ${node.children.length === 1 ? "operation" : "operations"}${node.end ? `, ${duration(node.end - node.start)} from first to last` : ""}.`));
}

/** The error of a run or an entry, with its causes. */
export function failureBlock(failure) {
  return h("div.failure", {},
    h("h2.subhead", {}, word(failure.kind)), h("p.failure-message", {}, failure.message),
    failure.causes?.length > 0 && h("ol.causes", {}, failure.causes.map((cause) => h("li", {}, sentence(cause, { brief: true })))),
    failure.details !== undefined && jsonBlock("Details", failure.details));
}

function attemptsBlock(entry) {
  return h("div.attempts", {}, h("h2.subhead", {}, entry.errors.length === 1 ? "One attempt failed" : `${entry.errors.length} attempts failed`),
    h("ol", {}, entry.errors.map(({ attempt, at: when, message }) => h("li", {}, h("span.muted", {}, `Attempt ${attempt}, `, clockTime(when)), h("p", {}, message)))));
}
