//! What must be true of the tables of a store, row by row, and how a row that breaks it is mended.
//!
//! The table here is the one place where this is said. [`crate::client`]'s doctor goes through it and
//! puts what it finds into words; a store only runs the SQL that follows from it. The conditions are
//! SQL that SQLite and PostgreSQL read alike, over one page of a table at a time, and each of them is
//! judged in one snapshot: what moves is never seen half-way.

use crate::{
    commit::{Cell, InboxKind, RunStatus},
    run_id::{RunId, RunNo},
};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Numbers.
    Int,
    /// Texts.
    Text,
    /// Bytes.
    Bytes,
}

/// What is asked of a store by [`Store::examine`](super::Store::examine).
#[derive(Clone, Debug)]
pub enum Ask {
    /// The store as a whole: is it sound, and is it kept safely?
    Place,
    /// The rows of one page of a table that break the rule with this number.
    Rows {
        /// The number of the rule.
        rule: usize,
        /// The row that the page comes after.
        after: Option<Vec<Cell>>,
        /// How many rows the page has.
        limit: usize,
    },
    /// Whether this row breaks the rule with this number.
    Row {
        /// The number of the rule.
        rule: usize,
        /// The row.
        row: Vec<Cell>,
    },
    /// The row as JSON, for a backup.
    Saved {
        /// The number of the rule, for the table.
        rule: usize,
        /// The row.
        row: Vec<Cell>,
    },
    /// The numbers of runs that have not ended, upwards, or of those that have, downwards.
    Runs {
        /// Which.
        live: bool,
        /// The run that they come after.
        after: Option<RunNo>,
        /// How many at most.
        limit: usize,
    },
    /// One run.
    Run(RunNo),
    /// An entry of the history of a run as JSON, for a backup.
    Entry {
        /// The run.
        run: RunNo,
        /// The key of the entry.
        key: Vec<u8>,
    },
}

/// What a store answers to an [`Ask`].
#[derive(Clone, Debug, Default)]
pub enum Facts {
    /// This store has no such facts.
    #[default]
    Nothing,
    /// What is wrong with the store as a whole.
    Place(Vec<PlaceFact>),
    /// The rows of a page that break a rule.
    Rows {
        /// Those rows.
        found: Vec<FoundRow>,
        /// How many rows the page had.
        looked: u64,
        /// The last row of the page, if another may follow.
        next: Option<Vec<Cell>>,
    },
    /// Whether a row breaks a rule.
    Broken(bool),
    /// Rows as JSON.
    Saved(Vec<String>),
    /// Numbers of runs.
    Runs(Vec<RunNo>),
    /// One run; nothing if it is not there.
    Run(Option<Box<RunFacts>>),
}

/// Something that is wrong with a store as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceFact {
    /// Whether it is about replication, rather than about the data itself.
    pub replication: bool,
    /// Whether what is stored is in danger now.
    pub is_error: bool,
    /// What is wrong and what to do, in words.
    pub what: String,
}

/// A row that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRow {
    /// Which.
    pub row: Vec<Cell>,
    /// The number of the run that it is about, if it is about one.
    pub run: Option<i64>,
    /// The id of that run, if it is there.
    pub id: Option<RunId>,
}

/// A run as it is stored, as far as the doctor looks at it. Nothing here was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFacts {
    /// Its number.
    pub no: RunNo,
    /// Its id; absent if that cannot be one, or is another number's.
    pub id: Option<RunId>,
    /// Its shard.
    pub shard: i64,
    /// Its status; absent if it is none.
    pub status: Option<RunStatus>,
    /// Whether its end is decided.
    pub is_ending: bool,
    /// Which of its lives this is.
    pub generation: i64,
    /// When it is due.
    pub available_at: Option<i64>,
    /// When the row last changed.
    pub updated_at: i64,
    /// How many messages it was ever sent.
    pub inbox_seq: i64,
    /// Its highest sequence number, if the row has it.
    pub last_number: Option<i64>,
    /// What it waits for, in words.
    pub waiting: Option<String>,
    /// The input.
    pub input: Vec<u8>,
    /// The output.
    pub output: Option<Vec<u8>>,
    /// The encoded failure.
    pub error: Option<Vec<u8>>,
    /// The keys of its operations that are registered for an answer of a kind, or have one in the
    /// inbox.
    pub registered: Vec<(InboxKind, Vec<u8>)>,
}

