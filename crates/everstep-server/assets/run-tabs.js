// The tabs of a run beside its timeline and history: data, messages, streams, why, children, raw.
// Each loads what it shows when it is opened.

import { sendMessage } from "./actions.js";
import { address, get, path } from "./api.js";
import { openDialog } from "./dialog.js";
import { h, inFrame, replace } from "./dom.js";
import { count, plural, shortId } from "./format.js";
import { icon } from "./icons.js";
import { failureBlock } from "./inspector.js";
import { jsonBlock } from "./json-view.js";
import { follow } from "./live.js";
import { actionButton, ago, clockTime, copyButton, elapsed, emptyState, loader, pagedTable, runLink, sentence } from "./parts.js";
import { badge, hasEnded, word } from "./status.js";
import { VirtualList } from "./virtual.js";

/** Input, output, failure and the values that the run shows while it runs. */
export function dataTab(source, signal) {
  const state = h("div", {});
  const top = h("div", {});
  const reload = loader(state, signal, () => get(path("runs", source.run().id, "state"), undefined, signal),
    (data) => (Object.keys(data.state).length > 0 ? jsonBlock("State", data.state, { hint: "set by the run for its clients" }) : h("p.muted.pad", {}, "The run has set no state.")), "The state could not be loaded");
  let shown;
  const show = (run) => {
    reload();
    const next = JSON.stringify([run.status, run.output, run.failure]);
    if (next === shown) return;
    shown = next;
    replace(top, run.failure && failureBlock(run.failure), run.output !== undefined && jsonBlock("Output", run.output), jsonBlock("Input", run.input));
  };
  source.onRun(show, signal);
  show(source.run());
  return h("div.tab-scroll", {}, top, state);
}

/** What was sent and not yet read. */
export function messagesTab(source, signal) {
  const place = h("div", {});
  const reload = loader(place, signal, () => get(path("runs", source.run().id, "messages"), undefined, signal), ({ messages }) => {
    if (messages.length === 0) return emptyState("No message waits to be read", "Those that the run has read are in its history.");
    return h("div.stack", {}, messages.map((message) => h("div.message", {},
      jsonBlock(message.name || word(message.kind), message.body ?? null, { hint: h("span", {}, `${word(message.kind)} ${message.seq}, `, ago(message.sent_at), message.location && [", for ", h("code", {}, message.location)]) }))));
  }, "The messages could not be loaded");
  source.onRun(reload, signal);
  return h("div.tab-scroll", {}, h("div.section-head", {}, h("p.muted", {}, "Unread, oldest first."), actionButton({ label: "Send a message", icon: "send", can: "send", onclick: () => sendMessage(source.run()) })), place);
}

/** Why it is not moving, as a chain of runs. */
export function whyTab(source, signal) {
  const place = h("div", {});
  const reload = loader(place, signal, () => get(path("runs", source.run().id, "why"), undefined, signal), (why) => {
    return h("div.why", {},
      h("p.why-sentence", {}, sentence(why.sentence)),
      why.cycle.length > 0 && h("div.banner.s-failed", { role: "alert" }, icon("warning"), h("div", {}, h("strong", {}, "These runs wait for each other in a circle. "), "Cancel one of them, or send it what it waits for: ", why.cycle.map((id) => [runLink(id), " "]))),
      h("ol.chain", {}, why.chain.map((link, i) => h("li.link-of-chain", { class: i === 0 ? "is-first" : "" },
        h("div.chain-mark", { "aria-hidden": "true" }, String(i + 1)),
        h("div.card.chain-card", {},
          h("p.chain-run", {}, h("strong", {}, link.workflow), " ", link.key && h("span.key", {}, link.key), " ", i === 0 ? h("span.muted", {}, "this run") : runLink(link.run)),
          h("p", {}, sentence(link.sentence)),
          link.waits_for.length > 0 && h("ul.waits", {}, link.waits_for.map(waitsFor)))))));
  }, "It could not be found out");
  source.onRun(reload, signal);
  return h("div.tab-scroll", {}, place);
}

