//! The oracle: what must be true of a life, whatever befell it.
//!
//! The [`ledger`] is written from outside of the store, by bodies, workflow code and clients, and finds
//! some violations at once. The others are found at the end ([`ending`]), when everything is compared:
//! the ledger, the store, what clients were told, and a cold replay of every run.

pub(crate) mod children;
pub(crate) mod ending;
pub(crate) mod events;
pub(crate) mod ledger;
pub(crate) mod limits;
pub(crate) mod past;
pub(crate) mod queues;
pub(crate) mod requests;
pub(crate) mod schedules;
pub(crate) mod streams;

use std::fmt;

use serde::{Deserialize, Serialize};

/// What must hold. The first ones are the promises of the README, under "After a crash".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// A completed step never runs again.
    CompletedStepNeverRunsAgain,
    /// What the workflow had seen when a body started is kept.
    SeenIsDurable,
    /// Nothing sent is lost.
    NothingSentIsLost,
    /// A message is taken once.
    MessageIsTakenOnce,
    /// Messages of one sender are taken in their order.
    MessagesAreInOrder,
    /// Replay is exact.
    ReplayIsExact,
    /// One live owner per run: no body starts or goes on where the run has moved on.
    OneOwnerPerRun,
    /// A deploy never damages a run: none is paused by the engine for good.
    DeployDamagesNothing,
    /// Attempts and waits go on where they were.
    RetriesGoOn,
    /// What a client was told stays true.
    ToldStaysTrue,
    /// Every run comes to its end once the faults have stopped.
    EveryRunEnds,
    /// The doctor finds nothing.
    StoreIsSound,
    /// Nothing is left in memory, and shards are given back.
    NothingIsLeft,
    /// No thread of an engine dies, and no engine stops by itself.
    EnginesLive,
    /// The simulation itself goes on: no deadlock, no end that never comes.
    SimulationGoesOn,
    /// An iteration of a loop is not performed again once the state after it is stored.
    IterationIsNotRepeated,
    /// Limits are kept: nothing runs under one without a place, and everybody gets in.
    LimitsAreKept,
    /// An item of a queue is worked on by who has it alone, and none is lost.
    ItemsAreDoneOnce,
    /// Streams have no gap and no repetition, and the last value is what the code has set.
    StreamsAreWhole,
    /// An event is seen by those whom it is for, once.
    EventIsSeenOnce,
    /// No event is missed or lost.
    EventIsNotMissed,
    /// The first value of a deferred counts, for whoever settles it and for whoever waits.
    FirstValueCounts,
    /// A SQLite file and a PostgreSQL schema give the answers of the store in memory.
    StoresAgree,
    /// A child runs once.
    ChildRunsOnce,
    /// A generation begins with what the one before has come to, and after it.
    GenerationsFollow,
    /// Each tick of a schedule starts one run, when it is due, or is counted as skipped or missed.
    TicksAreDealtWithOnce,
}

impl Promise {
    pub(crate) const ALL: &[Promise] = &[
        Promise::CompletedStepNeverRunsAgain,
        Promise::SeenIsDurable,
        Promise::NothingSentIsLost,
        Promise::MessageIsTakenOnce,
        Promise::MessagesAreInOrder,
        Promise::ReplayIsExact,
        Promise::OneOwnerPerRun,
        Promise::DeployDamagesNothing,
        Promise::RetriesGoOn,
        Promise::ToldStaysTrue,
        Promise::EveryRunEnds,
        Promise::StoreIsSound,
        Promise::NothingIsLeft,
        Promise::EnginesLive,
        Promise::SimulationGoesOn,
        Promise::IterationIsNotRepeated,
        Promise::LimitsAreKept,
        Promise::ItemsAreDoneOnce,
        Promise::StreamsAreWhole,
        Promise::EventIsSeenOnce,
        Promise::EventIsNotMissed,
        Promise::FirstValueCounts,
        Promise::StoresAgree,
        Promise::ChildRunsOnce,
        Promise::GenerationsFollow,
        Promise::TicksAreDealtWithOnce,
    ];
}

/// A promise that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.what)
    }
}
