// The list of runs. The address holds the filters; counts and visible rows follow the server's events.
// New runs do not push the list away under the reader: a pill says how many there are.

import { startRun } from "./actions.js";
import { address, get, path } from "./api.js";
import { bulkAction } from "./bulk.js";
import { formDialog } from "./dialog.js";
import { every, h, paced, replace, setText, settled } from "./dom.js";
import { conditions, isEmpty, readFilter, toAddress, toQuery } from "./filters.js";
import { count, plural, shortId } from "./format.js";
import { icon } from "./icons.js";
import { bind } from "./keys.js";
import { follow } from "./live.js";
import { actionButton, ago, elapsed, emptyState, errorState, menuButton, sentence, skeleton } from "./parts.js";
import { badge, hasEnded, STATUSES, word } from "./status.js";
import { VirtualList } from "./virtual.js";

const FIRST_PAGE = 100;
const NEXT_PAGE = 500;
const REFRESH_MS = 700;
const COUNT_MS = 1000;
const LIVE_ROWS_MS = 5000;
const SAY_MS = 20_000;
const NARROW = matchMedia("(max-width: 719px)");

export function runsPage({ query, signal, router, onQuery }) {
  let filter = readFilter(query);
  const go = (next) => router.go(toAddress(next));
  const search = searchBox(filter, (q) => go({ ...filter, q }));
  const chips = statusChips((status) => go({ ...filter, status }), signal);
  const bar = h("div.filter-bar", {});
  const runs = runList(signal, router, (next) => go(next));
  let updates;

  const apply = () => {
    search.show(filter);
    chips.show(filter);
    replace(bar, conditions(filter).map(({ text, without }) => h("button.condition", { type: "button", "aria-label": `Remove the filter ${text}`, onclick: () => go(without) }, h("span", {}, text), icon("close", 12))),
      !isEmpty(filter) && h("button.link", { type: "button", onclick: () => go(readFilter(new URLSearchParams())) }, "Clear all"));
    runs.load(filter);
    updates?.abort();
    updates = new AbortController();
    // The counts of the other statuses are wanted, too, so they are asked for without the status.
    const counted = filter.status.length === 0 ? chips.counts : paced(COUNT_MS, signal, loadCounts);
    follow(() => address("/runs/updates", toQuery(filter)), { counts: counted, changed: ({ ids }) => runs.changed(ids), reopened: runs.reopened }, AbortSignal.any([signal, updates.signal]));
    loadCounts().catch(() => undefined);
  };
  const loadCounts = async () => chips.counts(await get("/runs/counts", { ...toQuery(filter), status: undefined }, signal));
  onQuery((params) => {
    filter = readFilter(params);
    apply();
  });
  apply();
  bind("f", "More filters", () => moreFilters(filter, go), signal);

  return h("div.page.page-fills", {},
    h("header.page-head", {}, h("h1", {}, "Runs"), h("div.actions", {},
      menuButton("Change many", "check", Object.entries({ retry: ["Retry all that match", "retry"], resume: ["Resume all that match", "play"], pause: ["Pause all that match", "pause"], cancel: ["Cancel all that match", "stop"], cancel_with_rollback: ["Cancel and roll back all", "rolling_back"], delete: ["Delete all that match", "trash"] })
        .map(([action, [label, sign]]) => ({ label, icon: sign, can: "bulk", danger: action === "delete", onclick: () => bulkAction(filter, action) }))),
      actionButton({ label: "Start a run", icon: "plus", can: "start", primary: true, id: "start-run", onclick: () => startRun({ workflow: filter.workflow }) }))),
    h("div.list-tools", {}, search.node, workflowSelect(() => filter, go, signal, onQuery), h("button", { type: "button", onclick: () => moreFilters(filter, go) }, icon("filter"), h("span", {}, "More filters"))),
    chips.node, bar, runs.node);
}

function searchBox(filter, onSearch) {
  const input = h("input#search", { type: "search", placeholder: "Run id or its last digits, beginning of a key, or tag:value", "aria-label": "Search runs by id, key or tag", autocomplete: "off", spellcheck: "false", value: filter.q ?? "" });
  const later = settled(300, () => onSearch(input.value.trim() || undefined));
  input.addEventListener("input", later);
  input.addEventListener("keydown", (event) => event.key === "Escape" && input.blur());
  return {
    node: h("form.search", { role: "search", onsubmit: (event) => { event.preventDefault(); onSearch(input.value.trim() || undefined); } }, icon("search"), input, h("kbd", { "aria-hidden": "true" }, "/")),
    show: ({ q }) => document.activeElement === input || (input.value = q ?? ""),
  };
}

