// Schedules: what they start, when next, and what became of the ticks. All of them fit on a page.

import { get, path, post, put, remove } from "./api.js";
import { formDialog } from "./dialog.js";
import { every, h } from "./dom.js";
import { at, count, duration, precisely } from "./format.js";
import { icon } from "./icons.js";
import { jsonBlock } from "./json-view.js";
import { actionButton, ago, clockTime, emptyState, fact, loader, menuButton, pageHead, runLink } from "./parts.js";
import { toast, toastProblem } from "./toast.js";
import { word } from "./status.js";

const OVERLAP = {
  skip: "Skip the tick while the last run is live",
  queue: "Queue the tick until the last run has ended",
  allow: "Start beside the last run",
  cancel_old: "Cancel the last run, then start",
};
const REFRESH_MS = 5000;

export function schedulesPage({ signal }) {
  const place = h("div", {});
  const reload = loader(place, signal, loadAll, (schedules) => {
    if (schedules.length === 0) return emptyState("No schedules yet", "A schedule starts a run at each tick of a cron expression or an interval.", createButton());
    return h("div.cards", {}, schedules.map((schedule) => card(schedule, reload)));
  }, "The schedules could not be loaded");
  // Not while a menu is open or has the focus: what somebody is about to press must not move.
  every(REFRESH_MS, signal, () => place.querySelector("[aria-expanded=true], .card :focus") || reload());
  const createButton = () => actionButton({ label: "New schedule", icon: "plus", can: "schedules", primary: true, onclick: () => edit(undefined, reload) });

  async function loadAll() {
    const all = [];
    let cursor;
    do {
      const page = await get("/schedules", { limit: 500, cursor }, signal);
      all.push(...page.schedules);
      cursor = page.next;
    } while (cursor);
    return all;
  }
  return h("div.page", {}, pageHead("Schedules", { lead: "Runs that start by the clock.", actions: [createButton()] }), place);
}

function card(schedule, reload) {
  const act = (action, message) => async () => {
    try {
      const answer = await post(path("schedules", schedule.name, action));
      const none = action === "trigger" && !answer?.run && answer?.outcome;
      toast(none ? none[0].toUpperCase() + none.slice(1) : message, answer?.run ? { link: { href: `/runs/${answer.run}`, text: "Open the run" } } : {});
      reload();
    } catch (error) {
      toastProblem(`The schedule ${schedule.name} was not changed`, error);
    }
  };
  const can = "schedules";
  return h("article.card.schedule", { "aria-label": schedule.name, class: schedule.paused ? "is-paused" : "" },
    h("header", {},
      h("div", {}, h("h2", {}, schedule.name), h("p.muted", {}, schedule.workflow, ` v${schedule.version}`)),
      schedule.paused ? h("span.badge.filled.s-paused", {}, icon("paused", 14), "Paused") : h("span.badge.filled.s-completed", {}, icon("clock", 14), "Active"),
      h("div.actions", {},
        schedule.paused ? actionButton({ label: "Resume", icon: "play", can, onclick: () => ask("Resume", schedule, "Its ticks start runs again.", act("resume", "The schedule goes on")) }) : actionButton({ label: "Pause", icon: "pause", can, onclick: () => ask("Pause", schedule, "It starts no runs until somebody resumes it.", act("pause", "The schedule was paused")) }),
        actionButton({ label: "Trigger now", icon: "plus", can, onclick: () => ask("Trigger", schedule, "It starts one run now, beside its ticks.", act("trigger", "A run was started")) }),
        menuButton(`More for ${schedule.name}`, "more", [
          { label: "Change", icon: "schedules", can, onclick: () => edit(schedule, reload) },
          { label: "Backfill", icon: "retry", can, onclick: () => backfill(schedule, reload) },
          { label: "Delete", icon: "trash", can: "delete", danger: true, onclick: () => drop(schedule, reload) },
        ], { iconOnly: true }))),
    h("dl.facts", {},
      fact("When", schedule.cron ? h("span", {}, h("code", {}, schedule.cron), " ", schedule.time_zone ?? "UTC") : `every ${duration(schedule.every_ms)}`),
      fact("Next", schedule.next_at && !schedule.paused ? ago(schedule.next_at) : h("span.muted", {}, "none")),
      fact("Last", schedule.last_tick ? [ago(schedule.last_tick), schedule.last_run && runLink(schedule.last_run, "its run")] : h("span.muted", {}, "never")),
      fact("Started", count(schedule.started)), fact("Skipped", count(schedule.skipped)), fact("Missed", count(schedule.missed)),
      schedule.queued?.length > 0 && fact("Queued", count(schedule.queued.length)),
      fact("If the last run is live", word(schedule.overlap)), schedule.catch_up_ms > 0 && fact("Catches up", duration(schedule.catch_up_ms))),
    !schedule.paused && schedule.upcoming.length > 0 && ticks(schedule.upcoming),
    h("details.more", {}, h("summary", {}, "Input"), jsonBlock("Input", schedule.input)));
}

