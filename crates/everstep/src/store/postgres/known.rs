//! What the runner of this store knows of the runs in its memory, so that it need not read it.
//!
//! Three things. The last number of a run: its row is not written with every step, and nobody else
//! changes it while the fence holds. The whole row, as the last batch left it, with the transaction
//! that wrote it: a batch that names nothing but such rows is sent in one round trip, in which
//! [`REQUIRE_HELD`] or [`REQUIRE_SEEN`] stands where the rows would be read. And which entries a run
//! has, while they are few: one that is new is inserted, where to overwrite what may be there costs
//! twice as much. If a row or an entry is another's by now, nothing of the batch is made, and it is
//! made again the long way.
//!
//! Always true:
//! - A row that is remembered may be old, and then costs a round trip. It is never believed before the
//!   server has compared it.
//! - The last number is in no row, so the server cannot compare it. It is forgotten with the shard of
//!   its run, with the fence, and with any batch about the run whose end is not known.
//! - A row that the batch writes, or that others could miss something of, is compared under its lock.
//!   Where a run only gets more entries, it is not locked: nobody but its owner reads them while it is
//!   live, so whoever changes the row meanwhile might as well have come after the batch.

use std::hash::{Hash, Hasher};

use super::{
    error::CHANGED,
    locks::{Lock, Named},
    session::Op,
    value::params,
};
use crate::{
    commit::{Batch, Commit, Fence, Patch, RunStatus},
    hash::{FastHasher, FastMap, FastSet},
    run_id::RunNo,
    store::{ShardSet, rows::Head, rules::effects},
};

/// Locks rows of runs in their order and compares who wrote them last. The number of a transaction
/// is that of `xmin`, as a number with a sign.
pub(super) const REQUIRE_HELD: &str = "SELECT everstep_require(count(*) = $3, $4) FROM (SELECT 1 FROM \
     (SELECT unnest($1::bigint[]) AS no, unnest($2::bigint[]) AS rev) AS known \
     JOIN everstep_runs ON everstep_runs.no = known.no AND everstep_runs.xmin = known.rev::int4 \
     ORDER BY everstep_runs.no FOR NO KEY UPDATE OF everstep_runs) AS held";

/// As [`REQUIRE_HELD`], without the locks.
pub(super) const REQUIRE_SEEN: &str = "SELECT everstep_require(count(*) = $3, $4) FROM \
     (SELECT unnest($1::bigint[]) AS no, unnest($2::bigint[]) AS rev) AS known \
     JOIN everstep_runs ON everstep_runs.no = known.no AND everstep_runs.xmin = known.rev::int4";

/// That there are no such runs, and nothing is left of deleted ones.
pub(super) const REQUIRE_NEW: &str = "SELECT everstep_require(NOT EXISTS (SELECT 1 FROM everstep_runs WHERE no = ANY ($1)) \
     AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE run = ANY ($1)), $2)";

/// Runs and who wrote their rows, for the server to compare.
#[derive(Default)]
pub(super) struct Compared {
    runs: Vec<i64>,
    revisions: Vec<i64>,
}

impl Compared {
    pub(super) fn add(&mut self, run: RunNo, revision: Revision) {
        self.runs.push(run.0);
        self.revisions.push(i64::from(revision.0));
    }

    /// The statement [`REQUIRE_HELD`] or [`REQUIRE_SEEN`], if there is anything to compare.
    pub(super) fn required(self, sql: &'static str) -> Option<Op> {
        let count = self.runs.len();
        let params = params![self.runs, self.revisions, count, CHANGED];
        (count > 0).then(|| Op::new(sql, params))
    }
}

/// The runs of a batch that only get more entries, if nothing in it can reach a run that it does not
/// name.
pub(super) fn growing(batch: &Batch, named: &Named, rows: &[KnownRow]) -> FastSet<RunNo> {
    let linked = rows.iter().filter_map(|row| match row {
        KnownRow::Is(head, _) if head.links != 0 => Some(head.id.no()),
        _ => None,
    });
    let linked: FastSet<RunNo> = linked.collect();
    let mut commits = batch.commits();
    let closes = |commit: &Commit| effects::has_sequel(commit) && linked.contains(&commit.run);
    if named.reaches_out || commits.any(closes) {
        return FastSet::default();
    }
    let (growing, others): (Vec<&Commit>, Vec<&Commit>) =
        batch.commits().partition(|commit| only_grows(commit));
    let mut growing: FastSet<RunNo> = growing.iter().map(|commit| commit.run).collect();
    for commit in others {
        growing.remove(&commit.run);
    }
    growing
}

/// Whether a commit does nothing but add entries, while the run is running.
fn only_grows(commit: &Commit) -> bool {
    commit.patch == Patch::Keep
        && commit.inbox_seq.is_none()
        && commit.deletes.is_empty()
        && commit.consumed.is_empty()
        && commit.state.is_empty()
        && commit.effects.is_empty()
}