function workflowSelect(current, go, signal) {
  const select = h("select", { "aria-label": "Workflow", onchange: () => go({ ...current(), workflow: select.value || undefined }) }, h("option", { value: "" }, "All workflows"));
  get("/workflows", undefined, signal).then(({ workflows }) => {
    const names = new Set(workflows.map(({ name }) => name));
    if (current().workflow) names.add(current().workflow);
    select.append(...[...names].sort().map((name) => h("option", { value: name }, name)));
    select.value = current().workflow ?? "";
  }, () => undefined);
  addEventListener("popstate", () => (select.value = current().workflow ?? ""), { signal });
  return select;
}

function statusChips(onChoose, signal) {
  let chosen = [];
  const chips = new Map();
  const chip = (status, label) => {
    const number = h("span.chip-count", {}, "");
    const node = h("button.chip", { type: "button", class: status ? `s-${status}` : "", "aria-pressed": "false", onclick: (event) => {
      if (!status) return onChoose([]);
      // With Shift or Ctrl a status is added to those that are chosen.
      if (!event.shiftKey && !event.ctrlKey && !event.metaKey) return onChoose(chosen.length === 1 && chosen[0] === status ? [] : [status]);
      return onChoose(chosen.includes(status) ? chosen.filter((one) => one !== status) : [...chosen, status]);
    } }, h("span.chip-name", {}, status && icon(status, 14), label), number);
    chips.set(status, { node, number });
    return node;
  };
  const node = h("div.chips.tiles", { role: "group", "aria-label": "Filter by status" }, chip("", "All"), STATUSES.map((status) => chip(status, word(status))));
  return {
    node,
    show: ({ status }) => {
      chosen = status;
      for (const [name, { node: one }] of chips) one.setAttribute("aria-pressed", String(name ? status.includes(name) : status.length === 0));
    },
    counts: ({ counts, total }) => {
      if (signal.aborted) return;
      for (const [name, { node: one, number }] of chips) {
        const n = name ? counts[name] ?? 0 : total;
        setText(number, count(n));
        one.title = `${count(n)} ${n === 1 ? "run" : "runs"}`;
        one.classList.toggle("is-zero", n === 0);
      }
    },
  };
}

function moreFilters(filter, go) {
  formDialog({
    title: "More filters", submitLabel: "Show the runs",
    fields: [
      { name: "key_prefix", type: "text", label: "Key begins with", value: filter.key_prefix },
      { name: "version", type: "number", label: "Version", min: 0, value: filter.version },
      { name: "tag", type: "text", label: "Tags", value: filter.tag.join(" "), placeholder: "customer:ada region:eu", hint: "name:value, separated by spaces. A run must have all of them." },
      { name: "created_from", type: "time", label: "Created from", value: filter.created_from },
      { name: "created_before", type: "time", label: "Created before", value: filter.created_before },
      { name: "finished_from", type: "time", label: "Ended from", value: filter.finished_from },
      { name: "finished_before", type: "time", label: "Ended before", value: filter.finished_before },
    ],
    submit: async (values) => go({ status: filter.status, workflow: filter.workflow, q: filter.q, ...values, tag: values.tag?.trim().split(/\s+/) ?? [] }),
  });
}

let byIds = true;

/** These runs as they are now. A server that cannot give several by their ids is asked one by one. */
async function runsById(ids, signal) {
  if (byIds) {
    try {
      return (await get("/runs", { ids: ids.join(","), limit: 100 }, signal)).runs;
    } catch (error) {
      if (error.status !== 400) throw error;
      byIds = false;
    }
  }
  const asked = await Promise.allSettled(ids.slice(0, 40).map((id) => get(path("runs", id), undefined, signal)));
  return asked.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
}