/** The next ticks on a line, to scale. */
function ticks(upcoming) {
  const now = Date.now();
  const times = upcoming.map(at).filter((time) => time > now);
  if (times.length === 0) return undefined;
  const span = Math.max(1, times.at(-1) - now);
  return h("div.ticks", {}, h("span.muted", {}, "Next ticks"),
    h("ol", {}, times.map((time, i) => h("li", { title: precisely(time), style: { left: `${Math.max(0, Math.min(100, ((time - now) / span) * 100))}%` } }, h("span.visually-hidden", {}, precisely(time)), h("i", {}), (i === 0 || i === times.length - 1) && h("span", { "aria-hidden": "true" }, clockTime(new Date(time).toISOString()))))));
}

function ask(verb, schedule, text, work) {
  formDialog({ title: `${verb} ${schedule.name}?`, submitLabel: `${verb} it`, intro: h("p", {}, text), submit: work });
}

function drop(schedule, reload) {
  formDialog({ title: `Delete ${schedule.name}?`, danger: true, submitLabel: "Delete it", intro: h("p", {}, "The runs that it has started stay."), submit: async () => {
    await remove(path("schedules", schedule.name));
    toast("The schedule was deleted", { detail: schedule.name });
    reload();
  } });
}

function backfill(schedule, reload) {
  const day = 86_400_000;
  formDialog({
    title: `Backfill ${schedule.name}`, submitLabel: "Start the runs", intro: h("p", {}, "Starts a run for each tick that lies in this time."),
    fields: [
      { name: "from", type: "time", label: "From", required: true, value: new Date(Date.now() - day).toISOString() },
      { name: "to", type: "time", label: "To", required: true, value: new Date().toISOString() },
    ],
    submit: async (body) => {
      const answer = await post(path("schedules", schedule.name, "backfill"), body);
      toast("The backfill has started", { detail: answer?.started === undefined ? undefined : `${count(answer.started)} runs` });
      reload();
    },
  });
}

async function edit(schedule, reload) {
  const { workflows } = await get("/workflows").catch(() => ({ workflows: [] }));
  const names = new Set([...workflows.map(({ name }) => name), ...(schedule ? [schedule.workflow] : [])]);
  formDialog({
    title: schedule ? `Change ${schedule.name}` : "New schedule", wide: true, submitLabel: schedule ? "Change it" : "Create it",
    fields: [
      !schedule && { name: "name", type: "text", label: "Name", required: true },
      names.size > 0 ? { name: "workflow", type: "select", label: "Workflow", value: schedule?.workflow, options: [...names].map((value) => ({ value, label: value })) } : { name: "workflow", type: "text", label: "Workflow", required: true },
      { name: "cron", type: "text", label: "Cron expression", value: schedule?.cron, placeholder: "0 2 * * *", hint: "Or an interval, below." },
      { name: "time_zone", type: "text", label: "Time zone", value: schedule?.time_zone, placeholder: "Europe/Vienna" },
      { name: "every_seconds", type: "number", label: "Every so many seconds", min: 1, value: schedule?.every_ms && schedule.every_ms / 1000 },
      { name: "overlap", type: "select", label: "If the last run is live", value: schedule?.overlap ?? "skip", options: Object.entries(OVERLAP).map(([value, label]) => ({ value, label })) },
      { name: "input", type: "json", label: "Input", required: true, value: schedule?.input ?? {}, rows: 6 },
    ].filter(Boolean),
    submit: async ({ name = schedule?.name, every_seconds, ...body }) => {
      if (Boolean(body.cron) === Boolean(every_seconds)) throw new Error("give either a cron expression or an interval");
      if (every_seconds) body.every_ms = Math.round(every_seconds * 1000);
      const kept = schedule && { catch_up_ms: schedule.catch_up_ms, paused: schedule.paused, version: schedule.version, tags: schedule.tags };
      // What was hidden by the server is not written back as it is shown: without an input the old one stays.
      if (schedule && JSON.stringify(body.input) === JSON.stringify(schedule.input)) delete body.input;
      await put(path("schedules", name), { ...kept, ...body });
      toast(schedule ? "The schedule was changed" : "The schedule was created", { detail: name });
      reload();
    },
  });
}