const SIGNS = { body: "running", time: "clock", next_attempt: "retry", message: "letters", answer: "waiting", limit: "filter", run: "link", resume: "paused", runner: "cluster", rollback: "rolling_back" };

function waitsFor(wait) {
  const place = wait.location && [" at ", h("code", {}, wait.location)];
  const until = wait.until && [", until ", clockTime(wait.until), " (", ago(wait.until), ")"];
  const text = {
    body: () => ["A body is running", place, wait.since && [", since ", ago(wait.since)]],
    time: () => ["A time", place, ": ", clockTime(wait.at), " (", ago(wait.at), ")"],
    next_attempt: () => [`Attempt ${wait.attempt}`, place, ", ", ago(wait.at), ". The last one: ", wait.error],
    message: () => ["A message", place, until],
    answer: () => [word(wait.what ?? wait.to ?? "answer"), place, until],
    limit: () => ["A place under the limit ", h("code", {}, wait.key ? `${wait.name} / ${wait.key}` : wait.name), place, wait.turn && [", its turn is ", ago(wait.turn)], wait.holder && [". Longest held by ", runLink(wait.holder)]],
    run: () => ["Run ", runLink(wait.run), place],
    resume: () => ["Somebody who resumes it: ", wait.reason],
    runner: () => ["A runner: ", wait.problem],
    rollback: () => ["Its rollback, after which it is ", word(wait.ending).toLowerCase()],
  }[wait.kind];
  return h("li", {}, icon(SIGNS[wait.kind] ?? "waiting", 14), h("span", {}, text ? text() : wait.text ?? word(wait.kind)));
}

/** The runs that it has started. */
export function childrenTab(source, signal) {
  const place = h("div", {});
  const fetchPage = (cursor) => get(path("runs", source.run().id, "children"), { cursor, limit: 100 }, signal);
  const columns = ["Status", "Run", "Created", { label: "Duration", class: "num" }, "Id"];
  loader(place, signal, () => fetchPage(), (page) => {
    if (page.runs.length === 0) return emptyState("It has started no other runs");
    return pagedTable("Children", columns, page, ({ runs }) => runs.map(childRow), fetchPage);
  }, "The children could not be loaded");
  return h("div.tab-scroll", {}, place);
}

function childRow(run) {
  return h("tr", {}, h("td", {}, badge(run.status)), h("td", {}, h("a.name", { href: `/runs/${encodeURIComponent(run.id)}` }, run.workflow), run.key && h("p.key", {}, run.key)),
    h("td", {}, ago(run.created_at)), h("td.num", {}, elapsed(run.created_at, hasEnded(run) ? run.finished_at ?? run.updated_at : undefined)), h("td.mono", {}, shortId(run.id)));
}

/** The streams of the run; the chosen one is followed. */
export function streamsTab(source, signal) {
  const place = h("div.streams", {});
  loader(place, signal, () => get(path("runs", source.run().id, "streams"), undefined, signal), ({ streams }) => {
    if (streams.length === 0) return emptyState("It has emitted nothing", "What a run or a step gives out with emit appears here, live.");
    const view = h("div.stream-view", {});
    let leave;
    const buttons = streams.map((stream) => h("button.chip", { type: "button", "aria-pressed": "false", onclick: () => open(stream) }, stream.name, h("span.chip-count", {}, count(stream.end - stream.first))));
    function open(stream) {
      leave?.abort();
      leave = new AbortController();
      for (const [i, button] of buttons.entries()) button.setAttribute("aria-pressed", String(streams[i] === stream));
      replace(view, streamView(source.run(), stream, AbortSignal.any([signal, leave.signal])));
    }
    open(streams[0]);
    return [h("div.chips", { role: "group", "aria-label": "Streams" }, buttons), view];
  }, "The streams could not be loaded");
  return place;
}

const TOUCH = matchMedia("(pointer: coarse)");
const STREAM_BACK = 500;
const STREAM_KEPT = 20_000;