listed! {
    /// The part of the whole that a rule is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Check {
        /// Each live run has a reason to wake.
        Wake as "wake",
        /// No row belongs to something that is not there.
        Orphans as "orphans",
        /// Numbers follow each other.
        Sequences as "sequences",
        /// Runs are in shards of pools that exist, and shards are held by runners that exist.
        Shards as "shards",
        /// What is stored can be read.
        Formats as "formats",
        /// Limits count the places under them.
        Limits as "limits",
        /// Schedules that are not paused have a next tick.
        Schedules as "schedules",
        /// Events are with those who wait for them.
        Events as "events",
        /// The file, or the database, is sound.
        Integrity as "integrity",
        /// Where there are copies of the database, one of them has everything.
        Replication as "replication",
    }
}

/// A rule about the rows of a table. The store in memory has no tables, and uses what is not about them.
pub(crate) struct Rule {
    pub(crate) check: Check,
    pub(crate) table: &'static str,
    /// The columns that name a row: its primary key.
    pub(crate) key: &'static [(&'static str, CellKind)],
    /// The other columns that the condition looks at.
    pub(crate) others: &'static str,
    /// The column with the number of the run that a row is about; empty if it is about none.
    pub(crate) run: &'static str,
    /// What is true of a row that breaks it. The row is `t`.
    pub(crate) broken: &'static str,
    pub(crate) remedy: Remedy,
    /// What is wrong, in words: `{run}` is the run, and `{1}`, `{2}` .. the columns of the key.
    pub(crate) what: &'static str,
}

/// How a row that breaks a rule is mended.
#[derive(Clone, Copy)]
pub(crate) enum Remedy {
    /// It is removed.
    Delete,
    /// Columns are set to something else.
    Set(&'static str),
    /// A row of another table is put back: what stands between `INSERT` and `FROM`.
    PutBack(&'static str),
    /// An event is offered to those who wait, by the rules of events.
    TakeBack,
    /// A place under a limit is removed, and others are let in by the rules of limits.
    Vacate,
    /// The places under a limit are counted, and whoever there is room for is let in.
    Recount,
    /// Nothing that is safe.
    None,
}

use CellKind::{Bytes, Int, Text};

macro_rules! gone {
    ($column:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.",
            $column,
            ") AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = t.",
            $column,
            ")"
        )
    };
}

macro_rules! over {
    ($column:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.",
            $column,
            " AND (everstep_runs.status IN (5, 6, 7) OR everstep_runs.generation <> t.generation))"
        )
    };
}

/// Rows of a run that is not there.
macro_rules! orphan {
    ($table:literal, $key:expr, $what:literal) => {
        Rule {
            check: Check::Orphans,
            table: $table,
            key: $key,
            others: "run",
            run: "run",
            broken: concat!("t.run IS NOT NULL AND ", gone!("run")),
            remedy: Remedy::Delete,
            what: concat!($what, " of {run}, which does not exist, is left"),
        }
    };
}

/// A wait of a run that is not there, has ended, or has gone on as another generation.
macro_rules! stale_wait {
    ($table:literal, $key:expr, $run:literal, $what:literal) => {
        stale_wait!($table, $key, $run, $what, Remedy::Delete)
    };
    ($table:literal, $key:expr, $run:literal, $what:literal, $remedy:expr) => {
        Rule {
            check: Check::Orphans,
            table: $table,
            key: $key,
            others: concat!("generation, ", $run),
            run: $run,
            broken: concat!("((", gone!($run), ") OR ", over!($run), ") AND t.", $run, " >= 0"),
            remedy: $remedy,
            what: concat!($what, " of {run} is left, and that run does not wait for it any more"),
        }
    };
}

/// What the rules about the rows of runs have in common.
const OF_RUNS: Rule = Rule {
    check: Check::Wake,
    table: "everstep_runs",
    key: &[("no", Int)],
    others: "",
    run: "no",
    broken: "",
    remedy: Remedy::None,
    what: "",
};

