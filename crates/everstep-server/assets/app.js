// The frame around the pages: navigation, theme, session, connection and shortcuts. It starts
// everything and knows which page is at which address; what is on a page is the page's own affair.

import { whenUnauthorized } from "./api.js";
import { startRun } from "./actions.js";
import { openDialog } from "./dialog.js";
import { h, replace, setText } from "./dom.js";
import { shortStore } from "./format.js";
import { icon, logo } from "./icons.js";
import { bind, bound, listen, setShortcuts, shortcutsOn } from "./keys.js";
import { connection } from "./live.js";
import { Router } from "./router.js";
import { loadSession, logout, refusal, session } from "./session.js";
import { setTheme, theme, THEMES } from "./theme.js";
import { errorState, tickTimes } from "./parts.js";
import { toast, toastRegion } from "./toast.js";
import { runsPage } from "./page-runs.js";
import { runPage } from "./page-run.js";
import { schedulesPage } from "./page-schedules.js";
import { queuesPage } from "./page-queues.js";
import { eventsPage } from "./page-events.js";
import { lettersPage } from "./page-letters.js";
import { clusterPage } from "./page-cluster.js";
import { chartsPage } from "./page-charts.js";
import { auditPage } from "./page-audit.js";
import { loginPage } from "./page-login.js";

const PAGES = [
  { href: "/runs", name: "Runs", sign: "runs", key: "r" },
  { href: "/schedules", name: "Schedules", sign: "schedules", key: "s" },
  { href: "/queues", name: "Queues and limits", sign: "queues", key: "q" },
  { href: "/events", name: "Events", sign: "events", key: "e" },
  { href: "/dead-letters", name: "Dead letters", sign: "letters", key: "d" },
  { href: "/charts", name: "Charts", sign: "charts", key: "t" },
  { href: "/cluster", name: "Cluster", sign: "cluster", key: "c" },
  { href: "/audit", name: "Audit log", sign: "audit", key: "a" },
];

const ROUTES = [
  { pattern: "", page: runsPage, title: "Runs", nav: "/runs", fills: true },
  { pattern: "/runs", page: runsPage, title: "Runs", nav: "/runs", fills: true },
  { pattern: "/runs/:id", page: runPage, title: "Run", nav: "/runs", fills: true },
  { pattern: "/schedules", page: schedulesPage, title: "Schedules", nav: "/schedules" },
  { pattern: "/queues", page: queuesPage, title: "Queues and limits", nav: "/queues" },
  { pattern: "/queues/:queue", page: queuesPage, title: "Queues and limits", nav: "/queues" },
  { pattern: "/limits", page: queuesPage, title: "Queues and limits", nav: "/queues" },
  { pattern: "/events", page: eventsPage, title: "Events", nav: "/events" },
  { pattern: "/dead-letters", page: lettersPage, title: "Dead letters", nav: "/dead-letters" },
  { pattern: "/charts", page: chartsPage, title: "Charts", nav: "/charts" },
  { pattern: "/cluster", page: clusterPage, title: "Cluster", nav: "/cluster" },
  { pattern: "/audit", page: auditPage, title: "Audit log", nav: "/audit" },
  { pattern: "/login", page: loginPage, title: "Log in", bare: true },
  { pattern: "/*", page: missingPage, title: "Not found" },
];

const app = document.getElementById("app");
const main = h("main#main", { tabindex: "-1" });
const announcer = h("div.visually-hidden", { role: "status", "aria-live": "polite" });
const hint = h("p.connection", { role: "status" });
let router;

function navLinks() {
  return h("ul.nav-list", {}, PAGES.map((page) => h("li", {}, h("a", { href: page.href, dataset: { nav: page.href } },
    icon(page.sign), h("span", {}, page.name), h("kbd", { "aria-hidden": "true" }, `g ${page.key}`)))));
}

