//! What can be broken on purpose, and whether the simulation finds it: one that cannot fail shows
//! nothing.

use everstep::Sabotage;
use serde::Serialize;

use crate::{
    args::{Amount, Args},
    fleet::{Fleet, Share},
};

/// How many seeds a break may take to be found.
pub(crate) const SEEDS: u64 = 2_000;

/// A promise that engines can be told to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
    what: &'static str,
}

pub(crate) const ALL: &[Break] = &[
    new("no-barrier", Sabotage::NoBarrier, "bodies start before what they build on is durable"),
    new(
        "barrier-at-making",
        Sabotage::BarrierAtMaking,
        "a body waits for what was taken when its step was made, not when it starts",
    ),
    new(
        "always-direct",
        Sabotage::AlwaysDirect,
        "a body hands over its result directly, also after another release",
    ),
    new(
        "forget-rollbacks",
        Sabotage::ForgetRollbacks,
        "a finished rollback is forgotten while the run is in memory",
    ),
    new("double-consume", Sabotage::DoubleConsume, "a message that was taken stays in the inbox"),
    new("no-fence", Sabotage::NoFence, "a runner goes on writing after it has lost its shards"),
    new("no-self-fencing", Sabotage::NoSelfFencing, "a runner does not look at its own clock"),
    new(
        "foreign-epoch",
        Sabotage::ForeignEpoch,
        "a body starts under another lease than the one that its run was read under",
    ),
    new(
        "believe-clock",
        Sabotage::BelieveClock,
        "the latest time that any clock has shown counts for ever",
    ),
    new(
        "no-second-look",
        Sabotage::NoSecondLook,
        "shards are taken from a runner whose lease was over when it was read",
    ),
    new(
        "stale-read",
        Sabotage::StaleRead,
        "a run is taken in as it was read, though its shard has moved since",
    ),
    new("park-unseen", Sabotage::ParkUnseen, "a run is parked although an unseen message has come"),
    new(
        "time-out-unseen",
        Sabotage::TimeOutUnseen,
        "a wait runs out although an unseen message has come",
    ),
    new(
        "notify-before",
        Sabotage::NotifyBefore,
        "the committer is notified before there is a write for it",
    ),
    new(
        "resend-unknown",
        Sabotage::ResendUnknown,
        "a batch whose outcome is not known is sent again",
    ),
    new(
        "unknown-is-done",
        Sabotage::UnknownIsDone,
        "a commit whose outcome is not known is taken for made",
    ),
    new(
        "drop-items",
        Sabotage::DropItems,
        "an item of a body is dropped if it is not known whether it was written",
    ),
    new(
        "forget-attempts",
        Sabotage::ForgetAttempts,
        "a run that is read begins its steps with their first attempt",
    ),
    new(
        "consume-early",
        Sabotage::ConsumeEarly,
        "a message is removed with the next commit, taken or not",
    ),
    new("bodies-go-on", Sabotage::BodiesGoOn, "bodies go on after the end of the lease"),
    new(
        "number-on-arrival",
        Sabotage::NumberOnArrival,
        "the result of a body has its number when it arrives",
    ),
    new(
        "orphan-runs",
        Sabotage::OrphanRuns,
        "runs in the memory of another owner are not taken up with its shards",
    ),
    new(
        "release-busy",
        Sabotage::ReleaseBusy,
        "shards are given back while runs of them are in memory",
    ),
    new(
        "tick-without-row",
        Sabotage::TickWithoutRow,
        "a tick is taken in one write, and its run is started in another one",
    ),
    new("double-claim", Sabotage::DoubleClaim, "the store gives a queue item to a second worker"),
    new("second-value", Sabotage::SecondValue, "the store accepts a second value of a deferred"),
    new(
        "give-place-away",
        Sabotage::GivePlaceAway,
        "a run that was resumed at once gives its places under limits away",
    ),
    new(
        "lost-abandon",
        Sabotage::LostAbandon,
        "what an operation has registered stays when the code goes on without it",
    ),
    new("any-poll", Sabotage::AnyPoll, "an operation that is ready resolves in any poll"),
];

const fn new(name: &'static str, sabotage: Sabotage, what: &'static str) -> Break {
    Break { name, sabotage, what }
}

pub(crate) fn by_name(name: &str) -> Result<Break, String> {
    let found = ALL.iter().copied().find(|it| it.name == name);
    found.ok_or_else(|| format!("`{name}` is no break; `--break help` lists them"))
}

pub(crate) fn print_all() {
    for it in ALL {
        println!("{:<18} {}", it.name, it.what);
    }
}

/// What became of the search for a break.
#[derive(Serialize)]
struct Found {
    #[serde(rename = "break")]
    name: &'static str,
    found: bool,
    /// How many seeds it took, or were tried.
    seeds: u64,
    /// The seed that found it, and how.
    seed: Option<u64>,
    violation: Option<String>,
}

/// Looks for each of these; whether all were found.
pub(crate) fn find_all(args: &Args, broken: &[Break]) -> bool {
    let mut all = true;
    for it in broken {
        let found = find(args, *it);
        all &= found.found;
        let line = serde_json::to_string(&found).expect("numbers and texts are always JSON");
        println!("{line}");
    }
    all
}

fn find(args: &Args, broken: Break) -> Found {
    let shares = Share::of(args, Some(broken));
    let mut found = None;
    let mut tried = 0;
    Fleet::start(&shares).hear(|life| {
        tried += 1;
        // The lowest seed that finds it may be another worker's; any is good.
        if let Some(violation) = life.violations.first() {
            found = Some((life.seed, violation.to_string()));
        }
        found.is_none()
    });
    let seeds = match (args.amount, &found) {
        (Amount::Seeds(all), None) => all,
        _ => tried,
    };
    let (seed, violation) = found.unzip();
    Found { name: broken.name, found: seed.is_some(), seeds, seed, violation }
}
