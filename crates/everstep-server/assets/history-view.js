// The history of a run as rows that open and close, with the chosen entry beside them. The same rows
// carry either the timeline or a table of facts. Follows the arrow keys as a tree does.

import { h, inFrame, replace } from "./dom.js";
import { bytes, count, duration, moment, plural } from "./format.js";
import { isScope, statusOf } from "./history.js";
import { icon } from "./icons.js";
import { inspect } from "./inspector.js";
import { bind } from "./keys.js";
import { openDialog } from "./dialog.js";
import { emptyState } from "./parts.js";
import { hasEnded, word } from "./status.js";
import { Timeline } from "./timeline.js";
import { VirtualList } from "./virtual.js";

const ROW = 30;
const COLUMNS = ["Kind", "Status", "Attempts", "Began", "Took", "Size"];
const NARROW = matchMedia("(max-width: 1099px)");
const TOUCH = matchMedia("(pointer: coarse)");

/**
 * `source` is `{ history, run(), loading(), onChange(work, signal) }`. `mode` is `timeline` or `table`;
 * `chosen` is the location that is chosen at first, and `onChoose(location)` puts it into the address.
 */
export function historyView(source, mode, chosen, onChoose, signal) {
  const { history } = source;
  const timed = mode === "timeline";
  let rows = [];
  let words = "";
  let selected = chosen;
  let current = 0;
  const timeline = new Timeline(history, () => list.refresh(), signal);
  const aside = h("aside.inspector", { "aria-label": "The chosen entry", hidden: true });
  const status = h("p.muted.history-status", { role: "status" });
  const find = h("input", { type: "search", placeholder: "Find a step, kind or status", "aria-label": "Find in the history", oninput: () => {
    words = find.value;
    current = 0;
    rebuild();
  } });
  const spacer = h("div.rows", { role: "rowgroup" });
  const body = h("div.entry-body", { role: "presentation" }, timed && timeline.lines, spacer);
  const lanes = h("div.lanes-head", {}, timed && timeline.axis, timed && timeline.cursor);
  const head = h("div.list-head", { role: "rowgroup" }, h("div.entry.entry-head", { role: "row" },
    h("span", { role: "columnheader" }, "Operation"), timed ? h("span", { role: "columnheader" }, h("span.visually-hidden", {}, "Time"), lanes) : COLUMNS.map((name) => h("span", { role: "columnheader" }, name))));
  const grid = h("div.entries", { role: "treegrid", "aria-label": timed ? "Timeline" : "History", class: timed ? "is-timed" : "is-table", onkeydown: onKey }, head, body);
  const scroller = h("div.scroller", {}, grid);
  const empty = h("div.list-state", { hidden: true }, emptyState("Nothing has happened yet", "Steps appear here as soon as a runner has taken the run up."));
  const list = new VirtualList({
    scroller, spacer, signal, rowHeight: () => (TOUCH.matches ? 44 : ROW),
    render: (i) => row(rows[i], i),
    key: (i) => {
      const node = rows[i];
      const ticking = timed && node.end === undefined ? tick : 0;
      return `${node.location}|${node.revision}|${timed ? timeline.view : 0}|${ticking}|${node.location === selected}|${node.children.length > 0 && history.isOpen(node)}|${i === current}|${node.children.length}`;
    },
  });
  let tick = 0;

  function row(node, i) {
    const { entry } = node;
    const state = statusOf(node);
    const parent = node.children.length > 0 && !words;
    return h("div.entry", {
      role: "row", tabindex: i === current ? "0" : "-1", "aria-level": node.depth + 1, "aria-rowindex": i + 2, "aria-expanded": parent ? String(history.isOpen(node)) : undefined,
      "aria-selected": String(node.location === selected), dataset: { location: node.location },
      onclick: (event) => {
        if (event.target.closest("a")) return;
        current = i;
        if (event.target.closest(".twist")) toggle(node);
        else choose(node);
      },
      ondblclick: () => timed && timeline.zoomTo(node.start, node.end ?? Date.now()),
    },
      h("span.entry-name", { role: "gridcell", title: node.location, style: { "padding-left": `${(words ? 0 : node.depth) * 16}px` } },
        parent ? h("span.twist", {}, icon(history.isOpen(node) ? "down" : "right", 12)) : h("span.twist", {}),
        h("span.entry-sign", { class: `s-${state}` }, icon(entry ? state : "branch", 13), h("span.visually-hidden", {}, word(state))),
        h("span.entry-text", { class: isScope(node) ? "is-scope" : "" }, words ? node.location : node.name),
        parent && !history.isOpen(node) && h("span.entry-count", {}, count(node.children.length)),
        entry?.child && h("a.entry-child", { href: `/runs/${encodeURIComponent(entry.child)}`, title: "Open the child run", tabindex: "-1" }, icon("link", 12), h("span.visually-hidden", {}, "Open the child run"))),
      timed ? h("span.entry-lane", { role: "gridcell" }, timeline.lane(node, Date.now()), h("span.visually-hidden", {}, describe(node))) : cells(node, state));
  }

  function cells(node, state) {
    const { entry } = node;
    const took = node.end === undefined ? Date.now() - node.start : node.end - node.start;
    const texts = [entry ? word(entry.kind) : "Branch", word(state), entry?.attempts > 1 ? String(entry.attempts) : "", moment(node.start), duration(took), entry ? bytes(entry.size) : ""];
    return texts.map((text, i) => h("span", { role: "gridcell", class: i === 1 ? `s-${state} entry-state` : "" }, text));
  }

  const describe = (node) => `${node.entry ? word(node.entry.kind) : "Branch"}, from ${moment(node.start)}, ${node.end === undefined ? "not ended" : duration(node.end - node.start)}`;

  function toggle(node, open = !history.isOpen(node)) {
    history.setOpen(node, open);
    rebuild({ keep: true });
  }

  function choose(node, { quietly = false } = {}) {
    selected = node.location;
    current = Math.max(0, rows.indexOf(node));
    list.refresh();
    if (!quietly) onChoose(selected);
    showChosen(!quietly);
  }

  function showChosen(byHand) {
    const node = selected && history.get(selected);
    if (NARROW.matches) {
      aside.hidden = true;
      if (node && byHand) openDialog("Entry", () => h("div.dialog-body", {}, inspect(node, source.run)), { wide: true, sheet: true });
      return;
    }
    aside.hidden = !node;
    if (!node || aside.dataset.shown === `${selected}|${node.revision}`) return;
    aside.dataset.shown = `${selected}|${node.revision}`;
    const scrolled = aside.dataset.of === selected ? aside.scrollTop : 0;
    aside.dataset.of = selected;
    replace(aside, h("button.quiet.icon-only.inspector-close", { type: "button", "aria-label": "Close the entry", onclick: closeChosen }, icon("close")), inspect(node, source.run));
    aside.scrollTop = scrolled;
  }

  function closeChosen() {
    const hadFocus = aside.contains(document.activeElement);
    selected = undefined;
    aside.hidden = true;
    delete aside.dataset.shown;
    onChoose(undefined);
    list.refresh();
    if (hadFocus) move(current);
  }

  function rebuild({ keep = false } = {}) {
    const was = keep ? rows[current]?.location : undefined;
    rows = history.rows(words);
    if (was) current = Math.max(0, rows.findIndex(({ location }) => location === was));
    current = Math.min(current, Math.max(0, rows.length - 1));
    empty.hidden = rows.length > 0 || history.size > 0 || source.loading();
    scroller.hidden = !empty.hidden;
    grid.setAttribute("aria-rowcount", String(rows.length + 1));
    list.setCount(rows.length);
    const found = words ? `${plural(rows.length, "match", "matches")} in ` : "";
    replace(status, source.loading() ? `Loading, ${count(history.size)} so far…` : `${found}${plural(history.size, "entry", "entries")}`);
    if (timed) range();
  }

  function range() {
    const run = source.run();
    const start = Math.min(history.from, Date.parse(run.created_at));
    const end = hasEnded(run) ? Math.max(history.to, Date.parse(run.finished_at ?? run.updated_at)) : Date.now();
    timeline.setRange(start, end);
    timeline.drawOverview();
  }

  function onKey(event) {
    const node = rows[current];
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(scroller.clientHeight / ROW) - 2);
    const to = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: rows.length - 1 }[event.key];
    if (to !== undefined) move(to);
    else if (event.key === "ArrowRight") node.children.length > 0 && !history.isOpen(node) ? toggle(node, true) : move(current + 1);
    else if (event.key === "ArrowLeft") {
      if (node.children.length > 0 && history.isOpen(node) && !words) toggle(node, false);
      else move(rows.findIndex(({ location }) => location === node.location.slice(0, node.location.lastIndexOf("/"))));
    } else if (event.key === "Enter" || event.key === " ") choose(node);
    else return;
    event.preventDefault();
  }

  function move(to) {
    if (rows.length === 0 || (to < 0 && current === 0)) return;
    current = Math.min(rows.length - 1, Math.max(0, to));
    list.reveal(current, (node) => node?.focus({ preventScroll: true }));
  }

  let first = true;
  const changed = () => inFrame(onHistory);
  function onHistory() {
    if (signal.aborted) return;
    rebuild({ keep: true });
    if (first && !source.loading() && history.size > 0) {
      first = false;
      const wanted = selected ?? (NARROW.matches ? undefined : history.interesting());
      if (wanted && history.get(wanted)) {
        history.openTo(wanted);
        rebuild();
        choose(history.get(wanted), { quietly: true });
        list.reveal(current);
      }
    }
    showChosen(false);
  }

  bind("j", "Next entry", () => move(document.activeElement.closest?.(".entry") ? current + 1 : current), signal);
  bind("k", "Entry before", () => move(Math.max(0, current - 1)), signal);
  bind("Enter", "Show the entry", () => false, signal);
  bind("Escape", undefined, () => (aside.hidden ? false : closeChosen()), signal);
  if (timed) {
    bind("+", "Zoom in", () => timeline.zoom(0.5), signal);
    bind("-", "Zoom out", () => timeline.zoom(2), signal);
    bind("0", "Fit the timeline", () => timeline.fit(), signal);
    bind("h", "Earlier", () => timeline.pan(-0.25), signal);
    bind("l", "Later", () => timeline.pan(0.25), signal);
    timeline.track(scroller, lanes, signal);
  }
  const timer = setInterval(() => {
    if (document.hidden || hasEnded(source.run())) return;
    tick += 1;
    if (timed) range();
    else list.refresh();
  }, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  source.onChange(changed, signal);
  queueMicrotask(changed);

  const fold = h("div.zoom", { role: "group", "aria-label": "Branches" },
    h("button.quiet.small", { type: "button", onclick: () => { history.setAllOpen(true); rebuild({ keep: true }); } }, "Open all"),
    h("button.quiet.small", { type: "button", onclick: () => { history.setAllOpen(false); rebuild({ keep: true }); } }, "Close all"));
  return h("div.history-view", {},
    h("div.history-main", {},
      h("div.history-tools", {}, h("div.search", {}, icon("search"), find), status, fold, timed && timeline.tools),
      timed && timeline.overview, empty, scroller),
    aside);
}
