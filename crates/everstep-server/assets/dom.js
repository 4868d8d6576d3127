// Makes DOM nodes. This is the one place where data becomes elements: strings become text nodes or
// attribute values, never markup. Nothing in the dashboard uses innerHTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element: `h("a.link#id", { href, onclick }, "text", child, [more])`.
 *
 * Functions named `on..` are listeners, `class` is added to the classes of the tag, `dataset` and
 * `style` are objects (style goes through the CSSOM, as the Content-Security-Policy demands),
 * `true` is an empty attribute, and `false`, `null` and `undefined` are left out.
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(nameOf(tag)), tag, attributes, children);
}

/** Makes an SVG element, in the same way. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, nameOf(tag)), tag, attributes, children);
}

/** Replaces what is in `parent`. */
export function replace(parent, ...children) {
  parent.replaceChildren(...flat(children));
  return parent;
}

/** Sets the text only if it differs, so that nothing is laid out again for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const waiting = new Set();

/** Runs `work` in the next frame, once, however often it is asked for until then. */
export function inFrame(work) {
  if (waiting.size === 0) requestAnimationFrame(runFrame);
  waiting.add(work);
}

function runFrame() {
  const works = [...waiting];
  waiting.clear();
  for (const work of works) work();
}

/** Calls `work` every `ms` until the signal is aborted, and not while the page is hidden. */
export function every(ms, signal, work) {
  const timer = setInterval(() => document.hidden || work(), ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** Calls `work` when nobody has asked for it again for `ms`. */
export function settled(ms, work) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), ms);
  };
}

/** Runs `work` at most once in `ms`, and once more if it was asked for meanwhile. */
export function paced(ms, signal, work) {
  let resting = false;
  let again = false;
  return async function run() {
    if (signal.aborted) return;
    if (resting) return void (again = true);
    resting = true;
    await work().catch(() => undefined);
    setTimeout(() => {
      resting = false;
      if (!again) return;
      again = false;
      run();
    }, ms);
  };
}

let ids = 0;

/** An id for a label, an error or a description to refer to. */
export function freshId(prefix = "e") {
  ids += 1;
  return `${prefix}-${ids}`;
}

function nameOf(tag) {
  return /^[a-zA-Z0-9-]+/.exec(tag)[0];
}

function fill(node, tag, attributes, children) {
  for (const [, sign, name] of tag.matchAll(/([.#])([\w-]+)/g)) {
    if (sign === "#") node.id = name;
    else node.classList.add(name);
  }
  for (const [name, value] of Object.entries(attributes ?? {})) set(node, name, value);
  node.append(...flat(children));
  return node;
}

function set(node, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (typeof value === "function") node.addEventListener(name.slice(2), value);
  else if (name === "class") node.classList.add(...String(value).split(" ").filter(Boolean));
  else if (name === "dataset") Object.assign(node.dataset, value);
  else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
  else if (name === "value" && "value" in node) node.value = value;
  else node.setAttribute(name, value === true ? "" : value);
}

function flat(children) {
  return children.flat(3).filter((child) => child !== undefined && child !== null && child !== false);
}
