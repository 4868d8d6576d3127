// Work queues with their items, and limits with who waits for them.

import { get, path, post, queryString } from "./api.js";
import { formDialog } from "./dialog.js";
import { every, h, replace } from "./dom.js";
import { count, duration } from "./format.js";
import { icon } from "./icons.js";
import { jsonTree } from "./json-view.js";
import { actionButton, ago, emptyState, loader, pagedTable, pageHead, table, toolColumn } from "./parts.js";
import { toast } from "./toast.js";
import { word } from "./status.js";

const STATES = ["ready", "delayed", "claimed", "done", "dead"];
const SIGN = { ready: "pending", delayed: "sleeping", claimed: "running", done: "completed", dead: "failed", cancelled: "cancelled" };
const REFRESH_MS = 3000;

export function queuesPage({ params: { queue }, query, signal, onQuery, router }) {
  const list = h("div", {});
  const items = h("section.section", { "aria-label": "Items", hidden: true });
  const limits = h("div", {});
  let shown;
  const reload = loader(list, signal, () => get("/queues", undefined, signal), ({ queues }) => {
    if (queues.length === 0) return emptyState("No queues yet", "A queue comes into being with its first item: ctx.enqueue, or client.enqueue.");
    return table("Queues", ["Queue", ...STATES.map((state) => ({ label: word(state), class: "num" })), "Oldest that is ready"], queues.map((queue) => h("tr", { class: queue.name === shown ? "is-chosen" : "" },
      h("td", {}, h("a.name", { href: `/queues${queryString({ queue: queue.name })}` }, queue.name)),
      STATES.map((state) => h("td.num", {}, queue[state] > 0 ? h("a", { class: state === "dead" ? "dead" : "plain", href: `/queues${queryString({ queue: queue.name, state })}` }, count(queue[state])) : h("span.muted", {}, "0"))),
      h("td", {}, queue.oldest_ready ? ago(queue.oldest_ready) : h("span.muted", {}, "none")))));
  }, "The queues could not be loaded");
  const reloadLimits = loader(limits, signal, () => get("/limits", undefined, signal), showLimits, "The limits could not be loaded");
  every(REFRESH_MS, signal, () => {
    if (list.contains(document.activeElement)) return;
    reload();
    reloadLimits();
  });
  const show = (params) => {
    shown = params.get("queue") ?? queue;
    items.hidden = !shown;
    if (shown) replace(items, itemsOf(shown, params.get("state") ?? "", signal, router, reload));
    reload();
  };
  onQuery(show);
  show(query);
  return h("div.page", {}, pageHead("Queues and limits", { lead: "Durable work that any worker takes, and what is shared sparingly." }),
    list, items, h("section.section", {}, h("h2", {}, "Limits"), limits));
}

function itemsOf(queue, state, signal, router, reloadQueues) {
  const place = h("div", {});
  const fetchPage = (cursor) => get(path("queues", queue, "items"), { state, limit: 50, cursor }, signal);
  const columns = ["State", "Item", "Input", { label: "Priority", class: "num" }, { label: "Attempts", class: "num" }, "Put in", toolColumn()];
  const reload = loader(place, signal, () => fetchPage(), (page) => {
    if (page.items.length === 0) return emptyState(state ? `No item is ${state}` : "The queue is empty");
    return pagedTable(`Items of ${queue}`, columns, page, ({ items }) => items.map((item) => itemRow(queue, item, reloadAll)), fetchPage);
  }, "The items could not be loaded");
  const reloadAll = () => {
    reload();
    reloadQueues();
  };
  return [
    h("div.section-head", {}, h("h2", {}, "Items of ", h("code", {}, queue)), actionButton({ label: "Put in an item", icon: "plus", can: "queues", onclick: () => enqueue(queue, reloadAll) }),
      h("button.quiet.icon-only", { type: "button", "aria-label": "Close the items", onclick: () => router.go("/queues") }, icon("close"))),
    h("div.chips", { role: "group", "aria-label": "Filter by state" }, ["", ...STATES].map((one) => h("button.chip", { type: "button", class: one ? `s-${SIGN[one]}` : "", "aria-pressed": String(one === state), onclick: () => router.go(`/queues${queryString({ queue, state: one })}`) }, one && icon(SIGN[one], 14), one ? word(one) : "All"))),
    place,
  ];
}

