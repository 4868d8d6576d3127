// Follows server-sent events, and comes back after an interruption. Says through `connection` whether
// the page is live; never renders. A hidden page lets go of its connection after a while, and one that
// was left for another lets go at once, because browsers allow only a few per server and keep pages to
// go back to. It is taken up again when the page is seen.

import { get } from "./api.js";
import { parse } from "./exact-json.js";

const HIDDEN_MS = 20_000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15_000];

/** The state of all connections together: `idle`, `live` or `reconnecting`. */
export const connection = new (class extends EventTarget {
  #states = new Map();
  state = "idle";

  set(source, state) {
    if (state) this.#states.set(source, state);
    else this.#states.delete(source);
    const all = [...this.#states.values()];
    const next = all.includes("reconnecting") ? "reconnecting" : all.length > 0 ? "live" : "idle";
    if (next === this.state) return;
    this.state = next;
    this.dispatchEvent(new Event("change"));
  }
})();

/**
 * Follows `url()` until the signal is aborted. `handlers` are by event name and get the parsed data
 * and the event's id; `handlers.reopened` is called when events may have been missed.
 * A handler that returns `false` ends the following.
 */
export function follow(url, handlers, signal) {
  const me = {};
  let source;
  let retry;
  let tries = 0;
  let opened = false;
  let hiddenTimer;

  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = undefined;
  };
  const open = () => {
    close();
    source = new EventSource(url());
    source.onopen = () => {
      tries = 0;
      connection.set(me, "live");
      if (opened) handlers.reopened?.();
      opened = true;
    };
    source.onerror = () => {
      connection.set(me, "reconnecting");
      close();
      retry = setTimeout(reopen, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]);
      tries += 1;
    };
    for (const [name, handle] of Object.entries(handlers)) {
      if (name === "reopened") continue;
      source.addEventListener(name, (event) => {
        if (handle(parse(event.data || "null"), event.lastEventId) === false) end();
      });
    }
  };
  // EventSource does not tell a 401 from a server that is down; the session does.
  const reopen = async () => {
    const session = await get("/session", undefined, signal).catch(() => undefined);
    if (signal.aborted) return;
    if (session?.login_required && !session.role) return void location.assign("/login");
    open();
  };
  const end = () => {
    close();
    connection.set(me, undefined);
    document.removeEventListener("visibilitychange", onVisibility);
    removeEventListener("pagehide", close);
    removeEventListener("pageshow", onShown);
  };
  const onVisibility = () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(close, HIDDEN_MS);
    else if (!source) open();
  };
  const onShown = (event) => {
    if (event.persisted && !source) open();
  };
  document.addEventListener("visibilitychange", onVisibility);
  addEventListener("pagehide", close);
  addEventListener("pageshow", onShown);
  signal.addEventListener("abort", end);
  open();
}