/// All rules, in the order in which they are mended: what counts others comes after them.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        check: Check::Orphans,
        table: "everstep_graves",
        key: &[("run", Int)],
        others: "run",
        run: "run",
        broken: "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run)",
        remedy: Remedy::Delete,
        what: "{run} is marked as deleted, and is there: what belongs to it would be swept away",
    },
    Rule {
        check: Check::Sequences,
        table: "everstep_old_generations",
        key: &[("run", Int), ("generation", Int)],
        others: "run",
        run: "run",
        broken: "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.generation <= t.generation)",
        remedy: Remedy::Delete,
        what: "generation {2} of {run} is marked as over, and is the current one: its history \
               would be swept away",
    },
    orphan!(
        "everstep_history",
        &[("run", Int), ("generation", Int), ("key", Bytes)],
        "an entry of the history"
    ),
    orphan!("everstep_inbox", &[("run", Int), ("seq", Int)], "message {2}"),
    orphan!("everstep_dedupes", &[("run", Int), ("key", Text)], "the dedupe key `{2}`"),
    orphan!("everstep_requests", &[("id", Bytes)], "a request"),
    orphan!("everstep_state", &[("run", Int), ("key", Text)], "the state `{2}`"),
    orphan!("everstep_tags", &[("name", Text), ("value", Text), ("run", Int)], "the tag `{1}`"),
    orphan!("everstep_dead_letters", &[("no", Int)], "dead letter {1}"),
    orphan!(
        "everstep_streams",
        &[("run", Int), ("stream", Text), ("pos", Int)],
        "item {3} of the stream `{2}`"
    ),
    orphan!(
        "everstep_event_cursors",
        &[("run", Int), ("name", Text), ("matching", Text)],
        "the place in the events `{2}`"
    ),
    orphan!(
        "everstep_deferreds",
        &[("run", Int), ("generation", Int), ("tag", Bytes)],
        "the value of a deferred"
    ),
    Rule {
        check: Check::Orphans,
        table: "everstep_inbox",
        key: &[("run", Int), ("seq", Int)],
        others: "run",
        run: "run",
        broken: "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run AND everstep_runs.status IN (5, 6, 7))",
        remedy: Remedy::Delete,
        what: "message {2} is in the inbox of {run}, which has ended and will not read it",
    },
    Rule {
        check: Check::Orphans,
        table: "everstep_history",
        key: &[("run", Int), ("generation", Int), ("key", Bytes)],
        others: "run",
        run: "run",
        broken: "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.generation > t.generation) AND NOT EXISTS (SELECT 1 FROM \
                 everstep_old_generations AS old WHERE old.run = t.run AND old.generation = t.generation)",
        remedy: Remedy::Delete,
        what: "an entry of generation {2} of {run} is left, and that generation is over",
    },
    Rule {
        check: Check::Sequences,
        table: "everstep_history",
        key: &[("run", Int), ("generation", Int), ("key", Bytes)],
        others: "run",
        run: "run",
        broken: "EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.generation < t.generation)",
        remedy: Remedy::None,
        what: "{run} has an entry of generation {2}, which it has not come to: restore the \
               database from a backup, or fork the run",
    },
    Rule {
        check: Check::Orphans,
        table: "everstep_requests",
        key: &[("id", Bytes)],
        others: "run, state",
        run: "run",
        broken: "t.state = 0 AND EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.status IN (5, 6, 7))",
        remedy: Remedy::Set("state = 2"),
        what: "a request to {run} is open, and that run has ended: whoever sent it waits for ever",
    },
    Rule {
        check: Check::Orphans,
        table: "everstep_keys",
        key: &[("workflow", Text), ("key", Text)],
        others: "run",
        run: "run",
        // A run that has continued as another workflow keeps the key of the one it began as.
        broken: "t.run >= 0 AND NOT EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.key = t.key)",
        remedy: Remedy::Delete,
        what: "the key `{2}` of workflow `{1}` leads to {run}, which does not exist or was not \
               started with it: a start with this key would get nothing",
    },
    Rule {
        check: Check::Orphans,
        others: "workflow, key, generation",
        // Later generations may be of another workflow, and do not say which the key belongs to.
        broken: "t.key IS NOT NULL AND t.generation = 1 AND NOT EXISTS (SELECT 1 FROM everstep_keys \
                 WHERE everstep_keys.workflow = t.workflow AND everstep_keys.key = t.key)",
        remedy: Remedy::PutBack(
            "INTO everstep_keys (workflow, key, run) SELECT t.workflow, t.key, t.no",
        ),
        what: "{run} was started with a key that does not lead to it: a second start with that \
               key would do everything once more",
        ..OF_RUNS
    },
    Rule {
        check: Check::Orphans,
        others: "workflow, key, generation",
        // Nearly all have it under their workflow; the others are looked for under each that has keys.
        broken: "t.key IS NOT NULL AND t.generation > 1 AND NOT EXISTS (SELECT 1 FROM everstep_keys \
                 WHERE everstep_keys.workflow = t.workflow AND everstep_keys.key = t.key AND everstep_keys.run = t.no) \
                 AND NOT EXISTS (SELECT 1 FROM everstep_keys WHERE everstep_keys.key = t.key AND everstep_keys.run = t.no \
                 AND everstep_keys.workflow IN (WITH RECURSIVE names (workflow) AS (SELECT min(workflow) \
                 FROM everstep_keys UNION ALL SELECT (SELECT min(other.workflow) FROM everstep_keys AS other \
                 WHERE other.workflow > names.workflow) FROM names \
                 WHERE names.workflow IS NOT NULL) SELECT workflow FROM names))",
        remedy: Remedy::None,
        what: "{run} was started with a key that does not lead to it any more, and has continued \
               since, perhaps as another workflow: before anybody starts it again with that key, \
               look for it by its id",
        ..OF_RUNS
    },
    stale_wait!(
        "everstep_event_waiters",
        &[("name", Text), ("no", Int)],
        "run",
        "the wait for an event `{1}`"
    ),
    stale_wait!(
        "everstep_watchers",
        &[("run", Int), ("waiter", Int), ("generation", Int), ("key", Bytes)],
        "waiter",
        "the wait for the end of another run"
    ),
    stale_wait!(
        "everstep_deferred_waits",
        &[("run", Int), ("generation", Int), ("tag", Bytes), ("key", Bytes)],
        "run",
        "the wait for a deferred"
    ),
    stale_wait!(
        "everstep_queue_waits",
        &[("run", Int), ("generation", Int), ("key", Bytes)],
        "run",
        "the wait for a queue item"
    ),
    stale_wait!(
        "everstep_limit_places",
        &[("run", Int), ("generation", Int), ("operation", Bytes)],
        "run",
        "a place under a limit",
        Remedy::Vacate
    ),
    Rule {
        check: Check::Limits,
        table: "everstep_limit_places",
        key: &[("run", Int), ("generation", Int), ("operation", Bytes)],
        others: "name",
        run: "",
        broken: "t.run = -2 AND NOT EXISTS (SELECT 1 FROM everstep_queue_items AS item \
                 WHERE item.state = 2 AND item.no = {item})",
        remedy: Remedy::Vacate,
        what: "a queue item has a place under a limit, and nobody works on it",
    },
    Rule {
        check: Check::Limits,
        table: "everstep_limit_places",
        key: &[("run", Int), ("generation", Int), ("operation", Bytes)],
        others: "name, key",
        run: "run",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_limits WHERE everstep_limits.name = t.name \
                 AND everstep_limits.key = t.key)",
        remedy: Remedy::Vacate,
        what: "{run} has or awaits a place under a limit that does not exist",
    },
    Rule {
        check: Check::Wake,
        table: "everstep_watchers",
        key: &[("run", Int), ("waiter", Int), ("generation", Int), ("key", Bytes)],
        others: "run",
        run: "waiter",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.status NOT IN (5, 6, 7))",
        remedy: Remedy::None,
        what: "{run} waits for the end of run number {1}, which has ended or does not exist, and \
               was not told: cancel {run}, or fork it from before that wait",
    },
    Rule {
        check: Check::Orphans,
        table: "everstep_children",
        key: &[("run", Int)],
        others: "run",
        run: "run",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_runs WHERE everstep_runs.no = t.run \
                 AND everstep_runs.status NOT IN (5, 6, 7))",
        remedy: Remedy::Delete,
        what: "{run} is held to be the live child of another run, and has ended or does not exist",
    },
    Rule {
        check: Check::Wake,
        table: "everstep_queue_waits",
        key: &[("run", Int), ("generation", Int), ("key", Bytes)],
        others: "item",
        run: "run",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_queue_items AS item WHERE item.no = t.item)",
        remedy: Remedy::None,
        what: "{run} waits for a queue item that does not exist, and will not be told: cancel it, \
               or fork it from before that wait",
    },
    Rule {
        check: Check::Events,
        table: "everstep_events",
        key: &[("name", Text), ("seq", Int)],
        others: "given_to",
        run: "",
        broken: "t.given_to IS NOT NULL AND NOT EXISTS (SELECT 1 FROM everstep_event_waiters AS waiter \
                 WHERE waiter.name = t.name AND waiter.no = t.given_to)",
        remedy: Remedy::TakeBack,
        what: "event {2} of `{1}` is with somebody who does not wait for it any more: nobody gets it",
    },
    Rule {
        check: Check::Events,
        table: "everstep_event_names",
        key: &[("name", Text)],
        others: "kept, last_seq, last_waiter",
        run: "",
        broken: "t.kept <> (SELECT count(*) FROM everstep_events WHERE everstep_events.name = t.name \
                 AND everstep_events.given_to IS NULL) \
                 OR t.last_seq < (SELECT coalesce(max(seq), 0) FROM everstep_events \
                 WHERE everstep_events.name = t.name) \
                 OR t.last_waiter < (SELECT coalesce(max(no), 0) FROM everstep_event_waiters AS waiter \
                 WHERE waiter.name = t.name)",
        remedy: Remedy::Set(
            "kept = (SELECT count(*) FROM everstep_events WHERE everstep_events.name = t.name \
             AND everstep_events.given_to IS NULL), last_seq = CASE WHEN t.last_seq < (SELECT \
             coalesce(max(seq), 0) FROM everstep_events WHERE everstep_events.name = t.name) THEN (SELECT max(seq) \
             FROM everstep_events WHERE everstep_events.name = t.name) ELSE t.last_seq END, last_waiter = CASE WHEN \
             t.last_waiter < (SELECT coalesce(max(no), 0) FROM everstep_event_waiters AS waiter WHERE \
             waiter.name = t.name) THEN (SELECT max(no) FROM everstep_event_waiters AS waiter \
             WHERE waiter.name = t.name) ELSE t.last_waiter END",
        ),
        what: "the counts of the events `{1}` are not those of its rows",
    },
    Rule {
        check: Check::Limits,
        table: "everstep_limits",
        key: &[("name", Text), ("key", Text)],
        others: "held, waiting",
        run: "",
        broken: "t.held <> (SELECT count(*) FROM everstep_limit_places AS place WHERE place.name = t.name \
                 AND place.key = t.key AND place.given = 1) \
                 OR t.waiting <> (SELECT count(*) FROM everstep_limit_places AS place \
                 WHERE place.name = t.name AND place.key = t.key AND place.given = 0)",
        remedy: Remedy::Recount,
        what: "the limit `{1}` (key `{2}`) counts other places than there are",
    },
    Rule {
        check: Check::Limits,
        table: "everstep_limits",
        key: &[("name", Text), ("key", Text)],
        others: "held, waiting, concurrency",
        run: "",
        // A rate holds nobody up: its turns are given in advance.
        broken: "t.waiting > 0 AND (t.concurrency IS NULL OR t.held < t.concurrency)",
        remedy: Remedy::Recount,
        what: "runs wait for a place under the limit `{1}` (key `{2}`), and there is room: nobody \
               lets them in",
    },
    Rule {
        check: Check::Shards,
        table: "everstep_shards",
        key: &[("shard", Int)],
        others: "runner",
        run: "",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_runners WHERE everstep_runners.id = t.runner)",
        remedy: Remedy::Delete,
        what: "shard {1} is held by a runner that does not exist: nobody works on its runs",
    },
    Rule {
        check: Check::Shards,
        others: "shard, pool",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_pools WHERE everstep_pools.no = t.shard / 256) \
                 AND NOT EXISTS (SELECT 1 FROM everstep_pools WHERE everstep_pools.name = t.pool)",
        remedy: Remedy::PutBack("INTO everstep_pools (no, name) SELECT t.shard / 256, t.pool"),
        what: "{run} is in a shard of a pool that does not exist: nobody takes it up",
        ..OF_RUNS
    },
    Rule {
        check: Check::Shards,
        others: "shard, pool",
        broken: "NOT EXISTS (SELECT 1 FROM everstep_pools WHERE everstep_pools.no = t.shard / 256) \
                 AND EXISTS (SELECT 1 FROM everstep_pools WHERE everstep_pools.name = t.pool)",
        remedy: Remedy::None,
        what: "{run} is in a shard of a pool that does not exist, and its own pool has another \
               number: move it to a pool that is there",
        ..OF_RUNS
    },
    Rule {
        check: Check::Formats,
        others: "status, generation",
        broken: "t.status NOT IN (0, 1, 2, 3, 4, 5, 6, 7) OR t.generation < 1",
        remedy: Remedy::None,
        what: "{run} has a status or a generation that cannot be: restore it from a backup",
        ..OF_RUNS
    },
    Rule {
        check: Check::Wake,
        others: "status, available_at",
        broken: "t.status = 0 AND t.available_at IS NULL",
        remedy: Remedy::Set("available_at = t.no >> 20"),
        what: "{run} is pending and has no time at which it is taken up",
        ..OF_RUNS
    },
    Rule {
        check: Check::Wake,
        others: "status, available_at",
        broken: "t.status IN (5, 6, 7) AND t.available_at IS NOT NULL",
        remedy: Remedy::Set("available_at = NULL"),
        what: "{run} has ended, and is due all the same: its owner takes it up again and again",
        ..OF_RUNS
    },
    Rule {
        check: Check::Sequences,
        others: "status, finished_at",
        broken: "t.status IN (5, 6, 7) AND t.finished_at IS NULL",
        remedy: Remedy::Set("finished_at = updated_at"),
        what: "{run} has ended, and the row does not say when: retention never deletes it",
        ..OF_RUNS
    },
    Rule {
        check: Check::Sequences,
        others: "inbox_seq",
        broken: "t.inbox_seq < (SELECT coalesce(max(seq), 0) FROM everstep_inbox WHERE everstep_inbox.run = t.no)",
        remedy: Remedy::Set(
            "inbox_seq = (SELECT max(seq) FROM everstep_inbox WHERE everstep_inbox.run = t.no), available_at = CASE \
             WHEN t.status IN (0, 1, 2) THEN t.no >> 20 ELSE t.available_at END",
        ),
        what: "{run} has messages with higher numbers than it was ever sent: it does not see them",
        ..OF_RUNS
    },
    Rule {
        check: Check::Formats,
        table: "everstep_queue_items",
        key: &[("no", Int)],
        others: "state, claim",
        run: "",
        broken: "t.state NOT IN (0, 1, 2, 3, 4) OR (t.state = 2 AND t.claim IS NULL)",
        remedy: Remedy::None,
        what: "queue item {1} has a state that cannot be: drop it, and put it in once more",
    },
    Rule {
        check: Check::Formats,
        table: "everstep_api_tokens",
        key: &[("name", Text)],
        others: "role, hash",
        run: "",
        broken: "length(t.hash) <> 32 OR t.role NOT IN ('read', 'operate', 'admin')",
        remedy: Remedy::None,
        what: "the token `{1}` cannot be read: no token is known until it is revoked",
    },
];

