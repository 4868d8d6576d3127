// Talks to the HTTP API. Knows addresses, the CSRF header and problem details; never touches the page.

import { parse } from "./exact-json.js";

const BASE = "/api/v1";

/** What the server answered instead of a result. `message` is for people. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.slug = (problem.type ?? "").replace("urn:everstep:problem:", "");
    this.hint = problem.hint;
    this.run = problem.run;
  }
}

let csrf;
const onUnauthorized = new Set();

/** The token that changes by cookie must carry; from GET /session. */
export function setCsrf(token) {
  csrf = token;
}

/** Calls `work` whenever the server says that nobody is logged in. */
export function whenUnauthorized(work) {
  onUnauthorized.add(work);
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body, headers) => call("POST", path, { body, headers });
export const put = (path, body) => call("PUT", path, { body });
export const remove = (path, query) => call("DELETE", path, { query });

/** The address of an endpoint: parts are escaped, so `path("runs", id)` is safe for any id. */
export const path = (...parts) => `/${parts.map(encodeURIComponent).join("/")}`;

/** The whole address, for EventSource. */
export const address = (where, query) => `${BASE}${where}${queryString(query)}`;

/** Lists become repeated parameters; what is empty is left out. */
export function queryString(query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") params.append(name, one);
    }
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

async function call(method, where, { query, body, headers, signal }) {
  const options = { method, signal, headers: { accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  if (method !== "GET" && csrf) options.headers["x-everstep-csrf"] = csrf;
  let response;
  try {
    response = await fetch(address(where, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server cannot be reached", hint: "see whether it is running; this page goes on by itself when it is back" });
  }
  if (response.ok) return response.status === 204 ? undefined : readJson(response);
  const problem = await readJson(response).catch(() => ({}));
  if (response.status === 401 && where !== "/session") for (const work of onUnauthorized) work();
  throw new Problem(response.status, problem ?? {});
}

async function readJson(response) {
  const text = await response.text();
  return text ? parse(text) : undefined;
}