/// The transaction that has written a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revision(pub(super) i32);

impl Revision {
    /// From a number without a sign, as the server shows it.
    pub(super) fn new(number: i64) -> Revision {
        Revision(number as u32 as i32)
    }
}

/// What is known once a batch is durable.
pub(super) enum Learned {
    /// The run is in memory, with this row, which was written by the batch or earlier; and the batch
    /// was its owner's, who alone adds entries, and knows these keys.
    Owned(Head, WrittenBy, Keys),
    /// As before, but the batch has only sent it something.
    Touched(Head, WrittenBy),
    /// Nothing is to be remembered.
    Nothing,
}

#[derive(Clone, Copy)]
pub(super) enum WrittenBy {
    This,
    Earlier(Revision),
    Unknown,
}

impl WrittenBy {
    fn revision(self, transaction: Option<Revision>) -> Option<Revision> {
        match self {
            WrittenBy::This => transaction,
            WrittenBy::Earlier(revision) => Some(revision),
            WrittenBy::Unknown => None,
        }
    }
}

/// The keys of a run's entries, as far as they are few: their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Keys {
    /// It may have any.
    #[default]
    Unknown,
    These(Vec<u64>),
}

/// How many keys of a run are kept.
const KEYS_MAX: usize = 64;

impl Keys {
    /// Those of a new run.
    pub(super) fn none() -> Keys {
        Keys::These(Vec::new())
    }

    /// Adds a key; whether there is surely no entry under it yet.
    pub(super) fn add(&mut self, generation: u32, key: &[u8]) -> bool {
        let Keys::These(keys) = self else {
            return false;
        };
        let mut hasher = FastHasher::default();
        (generation, key).hash(&mut hasher);
        let hash = hasher.finish();
        if keys.contains(&hash) {
            return false;
        }
        if keys.len() == KEYS_MAX {
            *self = Keys::Unknown;
            return false;
        }
        keys.push(hash);
        true
    }
}

/// How many batches go the long way after others have changed what was known.
const REST_MAX: u32 = 32;

/// The rows of runs in the memory of a runner.
#[derive(Default)]
pub(super) struct Known {
    /// Who owns the runs.
    fence: Option<Fence>,
    runs: FastMap<RunNo, Remembered>,
    /// How many batches are still to go the long way, and how many were the last time.
    rest: u32,
    last_rest: u32,
}

struct Remembered {
    head: Head,
    revision: Option<Revision>,
    keys: Keys,
}

impl Known {
    /// The generation of a run and its last number.
    pub(super) fn number(&self, fence: Option<Fence>, run: RunNo) -> Option<(u32, u64)> {
        let known = self.runs.get(&run).filter(|_| self.fence == fence)?;
        Some((known.head.generation, known.head.last_number))
    }

    /// The keys of a run, to be given back with what is learned.
    pub(super) fn take_keys(&mut self, fence: Option<Fence>, run: RunNo) -> Keys {
        let known = self.runs.get_mut(&run).filter(|_| self.fence == fence);
        known.map_or(Keys::Unknown, |known| std::mem::take(&mut known.keys))
    }

    /// The rows of all runs that a batch names, if nothing needs to be read before it is decided.
    pub(super) fn rows_for(&mut self, batch: &Batch, named: &Named) -> Option<Vec<KnownRow>> {
        if batch.fence.is_none() || batch.fence != self.fence {
            return None;
        }
        if !(named.keys.is_empty() && named.streams.is_empty() && named.items == 0) {
            return None;
        }
        let runs = named.locks.iter().filter_map(|lock| match lock {
            Lock::Run(run) => Some(*run),
            _ => None,
        });
        let rows = runs.map(|run| match self.runs.get(&run) {
            Some(known) => Some(KnownRow::Is(known.head, known.revision?)),
            None => named.new_runs.contains(&run).then_some(KnownRow::New(run)),
        });
        let rows: Vec<KnownRow> = rows.collect::<Option<_>>()?;
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        Some(rows)
    }

    /// Others have changed what was known: it is not tried again at once.
    pub(super) fn was_wrong(&mut self) {
        self.last_rest = (2 * self.last_rest).clamp(1, REST_MAX);
        self.rest = self.last_rest;
    }

    pub(super) fn was_right(&mut self) {
        self.last_rest /= 2;
    }

    /// Whether anything is known of a run.
    #[cfg(test)]
    pub(super) fn has(&self, run: RunNo) -> bool {
        self.runs.contains_key(&run)
    }

    /// Forgets the runs in these shards. Others may have them from now on; and should they come back
    /// under the same fence, their last number is not the one that is known here.
    pub(super) fn forget(&mut self, shards: &ShardSet) {
        self.runs.retain(|_, known| !shards.contains(known.head.shard));
    }