/// SQL for a rule. Parameters are `?1`, `?2` ..; `item` reads the number of a queue item from the
/// operation of a place.
#[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), expect(dead_code))]
pub(crate) mod sql {
    use super::{Remedy, Rule};

    fn names(rule: &Rule, prefix: &str) -> String {
        let names: Vec<String> =
            rule.key.iter().map(|(name, _)| format!("{prefix}{name}")).collect();
        names.join(", ")
    }

    fn places(count: usize) -> String {
        let places: Vec<String> = (1..=count).map(|no| format!("?{no}")).collect();
        places.join(", ")
    }

    fn after(rule: &Rule, has_after: bool) -> String {
        match has_after {
            true => format!("WHERE ({}) > ({})", names(rule, ""), places(rule.key.len())),
            false => String::new(),
        }
    }

    /// The rows of a page that break the rule: the columns of the key, the number of the run and its
    /// id.
    pub(crate) fn page(rule: &Rule, has_after: bool, limit: usize, item: &str) -> String {
        let key = names(rule, "");
        let columns = match rule.others {
            "" => key.clone(),
            others => {
                // A column that is in the key is not named twice.
                let is_new = |name: &&str| !rule.key.iter().any(|(other, _)| other == name);
                let mut all = vec![key.clone()];
                all.extend(others.split(", ").filter(is_new).map(str::to_owned));
                all.join(", ")
            }
        };
        let run = match rule.run {
            "" => "CAST(NULL AS bigint), CAST(NULL AS bytea)".to_owned(),
            run => {
                format!("t.{run}, (SELECT id FROM everstep_runs WHERE everstep_runs.no = t.{run})")
            }
        };
        format!(
            "SELECT {}, {run} FROM (SELECT {columns} FROM {} {} ORDER BY {key} LIMIT {limit}) AS t \
             WHERE {} ORDER BY {}",
            names(rule, "t."),
            rule.table,
            after(rule, has_after),
            rule.broken.replace("{item}", item),
            names(rule, "t."),
        )
    }

