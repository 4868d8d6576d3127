//! Events: a name, a type, and who gets what is published under it.

use std::{marker::PhantomData, time::Duration};

use crate::{
    commit::{Deliver, Fallback, OnEnd, Publication},
    settings::Settings,
};

/// An event by its name, with the type of its body. A constant that publishers and workflows share.
///
/// ```
/// use everstep::{Deliver, Event, prelude::*};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Payment { cents: u64 }
///
/// /// Everybody who waits for it sees it.
/// const PAID: Event<Payment> = Event::new("paid");
/// /// One worker gets it.
/// const JOB: Event<String> = Event::new("job").delivery(Deliver::One).retain(days(30));
///
/// #[workflow]
/// async fn ship(ctx: Ctx, order: String) -> Result<Option<u64>> {
///     let paid = ctx.event(PAID).matching(&order).timeout(days(14)).await?;
///     Ok(paid.map(|payment| payment.cents))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = everstep::testing::VirtualClock::new();
/// # let engine = Engine::in_memory().register(ship).clock(clock).start().await?;
/// let client = engine.client();
/// // Whether this comes before or after the workflow waits makes no difference.
/// client.publish(PAID, &Payment { cents: 1250 }).key("order-1").await?;
/// let run = client.start(ship, "order-1".to_owned()).await?;
/// assert_eq!(run.result().await?, Some(1250));
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub struct Event<T> {
    pub(crate) name: &'static str,
    pub(crate) rules: EventRules,
    pub(crate) since: Since,
    body: PhantomData<fn() -> T>,
}

/// Which events from before a wait count for it. A run sees a broadcast once in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// All that are kept.
    #[default]
    Any,
    /// Those that were published since the run was started.
    Run,
    /// None: only those that are published after the wait has begun.
    Wait,
}

/// How an event is published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventRules {
    pub(crate) deliver: Deliver,
    pub(crate) retain: Option<Duration>,
    pub(crate) max_pending: Option<u64>,
}

impl EventRules {
    pub(crate) fn publication(self, name: &str, body: Vec<u8>, settings: &Settings) -> Publication {
        Publication {
            name: name.to_owned(),
            key: None,
            body,
            deliver: self.deliver,
            retain: self.retain.unwrap_or(settings.event_retain),
            max_pending: self.max_pending.unwrap_or(settings.event_max_pending),
            dedupe: None,
        }
    }
}

impl<T> Event<T> {
    /// The event of this name: a broadcast, kept as the engine's settings say, and seen by those
    /// who wait later.
    pub const fn new(name: &'static str) -> Event<T> {
        Event {
            name,
            rules: EventRules { deliver: Deliver::Broadcast, retain: None, max_pending: None },
            since: Since::Any,
            body: PhantomData,
        }
    }

    /// Who gets it.
    pub const fn delivery(mut self, deliver: Deliver) -> Event<T> {
        self.rules.deliver = deliver;
        self
    }

    /// Which events from before a wait count for it.
    pub const fn since(mut self, since: Since) -> Event<T> {
        self.since = since;
        self
    }

    /// How long one is kept for those who wait later; as
    /// [`event_retain`](crate::Settings::event_retain) if this is not said.
    pub const fn retain(mut self, retain: Duration) -> Event<T> {
        self.rules.retain = Some(retain);
        self
    }

    /// How many are kept, after which the oldest is dropped; as
    /// [`event_max_pending`](crate::Settings::event_max_pending) if this is not said.
    pub const fn max_pending(mut self, max: u64) -> Event<T> {
        self.rules.max_pending = Some(max);
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for Event<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Event<T> {}

impl<T> std::fmt::Debug for Event<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({}, {:?})", self.name, self.rules.deliver)
    }
}

/// What becomes of a message to a run that has ended, or that ends before it has read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IfFinished {
    /// The sender gets an error. What is unread when the run ends becomes a dead letter.
    #[default]
    Error,
    /// It is published as an event of this name: a broadcast.
    Publish(String),
    /// It becomes a dead letter, and the sender is told so.
    DeadLetter,
}

impl IfFinished {
    pub(crate) fn on_end(self, settings: &Settings) -> OnEnd {
        match self {
            IfFinished::Error => OnEnd::Error,
            IfFinished::DeadLetter => OnEnd::DeadLetter,
            IfFinished::Publish(event) => OnEnd::Publish(Box::new(fallback(event, settings))),
        }
    }
}

/// The event that a message becomes, kept as the settings say.
pub(crate) fn fallback(event: String, settings: &Settings) -> Fallback {
    Fallback { event, retain: settings.event_retain, max_pending: settings.event_max_pending }
}
