// Reads JSON that people type, and says where it is wrong: line, column and what was expected.
// Engines word and place their errors differently (some do not place them at all), so the text is
// scanned here; what passes is then parsed by the engine. Never touches the page.

import { parse } from "./exact-json.js";

/** `{ value }` or `{ error, line, column, position }`. */
export function readJson(text) {
  const scan = new Scanner(text);
  try {
    scan.space();
    scan.value();
    scan.space();
    if (scan.at < text.length) scan.fail("there is something after the end of the value");
    return { value: parse(text) };
  } catch (error) {
    const at = Math.min(scan.at, text.length);
    const before = text.slice(0, at);
    const line = before.split("\n").length;
    const column = at - before.lastIndexOf("\n");
    return { error: error.message, line, column, position: at };
  }
}

class Scanner {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  fail(message) {
    throw new SyntaxError(message);
  }

  space() {
    this.take(/[ \t\n\r]*/y);
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at += found[0].length;
    return found?.[0];
  }

  value() {
    const c = this.text[this.at];
    if (c === undefined) this.fail("a value is missing");
    if (c === "{") return this.object();
    if (c === "[") return this.array();
    if (c === '"') return this.string();
    if (this.take(/(true|false|null)(?![\w$])/y)) return undefined;
    if (this.take(/-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?(?![\w.])/y)) return undefined;
    if (c === "'") this.fail("strings are written in double quotes");
    return this.fail("this is not a value: expected an object, an array, a string, a number, true, false or null");
  }

  string() {
    const start = this.at;
    this.at += 1;
    for (;;) {
      this.take(/[^"\\\u0000-\u001f]*/y);
      const c = this.text[this.at];
      if (c === '"') return void (this.at += 1);
      if (c === "\\") {
        if (!this.take(/\\(["\\/bfnrt]|u[0-9a-fA-F]{4})/y)) this.fail("this is not an escape of JSON");
      } else if (c === undefined || c === "\n") {
        this.at = c === undefined ? start : this.at;
        this.fail("this string has no closing quote");
      } else this.fail("control characters in strings are written as escapes");
    }
  }

  object() {
    this.members("}", () => {
      if (this.text[this.at] !== '"') this.fail("a name in double quotes is expected here");
      this.string();
      this.space();
      if (!this.take(/:/y)) this.fail("a colon is expected here");
      this.space();
      this.value();
    });
  }

  array() {
    this.members("]", () => this.value());
  }

  members(close, member) {
    this.at += 1;
    this.space();
    if (this.text[this.at] === close) return void (this.at += 1);
    for (;;) {
      member();
      this.space();
      const c = this.text[this.at];
      this.at += c === undefined ? 0 : 1;
      if (c === close) return;
      if (c !== ",") {
        this.at -= c === undefined ? 0 : 1;
        this.fail(`a comma or \`${close}\` is expected here`);
      }
      this.space();
      if (this.text[this.at] === close) this.fail("there is a comma too many before this");
    }
  }
}
