// The history of one run as a tree: entries by location, their parents, and when each began and ended.
// It is fed with pages and events in any order; never touches the page.

import { at } from "./format.js";

/** Kinds that hold others and do nothing themselves. */
const SCOPES = new Set(["join", "map", "race", "attempt", "repeat", "iteration", "scope"]);
/** Kinds in which a run waits for the world and holds no thread. */
const WAITS = new Set(["sleep", "listen", "event", "deferred", "finished", "child", "limit", "enqueue", "peek"]);
/** Beyond this many entries, branches are closed at first. */
const OPEN_MOST = 300;

export class History {
  #records = new Map();
  #open = new Map();
  #revision = 0;
  roots = [];
  size = 0;
  from = Infinity;
  to = 0;

  /** Takes new and changed entries. */
  put(entries) {
    for (const entry of entries) {
      this.#revision += 1;
      // With several attempts, `started_at` is the last one's.
      const start = at(entry.errors.length > 0 ? entry.created_at : entry.started_at ?? entry.created_at);
      const end = entry.completed_at ? at(entry.completed_at) : undefined;
      this.#records.set(entry.location, { entry, start, end, revision: this.#revision });
    }
  }

  clear() {
    this.#records.clear();
    this.build();
  }

  entries() {
    return [...this.#records.values()].map(({ entry }) => entry);
  }

  get(location) {
    return this.#nodes.get(location);
  }

  #nodes = new Map();

  /** Makes the tree anew. Parents that have no entry of their own (a branch) span their children. */
  build() {
    const nodes = new Map();
    const roots = [];
    const nodeAt = (location) => {
      let node = nodes.get(location);
      if (node) return node;
      const slash = location.lastIndexOf("/");
      node = { location, ...named(location.slice(slash + 1)), children: [], start: Infinity, end: 0, revision: 0, ...this.#records.get(location) };
      nodes.set(location, node);
      if (slash < 0) {
        node.depth = 0;
        roots.push(node);
      } else {
        const parent = nodeAt(location.slice(0, slash));
        node.depth = parent.depth + 1;
        parent.children.push(node);
      }
      return node;
    };
    for (const location of this.#records.keys()) nodeAt(location);
    this.#nodes = nodes;
    this.size = this.#records.size;
    for (const root of roots) settle(root);
    roots.sort(inTime);
    this.roots = roots;
    this.from = Infinity;
    this.to = 0;
    for (const { start, end } of roots) {
      this.from = Math.min(this.from, start);
      this.to = Math.max(this.to, end ?? start);
    }
  }

  isOpen(node) {
    return this.#open.get(node.location) ?? (node.depth < 1 || this.size <= OPEN_MOST);
  }

  setOpen(node, open) {
    this.#open.set(node.location, open);
  }

  setAllOpen(open) {
    for (const node of this.#nodes.values()) if (node.children.length > 0) this.#open.set(node.location, open);
  }

  /** Opens everything above a location. */
  openTo(location) {
    for (let slash = location.lastIndexOf("/"); slash > 0; slash = location.lastIndexOf("/", slash - 1)) {
      this.#open.set(location.slice(0, slash), true);
    }
  }

  /** The rows that are to be seen, in order; with `words`, all that match, without the tree. */
  rows(words) {
    const found = [];
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const walk = (nodes) => {
      for (const node of nodes) {
        if (wanted.length === 0 || matches(node, wanted)) found.push(node);
        if (wanted.length > 0 || this.isOpen(node)) walk(node.children);
      }
    };
    walk(this.roots);
    return found;
  }

  /** What somebody wants to see first: what failed, else what it does now. */
  interesting() {
    let now;
    for (const { entry } of this.#records.values()) {
      if (isFailure(entry) && !SCOPES.has(entry.kind)) return entry.location;
      if (!now && (entry.status === "running" || entry.status === "waiting") && !SCOPES.has(entry.kind)) now = entry.location;
    }
    return now;
  }

  /** How many leaves were busy in each of `n` parts of the time, and whether one failed there. */
  density(n, from, to) {
    const parts = Array.from({ length: n }, () => ({ busy: 0, failed: false }));
    const size = Math.max(1, to - from) / n;
    for (const { entry, start, end } of this.#records.values()) {
      if (SCOPES.has(entry.kind)) continue;
      const first = clamp(Math.floor((start - from) / size), n);
      const last = clamp(Math.floor(((end ?? to) - from) / size), n);
      if (!WAITS.has(entry.kind)) for (let i = first; i <= last; i += 1) parts[i].busy += 1;
      if (isFailure(entry)) parts[last].failed = true;
    }
    return parts;
  }
}

/** What a segment of a location stands for: `name` as it is shown, `plain` as the code has it. */
function named(segment) {
  const [escaped, ordinal] = segment.split("#");
  let plain = escaped === "%" ? "" : escaped;
  try {
    plain = decodeURIComponent(plain);
  } catch {
    // It is shown as it is.
  }
  return { plain, name: ordinal ? `${plain} #${ordinal}` : plain };
}

export const isScope = (node) => !node.entry || SCOPES.has(node.entry.kind);
export const isWait = (node) => node.entry !== undefined && WAITS.has(node.entry.kind);
export const isFailure = ({ status }) => status === "failed" || status === "exhausted" || status === "timed_out";

const clamp = (i, n) => Math.max(0, Math.min(n - 1, i));
const inTime = (a, b) => a.start - b.start || (a.entry?.number ?? 0) - (b.entry?.number ?? 0);

function settle(node) {
  for (const child of node.children) settle(child);
  node.children.sort(inTime);
  if (node.entry) return;
  node.open = false;
  node.failed = node.children.some(hasFailed);
  for (const child of node.children) {
    node.start = Math.min(node.start, child.start);
    node.revision = Math.max(node.revision, child.revision);
    if (child.end === undefined) node.open = true;
    else node.end = Math.max(node.end, child.end);
  }
  if (node.open) node.end = undefined;
}

function hasFailed({ entry, failed }) {
  return entry ? isFailure(entry) : failed;
}

/** What a row shows as its status; a branch shows that of what is in it. */
export function statusOf(node) {
  if (node.entry) return node.entry.status;
  if (node.failed) return "failed";
  return node.end === undefined ? "running" : "completed";
}

function matches({ location, entry }, wanted) {
  if (!entry) return false;
  const text = `${location} ${entry.kind} ${entry.status}`.toLowerCase();
  return wanted.every((word) => text.includes(word));
}