    /// Forgets these runs.
    pub(super) fn forget_runs(&mut self, runs: impl Iterator<Item = RunNo>) {
        runs.for_each(|run| _ = self.runs.remove(&run));
    }

    /// Remembers what a durable batch has said.
    pub(super) fn learn(
        &mut self,
        fence: Option<Fence>,
        learned: Vec<(RunNo, Learned)>,
        transaction: Option<Revision>,
    ) {
        if fence.is_none() {
            return;
        }
        if self.fence != fence {
            *self = Known { fence, ..Known::default() };
        }
        for (run, learned) in learned {
            match learned {
                // The number is the one that its owner says, who has one commit under way at a time. It
                // may be lower than before: others can have paused and resumed the run meanwhile.
                Learned::Owned(head, written_by, keys) => {
                    let remembered =
                        Remembered { head, revision: written_by.revision(transaction), keys };
                    self.runs.insert(run, remembered);
                }
                Learned::Touched(head, written_by) => {
                    if let Some(remembered) = self.runs.get_mut(&run) {
                        let before = std::mem::replace(&mut remembered.head, head);
                        remembered.keep_number(&before);
                        remembered.revision = written_by.revision(transaction);
                    }
                }
                Learned::Nothing => _ = self.runs.remove(&run),
            }
        }
    }
}

impl Remembered {
    /// Batches of two lanes may be remembered in another order than they were made in. The row then
    /// is not the one that the server has, which is found out; but the number is in no row, and one
    /// that is not the owner's has it from here, as it was when it began.
    fn keep_number(&mut self, before: &Head) {
        if before.generation == self.head.generation {
            self.head.last_number = before.last_number;
        }
    }
}

/// What is known of a run that a batch names.
pub(super) enum KnownRow {
    Is(Head, Revision),
    /// It is to be made.
    New(RunNo),
}

/// Whether a row is worth remembering: the run is in the memory of its owner, which alone knows its
/// last number. Of a run that waits nothing is kept here, however many there are.
pub(super) fn is_in_memory(head: &Head) -> bool {
    head.status == RunStatus::Running && head.last_number_exact
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commit::{Delivery, OnEnd, Put, Target, Write},
        pool::PoolNo,
        run_id::{RunId, RunIds},
        store::rules::tables::links,
        time::Timestamp,
    };

    fn step_of(run: RunId) -> Commit {
        Commit {
            run: run.no(),
            generation: 1,
            inbox_seq: None,
            results_only: false,
            last_number: 1,
            numbers: 1,
            deletes: Vec::new(),
            puts: vec![Put { key: vec![2], value: vec![3] }],
            consumed: Vec::new(),
            state: Vec::new(),
            effects: Vec::new(),
            patch: Patch::Keep,
        }
    }

    fn end_of(run: RunId) -> Commit {
        Commit {
            patch: Patch::Finish { status: RunStatus::Completed, output: None, error: None },
            ..step_of(run)
        }
    }

    fn growing_of(batch: &Batch, rows: &[KnownRow]) -> FastSet<RunNo> {
        growing(batch, &Named::of(batch), rows)
    }

    fn batch_of(writes: Vec<Write>) -> Batch {
        Batch { writes, ..Batch::default() }
    }

    #[test]
    fn a_run_that_only_gets_entries_is_not_locked() {
        let (ids, now) = (RunIds::new(1), Timestamp::from_millis(1_800_000_000_000));
        let (first, second) = (ids.next(now), ids.next(now));
        let known = |run, links| {
            let head = Head::new(run, PoolNo::DEFAULT, None);
            KnownRow::Is(Head { links, ..head }, Revision(7))
        };
        let step = |run| Write::Commit(Box::new(step_of(run)));
        let end = |run| Write::Commit(Box::new(end_of(run)));
        let rows = [known(first, 0), known(second, 0)];
        let growing_in = |writes| growing_of(&batch_of(writes), &rows);
        let only_first: FastSet<RunNo> = [first.no()].into_iter().collect();
        assert_eq!(growing_in(vec![step(first), end(second)]), only_first);
        // Its end writes the row.
        let both = vec![step(first), step(second), end(second)];
        assert_eq!(growing_in(both), only_first);
        // Where it may be sent something by the same batch, it is locked like all others.
        let delivery = Write::Deliver(Box::new(Delivery {
            target: Target::Id(second),
            name: "news".to_owned(),
            body: Vec::new(),
            dedupe: None,
            request: None,
            inbox_max: 9,
            on_end: OnEnd::Error,
        }));
        assert!(growing_in(vec![step(first), delivery]).is_empty());
        let rows = [known(first, 0), known(second, links::WATCHED)];
        let batch = batch_of(vec![step(first), end(second)]);
        assert!(growing_of(&batch, &rows).is_empty());
    }
}
