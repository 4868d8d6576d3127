// One run: what it is, what it waits for, what can be done, and its tabs. Follows the run live; the
// parts of the head change only when what they show has changed, so that nothing moves under a hand.

import { cancelRun, deleteRun, editTag, evictRun, forkRun, impossible, moveRun, removeTag, resolveDeferred, sendMessage, simpleAction, startRun } from "./actions.js";
import { h, replace } from "./dom.js";
import { queryString } from "./api.js";
import { count, shortId } from "./format.js";
import { icon } from "./icons.js";
import { bind } from "./keys.js";
import { historyView } from "./history-view.js";
import { actionButton, ago, copyButton, elapsed, emptyState, errorState, fact, menuButton, runLink, sentence, skeleton, tabs } from "./parts.js";
import { RunSource } from "./run-source.js";
import { childrenTab, dataTab, messagesTab, rawTab, streamsTab, whyTab } from "./run-tabs.js";
import { badge, hasEnded } from "./status.js";

export function runPage({ params, query, signal, router, onQuery }) {
  const place = h("div.page.page-fills.run-page", {}, h("h1.visually-hidden", {}, "Run"), skeleton(8));
  const source = new RunSource(params.id, signal);
  const start = async () => {
    try {
      await source.start(() => replace(place, h("h1.visually-hidden", {}, "Run"), emptyState("This run was deleted", "Somebody deleted it, or it was kept as long as it was to be.", h("a.button", { href: "/runs" }, "Go to the runs"))));
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(place, h("h1.visually-hidden", {}, "Run"), error.status === 404
        ? emptyState("There is no such run", error.message, h("a.button", { href: "/runs" }, "Go to the runs"))
        : errorState("The run could not be loaded", error, start));
      return;
    }
    const run = source.run();
    // The address may have only a part of the id; a link that is shared has all of it.
    if (run.id !== params.id) {
      router.go(`/runs/${run.id}${location.search}`, { replace: true });
      return;
    }
    replace(place, ...content(source, query, signal, router, onQuery));
    document.title = `${run.workflow} ${run.key ?? shortId(run.id)} · Everstep`;
    const heading = place.querySelector("h1");
    heading.tabIndex = -1;
    if (document.activeElement === document.body) heading.focus({ preventScroll: true });
  };
  start();
  return place;
}

function content(source, query, signal, router, onQuery) {
  const at = { tab: query.get("tab") ?? "timeline", entry: query.get("entry") ?? undefined };
  const remember = () => router.setQuery(queryString({ tab: at.tab === "timeline" ? undefined : at.tab, entry: at.entry }));
  const history = (mode) => (tabSignal) => historyView(source, mode, at.entry, (entry) => {
    at.entry = entry;
    remember();
  }, tabSignal);
  const panels = tabs([
    { id: "timeline", label: "Timeline", panel: history("timeline") },
    { id: "history", label: "History", panel: history("table") },
    { id: "data", label: "Data", panel: (s) => dataTab(source, s) },
    { id: "messages", label: "Messages", panel: (s) => messagesTab(source, s) },
    { id: "streams", label: "Streams", panel: (s) => streamsTab(source, s) },
    { id: "why", label: "Why", panel: (s) => whyTab(source, s) },
    { id: "children", label: "Children", panel: (s) => childrenTab(source, s) },
    { id: "raw", label: "Raw", panel: (s) => rawTab(source, s) },
  ], "Parts of the run", at.tab, (tab) => {
    at.tab = tab;
    remember();
  }, signal);
  const show = (tab, entry) => {
    if (entry) at.entry = entry;
    panels.show(tab);
  };
  onQuery((params) => {
    at.entry = params.get("entry") ?? undefined;
    panels.show(params.get("tab") ?? "timeline", { quietly: true });
  });
  source.onChange(() => panels.setCount("history", source.history.size ? count(source.history.size) : ""), signal);
  bind("w", "Why it is not moving", () => panels.show("why"), signal);

  const parts = [
    part("div.run-title", titleKey, title),
    part("div.actions.run-actions", actionsKey, (run) => actions(run, router)),
    part("div.run-banner", bannerKey, (run) => banner(run, show)),
    part("dl.facts.run-facts", factsKey, (run) => facts(run)),
  ];
  source.onRun((run) => {
    for (const one of parts) one.update(run);
    panels.setCount("history", source.history.size ? count(source.history.size) : "");
  }, signal);
  for (const one of parts) one.update(source.run());
  const [head, acts, note, list] = parts.map(({ node }) => node);
  return [
    h("header.run-head", {}, h("nav.crumbs", { "aria-label": "Where you are" }, h("a", { href: "/runs" }, "Runs"), icon("right", 12), h("a", { href: `/runs${queryString({ workflow: source.run().workflow })}` }, source.run().workflow)),
      h("div.run-line", {}, head, acts), note, list),
    panels.bar, panels.panel,
  ];
}

/** A part of the head that is made anew only when what it depends on has changed. */
function part(tag, keyOf, make) {
  const node = h(tag, {});
  let key;
  return {
    node,
    update: (run) => {
      const next = JSON.stringify(keyOf(run));
      if (next === key) return;
      key = next;
      replace(node, make(run));
    },
  };
}

