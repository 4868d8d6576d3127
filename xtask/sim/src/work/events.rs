//! The events and the deferred of all programs.

use everstep::{Deferred, Deliver, Event, Since};

/// The events: broadcasts and ones of a single delivery, with what counts from before a wait.
pub(crate) const EVENTS: [Event<String>; 4] = [
    Event::new("news"),
    Event::new("flash").since(Since::Wait),
    Event::new("job").delivery(Deliver::One),
    Event::new("task").delivery(Deliver::One).since(Since::Run),
];

/// The event that no wait may miss, whenever it was published.
pub(crate) const NEWS: usize = 0;

/// How many keys events are published with.
pub(crate) const KEYS: u64 = 2;

/// Whether events of this number go to one wait.
pub(crate) fn goes_to_one(event: usize) -> bool {
    event >= 2
}

/// The text of the key of an event.
pub(crate) fn event_key(key: u32) -> String {
    format!("key-{key}")
}

/// The deferred that programs make.
pub(crate) const PROMISE: Deferred<String> = Deferred::new("promise");
