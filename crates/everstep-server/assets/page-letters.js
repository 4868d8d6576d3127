// Dead letters: messages that no run will read. Each can be sent again or dropped.

import { get, path, post, queryString, remove } from "./api.js";
import { formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { jsonTree } from "./json-view.js";
import { actionButton, ago, emptyState, loader, pagedTable, pageHead, runLink, toolColumn } from "./parts.js";
import { badge } from "./status.js";
import { toast } from "./toast.js";

const PAGE = 50;

export function lettersPage({ query, signal, router, onQuery }) {
  const place = h("div", {});
  const name = h("input", { type: "search", "aria-label": "Name of the message", placeholder: "Name of the message" });
  const run = h("input", { type: "search", "aria-label": "Run id", placeholder: "Run id" });
  let filter = {};
  const fetchPage = (cursor) => get("/dead-letters", { ...filter, limit: PAGE, cursor }, signal);
  let reload;
  const show = (params) => {
    filter = { name: params.get("name") ?? undefined, run: params.get("run") ?? undefined };
    name.value = filter.name ?? "";
    run.value = filter.run ?? "";
    reload = loader(place, signal, () => fetchPage(), (page) => list(page, fetchPage, () => reload(), Boolean(filter.name || filter.run)), "The dead letters could not be loaded");
  };
  onQuery(show);
  show(query);
  return h("div.page", {}, pageHead("Dead letters", { lead: "Messages that no run will read, because it had ended, was deleted, or never was." }),
    h("form.list-tools", { role: "search", onsubmit: (event) => {
      event.preventDefault();
      router.go(`/dead-letters${queryString({ name: name.value.trim(), run: run.value.trim() })}`);
    } }, h("div.search", {}, icon("search"), name), h("div.search", {}, icon("runs"), run), h("button", { type: "submit" }, "Filter")), place);
}

function list(first, fetchPage, reload, filtered) {
  if (first.letters.length === 0) return emptyState("No dead letters", filtered ? "None matches the filter." : "Every message has found its reader.");
  return pagedTable("Dead letters", ["Message", "For", "Body", "Why", "When", toolColumn()], first, ({ letters }) => letters.map((letter) => row(letter, reload)), fetchPage);
}

function row(letter, reload) {
  return h("tr", {},
    h("td", {}, h("span.name", {}, letter.name), h("p.muted.num", {}, `no. ${letter.no}`)),
    h("td", {}, letter.run ? [runLink(letter.run), letter.status && h("p", {}, badge(letter.status))] : letter.target ? h("span.key", {}, letter.target) : h("span.muted", {}, "not known")),
    h("td.payload", {}, jsonTree(letter.body)), h("td", {}, letter.reason), h("td", {}, ago(letter.at)),
    h("td.tools", {},
      actionButton({ label: "Replay", icon: "retry", can: "dead_letters", onclick: () => replay(letter, reload) }),
      actionButton({ label: "Drop", icon: "trash", can: "dead_letters", danger: true, quiet: true, onclick: () => drop(letter, reload) })));
}

function replay(letter, reload) {
  formDialog({
    title: "Send this letter again", submitLabel: "Send it again",
    intro: h("p", {}, "To the same run, to another one, or as an event. It is then no dead letter any more."),
    fields: [
      { name: "to", type: "text", label: "To another run", hint: "Its id. Empty: as it was addressed." },
      { name: "event", type: "text", label: "As an event", hint: "Its name." },
    ],
    submit: async ({ to, event }) => {
      if (to && event) throw new Error("give a run or an event, not both");
      await post(path("dead-letters", letter.no, "replay"), { to, event });
      toast("The letter was sent again");
      reload();
    },
  });
}

function drop(letter, reload) {
  formDialog({ title: "Drop this letter?", danger: true, submitLabel: "Drop it", intro: h("p", {}, "It is removed for good."), submit: async () => {
    await remove(path("dead-letters", letter.no));
    toast("The letter was dropped");
    reload();
  } });
}
