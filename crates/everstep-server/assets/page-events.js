// Events: looked up by name, published; and tokens, resolved. Nothing lists all events, because an
// event is only a name that is published or waited for.

import { publishEvent, resolveToken } from "./actions.js";
import { get, path, queryString } from "./api.js";
import { every, h, replace } from "./dom.js";
import { count } from "./format.js";
import { icon } from "./icons.js";
import { actionButton, emptyState, loader, pageHead } from "./parts.js";

const REFRESH_MS = 3000;

export function eventsPage({ query, signal, router, onQuery }) {
  const place = h("div", {});
  const input = h("input#event-name", { type: "search", placeholder: "Name of an event", "aria-label": "Name of an event", autocomplete: "off", spellcheck: "false" });
  let leave;
  const show = (params) => {
    const name = params.get("name") ?? "";
    leave?.abort();
    leave = new AbortController();
    input.value = name;
    if (!name) return void replace(place, emptyState("Which event?", "Enter its name to see how often it was published, and how many runs wait for it."));
    const signals = AbortSignal.any([signal, leave.signal]);
    const reload = loader(place, signals, () => get(path("events", name), undefined, signals), (event) => h("div", {},
      h("div.section-head", {}, h("h2", {}, h("code", {}, event.name)), actionButton({ label: "Publish it", icon: "events", can: "publish", onclick: () => publishEvent(event.name, reload) })),
      h("dl.numbers", {}, [["Published", event.published], ["Kept", event.kept], ["Dropped", event.dropped], ["Waiting for it", event.waiting]].map(([label, n]) => h("div.card", {}, h("dt", {}, label), h("dd", {}, count(n)))))), "The event could not be loaded");
    every(REFRESH_MS, signals, () => place.contains(document.activeElement) || reload());
  };
  onQuery(show);
  show(query);
  return h("div.page", {},
    pageHead("Events", { lead: "What is published once and reaches all runs that wait for it.", actions: [
      actionButton({ label: "Resolve a token", icon: "key", can: "resolve", onclick: () => resolveToken() }),
      actionButton({ label: "Publish an event", icon: "events", can: "publish", primary: true, onclick: () => publishEvent(input.value.trim() || undefined, (name) => router.go(`/events${queryString({ name })}`)) }),
    ] }),
    h("form.list-tools", { role: "search", onsubmit: (event) => {
      event.preventDefault();
      router.go(`/events${queryString({ name: input.value.trim() })}`);
    } }, h("div.search", {}, icon("search"), input), h("button", { type: "submit" }, "Look it up")), place);
}