function frame() {
  const who = session();
  const rail = h("nav.rail", { "aria-label": "Main" },
    h("a.brand", { href: "/runs", "aria-label": "Everstep, to the runs" }, logo(), h("span", {}, "Everstep")),
    navLinks(),
    h("div.rail-foot", {}, hint, h("p.store", { title: `${who.store}, Everstep ${who.version}` }, shortStore(who.store)), who.name && h("p.who", {}, `${who.name}, ${who.role}`),
      h("div.rail-tools", {}, themeButton(), helpButton(), who.login_required && logoutButton())));
  const bar = h("header.topbar", {},
    h("a.brand", { href: "/runs", "aria-label": "Everstep, to the runs" }, logo(), h("span", {}, "Everstep")),
    h("span.connection-dot", { "aria-hidden": "true" }),
    h("button.quiet.icon-only", { type: "button", "aria-label": "Menu", onclick: openMenu }, icon("menu", 20)));
  replace(app, h("a.skip", { href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"), bar, rail, main, announcer, toastRegion);
}

function openMenu() {
  openDialog("Menu", (close) => {
    const list = h("nav", { "aria-label": "Pages", onclick: (event) => event.target.closest("a") && close() }, navLinks());
    markNav(list);
    const who = session();
    return h("div.dialog-body", {}, list, h("div.rail-tools", {}, themeButton(), helpButton(), who.login_required && logoutButton()), h("p.muted", {}, [shortStore(who.store), who.name, who.role].filter(Boolean).join(", ")));
  }, { sheet: true });
}

function themeButton() {
  const signs = { system: "system", light: "sun", dark: "moon" };
  const names = { system: "as the system", light: "light", dark: "dark" };
  const button = h("button.quiet.icon-only.theme-switch", { type: "button", onclick: () => {
    setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    show();
  } });
  const show = () => {
    button.setAttribute("aria-label", `Theme: ${names[theme()]}`);
    button.title = `Theme: ${names[theme()]}`;
    replace(button, icon(signs[theme()], 18));
  };
  show();
  return button;
}

const helpButton = () => h("button.quiet.icon-only", { type: "button", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts", onclick: openHelp }, icon("help", 18));

function logoutButton() {
  return h("button.quiet.icon-only.logout", { type: "button", "aria-label": "Log out", title: "Log out", onclick: async () => {
    await logout().catch(() => undefined);
    toast("You are logged out");
    router.go("/login");
  } }, icon("logout", 18));
}

function openHelp() {
  openDialog("Keyboard shortcuts", () => h("div.dialog-body", {},
    h("dl.keys", {}, bound().map(({ keys, label }) => h("div", {}, h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, label))),
      h("div", {}, h("dt", {}, h("kbd", {}, "Esc")), h("dd", {}, "Close what is open"))),
    h("label.check", {}, h("input", { type: "checkbox", checked: shortcutsOn(), onchange: (event) => setShortcuts(event.target.checked) }), h("span", {}, "Shortcuts are on"))));
}

function markNav(scope) {
  const route = scope.dataset?.route ?? currentNav;
  for (const link of scope.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === route) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

let currentNav;

function show(route, content) {
  const who = session();
  if (!route.bare && who.login_required && !who.role) {
    const back = location.pathname + location.search;
    return router.go(`/login?to=${encodeURIComponent(back)}`, { replace: true });
  }
  document.title = `${route.title} · Everstep`;
  app.classList.toggle("bare", Boolean(route.bare));
  main.classList.toggle("fills", Boolean(route.fills));
  replace(main, content);
  main.scrollTop = 0;
  currentNav = route.nav;
  markNav(app);
  const heading = main.querySelector("h1");
  if (heading) heading.tabIndex = -1;
  // After the first page, the focus follows to the new one, as it would with a page load.
  if (show.once) {
    (main.querySelector("[autofocus]") ?? heading ?? main).focus({ preventScroll: true });
    setText(announcer, route.title);
  }
  show.once = true;
}

function missingPage() {
  return h("div.page", {}, h("div.state", {}, h("div.state-mark", {}, icon("info", 22)), h("h1", {}, "There is no such page"), h("p", {}, "The link may be old or mistyped."), h("div.state-actions", {}, h("a.button", { href: "/runs" }, "Go to the runs"))));
}

function showConnection() {
  app.dataset.connection = connection.state;
  const text = { live: "Live", reconnecting: "Reconnecting…", idle: "" }[connection.state];
  setText(hint, text);
}

function bindKeys() {
  bind("?", "This help", openHelp);
  bind("/", "Search runs", () => {
    const box = document.querySelector("#search");
    if (box) return box.focus();
    router.go("/runs");
    return document.querySelector("#search")?.focus();
  });
  bind("n", "Start a run", () => (refusal("start") ? toast("That is not possible now", { kind: "info", detail: refusal("start") }) : startRun()));
  for (const page of PAGES) bind(`g ${page.key}`, `Go to ${page.name}`, () => router.go(page.href));
  listen();
}

async function start() {
  try {
    await loadSession();
  } catch (error) {
    replace(app, h("main.lonely", {}, errorState("The dashboard cannot start", error, () => location.reload())));
    return;
  }
  frame();
  router = new Router(ROUTES, show);
  router.frame = frame;
  whenUnauthorized(async () => {
    await loadSession().catch(() => undefined);
    if (location.pathname !== "/login") router.go(`/login?to=${encodeURIComponent(location.pathname + location.search)}`);
  });
  connection.addEventListener("change", showConnection);
  bindKeys();
  router.render();
  showConnection();
  setInterval(() => document.hidden || tickTimes(), 1000);
}

start();
