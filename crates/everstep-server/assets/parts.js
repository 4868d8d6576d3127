// The small parts that all pages are made of: times, copy buttons, empty and error states, menus,
// tabs, action buttons. They show what they are given and know nothing of runs or addresses.

import { freshId, h, replace, setText } from "./dom.js";
import { at, duration, moment, pieces, precisely, relative, shortId } from "./format.js";
import { icon } from "./icons.js";
import { refusal } from "./session.js";
import { toast, toastProblem } from "./toast.js";

/** `3 s ago`, kept current by `tickTimes`; the whole time is in the tooltip. */
export function ago(text) {
  if (!text) return h("span.muted", {}, "–");
  return h("time.ago", { datetime: text, title: precisely(at(text)) }, relative(at(text)));
}

/** `14:02:11`, with the whole time in the tooltip. */
export function clockTime(text) {
  if (!text) return h("span.muted", {}, "–");
  return h("time", { datetime: text, title: precisely(at(text)) }, moment(at(text)));
}

/** How long something has been going on, kept current; or how long it took. */
export function elapsed(from, to) {
  if (to) return h("span.num", {}, duration(at(to) - at(from)));
  return h("span.num.elapsed", { dataset: { since: from } }, duration(Date.now() - at(from)));
}

/** Brings all relative times in the page up to date. */
export function tickTimes() {
  const now = Date.now();
  for (const node of document.querySelectorAll(".elapsed")) setText(node, duration(Math.floor((now - at(node.dataset.since)) / 1000) * 1000));
  for (const node of document.querySelectorAll("time.ago")) setText(node, relative(at(node.dateTime), now));
}

/** A sentence of the engine, with its names as code and its times made readable. */
export function sentence(text, { brief = false } = {}) {
  return pieces(text).map((piece) => {
    if (piece.code !== undefined) return h("code", {}, piece.code);
    if (piece.run) return brief ? shortId(piece.run) : runLink(piece.run);
    if (piece.time) return brief ? clockTime(piece.time) : [clockTime(piece.time), " (", ago(piece.time), ")"];
    return piece.text;
  });
}

export function copyButton(text, label = "Copy") {
  const button = h("button.quiet.icon-only.copy", { type: "button", "aria-label": label, title: label, onclick: async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      replace(button, icon("check"));
      toast("Copied", { kind: "info" });
      setTimeout(() => replace(button, icon("copy")), 1500);
    } catch {
      toast("The browser does not allow copying", { kind: "problem", detail: "It may only be allowed on https or localhost" });
    }
  } }, icon("copy"));
  return button;
}

/** An id that can be copied; links to the run unless told otherwise. */
export function runLink(id, text) {
  return h("a", { class: text ? "" : "mono", href: `/runs/${encodeURIComponent(id)}`, title: id }, text ?? shortId(id));
}

/** A button for a change. Where the session may not do it, it says why instead of doing it. */
export function actionButton({ label, icon: sign, can, reason, danger, primary, quiet, iconOnly, onclick, id }) {
  const why = refusal(can) ?? reason;
  const describedBy = why && freshId("why");
  return h("button", {
    type: "button", id, class: [danger && "danger", primary && "primary", quiet && "quiet", iconOnly && "icon-only"].filter(Boolean).join(" "),
    "aria-disabled": why ? "true" : undefined, "aria-describedby": describedBy, title: why ?? (iconOnly ? label : undefined),
    "aria-label": iconOnly ? label : undefined,
    onclick: (event) => (why ? toast("That is not possible now", { kind: "info", detail: why }) : onclick(event)),
  }, sign && icon(sign), !iconOnly && h("span", {}, label), why && h("span.visually-hidden", { id: describedBy }, why));
}

/** A button that opens a menu of actions: `[{ label, icon, can, reason, danger, onclick } | "line"]`. */
export function menuButton(label, sign, items, { iconOnly = false } = {}) {
  const id = freshId("menu");
  const menu = h("div.menu", { role: "menu", id, "aria-label": label, hidden: true }, items.filter(Boolean).map((item) => {
    if (item === "line") return h("hr", { role: "separator" });
    const why = refusal(item.can) ?? item.reason;
    return h("button", {
      type: "button", role: "menuitem", tabindex: "-1", class: item.danger ? "danger" : "", "aria-disabled": why ? "true" : undefined,
      onclick: () => {
        close();
        if (why) toast("That is not possible now", { kind: "info", detail: why });
        else item.onclick();
      },
    }, icon(item.icon), h("span", {}, item.label, why && h("small", {}, why)));
  }));
  const button = h("button", {
    type: "button", class: iconOnly ? "icon-only" : "", "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id,
    "aria-label": iconOnly ? label : undefined, title: iconOnly ? label : undefined, onclick: () => (menu.hidden ? open() : close()),
  }, icon(sign), !iconOnly && h("span", {}, label), !iconOnly && icon("down", 12));
  const wrap = h("div.menu-wrap", { onkeydown: onKey, onfocusout: (event) => wrap.contains(event.relatedTarget) || close(false) }, button, menu);
  const outside = (event) => wrap.contains(event.target) || close(false);

  function open() {
    menu.hidden = false;
    button.setAttribute("aria-expanded", "true");
    menu.querySelector("[role=menuitem]").focus();
    document.addEventListener("pointerdown", outside);
  }
  function close(refocus = true) {
    if (menu.hidden) return;
    menu.hidden = true;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    if (refocus) button.focus();
  }
  function onKey(event) {
    if (menu.hidden) return;
    const all = [...menu.querySelectorAll("[role=menuitem]")];
    const i = all.indexOf(document.activeElement);
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) all[(i + move + all.length) % all.length].focus();
    else if (event.key === "Home") all[0].focus();
    else if (event.key === "End") all.at(-1).focus();
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  return wrap;
}