    /// The key of the last row of a page, if it is full.
    pub(crate) fn page_end(rule: &Rule, has_after: bool, limit: usize) -> String {
        let key = names(rule, "");
        format!(
            "SELECT {key} FROM {} {} ORDER BY {key} LIMIT 1 OFFSET {}",
            rule.table,
            after(rule, has_after),
            limit - 1
        )
    }

    /// How many rows a page has.
    pub(crate) fn page_rows(rule: &Rule, has_after: bool, limit: usize) -> String {
        let key = names(rule, "");
        format!(
            "SELECT count(*) FROM (SELECT {key} FROM {} {} ORDER BY {key} LIMIT {limit}) AS t",
            rule.table,
            after(rule, has_after)
        )
    }

    fn this_row(rule: &Rule) -> String {
        let conditions: Vec<String> =
            rule.key.iter().zip(1..).map(|((name, _), no)| format!("t.{name} = ?{no}")).collect();
        conditions.join(" AND ")
    }

    /// The condition for one row that breaks the rule.
    fn this_broken(rule: &Rule, item: &str) -> String {
        let broken = rule.broken.replace("{item}", item);
        format!("{} AND ({broken})", this_row(rule))
    }

    pub(crate) fn is_broken(rule: &Rule, item: &str) -> String {
        let broken = this_broken(rule, item);
        format!("SELECT 1 FROM {} AS t WHERE {broken}", rule.table)
    }

