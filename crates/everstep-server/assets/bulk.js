// Changes many runs at once: counts what would be met, asks, and then works through it part by part
// with a bar that shows how far it is. It can be stopped between two parts.

import { post } from "./api.js";
import { openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { describe, toBody } from "./filters.js";
import { count, plural } from "./format.js";
import { icon } from "./icons.js";
import { runLink } from "./parts.js";
import { toast } from "./toast.js";

const PART = 500;
const REASONS_SHOWN = 20;

const ACTIONS = {
  cancel: { verb: "Cancel", done: "cancelled", danger: true, text: "Without rollback: what they have done stays." },
  cancel_with_rollback: { verb: "Cancel and roll back", done: "told to roll back", danger: true, text: "The rollbacks of their completed steps run." },
  pause: { verb: "Pause", done: "paused", text: "They stop before their next step." },
  resume: { verb: "Resume", done: "resumed", text: "Those that are paused go on where they stood." },
  retry: { verb: "Retry", done: "tried again", text: "Completed steps keep their results." },
  delete: { verb: "Delete", done: "deleted", danger: true, text: "Their history is removed. This cannot be taken back." },
};

export function bulkAction(filter, action) {
  const { verb, danger, text } = ACTIONS[action];
  const body = h("div.dialog-body", {}, h("p", { role: "status" }, "Counting the runs…"));
  const footer = h("footer", {});
  const stop = new AbortController();
  openDialog(`${verb} many runs`, (close) => {
    replace(footer, h("button", { type: "button", onclick: close }, "Close"));
    countRuns(filter, action).then((met) => {
      if (stop.signal.aborted) return;
      const typed = h("input#bulk-confirm", { type: "text", inputmode: "numeric", autocomplete: "off" });
      const go = h("button", { type: "submit", class: danger ? "danger solid" : "primary", disabled: met === 0 || danger }, `${verb} ${plural(met, "run")}`);
      typed.addEventListener("input", () => (go.disabled = typed.value.replace(/\D/g, "") !== String(met)));
      replace(body, h("p.bulk-count", {}, h("strong", {}, count(met)), met === 1 ? " run matches" : " runs match"), h("p", {}, h("span.muted", {}, "Filter: "), describe(filter)), h("p", {}, text),
        danger && met > 0 && h("div.field", {}, h("label", { for: "bulk-confirm" }, "Type the number to confirm"), typed));
      replace(footer, h("button", { type: "button", onclick: close }, "Close"), go);
      footer.closest("form").onsubmit = (event) => {
        event.preventDefault();
        work(filter, action, met, body, footer, stop, close);
      };
    }, (error) => replace(body, h("div.form-problem", { role: "alert" }, icon("warning"), error.message)));
    return h("form", { onsubmit: (event) => event.preventDefault() }, body, footer);
  }, { onClose: () => stop.abort() });
}

async function countRuns(filter, action) {
  const { met } = await post("/runs/bulk", { filter: toBody(filter), action, dry_run: true });
  return met;
}

async function work(filter, action, met, body, footer, stop, close) {
  const { done: word } = ACTIONS[action];
  const total = { met: 0, done: 0, already: 0, finished: 0, refused: 0, gone: 0, reasons: [] };
  const bar = h("progress", { max: met, value: 0, "aria-label": "Progress" });
  const said = h("p", { role: "status" }, "Working…");
  replace(body, bar, said);
  replace(footer, h("button", { type: "button", onclick: () => stop.abort() }, "Stop after this part"));
  try {
    let cursor;
    do {
      const part = await post("/runs/bulk", { filter: toBody(filter), action, limit: PART, cursor });
      for (const name of ["met", "done", "already", "finished", "refused", "gone"]) total[name] += part[name] ?? 0;
      total.reasons.push(...(part.reasons ?? []).slice(0, REASONS_SHOWN - total.reasons.length));
      bar.value = total.met;
      said.textContent = `${count(total.met)} of ${count(met)}`;
      cursor = part.next;
    } while (cursor && !stop.signal.aborted);
    report(total, word, body);
    toast(`${plural(total.done, "run")} ${word}`);
  } catch (error) {
    report(total, word, body);
    body.prepend(h("div.form-problem", { role: "alert" }, icon("warning"), error.message));
  }
  replace(footer, h("button.primary", { type: "button", onclick: close }, "Done"));
}

function report(total, word, body) {
  const lines = [["done", word], ["already", "were so already"], ["finished", "had ended"], ["refused", "were refused"], ["gone", "were gone"]];
  replace(body, h("ul.bulk-report", {}, lines.filter(([name]) => total[name] > 0).map(([name, text]) => h("li", {}, h("strong", {}, count(total[name])), ` ${text}`))),
    total.reasons.length > 0 && h("ul.reasons", {}, total.reasons.map(({ run, reason }) => h("li", {}, runLink(run), " ", reason))));
}