/**
 * Tabs by the pattern of ARIA. `tabs` are `{ id, label, count?, panel(signal) }`; a panel is made when
 * it is first shown and thrown away when another is. `onChange(id)` puts it into the address.
 */
export function tabs(list, label, chosen, onChange, signal) {
  const panel = h("div.tab-panel", { role: "tabpanel", tabindex: "-1" });
  const buttons = new Map();
  let leave;
  const bar = h("div.tabs", { role: "tablist", "aria-label": label, onkeydown: onKey }, list.map((tab) => {
    const button = h("button", { type: "button", role: "tab", id: `tab-${tab.id}`, "aria-controls": "tab-panel", onclick: () => show(tab.id) }, tab.label, h("span.tab-count", {}));
    buttons.set(tab.id, button);
    return button;
  }));
  panel.id = "tab-panel";
  signal.addEventListener("abort", () => leave?.abort());

  function show(id, { quietly = false } = {}) {
    const tab = list.find((one) => one.id === id) ?? list[0];
    leave?.abort();
    leave = new AbortController();
    for (const [name, button] of buttons) {
      button.setAttribute("aria-selected", String(name === tab.id));
      button.tabIndex = name === tab.id ? 0 : -1;
    }
    buttons.get(tab.id).scrollIntoView?.({ block: "nearest", inline: "nearest" });
    panel.setAttribute("aria-labelledby", `tab-${tab.id}`);
    replace(panel, tab.panel(leave.signal));
    if (!quietly) onChange(tab.id);
  }
  function onKey(event) {
    const names = [...buttons.keys()];
    const i = names.findIndex((name) => buttons.get(name) === document.activeElement);
    const to = { ArrowRight: (i + 1) % names.length, ArrowLeft: (i - 1 + names.length) % names.length, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined || i < 0) return;
    event.preventDefault();
    show(names[to]);
    buttons.get(names[to]).focus();
  }
  const setCount = (id, n) => setText(buttons.get(id).querySelector(".tab-count"), n ? String(n) : "");
  queueMicrotask(() => show(chosen, { quietly: true }));
  return { bar, panel, show, setCount };
}

/** Nothing is here, and what to do about it. */
export function emptyState(title, text, ...actions) {
  return h("div.state", {}, h("div.state-mark", {}, icon("info", 22)), h("h2", {}, title), text && h("p", {}, text), actions.length > 0 && h("div.state-actions", {}, actions));
}

/** Something went wrong, and what to do about it. */
export function errorState(title, error, retry) {
  return h("div.state.state-problem", { role: "alert" }, h("div.state-mark", {}, icon("warning", 22)), h("h2", {}, title),
    h("p", {}, error.message), error.hint && h("p.muted", {}, error.hint),
    retry && h("div.state-actions", {}, h("button", { type: "button", onclick: retry }, icon("retry"), "Try again")));
}

/** Grey bars while something is loaded. */
export function skeleton(rows = 6) {
  return h("div.skeleton", { role: "status", "aria-label": "Loading" }, Array.from({ length: rows }, () => h("div", {})));
}

/** The head of a page. */
export function pageHead(title, { lead, actions = [] } = {}) {
  return h("header.page-head", {}, h("div", {}, h("h1", {}, title), lead && h("p.lead", {}, lead)), h("div.actions", {}, actions));
}

/** A term and what it is. */
export const fact = (name, ...value) => h("div.fact", {}, h("dt", {}, name), h("dd", {}, value));

/**
 * Loads something into `place` and shows a skeleton, the result or the error. `load(signal)` gives
 * data, `show(data)` an element. Returns a function that loads again, quietly.
 */
export function loader(place, signal, load, show, title) {
  let current = 0;
  const run = async () => {
    const mine = (current += 1);
    try {
      const data = await load(signal);
      if (mine === current && !signal.aborted) replace(place, show(data));
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted || mine !== current) return;
      replace(place, errorState(title, error, () => {
        replace(place, skeleton());
        run();
      }));
    }
  };
  replace(place, skeleton());
  run();
  return run;
}

/** A table with a caption for screen readers that scrolls sideways where it must. */
export function table(caption, columns, rows) {
  return h("div.table-wrap", { tabindex: "0", role: "region", "aria-label": caption }, h("table", {},
    h("caption.visually-hidden", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.class }, column.label ?? column)))),
    rows instanceof Element ? rows : h("tbody", {}, rows)));
}

/** A table of which more is loaded on demand: `rowsOf(page)` gives rows, `fetchPage(cursor)` the next page. */
export function pagedTable(caption, columns, first, rowsOf, fetchPage) {
  const body = h("tbody", {});
  const more = h("div.load-more", {});
  const add = (page) => {
    body.append(...rowsOf(page));
    replace(more, page.next && h("button", { type: "button", onclick: () => load(page.next) }, "Load more"));
  };
  const load = async (cursor) => {
    try {
      add(await fetchPage(cursor));
    } catch (error) {
      toastProblem("The rest could not be loaded", error);
    }
  };
  add(first);
  return [table(caption, columns, body), more];
}

/** The head of a column that holds buttons. */
export const toolColumn = () => ({ label: h("span.visually-hidden", {}, "Actions") });
