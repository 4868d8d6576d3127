// Shows JSON as a tree that can be opened and closed. What is closed is not in the page yet, and long
// lists and strings are shown in parts, so a value of any size stays cheap. Values are only ever text.

import { h } from "./dom.js";
import { isExact } from "./exact-json.js";
import { copyButton } from "./parts.js";
import { count } from "./format.js";

const PART = 100;
const STRING_SHOWN = 400;
const OPEN_DEPTH = 2;
const OPEN_SIZE = 24;

/** A value with a caption and a copy button. */
export function jsonBlock(caption, value, { open = true, hint } = {}) {
  const text = () => JSON.stringify(value, null, 2) ?? "";
  return h("div.json-block", {},
    h("header", {}, h("h2.subhead", {}, caption), hint && h("span.muted", {}, hint), copyButton(text, `Copy ${caption.toLowerCase()}`)),
    h("div.json", { tabindex: "0", role: "group", "aria-label": `${caption} as JSON` }, branch(undefined, value, open ? 0 : OPEN_DEPTH)));
}

/** Only the tree. */
export function jsonTree(value) {
  return h("div.json", {}, branch(undefined, value, 0));
}

function branch(name, value, depth) {
  if (value === null || typeof value !== "object" || isExact(value)) return h("div.json-row", {}, label(name), leaf(value));
  const isList = Array.isArray(value);
  const entries = isList ? value : Object.keys(value);
  const [open, close] = isList ? "[]" : "{}";
  if (entries.length === 0) return h("div.json-row", {}, label(name), h("span.json-mark", {}, open + close));
  const inner = h("div.json-inner", {});
  const node = h("details.json-node", { ontoggle: fillOnce },
    h("summary", {}, label(name), h("span.json-mark", {}, open), h("span.json-preview", {}, preview(value, isList), h("span.json-mark", {}, close))),
    inner, h("span.json-mark.json-close", {}, close));
  let filled = false;
  function fillOnce() {
    if (filled || !node.open) return;
    filled = true;
    fillPart(inner, value, isList, entries, 0, depth);
  }
  if (depth < OPEN_DEPTH && entries.length <= OPEN_SIZE || depth === 0) {
    node.open = true;
    fillOnce();
  }
  return node;
}

function fillPart(inner, value, isList, entries, from, depth) {
  const end = Math.min(entries.length, from + PART);
  for (let i = from; i < end; i += 1) {
    const key = isList ? i : entries[i];
    inner.append(branch(key, value[key], depth + 1));
  }
  if (end === entries.length) return;
  const more = h("button.link.json-more", { type: "button", onclick: () => {
    more.remove();
    fillPart(inner, value, isList, entries, end, depth);
  } }, `Show ${Math.min(PART, entries.length - end)} more of ${count(entries.length - end)}`);
  inner.append(more);
}

function label(name) {
  if (name === undefined) return undefined;
  return [h("span", { class: typeof name === "number" ? "json-index" : "json-key" }, String(name)), h("span.json-mark", {}, ": ")];
}

function leaf(value) {
  if (value === null) return h("span.json-null", {}, "null");
  if (typeof value === "string") return string(value);
  if (isExact(value)) return h("span.json-number", {}, value.rawJSON);
  return h("span", { class: `json-${typeof value}` }, String(value));
}

function string(value) {
  if (value === "[redacted]") return h("span.json-redacted", { title: "Hidden by a redaction pattern of the server" }, "redacted");
  const quoted = JSON.stringify(value);
  if (quoted.length <= STRING_SHOWN) return h("span.json-string", {}, quoted);
  const node = h("span.json-string", {}, `${quoted.slice(0, STRING_SHOWN)}…`);
  const more = h("button.link", { type: "button", onclick: () => {
    node.textContent = quoted;
    more.remove();
  } }, `Show all ${count(value.length)} characters`);
  return [node, " ", more];
}

function preview(value, isList) {
  if (isList) return `${count(value.length)} ${value.length === 1 ? "item" : "items"}`;
  const keys = Object.keys(value);
  const shown = keys.slice(0, 4).join(", ");
  return keys.length > 4 ? `${shown}, +${keys.length - 4}` : shown;
}
