// Dialogs: <dialog> elements that take the focus, close with Esc, and give the focus back. A form
// dialog asks, sends, and stays open with the reason when the server refuses.

import { freshId, h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { readJson } from "./json-text.js";
import { at, toField } from "./format.js";

/** Opens a dialog; `body(close)` gives its content. It is removed when it closes. */
export function openDialog(title, body, { wide = false, sheet = false, onClose } = {}) {
  const opener = document.activeElement;
  const heading = freshId("dialog");
  const close = () => node.close();
  const node = h("dialog", {
    class: [wide && "wide", sheet && "sheet"].filter(Boolean).join(" "), "aria-labelledby": heading,
    onclick: (event) => event.target === node && close(),
    onclose: () => {
      node.remove();
      const back = opener?.isConnected ? opener : document.querySelector("main h1");
      back?.focus?.({ preventScroll: true });
      onClose?.();
    },
  });
  node.append(h("div.dialog-frame", {},
    h("header", {}, h("h2", { id: heading }, title), h("button.quiet.icon-only", { type: "button", "aria-label": "Close", onclick: close }, icon("close"))),
    body(close)));
  document.body.append(node);
  node.showModal();
  firstControl(node)?.focus();
  return node;
}

// The first field; without one the button that answers, unless it destroys something.
function firstControl(node) {
  const field = node.querySelector("form :is(input, select, textarea)");
  const buttons = node.querySelectorAll("form footer button");
  const last = buttons[buttons.length - 1];
  return field ?? (last?.classList.contains("danger") ? buttons[0] : last);
}

/**
 * Asks for `fields` and calls `submit(values)`. It closes when that succeeds.
 *
 * A field is `{ name, label, type, value?, hint?, required?, options?, placeholder? }`; types are
 * `text`, `number`, `select`, `checkbox`, `choice` (radio buttons), `time` and `json`. Empty fields
 * are left out of the values.
 */
export function formDialog({ title, intro, fields = [], submitLabel, danger = false, submit, wide = false }) {
  const controls = fields.map(control);
  const problem = h("div.form-problem", { role: "alert" });
  return openDialog(title, (close) => {
    const send = h("button", { type: "submit", class: danger ? "danger solid" : "primary" }, submitLabel);
    return h("form", { novalidate: true, onsubmit: async (event) => {
      event.preventDefault();
      replace(problem);
      const wrong = controls.filter((one) => !one.check());
      if (wrong.length > 0) return wrong[0].focus();
      const values = {};
      for (const one of controls) {
        const value = one.value();
        if (value !== undefined) values[one.name] = value;
      }
      send.setAttribute("aria-busy", "true");
      send.disabled = true;
      try {
        await submit(values);
        close();
      } catch (error) {
        replace(problem, icon("warning"), h("div", {}, h("strong", {}, error.message), error.hint && h("p", {}, error.hint)));
      } finally {
        send.removeAttribute("aria-busy");
        send.disabled = false;
      }
    } },
      h("div.dialog-body", {}, intro && h("div.dialog-intro", {}, intro), controls.map((one) => one.node), problem),
      h("footer", {}, h("button", { type: "button", onclick: close }, "Close"), send));
  }, { wide });
}

function control(field) {
  const make = { json: jsonControl, checkbox: checkboxControl, choice: choiceControl, select: selectControl }[field.type] ?? textControl;
  return make(field);
}

function labelled(field, input, { extra } = {}) {
  const hintId = freshId("hint");
  const errorId = freshId("error");
  const error = h("p.field-error", { id: errorId, "aria-live": "polite" });
  input.id = freshId("field");
  input.setAttribute("aria-describedby", field.hint ? `${hintId} ${errorId}` : errorId);
  if (field.required) input.setAttribute("aria-required", "true");
  const node = h("div.field", {},
    h("label", { for: input.id }, field.label, !field.required && h("span.muted", {}, " optional")),
    input, extra, field.hint && h("p.field-hint", { id: hintId }, field.hint), error);
  const say = (message) => {
    error.textContent = message ?? "";
    if (message) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    return !message;
  };
  return { node, say };
}

function textControl(field) {
  const type = { time: "datetime-local", number: "number" }[field.type] ?? field.inputType ?? "text";
  const value = field.type === "time" && field.value ? toField(at(field.value)) : field.value;
  const input = h("input", { type, name: field.name, value, placeholder: field.placeholder, step: field.type === "time" ? "1" : undefined, min: field.min, autocomplete: "off", spellcheck: "false" });
  const { node, say } = labelled(field, input);
  const check = () => {
    if (field.required && !input.value.trim()) return say(`${field.label} is missing`);
    if (!input.checkValidity()) return say(input.validationMessage);
    return say();
  };
  input.addEventListener("input", () => input.hasAttribute("aria-invalid") && check());
  return {
    name: field.name, node, check, focus: () => input.focus(),
    value: () => {
      if (input.value === "") return undefined;
      if (field.type === "number") return Number(input.value);
      return field.type === "time" ? new Date(input.value).toISOString() : input.value;
    },
  };
}

function selectControl(field) {
  const input = h("select", { name: field.name, onchange: () => field.onchange?.(input.value) },
    field.options.map(({ value, label }) => h("option", { value }, label)));
  if (field.value !== undefined) input.value = field.value;
  const { node, say } = labelled({ ...field, required: true }, input);
  return { name: field.name, node, check: () => say(), focus: () => input.focus(), value: () => input.value || undefined, input };
}

function checkboxControl(field) {
  const input = h("input", { type: "checkbox", name: field.name, checked: field.value === true });
  const node = h("label.check", {}, input, h("span", {}, field.label, field.hint && h("small", {}, field.hint)));
  return { name: field.name, node, check: () => true, focus: () => input.focus(), value: () => input.checked };
}

function choiceControl(field) {
  const group = freshId("choice");
  const inputs = field.options.map(({ value }) => h("input", { type: "radio", name: group, value, checked: value === field.value }));
  const node = h("fieldset.choice", {}, h("legend", {}, field.label), field.options.map((option, i) =>
    h("label.check", {}, inputs[i], h("span", {}, option.label, option.hint && h("small", {}, option.hint)))));
  return { name: field.name, node, check: () => true, focus: () => inputs[0].focus(), value: () => inputs.find((one) => one.checked)?.value };
}

function jsonControl(field) {
  const text = field.value === undefined ? (field.required ? "null" : "") : JSON.stringify(field.value, null, 2);
  const input = h("textarea.code", { name: field.name, rows: field.rows ?? 8, spellcheck: "false", autocapitalize: "off", autocomplete: "off", value: text, onkeydown: indent });
  const note = h("span.json-ok", { "aria-hidden": "true" });
  const tidy = h("button.quiet.small", { type: "button", onclick: () => {
    const read = readJson(input.value);
    if ("value" in read) input.value = JSON.stringify(read.value, null, 2);
    check();
  } }, "Format");
  const goto = h("button.quiet.small", { type: "button", hidden: true, onclick: () => jump() }, "Go to the error");
  const { node, say } = labelled(field, input, { extra: h("div.json-tools", {}, note, goto, tidy) });
  let position;
  function check() {
    if (input.value.trim() === "" && !field.required) {
      note.textContent = "";
      goto.hidden = true;
      return say();
    }
    const read = readJson(input.value);
    const ok = "value" in read;
    note.textContent = ok ? "Valid JSON" : "";
    goto.hidden = ok;
    position = read.position;
    return say(ok ? undefined : `Line ${read.line}, column ${read.column}: ${read.error}`);
  }
  function jump() {
    input.focus();
    input.setSelectionRange(position, Math.min(position + 1, input.value.length));
  }
  input.addEventListener("input", check);
  check();
  return {
    name: field.name, node, check, focus: () => input.focus(),
    value: () => (input.value.trim() === "" ? undefined : readJson(input.value).value),
  };
}

// Tab leaves the field, as everywhere; Enter keeps the indentation of the line.
function indent(event) {
  if (event.key !== "Enter" || event.ctrlKey || event.metaKey) {
    if (event.key === "Enter") event.target.form?.requestSubmit();
    return;
  }
  const { selectionStart: start, value } = event.target;
  const line = value.slice(value.lastIndexOf("\n", start - 1) + 1, start);
  const more = /[{[]\s*$/.test(line) ? "  " : "";
  event.preventDefault();
  event.target.setRangeText(`\n${/^ */.exec(line)[0]}${more}`, start, event.target.selectionEnd, "end");
  event.target.dispatchEvent(new Event("input"));
}
