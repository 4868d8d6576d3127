// The filters of the list of runs: from the address, into the address, and into words. Plain values;
// never touches the page.

import { queryString } from "./api.js";
import { word } from "./status.js";

const SINGLE = ["workflow", "version", "key_prefix", "created_from", "created_before", "finished_from", "finished_before", "q"];

const NAMES = {
  workflow: "Workflow", version: "Version", key_prefix: "Key begins with", created_from: "Created from",
  created_before: "Created before", finished_from: "Ended from", finished_before: "Ended before", q: "Search",
};

/** From the query of an address. */
export function readFilter(params) {
  const filter = { status: (params.get("status") ?? "").split(",").filter(Boolean), tag: params.getAll("tag") };
  for (const name of SINGLE) if (params.get(name)) filter[name] = params.get(name);
  return filter;
}

/** As parameters of the API. */
export function toQuery(filter) {
  const query = { ...filter, status: filter.status.join(",") };
  if (!query.status) delete query.status;
  if (query.tag.length === 0) delete query.tag;
  return query;
}

/** As the `filter` of a bulk action, where a number is one. */
export function toBody(filter) {
  const query = toQuery(filter);
  return query.version === undefined ? query : { ...query, version: Number(query.version) };
}

/** For the address bar. */
export const toAddress = (filter) => `/runs${queryString(toQuery(filter))}`;

/** Whether anything is left out by it. */
export const isEmpty = (filter) => Object.keys(toQuery(filter)).length === 0;

/** Each condition but the statuses and the search box, in words, and the filter without it. */
export function conditions(filter) {
  const found = [];
  for (const name of SINGLE) {
    if (name === "q" || !filter[name]) continue;
    const { [name]: _, ...without } = filter;
    found.push({ text: `${NAMES[name]}: ${filter[name]}`, without });
  }
  for (const tag of filter.tag) {
    found.push({ text: `Tag ${tag}`, without: { ...filter, tag: filter.tag.filter((other) => other !== tag) } });
  }
  return found;
}

/** The whole filter in one sentence, to be confirmed before many runs are changed. */
export function describe(filter) {
  const parts = filter.status.length > 0 ? [filter.status.map(word).join(" or ")] : [];
  parts.push(...conditions(filter).map(({ text }) => text));
  if (filter.q) parts.push(`Search: ${filter.q}`);
  return parts.length > 0 ? parts.join("; ") : "all runs";
}
