// A list of any length of which only the visible rows are in the page. Rows have one height; they
// are placed by transform inside a spacer of the full height. The row that has the focus stays in the
// page wherever it is, so that the keyboard does not lose its place.

import { inFrame } from "./dom.js";

const OVERSCAN = 6;

export class VirtualList {
  #scroller;
  #spacer;
  #rowHeight;
  #render;
  #key;
  #onRange;
  #rows = new Map();
  #count = 0;
  #paint = () => this.#paintNow();

  /**
   * `render(i)` makes a row; `key(i)` is anything that is the same as long as the row looks the same;
   * `onRange(first, last)` is told what is visible. `scroller` and `spacer` must be positioned.
   */
  constructor({ scroller, spacer, rowHeight, render, key, onRange, signal }) {
    this.#scroller = scroller;
    this.#spacer = spacer;
    this.#rowHeight = rowHeight;
    this.#render = render;
    this.#key = key;
    this.#onRange = onRange;
    scroller.addEventListener("scroll", () => inFrame(this.#paint), { passive: true, signal });
    const resized = new ResizeObserver(() => this.refresh());
    resized.observe(scroller);
    signal.addEventListener("abort", () => resized.disconnect());
  }

  get count() {
    return this.#count;
  }

  setCount(count) {
    this.#count = count;
    this.refresh();
  }

  /** Looks at all visible rows again; those with the same key stay. */
  refresh() {
    inFrame(this.#paint);
  }

  /** Makes all rows anew. */
  reset() {
    for (const { node } of this.#rows.values()) node.remove();
    this.#rows.clear();
    this.refresh();
  }

  /** Brings a row into view; `then(node)` gets it when it is there. */
  reveal(i, then) {
    const height = this.#rowHeight();
    this.#resize(height);
    const header = this.#offset();
    const top = i * height + header;
    const { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop + header) this.#scroller.scrollTop = top - header;
    else if (top + height > scrollTop + clientHeight) this.#scroller.scrollTop = top + height - clientHeight;
    this.#paintNow();
    then?.(this.#rows.get(i)?.node);
  }

  /** The node of a row, if it is in the page. */
  node(i) {
    return this.#rows.get(i)?.node;
  }

  #paintNow() {
    const height = this.#rowHeight();
    const { scrollTop, clientHeight } = this.#scroller;
    const top = Math.max(0, scrollTop - this.#offset());
    this.#resize(height);
    const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
    const last = Math.min(this.#count, Math.ceil((top + clientHeight) / height) + OVERSCAN);
    const focused = document.activeElement;
    for (const [i, row] of this.#rows) {
      const outside = i < first || i >= last;
      if (i >= this.#count || (outside && !row.node.contains(focused))) {
        row.node.remove();
        this.#rows.delete(i);
      }
    }
    for (let i = first; i < last; i += 1) this.#place(i, height, focused);
    this.#onRange?.(first, last);
  }

  // Where the rows begin inside the scroller, which must be positioned.
  #offset() {
    let offset = 0;
    for (let node = this.#spacer; node && node !== this.#scroller; node = node.offsetParent) offset += node.offsetTop;
    return offset;
  }

  #resize(height) {
    const full = `${this.#count * height}px`;
    if (this.#spacer.style.height !== full) this.#spacer.style.height = full;
  }

  #place(i, height, focused) {
    const key = this.#key(i);
    const had = this.#rows.get(i);
    const placed = `translateY(${i * height}px)`;
    if (had?.key === key) {
      if (had.placed !== placed) had.node.style.transform = had.placed = placed;
      return;
    }
    const node = this.#render(i);
    node.style.transform = placed;
    if (had) {
      const hadFocus = had.node.contains(focused);
      had.node.replaceWith(node);
      if (hadFocus) (node.matches("[tabindex], a, button") ? node : node.querySelector("[tabindex], a, button"))?.focus({ preventScroll: true });
    } else this.#insert(i, node);
    this.#rows.set(i, { node, key, placed });
  }

  // Rows stand in the page in their order, for screen readers and the Tab key.
  #insert(i, node) {
    const before = this.#rows.get(i - 1)?.node;
    if (before) return before.after(node);
    const after = this.#rows.get(i + 1)?.node;
    if (after) return after.before(node);
    let next;
    let nextIndex = Infinity;
    for (const [index, row] of this.#rows) if (index > i && index < nextIndex) [next, nextIndex] = [row.node, index];
    if (next) next.before(node);
    else this.#spacer.append(node);
  }
}