    /// The whole row, as the store gives it as `columns`.
    pub(crate) fn whole(rule: &Rule, columns: &str) -> String {
        format!("SELECT {columns} FROM {} AS t WHERE {}", rule.table, this_row(rule))
    }

    /// What mends a row; nothing if nothing does, or if it takes more than a statement.
    pub(crate) fn mend(rule: &Rule, item: &str) -> Option<String> {
        let broken = this_broken(rule, item);
        let table = rule.table;
        Some(match rule.remedy {
            Remedy::Delete => format!("DELETE FROM {table} AS t WHERE {broken}"),
            Remedy::Set(columns) => format!("UPDATE {table} AS t SET {columns} WHERE {broken}"),
            Remedy::PutBack(into) => format!("INSERT {into} FROM {table} AS t WHERE {broken}"),
            Remedy::TakeBack | Remedy::Vacate | Remedy::Recount | Remedy::None => return None,
        })
    }

    /// What removes an entry: the run, its key, and its value as it was seen.
    pub(crate) const REMOVE_ENTRY: &str = "DELETE FROM everstep_history AS t WHERE t.run = ?1 \
        AND t.key = ?2 AND t.value = ?3 \
        AND EXISTS (SELECT 1 FROM everstep_runs WHERE no = t.run AND generation = t.generation \
        AND status = 4) \
        AND NOT EXISTS (SELECT 1 FROM everstep_event_waiters AS wait WHERE wait.run = t.run \
        AND wait.generation = t.generation AND wait.wait = t.key) \
        AND NOT EXISTS (SELECT 1 FROM everstep_deferred_waits AS wait WHERE wait.run = t.run \
        AND wait.generation = t.generation AND wait.key = t.key) \
        AND NOT EXISTS (SELECT 1 FROM everstep_inbox WHERE everstep_inbox.run = t.run AND everstep_inbox.wait = t.key)";

    pub(crate) const FORGET_NUMBER: &str = "UPDATE everstep_runs SET last_number = NULL WHERE no = ?1 \
        AND last_number = ?2 AND status NOT IN (1, 3)";

    pub(crate) const SHARD: &str = "UPDATE everstep_runs SET shard = ?3 WHERE no = ?1 AND shard = ?2 \
        AND status NOT IN (1, 2, 3)";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_says_which_run_it_is_about_if_it_is_about_one() {
        for rule in RULES {
            let is_said = rule.what.contains("{run}");
            assert_eq!(is_said, !rule.run.is_empty(), "{}", rule.what);
            let last = rule.key.len() + 1;
            assert!(!rule.what.contains(&format!("{{{last}}}")), "{}", rule.what);
        }
    }
}
