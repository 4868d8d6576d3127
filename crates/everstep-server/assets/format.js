// Puts times, durations and numbers into words. Plain functions from values to strings; it never
// touches the page.

const number = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "numeric", month: "short", year: "numeric",
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short",
});

export const count = (n) => number.format(n);
export const short = (n) => (n < 10_000 ? number.format(n) : compact.format(n));

/** `1 run`, `2 runs`. */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A time in milliseconds, from what the API gives. */
export const at = (text) => Date.parse(text);

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];

/** `3 ms`, `5.2 s`, `2 m 31 s`, `4 d 2 h`: two units at most. */
export function duration(ms) {
  if (ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1).replace(".0", "")} s`;
  const rounded = Math.round(ms / 1000) * 1000;
  const first = UNITS.findIndex(([, size]) => rounded >= size);
  const [name, size] = UNITS[first];
  const second = UNITS[first + 1];
  const head = `${Math.floor(rounded / size)} ${name}`;
  const rest = second ? Math.floor((rounded % size) / second[1]) : 0;
  return rest > 0 ? `${head} ${rest} ${second[0]}` : head;
}

/** `3 s ago`, `in 2 h`, `now`. */
export function relative(time, now = Date.now()) {
  const ms = now - time;
  if (Math.abs(ms) < 1000) return "now";
  const rough = coarse(Math.abs(ms));
  return ms > 0 ? `${rough} ago` : `in ${rough}`;
}

function coarse(ms) {
  for (const [name, size] of UNITS) if (ms >= size) return `${Math.floor(ms / size)} ${name}`;
  return "1 s";
}

/** `14:02:11` today, `3 Nov 14:02:11` on another day. */
export function moment(time, now = Date.now()) {
  const date = new Date(time);
  const today = date.toDateString() === new Date(now).toDateString();
  return today ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

/** With everything, for tooltips and details. */
export const precisely = (time) => full.format(new Date(time));

/** `812 B`, `1.4 kB`. */
export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 1_000_000) return `${(n / 1000).toFixed(1)} kB`;
  return `${(n / 1_000_000).toFixed(1)} MB`;
}

/** The end of an id, which differs from run to run, where the beginning is a time. */
export const shortId = (id) => (id.length > 12 ? id.slice(-12) : id);

/** Splits a sentence of the engine into text, `code`, times and ids of runs, for `sentence` in parts.js. */
export function pieces(text) {
  const pattern = /`([^`]*)`|(\d{4}-\d\d-\d\dT[\d:.]+Z)|([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})/g;
  const found = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) found.push({ text: text.slice(end, match.index) });
    found.push(match[3] ? { run: match[3] } : match[2] ? { time: match[2] } : { code: match[1] });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push({ text: text.slice(end) });
  return found;
}

/** What a `datetime-local` field takes, in local time. */
export function toField(time) {
  const date = new Date(time - new Date(time).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 19);
}

/** A store in few letters: its kind, and the last part of where it is. */
export function shortStore(text) {
  return text.replace(/ file/, "").replace(/`([^`]*)`/, (_, place) => place.split("/").at(-1));
}
