// Short messages about the outcome of a change. They are announced to screen readers; those about a
// failure stay until they are closed.

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 7000;
const MOST = 4;
const polite = h("div.toasts", { role: "status", "aria-live": "polite", "aria-label": "Outcomes" });
const urgent = h("div.toasts", { role: "alert", "aria-live": "assertive", "aria-label": "Problems" });

export const toastRegion = h("div.toast-region", {}, polite, urgent);

/** `toast("Run cancelled", { link: { href, text } })`. */
export function toast(message, { detail, link, kind = "done" } = {}) {
  const failed = kind === "problem";
  const region = failed ? urgent : polite;
  const close = () => node.remove();
  const node = h("div.toast", { class: `toast-${kind}` },
    icon(failed ? "failed" : kind === "info" ? "info" : "completed", 18),
    h("div.toast-text", {},
      h("strong", {}, message),
      detail && h("p", {}, detail),
      link && h("a", { href: link.href }, link.text)),
    h("button.quiet.icon-only", { type: "button", "aria-label": "Dismiss", onclick: close }, icon("close")));
  region.append(node);
  while (region.children.length > MOST) region.firstChild.remove();
  if (!failed) dismissLater(node, close);
}

/** Tells what went wrong, in the words of the server. */
export function toastProblem(message, error) {
  if (error.name === "AbortError") return;
  toast(message, { kind: "problem", detail: [error.message, error.hint].filter(Boolean).join(". ") });
}

function dismissLater(node, close) {
  let timer = setTimeout(close, SHOWN_MS);
  node.addEventListener("pointerenter", () => clearTimeout(timer));
  node.addEventListener("pointerleave", () => (timer = setTimeout(close, SHOWN_MS / 2)));
}