function streamView(run, stream, signal) {
  let items = [];
  let stick = true;
  const spacer = h("div.rows", { role: "list" });
  const scroller = h("div.scroller.stream-scroller", { tabindex: "0", role: "region", "aria-label": `Stream ${stream.name}` }, spacer);
  const status = h("span.muted", { role: "status" }, "Loading…");
  const follows = h("input", { type: "checkbox", checked: true, onchange: () => { stick = follows.checked; scrollDown(); } });
  const list = new VirtualList({
    scroller, spacer, signal, rowHeight: () => (TOUCH.matches ? 44 : 32), key: (i) => items[i],
    render: (i) => {
      const item = items[i];
      const text = JSON.stringify(item.value);
      return h("div.stream-item", { role: "listitem" }, h("span.muted.num", {}, String(item.position)), clockTime(item.at),
        h("button.link.stream-value", { type: "button", title: "Show all of it", onclick: () => openDialog(`Item ${item.position} of ${stream.name}`, () => h("div.dialog-body", {}, jsonBlock("Value", item.value), item.by && jsonBlock("By", item.by)), { wide: true }) }, text.length > 300 ? `${text.slice(0, 300)}…` : text));
    },
  });
  const scrollDown = () => stick && items.length > 0 && list.reveal(items.length - 1);
  const draw = () => {
    list.setCount(items.length);
    scrollDown();
  };
  const take = (more) => {
    items.push(...more);
    if (items.length > STREAM_KEPT) items = items.slice(-STREAM_KEPT);
    inFrame(draw);
  };
  scroller.addEventListener("wheel", (event) => {
    if (event.deltaY < 0) follows.checked = stick = false;
  }, { passive: true, signal });

  const where = path("runs", run.id, "streams", stream.name);
  const begin = async () => {
    let from = Math.max(stream.first, stream.end - STREAM_BACK);
    const page = await get(where, { from, limit: STREAM_BACK }, signal);
    take(page.items);
    const next = () => (items.length > 0 ? items.at(-1).position + 1 : from);
    status.textContent = "Following live";
    follow(() => address(`${where}/follow`, { from: next() }), {
      item: (item) => { if (item.position >= next()) take([item]); },
      end: () => {
        status.textContent = "The stream has ended";
        return false;
      },
    }, signal);
  };
  begin().catch((error) => error.name === "AbortError" || replace(status, error.message));
  return [h("div.stream-tools", {}, status, h("label.check", {}, follows, h("span", {}, "Stay at the end")), copyButton(() => items.map((item) => JSON.stringify(item)).join("\n"), "Copy the items as JSON lines")), scroller];
}

/** Everything as JSON, line by line, of which only the visible lines are in the page. */
export function rawTab(source, signal) {
  let lines = [];
  let text = "";
  const spacer = h("div.rows", {});
  const scroller = h("div.scroller.raw", { tabindex: "0", role: "region", "aria-label": "Run and history as JSON" }, spacer);
  const list = new VirtualList({ scroller, spacer, signal, rowHeight: () => 20, key: (i) => lines[i], render: (i) => h("div.raw-line", {}, lines[i]) });
  const status = h("span.muted", { role: "status" });
  const make = () => {
    text = JSON.stringify({ run: source.run(), history: source.history.entries() }, null, 2);
    lines = text.split("\n");
    list.setCount(lines.length);
    replace(status, source.loading() ? "Loading…" : plural(lines.length, "line"));
  };
  const download = () => {
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = h("a", { href: url, download: `run-${source.run().id}.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  };
  source.onChange(() => source.loading() || hasEnded(source.run()) === false && lines.length > 20_000 || make(), signal);
  make();
  return h("div.raw-tab", {}, h("div.stream-tools", {}, status, h("button", { type: "button", onclick: make }, icon("retry"), "Refresh"), h("button", { type: "button", onclick: download }, icon("download"), "Download JSON"), copyButton(() => text, "Copy all as JSON")), scroller);
}

