//! Every page, and how it is known that it is there.

use crate::world::World;

/// A page to look at.
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    pub(crate) address: String,
    /// True as soon as what it is for is on it.
    pub(crate) ready: &'static str,
}

/// All of them, of the server that asks for no token.
pub(crate) fn all(world: &World) -> Vec<Shown> {
    let shown = &world.shown;
    let tab = |run: &str, tab: &str| format!("/runs/{run}?tab={tab}");
    let page = |name, address: &str, ready| Shown { name, address: address.to_owned(), ready };
    vec![
        page("runs", "/runs", RUNS),
        page("runs-filtered", "/runs?status=failed,cancelled", RUNS),
        page("runs-none", "/runs?q=nothing-like-this", "document.querySelector('.list-state h2')"),
        page("run", &format!("/runs/{}", shown.done), ENTRIES),
        page("run-failed", &format!("/runs/{}", shown.failed), ENTRIES),
        page("run-children", &format!("/runs/{}", shown.parent), ENTRIES),
        page("run-history", &tab(&shown.done, "history"), ENTRIES),
        page(
            "run-data",
            &tab(&shown.waiting, "data"),
            "document.querySelectorAll('.json-block').length > 1",
        ),
        page(
            "run-messages",
            &tab(&shown.waiting, "messages"),
            "document.querySelectorAll('.message').length > 1",
        ),
        page(
            "run-streams",
            &tab(&shown.emitting, "streams"),
            "document.querySelectorAll('.stream-item').length > 1",
        ),
        page(
            "run-why",
            &tab(&shown.parent, "why"),
            "document.querySelectorAll('.chain-card').length > 1",
        ),
        page(
            "run-children-list",
            &tab(&shown.parent, "children"),
            "document.querySelectorAll('.tab-scroll tbody tr').length > 2",
        ),
        page(
            "run-raw",
            &tab(&shown.done, "raw"),
            "document.querySelectorAll('.raw-line').length > 9",
        ),
        page(
            "run-missing",
            "/runs/0198c0de-0000-7000-8000-000000000000",
            "document.querySelector('.state h2')",
        ),
        page("schedules", "/schedules", "document.querySelectorAll('.schedule').length > 2"),
        page("queues", "/queues", "document.querySelectorAll('tbody tr').length > 2"),
        page(
            "queue-items",
            "/queues?queue=thumbnails&state=dead",
            "document.querySelectorAll('.section td.tools button').length > 1",
        ),
        page("events", "/events?name=paid", "document.querySelector('.numbers')"),
        page("dead-letters", "/dead-letters", "document.querySelectorAll('tbody tr').length > 1"),
        page("cluster", "/cluster", "document.querySelector('main .card, main table')"),
        page("charts", "/charts", "document.querySelector('main svg.chart, main .chart svg')"),
        page("audit", "/audit", "document.querySelector('main table, main .state')"),
        page("nowhere", "/nowhere", "document.querySelector('.state h1')"),
    ]
}

/// The page where one logs in, of the guarded server.
pub(crate) fn login() -> Shown {
    Shown { name: "login", address: "/login".to_owned(), ready: "document.querySelector('#token')" }
}

const RUNS: &str = "document.querySelectorAll('.rows .row').length > 2 \
     && document.querySelector('.chip-count').textContent > ''";
const ENTRIES: &str = "document.querySelectorAll('.entry-body .entry').length > 2";
