//! The bodies of a test's steps: each waits until the test lets it end.
//!
//! Everything is kept by thread, since a test and the run that it drives share one. Values are
//! never given out twice, so a body that runs again gives something else than the first time, and
//! a replay that shows it is found out.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

#[derive(Default)]
struct Hands {
    open: BTreeMap<u64, Open>,
    next: u64,
    starts: Vec<String>,
    /// What code has seen, each after how many completions.
    log: Vec<(u64, String)>,
    loops: HashMap<String, u64>,
    /// The places whose end is durable: nothing may start there again.
    done: HashSet<String>,
    durable_number: u64,
    violations: Vec<String>,
    undone: Vec<(String, String)>,
}

struct Open {
    place: String,
    go: bool,
    waker: Option<Waker>,
}

thread_local! {
    static HANDS: RefCell<Hands> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Hands) -> T) -> T {
    HANDS.with(|hands| work(&mut hands.borrow_mut()))
}

/// Forgets everything but the values that were given out.
pub(super) fn reset() {
    with(|hands| *hands = Hands { next: hands.next, ..Hands::default() });
}

/// A body: begins now, ends when the test says so, and gives a value of its own.
pub(super) struct Body {
    id: u64,
}

/// Begins a body at this place. `seen` is the highest number that the code of its run has taken.
pub(super) fn body(place: &str, seen: u64) -> Body {
    with(|hands| {
        hands.next += 1;
        let id = hands.next;
        hands.starts.push(place.to_owned());
        if hands.done.contains(place) {
            let text = format!("`{place}` was started again after its end was durable");
            hands.violations.push(text);
        }
        if seen > hands.durable_number {
            let durable = hands.durable_number;
            hands.violations.push(format!(
                "`{place}` was started after completion {seen}, of which only {durable} are durable"
            ));
        }
        let open = Open { place: place.to_owned(), go: false, waker: None };
        hands.open.insert(id, open);
        Body { id }
    })
}

impl Future for Body {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u64> {
        with(|hands| {
            let id = self.id;
            let open = hands.open.get_mut(&id).expect("a body that is polled is open");
            open.waker = Some(cx.waker().clone());
            if open.go { Poll::Ready(id) } else { Poll::Pending }
        })
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        with(|hands| hands.open.remove(&self.id));
    }
}

/// The bodies that are in flight and have not been let go: their ids and places.
pub(super) fn held() -> Vec<(u64, String)> {
    with(|hands| {
        let held = hands.open.iter().filter(|(_, open)| !open.go);
        held.map(|(id, open)| (*id, open.place.clone())).collect()
    })
}

/// Lets a body end, and wakes it.
pub(super) fn let_go(id: u64) {
    let waker = with(|hands| {
        let open = hands.open.get_mut(&id).expect("the body is open");
        open.go = true;
        open.waker.clone()
    });
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Lets a body end before it is polled for the first time.
pub(super) fn let_go_unasked(body: &mut Body) {
    with(|hands| {
        if let Some(open) = hands.open.get_mut(&body.id) {
            open.go = true;
        }
    });
}

/// Notes that a rollback has run with this value.
pub(super) fn note_undone(place: &str, value: &str) {
    with(|hands| hands.undone.push((place.to_owned(), value.to_owned())));
}

/// The rollbacks that have run, with their values, in order.
pub(super) fn undone() -> Vec<(String, String)> {
    with(|hands| hands.undone.clone())
}

/// Wakes a body for nothing.
pub(super) fn nudge(id: u64) {
    let waker = with(|hands| hands.open.get(&id).and_then(|open| open.waker.clone()));
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The places at which bodies have started, in order.
pub(super) fn starts() -> Vec<String> {
    with(|hands| hands.starts.clone())
}

/// Notes what workflow code sees.
pub(super) fn log(after: u64, line: String) {
    with(|hands| hands.log.push((after, line)));
}

/// Notes that workflow code has entered an iteration.
pub(super) fn entered(tag: &str, iteration: u64) {
    with(|hands| hands.loops.insert(tag.to_owned(), iteration));
}

/// A process begins: nothing was seen yet.
pub(super) fn new_process(durable_number: u64) {
    with(|hands| {
        hands.log.clear();
        hands.loops.clear();
        hands.durable_number = durable_number;
    });
}

pub(super) fn set_durable_number(number: u64) {
    with(|hands| hands.durable_number = number);
}

/// Notes that what ended at this place is durable.
pub(super) fn note_done(place: String) {
    with(|hands| hands.done.insert(place));
}

/// The places whose end is durable.
pub(super) fn done() -> HashSet<String> {
    with(|hands| hands.done.clone())
}

pub(super) fn set_done(done: HashSet<String>) {
    with(|hands| hands.done = done);
}

/// The first thing that was done and must not be.
pub(super) fn violation() -> Option<String> {
    with(|hands| hands.violations.first().cloned())
}

/// What code has seen in this process, and which iteration each loop is in.
pub(super) fn seen() -> (Vec<(u64, String)>, HashMap<String, u64>) {
    with(|hands| (hands.log.clone(), hands.loops.clone()))
}