function itemRow(queue, item, reload) {
  const can = "queues";
  const act = (action, title, text, label, message, danger) => () => formDialog({ title, danger, submitLabel: label, intro: h("p", {}, text), submit: async () => {
    const answer = await post(path("queues", queue, "items", item.id, action));
    toast(answer?.changed === false ? "Nothing was changed: somebody was quicker" : message);
    reload();
  } });
  return h("tr", {},
    h("td", {}, h("span.badge", { class: `s-${SIGN[item.state] ?? "pending"}` }, icon(SIGN[item.state] ?? "pending", 14), word(item.state)), item.state === "delayed" && h("p.muted", {}, ago(item.at))),
    h("td.mono", {}, item.id, item.dedupe && h("p.muted", {}, item.dedupe)),
    h("td.payload", {}, item.input !== undefined && jsonTree(item.input), item.error && h("p.doing-failure", {}, item.error.message)),
    h("td.num", {}, String(item.priority)), h("td.num", {}, String(item.attempts)), h("td", {}, ago(item.created_at)),
    h("td.tools", {},
      item.state === "dead" && actionButton({ label: "Replay", icon: "retry", can, onclick: act("replay", "Replay this item?", "It becomes ready again, with all of its attempts.", "Replay it", "The item is ready again") }),
      item.state === "dead" && actionButton({ label: "Drop", icon: "trash", can, danger: true, quiet: true, onclick: act("drop", "Drop this item?", "It is removed for good.", "Drop it", "The item was dropped", true) }),
      (item.state === "ready" || item.state === "delayed") && actionButton({ label: "Cancel", icon: "stop", can, quiet: true, danger: true, onclick: act("cancel", "Cancel this item?", "No worker takes it any more. Who waits for it gets an error.", "Cancel it", "The item was cancelled", true) })));
}

function enqueue(queue, reload) {
  formDialog({
    title: `Put an item into ${queue}`, wide: true, submitLabel: "Put it in",
    fields: [
      { name: "input", type: "json", label: "Input", required: true, value: {} },
      { name: "priority", type: "number", label: "Priority", hint: "The higher, the earlier." },
      { name: "delay_seconds", type: "number", label: "Delay in seconds", min: 0 },
      { name: "dedupe", type: "text", label: "Dedupe key" },
    ],
    submit: async ({ delay_seconds, ...body }) => {
      if (delay_seconds) body.delay_ms = Math.round(delay_seconds * 1000);
      await post(path("queues", queue, "items"), body);
      toast("The item was put in", { detail: queue });
      reload();
    },
  });
}

function showLimits({ limits }) {
  if (limits.length === 0) return emptyState("No limit is in use", "Limits appear when a step first asks for one: .limit(..), or ctx.rate_limit(..).");
  return table("Limits", ["Limit", "Allows", "In use", { label: "Waiting", class: "num" }, "Next free"], limits.map((limit) => {
    const most = limit.concurrency ?? limit.rate?.count;
    return h("tr", {},
      h("td", {}, h("span.name", {}, limit.name), " ", limit.key && h("span.key", {}, limit.key)),
      h("td", {}, [limit.concurrency !== undefined && `${count(limit.concurrency)} at a time`, limit.rate && `${count(limit.rate.count)} per ${duration(limit.rate.per_ms)}`].filter(Boolean).join(", ")),
      h("td", {}, h("div.meter", {}, h("span.num", {}, most === undefined ? count(limit.in_use) : `${count(limit.in_use)} of ${count(most)}`), most !== undefined && h("span.meter-track", { "aria-hidden": "true" }, h("span", { class: limit.in_use >= most ? "is-full" : "", style: { width: `${Math.min(100, (limit.in_use / most) * 100)}%` } })))),
      h("td.num", {}, limit.waiting > 0 ? h("strong", {}, count(limit.waiting)) : h("span.muted", {}, "0")),
      h("td", {}, limit.next_free ? ago(limit.next_free) : h("span.muted", {}, limit.in_use < (most ?? Infinity) ? "now" : "when one is given back")));
  }));
}
