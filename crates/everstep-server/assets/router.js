// Turns addresses into pages. Pages are functions that get a context and return an element; their
// signal is aborted when they are left. The address holds everything that a shared link must show.

/** Matches `pattern` such as `/runs/:id`, and gives its parameters. */
function match(pattern, pathname) {
  const wanted = pattern.split("/");
  const given = pathname.replace(/\/+$/, "").split("/");
  if (wanted.length !== given.length) return undefined;
  const params = {};
  for (const [i, part] of wanted.entries()) {
    if (part.startsWith(":")) params[part.slice(1)] = decoded(given[i]);
    else if (part !== given[i]) return undefined;
  }
  return params;
}

// An address may hold a percent sign that escapes nothing.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export class Router {
  #routes;
  #show;
  #leave;
  #page;

  /** `routes` are `{ pattern, page, .. }`; `show(route, page)` puts a page on the screen. */
  constructor(routes, show) {
    this.#routes = routes;
    this.#show = show;
    addEventListener("popstate", () => this.render());
    document.addEventListener("click", (event) => this.#onClick(event));
  }

  /** Goes to an address of the dashboard. */
  go(address, { replace = false } = {}) {
    if (address === location.pathname + location.search) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    this.render();
  }

  /** Changes the address without leaving the page. */
  setQuery(query) {
    history.replaceState(null, "", location.pathname + query);
  }

  render() {
    const { pathname, search } = location;
    const route = this.#routes.find(({ pattern }) => match(pattern, pathname)) ?? this.#routes.at(-1);
    const params = match(route.pattern, pathname) ?? {};
    // A page that can take the new query itself keeps its place.
    if (this.#page?.route === route && this.#page.address === pathname && this.#page.onQuery) {
      this.#page.onQuery(new URLSearchParams(search));
      return;
    }
    this.#leave?.abort();
    this.#leave = new AbortController();
    const page = { route, address: pathname };
    this.#page = page;
    const context = {
      params,
      query: new URLSearchParams(search),
      signal: this.#leave.signal,
      router: this,
      onQuery: (work) => (page.onQuery = work),
    };
    this.#show(route, route.page(context));
  }

  /** Renders the page anew, after a change of session. */
  reload() {
    this.#page = undefined;
    this.render();
  }

  #onClick(event) {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || url.pathname.startsWith("/api/") || url.hash) return;
    event.preventDefault();
    this.go(url.pathname + url.search);
  }
}