const titleKey = (run) => [run.status, run.key];
const actionsKey = (run) => [run.status, run.cancel_requested, run.tags];
const bannerKey = (run) => [run.status, run.waiting, run.failure, run.cancel_requested];
const factsKey = (run) => [run.version, run.generation, run.attempts, run.recoveries, run.finished_at, run.available_at, run.deadline_at, run.scheduled_at, run.parent, run.pool, run.tags];

function title(run) {
  const status = badge(run.status);
  status.classList.add("filled");
  return [h("h1", { tabindex: "-1" }, run.workflow, run.key && h("span.key", {}, run.key)), h("span", { role: "status" }, status)];
}

function actions(run, router) {
  const act = (action, label, sign, onclick, more = {}) => ({ label, icon: sign, can: action, reason: impossible(run, action), onclick, ...more });
  const cancel = act("cancel", "Cancel", "stop", () => cancelRun(run), { danger: true });
  const main = {
    failed: [act("retry", "Retry", "retry", () => simpleAction(run, "retry"), { primary: true })],
    cancelled: [act("fork", "Fork", "fork", () => forkRun(run))],
    paused: [act("resume", "Resume", "play", () => simpleAction(run, "resume"), { primary: true }), cancel],
    completed: [],
  }[run.status] ?? [act("pause", "Pause", "pause", () => simpleAction(run, "pause")), cancel];
  return [
    main.map(actionButton),
    actionButton(act("send", "Send a message", "send", () => sendMessage(run))),
    menuButton("More", "more", [
      act("fork", "Fork this run", "fork", () => forkRun(run)),
      act("start", "Start another with this input", "plus", () => startRun({ workflow: run.workflow, input: run.input })),
      act("resolve", "Resolve a deferred", "key", () => resolveDeferred(run), { reason: hasEnded(run) ? "The run has ended." : undefined }),
      act("tags", "Set a tag", "tag", () => editTag(run)),
      run.tags.length > 0 && act("tags", "Remove a tag", "tag", () => removeTag(run)),
      "line",
      ...["pause", "resume", "retry"].filter((name) => !main.some(({ can }) => can === name)).map((name) => act(name, { pause: "Pause", resume: "Resume", retry: "Retry" }[name], { pause: "pause", resume: "play", retry: "retry" }[name], () => simpleAction(run, name))),
      !main.includes(cancel) && cancel,
      "line",
      act("move", "Move to another pool", "move", () => moveRun(run), { reason: hasEnded(run) ? "The run has ended." : undefined }),
      act("evict", "Evict from memory", "evict", () => evictRun(run), { reason: hasEnded(run) ? "The run has ended." : undefined }),
      act("delete", "Delete", "trash", () => deleteRun(run, () => router.go("/runs")), { danger: true }),
    ], { iconOnly: true }),
  ];
}

function banner(run, show) {
  if (run.failure) {
    return h("div.banner", { class: run.status === "rolling_back" ? "s-rolling_back" : "s-failed" }, icon(run.status === "rolling_back" ? "rolling_back" : "failed", 18), h("div", {},
      h("p", {}, h("strong", {}, run.status === "rolling_back" ? "It rolls back, because: " : ""), run.failure.message),
      run.failure.causes?.length > 0 && h("p.banner-more", {}, sentence(run.failure.causes[0], { brief: true })),
      run.failure.location && h("p.banner-more", {}, "At ", h("button.link", { type: "button", onclick: () => show("timeline", run.failure.location) }, h("code", {}, run.failure.location)), run.failure.attempts > 1 && ` after ${run.failure.attempts} attempts`)));
  }
  if (run.cancel_requested && !hasEnded(run)) return h("div.banner.s-cancelled", {}, icon("cancelled", 18), h("p", {}, "It is being cancelled."));
  if (run.waiting && !hasEnded(run)) {
    return h("div.banner", { class: `s-${run.status}` }, icon(run.status === "sleeping" ? "waiting" : run.status, 18), h("p", {}, h("strong", {}, "Waits: "), sentence(run.waiting), " ", h("button.link", { type: "button", onclick: () => show("why") }, "Why?")));
  }
  return undefined;
}

function facts(run) {
  return [
    fact("Run", h("span.mono", {}, run.id), copyButton(run.id, "Copy the run id")),
    fact("Created", ago(run.created_at)),
    fact(hasEnded(run) ? "Took" : "For", elapsed(run.created_at, hasEnded(run) ? run.finished_at ?? run.updated_at : undefined)),
    fact("Version", String(run.version)),
    run.attempts > 1 && fact("Attempts", String(run.attempts)),
    run.recoveries > 0 && fact("Recoveries", String(run.recoveries)),
    run.generation > 1 && fact("Generation", String(run.generation)),
    run.pool && fact("Pool", run.pool),
    run.parent && fact("Started by", runLink(run.parent)),
    run.scheduled_at && fact("Scheduled for", ago(run.scheduled_at)),
    run.available_at && !hasEnded(run) && Date.parse(run.available_at) > Date.now() && fact("Due", ago(run.available_at)),
    run.deadline_at && fact("Deadline", ago(run.deadline_at)),
    run.tags.length > 0 && fact("Tags", h("span.tags", {}, run.tags.map(({ name, value }) => h("a.tag", { href: `/runs${queryString({ tag: `${name}:${value}` })}`, title: "Runs with this tag" }, h("span.tag-name", {}, name), value)))),
  ];
}