/** The rows: loaded page by page, of which only the visible ones are in the document. */
function runList(signal, router, go) {
  let filter;
  let rows = [];
  let index = new Map();
  let next;
  let loading;
  let problem;
  let current = -1;
  let fresh = [];
  let visible = [0, 0];
  let load = new AbortController();
  let stale = true;

  const pill = h("button.pill", { type: "button", hidden: true, onclick: () => reload() });
  // Screen readers are told of new runs now and then, not at every one.
  const said = h("span.visually-hidden", { role: "status" });
  let saidAt = 0;
  const live = h("div.pill-wrap", {}, pill, said);
  const spacer = h("div.rows", { role: "rowgroup" });
  const foot = h("div.list-foot", { role: "status" });
  const head = h("div.list-head", { role: "rowgroup" }, h("div.row.row-head", { role: "row" }, ["Status", "Workflow and key", "What it is doing", "Created", "Duration", "Run"].map((name) => h("span", { role: "columnheader" }, name))));
  const grid = h("div.run-grid", { role: "table", "aria-label": "Runs" }, head, spacer);
  const scroller = h("div.scroller", { tabindex: "-1" }, grid, foot);
  const state = h("div.list-state", { hidden: true });
  const list = new VirtualList({
    scroller, spacer, signal,
    rowHeight: () => (NARROW.matches ? 84 : 44),
    render: (i) => row(rows[i], i),
    key: (i) => rows[i],
    onRange: (first, last) => {
      visible = [first, last];
      if (last >= rows.length - 20 && next && !loading && !problem) loadMore();
    },
  });

  function row(run, i) {
    const ended = hasEnded(run);
    const open = `/runs/${encodeURIComponent(run.id)}`;
    return h("div.row", { role: "row", "aria-rowindex": i + 2, dataset: { id: run.id }, onclick: (event) => {
      if (event.target.closest("a, button") || getSelection().toString()) return;
      router.go(open);
    } },
      h("span.c-status", { role: "cell" }, badge(run.status)),
      h("span.c-name", { role: "cell" }, h("a", { href: open, onfocus: () => (current = i) }, h("span.workflow", {}, run.workflow), run.key && h("span.key", {}, run.key))),
      h("span.c-doing", { role: "cell" }, doing(run)),
      h("span.c-created", { role: "cell" }, ago(run.created_at)),
      h("span.c-duration", { role: "cell" }, elapsed(run.created_at, ended ? run.finished_at ?? run.updated_at : undefined)),
      h("span.c-id.mono", { role: "cell", title: run.id }, shortId(run.id)));
  }

  function doing(run) {
    if (run.failure) return h("span.doing-failure", { title: run.failure.message }, run.failure.message);
    if (run.waiting && !hasEnded(run)) return h("span.doing-wait", { title: run.waiting }, sentence(run.waiting, { brief: true }));
    if (run.status === "pending" && run.available_at && Date.parse(run.available_at) > Date.now()) return h("span.doing-wait", {}, "starts ", ago(run.available_at));
    return h("span.tags", {}, run.tags.slice(0, 3).map(({ name, value }) => h("span.tag", { title: `${name}: ${value}` }, h("span.tag-name", {}, name), value)));
  }

  async function loadMore() {
    loading = true;
    problem = undefined;
    const mine = load.signal;
    replace(foot, h("span.muted", {}, "Loading more…"));
    try {
      const page = await get("/runs", { ...toQuery(filter), limit: stale ? FIRST_PAGE : NEXT_PAGE, cursor: next }, mine);
      if (mine.aborted) return;
      if (stale) clear();
      for (const run of page.runs) {
        if (index.has(run.id)) continue;
        index.set(run.id, rows.length);
        rows.push(run);
      }
      next = page.next;
      showState();
      replace(foot, rows.length > 0 && !next && h("span.muted", {}, rows.length === 1 ? "1 run, and no more" : `${count(rows.length)} runs, and no more`));
    } catch (error) {
      if (error.name === "AbortError" || mine.aborted) return;
      problem = error;
      if (stale) clear();
      if (rows.length === 0) showState();
      else replace(foot, h("span", { role: "alert" }, `${error.message}. `), h("button.link", { type: "button", onclick: loadMore }, "Try again"));
    } finally {
      if (!mine.aborted) loading = false;
    }
    list.setCount(rows.length);
    grid.setAttribute("aria-rowcount", String(next ? -1 : rows.length + 1));
  }

  function showState() {
    const empty = rows.length === 0;
    state.hidden = !empty;
    scroller.hidden = empty;
    if (!empty) return;
    if (problem) replace(state, errorState("The runs could not be loaded", problem, reload));
    else if (stale) replace(state, skeleton(10));
    else if (isEmpty(filter)) replace(state, emptyState("No runs yet", "Start one here, from your program, or with the command everstep start.", actionButton({ label: "Start a run", icon: "plus", can: "start", primary: true, onclick: () => startRun() })));
    else replace(state, emptyState("No run matches", "Remove a filter, or search for the beginning of a key, a whole run id, or a tag as name:value.", h("button", { type: "button", onclick: () => go(readFilter(new URLSearchParams())) }, "Clear all filters")));
  }

  async function reload() {
    load.abort();
    load = new AbortController();
    signal.addEventListener("abort", () => load.abort(), { once: true });
    next = undefined;
    problem = undefined;
    loading = true;
    stale = true;
    setFresh([]);
    grid.classList.add("is-stale");
    if (rows.length === 0) showState();
    await loadMore();
  }

  // What was there stays, greyed, until the first page of the new list has come.
  function clear() {
    stale = false;
    rows = [];
    index = new Map();
    current = -1;
    scroller.scrollTop = 0;
    grid.classList.remove("is-stale");
    list.setCount(0);
  }

  function setFresh(runs, more = false) {
    fresh = runs;
    pill.hidden = fresh.length === 0;
    if (fresh.length === 0) return;
    const text = `${more ? "more than " : ""}${plural(fresh.length, "new run")}`;
    replace(pill, icon("up", 14), text);
    if (Date.now() - saidAt < SAY_MS) return;
    saidAt = Date.now();
    setText(said, text);
  }

  // Looks which of the runs that have come match the filter, rather than trusting their ids.
  const countFresh = paced(1500, signal, async () => {
    const page = await get("/runs", { ...toQuery(filter), limit: FIRST_PAGE }, load.signal);
    const newest = rows[0]?.id ?? "";
    const found = page.runs.filter(({ id }) => id > newest && !index.has(id));
    if (rows.length === 0 && found.length > 0) return reload();
    setFresh(found, found.length === page.runs.length && Boolean(page.next));
  });

  const waiting = new Set();
  const refreshVisible = paced(REFRESH_MS, signal, async () => {
    const [first, last] = visible;
    const ids = rows.slice(first, last).map(({ id }) => id).filter((id) => waiting.has(id));
    waiting.clear();
    if (ids.length === 0) return;
    for (const run of await runsById(ids.slice(0, 100), load.signal)) if (index.has(run.id)) rows[index.get(run.id)] = run;
    list.refresh();
  });

  // Events name the newest runs; those that are live further down are looked at now and then.
  every(LIVE_ROWS_MS, signal, () => {
    for (const run of rows.slice(...visible)) if (!hasEnded(run)) waiting.add(run.id);
    if (waiting.size > 0) refreshVisible();
  });

  function move(step) {
    if (rows.length === 0) return;
    current = Math.min(rows.length - 1, Math.max(0, current < 0 ? (step > 0 ? 0 : 0) : current + step));
    list.reveal(current, (node) => node?.querySelector("a").focus({ preventScroll: true }));
  }
  bind("j", "Next run", () => move(1), signal);
  bind("k", "Run before", () => move(-1), signal);
  bind("Enter", "Open the run", () => false, signal);
  bind("u", "Show new runs", () => fresh.length > 0 && reload(), signal);
  NARROW.addEventListener("change", () => list.reset(), { signal });

  return {
    node: h("div.list", {}, live, state, scroller),
    load: (wanted) => {
      filter = wanted;
      reload();
    },
    changed: (ids) => {
      const newest = rows[0]?.id ?? "";
      let hasNew = false;
      for (const id of ids) {
        if (index.has(id)) waiting.add(id);
        else if (id > newest) hasNew = true;
      }
      if (waiting.size > 0) refreshVisible();
      if (hasNew && !loading) countFresh();
    },
    reopened: () => {
      for (const { id } of rows.slice(...visible)) waiting.add(id);
      refreshVisible();
      countFresh();
    },
  };
}
