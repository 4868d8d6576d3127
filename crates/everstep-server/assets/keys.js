// Keyboard shortcuts: single keys and sequences such as `g r`. They rest while somebody types, while
// a dialog is open, and when they are switched off (single keys disturb speech input).

const STORED = "everstep.shortcuts";
const SEQUENCE_MS = 1200;
const bindings = new Map();
let pending = "";
let pendingTimer;

export const shortcutsOn = () => localStorage.getItem(STORED) !== "off";
export const setShortcuts = (on) => localStorage.setItem(STORED, on ? "on" : "off");

/** Binds keys until the signal is aborted: `bind("g r", "Runs", work, signal)`. */
export function bind(keys, label, work, signal) {
  const binding = { keys, label, work };
  const before = bindings.get(keys);
  bindings.set(keys, binding);
  signal?.addEventListener("abort", () => {
    if (bindings.get(keys) !== binding) return;
    if (before) bindings.set(keys, before);
    else bindings.delete(keys);
  });
}

/** What is bound now, for the help. */
export const bound = () => [...bindings.values()].filter(({ label }) => label);

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (!shortcutsOn() || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const sequence = pending ? `${pending} ${event.key}` : event.key;
    clearTimeout(pendingTimer);
    pending = "";
    const binding = bindings.get(sequence) ?? bindings.get(event.key);
    if (binding) {
      if (binding.work(event) !== false) event.preventDefault();
    } else if ([...bindings.keys()].some((keys) => keys.startsWith(`${event.key} `))) {
      pending = event.key;
      pendingTimer = setTimeout(() => (pending = ""), SEQUENCE_MS);
    }
  });
}

function isTyping(target) {
  return target.matches?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
}
