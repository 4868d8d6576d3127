//! Promises that an engine can be told to break, so that the tests of a promise can be tested.
//!
//! [`Settings::sabotage`](crate::Settings) names one, with the feature `sabotage` alone, which no
//! release build has. Without it [`Settings::breaks`](crate::Settings) is `false` at compile time.

/// A promise that an engine breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Bodies start before what they build on is durable.
    NoBarrier,
    /// A body waits for the results that its run had taken when its step was made, not for those
    /// that other branches have taken since.
    BarrierAtMaking,
    /// An operation that is ready resolves in any poll, not only when it is offered.
    AnyPoll,
    /// A body hands over its result directly, also in its first poll or after another release.
    AlwaysDirect,
    /// A finished rollback is forgotten while the run is in memory.
    ForgetRollbacks,
    /// A message that was taken stays in the inbox.
    DoubleConsume,
    /// A run that was paused gives its places under limits away and leaves memory, though it was
    /// resumed meanwhile.
    GivePlaceAway,
    /// A runner goes on writing after it has lost its shards.
    NoFence,
    /// A runner does not look at its own clock: only the store refuses what it writes after its
    /// lease has ended.
    NoSelfFencing,
    /// A body starts under a lease of this process that is not the one with which its run was read.
    ForeignEpoch,
    /// The latest time that any clock has shown counts for ever, though the clock was set back.
    BelieveClock,
    /// Shards are taken from a runner whose lease was over when it was read, though it may have been
    /// prolonged since.
    NoSecondLook,
    /// A run is taken in as it was read, though its shard has moved since.
    StaleRead,
    /// A run is parked although a message has come that its owner has not seen.
    ParkUnseen,
    /// A wait runs out although a message has come that its owner has not seen.
    TimeOutUnseen,
    /// The committer is notified before there is a write for it.
    NotifyBefore,
    /// What an operation has registered stays when the code goes on without it.
    LostAbandon,
    /// A batch whose outcome is not known is sent again.
    ResendUnknown,
    /// A commit whose outcome is not known is taken for one that was made.
    UnknownIsDone,
    /// An item of a body is dropped if it is not known whether it was written.
    DropItems,
    /// A run that is read begins its steps with their first attempt.
    ForgetAttempts,
    /// A message is removed from the inbox with the next commit, taken or not.
    ConsumeEarly,
    /// Bodies go on after the end of the lease.
    BodiesGoOn,
    /// The result of a body has its number when it arrives, not when the code takes it.
    NumberOnArrival,
    /// The runs that were in the memory of another owner are not taken up with its shards.
    OrphanRuns,
    /// Shards are given back while runs of them are in memory.
    ReleaseBusy,
    /// A tick of a schedule is taken in one write, and its run is started in another one.
    TickWithoutRow,
    /// The simulated store gives an item of a queue to a second worker that asks.
    #[allow(dead_code, reason = "only a simulation asks for it")]
    DoubleClaim,
    /// The simulated store accepts a second value of a deferred.
    #[allow(dead_code, reason = "only a simulation asks for it")]
    SecondValue,
}
