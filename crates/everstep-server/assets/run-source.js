// One run as the server knows it, followed live: its row and its history, page by page and then by
// events. The tabs of the run's page read from here; it never touches the page.

import { address, get, path } from "./api.js";
import { History } from "./history.js";
import { follow } from "./live.js";

const PAGE = 500;
const CALM_MS = 250;

export class RunSource {
  #id;
  #signal;
  #run;
  #listeners = new Set();
  #runListeners = new Set();
  #loading = true;
  #timer;
  problem;
  history = new History();

  constructor(id, signal) {
    this.#id = id;
    this.#signal = signal;
  }

  run = () => this.#run;
  loading = () => this.#loading;

  /** Calls `work` after the history has changed. */
  onChange(work, signal) {
    this.#listeners.add(work);
    signal.addEventListener("abort", () => this.#listeners.delete(work));
  }

  /** Calls `work` after the run's row has changed. */
  onRun(work, signal) {
    this.#runListeners.add(work);
    signal.addEventListener("abort", () => this.#runListeners.delete(work));
  }

  /** Loads the run, and then follows it; `gone` is called when it was deleted. */
  async start(gone) {
    this.#run = await get(path("runs", this.#id), undefined, this.#signal);
    const done = this.#loadHistory();
    follow(() => address(path("runs", this.#id, "updates")), {
      run: (run) => this.#takeRun(run),
      history: ({ entries }) => this.#take(entries),
      gone: () => {
        gone();
        return false;
      },
      reopened: () => this.#loadHistory(),
    }, this.#signal);
    done.catch(() => undefined);
  }

  #takeRun(run) {
    const anew = this.#run && run.generation !== this.#run.generation;
    this.#run = run;
    // A new generation has a history of its own.
    if (anew) {
      this.history.clear();
      this.#loadHistory();
    }
    for (const work of this.#runListeners) work(run);
  }

  #take(entries) {
    this.history.put(entries);
    this.#tell();
  }

  async #loadHistory() {
    this.#loading = true;
    this.problem = undefined;
    try {
      let cursor;
      do {
        const page = await get(path("runs", this.#id, "history"), { limit: PAGE, cursor }, this.#signal);
        this.history.put(page.entries);
        cursor = page.next;
        this.#tell();
      } while (cursor);
    } catch (error) {
      this.problem = error;
    }
    this.#loading = false;
    this.#tell();
  }

  // The tree is made anew a few times a second at most, however fast entries come.
  #tell() {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      if (this.#signal.aborted) return;
      this.history.build();
      for (const work of this.#listeners) work();
    }, CALM_MS);
  }
}
