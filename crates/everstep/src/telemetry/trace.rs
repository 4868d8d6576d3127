//! The trace that a run or an item of a queue belongs to: carried from whoever starts it into its spans.
//!
//! The library knows no tracing system. It asks a [`Propagator`] which trace is current when a run is
//! started, keeps the answer with the run, and hands it back when the run has a span.
//!
//! Always true: what is stored and cannot be read as a trace is as if it were not there.

use std::{fmt, sync::OnceLock};

use tracing::Span;

/// Tells which trace is current, and puts spans into one. See [`set_propagator`].
pub trait Propagator: Send + Sync + 'static {
    /// The context of the span that is current on this thread; none outside of a trace.
    fn current(&self) -> Option<TraceContext>;

    /// Makes a span, which has just been made, a child of this context.
    fn adopt(&self, span: &Span, context: &TraceContext);
}

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();

/// From now on every run that is started in this process, by any client or engine, belongs to the trace
/// that is current then, and its `everstep.run` spans are in that trace, in whatever process it goes on.
/// So it is with items of queues and their `everstep.item` spans.
///
/// `false` if there is one already: the first stays.
pub fn set_propagator(propagator: impl Propagator) -> bool {
    PROPAGATOR.set(Box::new(propagator)).is_ok()
}

/// A place in a trace, in the words of the W3C recommendation [Trace Context]. As a text it is the
/// `traceparent`, and after a space the `tracestate` if there is one.
///
/// [Trace Context]: https://www.w3.org/TR/trace-context/
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    text: String,
}

/// How long a `traceparent` is.
const PARENT_BYTES: usize = 55;

/// A longer `tracestate` is left out: the recommendation asks for no more to be carried.
const STATE_BYTES_MAX: usize = 512;

impl TraceContext {
    /// From the values of both headers. None if the first has not the form
    /// `version-trace-parent-flags`; the second is left out if it is empty, too long, or not printable
    /// ASCII.
    pub fn new(traceparent: &str, tracestate: &str) -> Option<TraceContext> {
        if !is_traceparent(traceparent) {
            return None;
        }
        let mut text = traceparent.to_owned();
        let state = tracestate.trim();
        let is_printable = state.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !state.is_empty() && state.len() <= STATE_BYTES_MAX && is_printable {
            text = format!("{text} {state}");
        }
        Some(TraceContext { text })
    }

    /// The value of the header `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.text[..PARENT_BYTES]
    }

    /// The value of the header `tracestate`; empty if there is none.
    pub fn tracestate(&self) -> &str {
        self.text[PARENT_BYTES..].trim_start()
    }

    /// Puts a span, which has just been made, into this trace, if there is a [`Propagator`]: what is
    /// started in the span is then in the trace of whoever has sent these headers.
    pub fn adopt(&self, span: &Span) {
        if let (Some(propagator), false) = (PROPAGATOR.get(), span.is_disabled()) {
            propagator.adopt(span, self);
        }
    }

    /// From what is stored.
    fn from_stored(text: &str) -> Option<TraceContext> {
        let (parent, state) = text.split_once(' ').unwrap_or((text, ""));
        TraceContext::new(parent, state)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether this has the form `version-trace-parent-flags`, and the ids in it mean something.
fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut next = |length: usize| {
        let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let part = parts.next()?;
        (part.len() == length && part.bytes().all(is_hex)).then_some(part)
    };
    let is_id = |part: &str| part.bytes().any(|byte| byte != b'0');
    let has_form = next(2).is_some_and(|version| version != "ff")
        && next(32).is_some_and(is_id)
        && next(16).is_some_and(is_id)
        && next(2).is_some();
    has_form && parts.next().is_none()
}

/// The trace that is current, as it is stored with what is about to be started.
pub(crate) fn current() -> Option<String> {
    let context = PROPAGATOR.get()?.current()?;
    Some(context.text)
}

/// The same inside of a run, whose `own` trace it is where nothing is known of the current one: a process
/// without a tracing system between two that have one does not break the trace.
pub(crate) fn current_in(own: Option<&str>) -> Option<String> {
    current().or_else(|| own.map(str::to_owned))
}

/// Puts a new span into the trace that is stored with what it is about.
pub(crate) fn adopt_stored(span: &Span, stored: Option<&str>) {
    if let Some(stored) = stored
        && !span.is_disabled()
        && let Some(context) = TraceContext::from_stored(stored)
    {
        context.adopt(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_its_two_headers() {
        let both = TraceContext::new(PARENT, " a=1,b=2 3 ").expect("a context");
        assert_eq!((both.traceparent(), both.tracestate()), (PARENT, "a=1,b=2 3"));
        assert_eq!(TraceContext::from_stored(&both.to_string()), Some(both));
        let alone = TraceContext::new(PARENT, "").expect("a context");
        assert_eq!((alone.traceparent(), alone.tracestate()), (PARENT, ""));
        assert_eq!(alone.to_string(), PARENT);
        assert_eq!(TraceContext::from_stored(PARENT), Some(alone));
    }

    #[test]
    fn a_state_that_cannot_be_carried_is_left_out() {
        for state in ["a=ä".to_owned(), "a=1\nb=2".to_owned(), "x".repeat(513)] {
            let context = TraceContext::new(PARENT, &state).expect("a context");
            assert_eq!(context.tracestate(), "", "{state:?}");
        }
        let longest = "x".repeat(512);
        let context = TraceContext::new(PARENT, &longest).expect("a context");
        assert_eq!(context.tracestate(), longest);
    }

    #[test]
    fn what_is_not_a_trace_is_ignored() {
        let malformed = [
            "",
            " ",
            "trace 7",
            "00-4bf9-00f0-01",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &format!("{PARENT}-01"),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &PARENT.replace("4bf92f", "4bg92f"),
            &PARENT.replace("4bf92f", "4bö2f"),
        ];
        for text in malformed {
            assert_eq!(TraceContext::from_stored(text), None, "{text:?}");
        }
    }
}
