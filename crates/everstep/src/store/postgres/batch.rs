//! A batch in SQL: [`rules`] decides, this writes.
//!
//! It begins with one round trip that locks and reads everything the batch names ([`Named`]); what
//! is written leaves with the commit, in one more. Only what nobody could foresee (who waits for an
//! event, the parent of a run that ends) is read in between.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::{
    ahead::Ahead,
    children, columns,
    control::{self, Keyed},
    error::{CHANGED, FENCED, Trouble},
    known::{self, Keys, Known, KnownRow, Learned, Revision, WrittenBy},
    locks::{Lock, Named},
    queues, schedules,
    session::{Bulk, Op, Session},
    streams,
    value::{Row, Value, params},
};
use crate::{
    hash::{FastMap, FastSet},
    pool::PoolNo,
    run_id::{RunNo, ShardId},
    store::{
        rules::{
            self, Head, Verdict, deferreds, effects, events, letters,
            pools::Pools,
            tables::{Tables, Waiter},
        },
        *,
    },
    time::Timestamp,
};

/// What a batch is applied with, besides itself.
pub(super) struct Terms<'t> {
    /// What it names, and what was found to be missing in earlier goes.
    pub(super) named: &'t Named,
    /// Whether its fence is asked for. Not if it was found not to hold.
    pub(super) fenced: bool,
    /// The shards of its runner, if they are known.
    pub(super) shards: Option<ShardSet>,
    /// The number of the schema, for advisory locks.
    pub(super) schema: u32,
    /// What is known of runs in memory.
    pub(super) known: &'t Mutex<Known>,
    /// Whether nothing was found to be otherwise than it is remembered.
    pub(super) is_first_go: bool,
    /// The rows that it names, if all of them are known and may be believed.
    pub(super) rows: Option<&'t [KnownRow]>,
    /// Numbers for items of queues that were drawn before and not used.
    pub(super) spare_items: &'t Mutex<Vec<u64>>,
    /// Those that this go has used or may use: the next one's, if it has to begin again.
    pub(super) items_in_hand: &'t Mutex<Vec<u64>>,
}

/// Applies a batch within a transaction, in the two passes that [`rules`] describes.
pub(super) fn apply(
    session: &Session<'_>,
    batch: &Batch,
    terms: &Terms<'_>,
) -> Result<(Applied, Vec<(RunNo, Learned)>), Trouble> {
    let mut applier = Applier::begin(session, batch, terms)?;
    applier.look_ahead(batch)?;
    let mut outcomes = Vec::with_capacity(batch.writes.len());
    for write in &batch.writes {
        outcomes.push(match write {
            Write::Commit(commit) => applier.commit(commit)?,
            Write::Emit(emission) => applier.emission(emission)?,
            // Its turn comes after all commits.
            _ => Outcome::Refused(Refusal::Gone),
        });
    }
    for (write, outcome) in batch.writes.iter().zip(&mut outcomes) {
        *outcome = match write {
            Write::Start(new) => applier.start(new)?,
            Write::Deliver(delivery) => Outcome::Delivered(applier.deliver(delivery)?),
            Write::Control(target, control) => {
                Outcome::Controlled(applier.control(target, *control)?)
            }
            Write::Reopen(reopen) => applier.reopen(reopen)?,
            Write::Queue(write) => Outcome::Queue(rules::queues::write(&mut applier, write)?),
            Write::Publish(publication) => {
                Outcome::Published(events::publish(&mut applier, publication)?)
            }
            Write::TendEvents { limit } => Outcome::Tended(events::tend(&mut applier, *limit)?),
            Write::Letter(write) => Outcome::Letter(letters::apply(&mut applier, write)?),
            Write::Resolve(resolution) => {
                Outcome::Settled(deferreds::settle(&mut applier, resolution)?)
            }
            Write::Sweep(limit) => Outcome::Swept(applier.sweep(*limit)?),
            Write::Emit(_) => continue,
            Write::Schedule(write) => applier.write_about_schedule(write)?,
            Write::Import(run) => applier.import(run)?,
            Write::Delete(delete) => Outcome::Deleted(applier.delete(delete)?),
            Write::Tag(tagging) => applier.tag(tagging)?,
            Write::Fork(fork) => applier.fork(fork)?,
            Write::HandOver(what) => rules::pools::hand_over(&mut applier, what)?,
            Write::Rehome(what) => rules::pools::rehome(&mut applier, what)?,
            Write::Mend(mend) => Outcome::Mended(applier.mend(mend)?),
            Write::Commit(commit) => match outcome {
                Outcome::Committed(_) if applier.has_effects(commit) => {
                    Outcome::Committed(applier.effects(commit)?)
                }
                _ => continue,
            },
        };
    }
    let notices = std::mem::take(&mut applier.notices);
    let learned = applier.learned();
    let mut in_hand = lock(terms.items_in_hand);
    in_hand.retain(|number| !applier.item_numbers.contains(number));
    lock(terms.spare_items).append(&mut applier.item_numbers);
    Ok((Applied { outcomes, notices }, learned))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Applier<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) now: i64,
    notices: Vec<Notice>,
    /// Runs with links whose code is over by a commit of this batch.
    closing: FastSet<RunNo>,
    /// The runner, if its fence holds.
    runner: Option<Uuid>,
    shards: Option<ShardSet>,
    pub(super) schema: u32,
    /// What is locked.
    pub(super) locks: HashSet<Lock>,
    /// The rows of runs as they are now; none if there is no such run.
    pub(super) heads: FastMap<RunNo, Option<Head>>,
    /// Who has written those that were read or compared at the beginning.
    revisions: FastMap<RunNo, Revision>,
    /// The keys of the entries of those runs whose owner this is.
    entries: FastMap<RunNo, Keys>,
    is_first_go: bool,
    /// The rows of event names that are locked.
    pub(super) event_names: HashMap<String, Option<events::EventName>>,
    /// What stands under keys.
    pub(super) keys: HashMap<(String, String), Option<Keyed>>,
    /// Of the runs to be made, those whose number is not free yet.
    pub(super) graves: HashSet<RunNo>,
    /// The runs to be made that were asked for at the beginning.
    new_runs: HashSet<RunNo>,
    fence: Option<Fence>,
    known: &'a Mutex<Known>,
    /// The numbers of pools that were asked for.
    pub(super) pools: HashMap<String, PoolNo>,
    /// Numbers for items of queues.
    pub(super) item_numbers: Vec<u64>,
    pub(super) queues: queues::Known,
    pub(super) tails: streams::Tails,
    pub(super) families: children::Families,
    pub(super) ahead: Ahead,
    /// Rows of schedules that were read and not yet asked for.
    pub(super) schedules: HashMap<String, Option<ScheduleRow>>,
}

pub(super) const HEAD: &str = "no, id, status, ending, generation, available_at, attempts, inbox_seq, \
                    cancel_requested, last_number, links, resume_at, shard";

static PUT: Bulk = Bulk {
    table: "history",
    sql: "INSERT INTO history (run, generation, key, value) \
          SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bytea[]), \
          unnest($4::bytea[]) ON CONFLICT (run, generation, key) DO UPDATE SET value = excluded.value",
    unique: 3,
};

/// For keys under which there is nothing.
static PUT_NEW: Bulk = Bulk {
    table: "history",
    sql: "INSERT INTO history (run, generation, key, value) \
          SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bytea[]), \
          unnest($4::bytea[])",
    unique: 0,
};

static DELETE_ENTRIES: Bulk = Bulk {
    table: "history",
    sql: "DELETE FROM history USING \
          unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) AS gone (r, g, a, b) \
          WHERE run = r AND generation = g AND key >= a AND key < b",
    unique: 0,
};

static INSERT_RUN: Bulk = Bulk {
    table: "runs",
    sql: "INSERT INTO runs (no, id, workflow, version, key, pool, shard, status, generation, \
          available_at, deadline_at, created_at, updated_at, attempts, recoveries, inbox_seq, \
          last_number, tags, input, parent, trace) \
          SELECT no, id, workflow, version, key, pool, shard, status, 1, available_at, \
          deadline_at, now, now, 1, 0, 0, 0, tags, input, parent, trace FROM (SELECT \
          unnest($1::bigint[]) AS no, unnest($2::bytea[]) AS id, unnest($3::text[]) AS workflow, \
          unnest($4::bigint[]) AS version, unnest($5::text[]) AS key, unnest($6::text[]) AS pool, \
          unnest($7::bigint[]) AS shard, unnest($8::bigint[]) AS status, \
          unnest($9::bigint[]) AS available_at, unnest($10::bigint[]) AS deadline_at, \
          unnest($11::bigint[]) AS now, unnest($12::text[]) AS tags, \
          unnest($13::bytea[]) AS input, unnest($14::bytea[]) AS parent, \
          unnest($15::text[]) AS trace) AS new",
    unique: 1,
};

static FINISH: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET status = new.status, ending = NULL, available_at = NULL, \
          updated_at = new.now, finished_at = new.now, last_number = new.last_number, \
          waiting = NULL, output = new.output, error = new.error \
          FROM (SELECT unnest($1::bigint[]) AS no, unnest($2::bigint[]) AS status, \
          unnest($3::bigint[]) AS now, unnest($4::bigint[]) AS last_number, \
          unnest($5::bytea[]) AS output, unnest($6::bytea[]) AS error) AS new \
          WHERE runs.no = new.no",
    unique: 1,
};

static WRITE_HEAD: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET status = new.status, ending = new.ending, \
          available_at = new.available_at, attempts = new.attempts, inbox_seq = new.inbox_seq, \
          cancel_requested = new.cancel_requested, last_number = new.last_number, \
          updated_at = new.now, waiting = new.waiting, resume_at = new.resume_at, \
          recoveries = CASE WHEN new.fresh = 1 THEN 0 ELSE recoveries END \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
          $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], \
          $12::bigint[]) AS new (no, status, ending, available_at, attempts, inbox_seq, \
          cancel_requested, last_number, now, waiting, resume_at, fresh) WHERE runs.no = new.no",
    unique: 1,
};

static WRITE_RUNNING: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET status = new.status, available_at = new.available_at, \
          last_number = new.last_number, updated_at = new.now, recoveries = 0, waiting = NULL \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
          AS new (no, status, available_at, last_number, now) WHERE runs.no = new.no",
    unique: 1,
};

static WRITE_NUMBER: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET last_number = new.last_number, updated_at = new.now \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS new (no, last_number, now) \
          WHERE runs.no = new.no",
    unique: 1,
};

static WRITE_INBOX_SEQ: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET inbox_seq = new.inbox_seq, available_at = new.available_at, \
          updated_at = new.now FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], \
          $4::bigint[]) AS new (no, inbox_seq, available_at, now) WHERE runs.no = new.no",
    unique: 1,
};

static WRITE_LINKS: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET links = new.links FROM unnest($1::bigint[], $2::bigint[]) \
          AS new (no, links) WHERE runs.no = new.no",
    unique: 1,
};

pub(super) static PUT_INBOX: Bulk = Bulk {
    table: "inbox",
    sql: "INSERT INTO inbox (run, seq, name, body, request, sent_at, kind, wait, on_end) \
          SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[], \
          $6::bigint[], $7::bigint[], $8::bytea[], $9::text[])",
    unique: 2,
};

/// Nobody answers them any more.
static END_REQUESTS: Bulk = Bulk {
    table: "requests",
    sql: "UPDATE requests SET state = 2 FROM (SELECT unnest($1::bigint[]) AS run) AS ended \
          WHERE requests.run = ended.run AND state = 0",
    unique: 1,
};

/// Each message is found by its key. Not a join of the inbox with the arrays: the planner may begin it
/// with the inbox of all runs. Nobody else changes the inbox of a run whose row is locked, so that its
/// messages stay where they were found.
static CONSUME: Bulk = Bulk {
    table: "inbox",
    sql: "DELETE FROM inbox WHERE run = ANY ($1::bigint[]) AND ctid = ANY (ARRAY(\
          SELECT place FROM unnest($1::bigint[], $2::bigint[]) AS gone (r, s), \
          LATERAL (SELECT ctid AS place FROM inbox WHERE run = r AND seq = s OFFSET 0) AS found))",
    unique: 2,
};

static PUT_STATE: Bulk = Bulk {
    table: "state",
    sql: "INSERT INTO state (run, key, value) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[]) \
          ON CONFLICT (run, key) DO UPDATE SET value = excluded.value",
    unique: 2,
};

static PUT_TAG: Bulk = Bulk {
    table: "tags",
    sql: "INSERT INTO tags (run, name, value) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
    unique: 3,
};

static DELETE_TAG: Bulk = Bulk {
    table: "tags",
    sql: "DELETE FROM tags USING unnest($1::bigint[], $2::text[], $3::text[]) \
          AS gone (r, n, v) WHERE run = r AND name = n AND value = v",
    unique: 3,
};

impl<'a> Applier<'a> {
    /// Asks for the fence, and locks and reads what the batch names: one round trip.
    fn begin(
        session: &'a Session<'a>,
        batch: &Batch,
        terms: &Terms<'a>,
    ) -> Result<Applier<'a>, Trouble> {
        let fence = batch.fence.filter(|_| terms.fenced);
        if batch.writes.iter().any(|it| matches!(it, Write::Mend(_))) {
            // A repair gives way: it is made again when nobody else is at it.
            session.execute("SET LOCAL lock_timeout = '2s'", Vec::new());
        }
        if let Some(fence) = fence {
            // Written so that no row is an error: what is sent behind it must not be made.
            session.execute(
                "SELECT everstep_require(count(*) = 1, $3) FROM (SELECT 1 FROM runners \
                 WHERE id = $1 AND epoch = $2 FOR KEY SHARE) AS held",
                params![fence.runner, fence.epoch as i64, FENCED],
            );
        }
        let named = terms.named;
        let advisory = |lock: &&Lock| matches!(lock, Lock::Event(_));
        let locks = named.locks.iter();
        lock_names(session, terms.schema, locks.clone().filter(advisory));
        let mut applier = Applier::new(session, batch, terms, fence);
        if let Some(rows) = terms.rows {
            applier.assume(batch, rows);
            let later = locks.filter(|lock| !matches!(lock, Lock::Event(_)));
            lock_names(session, terms.schema, later);
            return Ok(applier);
        }
        let mut runs = Vec::new();
        for lock in &named.locks {
            if let Lock::Run(RunNo(no)) = lock {
                runs.push(*no);
            }
        }
        let (mut workflows, mut keys) = (Vec::new(), Vec::new());
        for (workflow, key) in &named.keys {
            workflows.push(Some(workflow.clone()));
            keys.push(Some(key.clone()));
        }
        let new_runs: Vec<i64> = named.new_runs.iter().map(|run| run.0).collect();
        let heads = Op::new(
            format!(
                "SELECT {HEAD}, xmin::text::bigint FROM runs WHERE no = ANY ($1) \
                 ORDER BY no FOR NO KEY UPDATE"
            ),
            params![runs],
        );
        let mut asked = vec![heads];
        let keyed = (!keys.is_empty()).then(|| {
            asked.push(Op::new(
                control::KEYS_OF_BATCH,
                vec![Value::Texts(workflows), Value::Texts(keys)],
            ));
            asked.len() - 1
        });
        let graves = (!new_runs.is_empty()).then(|| {
            let sql = "SELECT run FROM graves WHERE run = ANY ($1)";
            asked.push(Op::new(sql, params![new_runs]));
            asked.len() - 1
        });
        let mut item_numbers = std::mem::take(&mut *lock(terms.spare_items));
        lock(terms.items_in_hand).clone_from(&item_numbers);
        let drawn = named.items.saturating_sub(item_numbers.len());
        let items = (drawn > 0).then(|| {
            let sql = "SELECT nextval(pg_get_serial_sequence('queue_items', 'no')) \
                       FROM generate_series(1, $1)";
            asked.push(Op::new(sql, params![columns::limit(drawn)]));
            asked.len() - 1
        });
        let tails = (!named.streams.is_empty()).then(|| {
            asked.push(streams::Tails::op(named.streams.iter()));
            asked.len() - 1
        });
        let later = locks.filter(|lock| !matches!(lock, Lock::Event(_)));
        if let Some(op) = names_op(terms.schema, later) {
            asked.push(op);
        }
        let schedules = (!named.schedules.is_empty()).then(|| {
            asked.push(schedules::op_ahead(named.schedules.iter().cloned()));
            asked.len() - 1
        });
        let answers = session.queries(asked)?;
        let rows = |place: Option<usize>| place.and_then(|place| answers.get(place));
        applier
            .heads
            .extend(runs.iter().map(|no| (RunNo(*no), None)));
        for row in rows(Some(0)).into_iter().flatten() {
            let head = applier.completed(read_head(row)?);
            applier.heads.insert(head.id.no(), Some(head));
            let revision = Revision::new(row.get(13)?);
            applier.revisions.insert(head.id.no(), revision);
        }
        for row in rows(keyed).into_iter().flatten() {
            let name = (row.get(0)?, row.get(1)?);
            applier
                .keys
                .insert(name, Some(control::read_keyed(row, 2)?));
        }
        for row in rows(graves).into_iter().flatten() {
            applier.graves.insert(RunNo(row.get(0)?));
        }
        for row in rows(items).into_iter().flatten() {
            item_numbers.push(columns::number(row, 0)?);
        }
        // The lowest is taken first.
        item_numbers.sort_unstable_by(|a, b| b.cmp(a));
        lock(terms.items_in_hand).clone_from(&item_numbers);
        applier.item_numbers = item_numbers;
        for row in rows(tails).into_iter().flatten() {
            applier.tails.add(row)?;
        }
        if let Some(rows) = rows(schedules) {
            applier.add_schedules(named.schedules.iter().cloned(), rows)?;
        }
        Ok(applier)
    }

    /// Nothing is read yet.
    fn new(
        session: &'a Session<'a>,
        batch: &Batch,
        terms: &Terms<'a>,
        fence: Option<Fence>,
    ) -> Applier<'a> {
        let named = terms.named;
        Applier {
            session,
            now: batch.now.as_millis(),
            notices: Vec::new(),
            closing: FastSet::default(),
            runner: fence.map(|fence| fence.runner),
            shards: terms.shards.clone(),
            schema: terms.schema,
            locks: named.locks.iter().copied().collect(),
            heads: FastMap::default(),
            revisions: FastMap::default(),
            entries: FastMap::default(),
            is_first_go: terms.is_first_go,
            event_names: HashMap::new(),
            keys: named.keys.iter().map(|it| (it.clone(), None)).collect(),
            graves: HashSet::new(),
            new_runs: named.new_runs.iter().copied().collect(),
            fence,
            known: terms.known,
            pools: HashMap::new(),
            item_numbers: Vec::new(),
            queues: queues::Known::new(named),
            tails: streams::Tails::default(),
            families: children::Families::default(),
            ahead: Ahead::default(),
            schedules: HashMap::new(),
        }
    }

    /// This batch is the owner's of the run: from now on its entries are kept track of.
    fn own(&mut self, run: RunNo) {
        if !self.entries.contains_key(&run) {
            let keys = match self.is_first_go {
                true => lock(self.known).take_keys(self.fence, run),
                false => Keys::Unknown,
            };
            self.entries.insert(run, keys);
        }
    }

    /// Takes these rows as they are known. What compares them is sent before anything that is read
    /// or written.
    fn assume(&mut self, batch: &Batch, rows: &[KnownRow]) {
        let mut held = known::Compared::default();
        let mut seen = known::Compared::default();
        let mut new_runs = Vec::new();
        let growing = known::growing(batch, rows);
        for row in rows {
            match row {
                KnownRow::Is(head, revision) => {
                    let run = head.id.no();
                    let compared = match growing.contains(&run) {
                        true => &mut seen,
                        false => &mut held,
                    };
                    compared.add(run, *revision);
                    self.heads.insert(run, Some(*head));
                    self.revisions.insert(run, *revision);
                }
                KnownRow::New(run) => {
                    new_runs.push(run.0);
                    self.heads.insert(*run, None);
                }
            }
        }
        for (compared, sql) in [(held, known::REQUIRE_HELD), (seen, known::REQUIRE_SEEN)] {
            if let Some(params) = compared.into_params() {
                self.session.execute(sql, params);
            }
        }
        if !new_runs.is_empty() {
            let params = params![new_runs, CHANGED];
            self.session.execute(known::REQUIRE_NEW, params);
        }
    }

    /// Whether it was asked at the beginning if the number of this run is free.
    pub(super) fn is_named_new(&self, run: RunNo) -> bool {
        self.new_runs.contains(&run)
    }

    pub(super) fn fence_holds(&self) -> bool {
        self.runner.is_some()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    /// Executes a statement that is not on everybody's path. It is sent with the next that is waited
    /// for.
    pub(super) fn execute(
        &self,
        sql: impl Into<std::borrow::Cow<'static, str>>,
        params: Vec<Value>,
    ) {
        self.session.execute(sql, params);
    }

    /// Makes sure that this is locked. Never waits: whoever has it already makes the batch begin
    /// again.
    pub(super) fn lock(&mut self, lock: Lock) -> Result<(), Trouble> {
        if self.locks.contains(&lock) {
            return Ok(());
        }
        let Some(number) = lock.advisory(self.schema) else {
            // A run is locked by reading its row.
            return Ok(());
        };
        let sql = "SELECT pg_try_advisory_xact_lock($1)";
        let is_ours = self
            .session
            .row(sql, params![number], |row| row.get::<bool>(0))?;
        if is_ours != Some(true) {
            return Err(Trouble::Contended(lock));
        }
        self.locks.insert(lock);
        if matches!(lock, Lock::Event(_)) {
            self.ahead.forget_events();
        }
        Ok(())
    }

    pub(super) fn is_locked(&self, lock: Lock) -> bool {
        self.locks.contains(&lock)
    }

    /// Locks these, and asks for what is to be read under them: one round trip. Never waits, as
    /// [`lock`](Self::lock).
    pub(super) fn lock_and_ask(
        &mut self,
        locks: &[Lock],
        ops: Vec<Op>,
    ) -> Result<Vec<Vec<Row>>, Trouble> {
        let numbers: Vec<i64> = locks
            .iter()
            .filter_map(|it| it.advisory(self.schema))
            .collect();
        let sql = "SELECT number, pg_try_advisory_xact_lock(number) \
                   FROM unnest($1::bigint[]) AS number";
        let mut asked = vec![Op::new(sql, params![numbers])];
        asked.extend(ops);
        let mut answers = self.session.queries(asked)?;
        let got = answers.drain(..1.min(answers.len())).flatten();
        for row in got.collect::<Vec<_>>() {
            let (number, is_ours) = (row.get::<i64>(0)?, row.get::<bool>(1)?);
            let lock = locks
                .iter()
                .find(|it| it.advisory(self.schema) == Some(number));
            if let (Some(lock), false) = (lock, is_ours) {
                return Err(Trouble::Contended(*lock));
            }
        }
        self.locks.extend(locks);
        self.ahead.forget_events();
        Ok(answers)
    }

    /// Whether the row of a run is locked, or there was none when it was looked for.
    pub(super) fn is_head_known(&self, run: RunNo) -> bool {
        self.heads.contains_key(&run)
    }

    /// Locks and reads the rows of runs that will be asked for, as far as nobody else has them: one
    /// round trip instead of many.
    pub(super) fn lock_heads(&mut self, runs: &[RunNo]) -> Result<(), Trouble> {
        if let Some(op) = self.heads_op(runs) {
            let answers = self.session.queries(vec![op])?;
            self.remember_heads(&answers)?;
        }
        Ok(())
    }

    /// As [`lock_heads`](Self::lock_heads), and asks for what is to be read under these locks.
    pub(super) fn lock_heads_and_ask(
        &mut self,
        runs: &[RunNo],
        op: Op,
    ) -> Result<Vec<Row>, Trouble> {
        let mut asked: Vec<Op> = self.heads_op(runs).into_iter().collect();
        asked.push(op);
        let mut answers = self.session.queries(asked)?;
        let rows = answers.pop().unwrap_or_default();
        self.remember_heads(&answers)?;
        Ok(rows)
    }

    fn heads_op(&self, runs: &[RunNo]) -> Option<Op> {
        let unknown = runs.iter().filter(|run| !self.is_head_known(**run));
        let numbers: Vec<i64> = unknown.map(|run| run.0).collect();
        let sql =
            format!("SELECT {HEAD} FROM runs WHERE no = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED");
        (!numbers.is_empty()).then(|| Op::new(sql, params![numbers]))
    }

    fn remember_heads(&mut self, answers: &[Vec<Row>]) -> Result<(), Trouble> {
        for row in answers.iter().flatten() {
            let head = self.completed(read_head(row)?);
            self.remember(head.id.no(), head);
        }
        Ok(())
    }

    /// The row as it is in this transaction, locked.
    pub(super) fn head(&mut self, run: RunNo) -> Result<Option<Head>, Trouble> {
        if let Some(head) = self.heads.get(&run) {
            return Ok(*head);
        }
        let sql = format!("SELECT {HEAD} FROM runs WHERE no = $1 FOR NO KEY UPDATE NOWAIT");
        let found = self.session.row(sql, params![run.0], read_head);
        let head = match found {
            Err(trouble) if trouble.code() == Some("55P03") => {
                return Err(Trouble::Contended(Lock::Run(run)));
            }
            found => found?.map(|head| self.completed(head)),
        };
        self.heads.insert(run, head);
        Ok(head)
    }

    /// A row as it was read, with what this runner knows beyond it.
    pub(super) fn completed(&self, mut head: Head) -> Head {
        if head.status != RunStatus::Running || self.fence.is_none() {
            return head;
        }
        let number = lock(self.known).number(self.fence, head.id.no());
        if let Some((generation, number)) = number
            && generation == head.generation
        {
            (head.last_number, head.last_number_exact) = (number, true);
        }
        head
    }

    /// What is known of the runs of this batch once it is durable.
    fn learned(&mut self) -> Vec<(RunNo, Learned)> {
        if self.fence.is_none() {
            return Vec::new();
        }
        let learned = self.heads.iter().map(|(run, head)| {
            let Some(head) = head.filter(known::is_in_memory) else {
                return (*run, Learned::Nothing);
            };
            let written_by = match self.revisions.get(run) {
                _ if self.session.has_written(*run) => WrittenBy::This,
                Some(revision) => WrittenBy::Earlier(*revision),
                None => WrittenBy::Unknown,
            };
            match self.entries.remove(run) {
                Some(keys) => (*run, Learned::Owned(head, written_by, keys)),
                None => (*run, Learned::Touched(head, written_by)),
            }
        });
        learned.collect()
    }

    pub(super) fn remember(&mut self, run: RunNo, head: Head) {
        self.heads.insert(run, Some(head));
    }

    pub(super) fn forget(&mut self, run: RunNo) {
        self.heads.insert(run, None);
    }

    pub(super) fn find(&mut self, target: &Target) -> Result<Option<Head>, Trouble> {
        match target {
            // The number says less than the id: it may be another run's.
            Target::Id(id) => Ok(self.head(id.no())?.filter(|head| head.id == *id)),
            Target::Key { workflow, key } => match self.keyed(workflow, key)? {
                Some(Keyed::Run(run)) => self.head(run),
                Some(Keyed::Deleted(_)) | None => Ok(None),
            },
        }
    }

    fn commit(&mut self, commit: &Commit) -> Result<Outcome, Trouble> {
        if self.runner.is_none() {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        let head = self.head(commit.run)?;
        // A runner that lost its shards and registered again has a fence that holds, and may still
        // have commits from before.
        if let Some(head) = &head
            && !self.owns_shard(head.shard)?
        {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        let head = match (rules::check(head.as_ref(), commit), head) {
            (Verdict::Accept, Some(head)) => head,
            (Verdict::InboxMoved { seen }, _) => {
                let unseen = columns::inbox_after(self.session, commit.run, seen)?;
                return Ok(Outcome::Refused(Refusal::InboxMoved(unseen)));
            }
            (Verdict::Refuse(refusal), _) => return Ok(Outcome::Refused(refusal)),
            (Verdict::Accept, None) => return Ok(Outcome::Refused(Refusal::Gone)),
        };
        self.own(commit.run);
        if head.links != 0 && effects::has_sequel(commit) {
            self.closing.insert(commit.run);
        }
        self.write_entries(commit.run, head.generation, &commit.deletes, &commit.puts);
        self.write_extras(commit)?;
        self.write_patch(head, commit)?;
        Ok(Outcome::Committed(Vec::new()))
    }

    pub(super) fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) {
        for KeyRange { start, end } in deletes {
            let row = params![run.0, generation, start, end];
            self.session.put(&DELETE_ENTRIES, row);
        }
        for Put { key, value } in puts {
            self.put(run, generation, key, value);
        }
    }

    fn put(&mut self, run: RunNo, generation: u32, key: &[u8], value: &[u8]) {
        let keys = self.entries.get_mut(&run);
        let is_new = keys.is_some_and(|keys| keys.add(generation, key));
        let bulk = if is_new { &PUT_NEW } else { &PUT };
        self.session
            .put(bulk, params![run.0, generation, key, value]);
    }

    /// What most commits have none of.
    fn write_extras(&mut self, commit: &Commit) -> Result<(), Trouble> {
        for seq in &commit.consumed {
            self.consume(commit.run, *seq);
        }
        self.write_state(commit.run, &commit.state);
        for (name, value) in rules::tags(commit) {
            self.set_tag(commit.run, name, value)?;
        }
        for effect in &commit.effects {
            match effect {
                Effect::Reply { request, body } => {
                    // Only an open request can be answered, so the first answer wins.
                    let sql =
                        "UPDATE requests SET state = 1, body = $2 WHERE id = $1 AND state = 0";
                    self.execute(sql, params![*request, *body]);
                }
                Effect::Emit(emit) => self.emit(commit.run, commit.generation, emit)?,
                // Their turn comes after all commits.
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a row from the inbox of a run.
    fn consume(&mut self, run: RunNo, seq: u64) {
        self.session.put(&CONSUME, params![run.0, seq as i64]);
        self.ahead.consumed(run, seq);
    }

    /// Removes what is wanted from the inbox of a run, if it is known what is there.
    pub(super) fn take_known(
        &mut self,
        run: RunNo,
        is_wanted: impl FnMut(&InboxRow) -> bool,
    ) -> Option<Vec<InboxRow>> {
        let taken = self.ahead.take_inbox(run, is_wanted)?;
        for row in &taken {
            self.consume(run, row.seq);
        }
        Some(taken)
    }

    pub(super) fn write_state(&self, run: RunNo, state: &[(String, Vec<u8>)]) {
        for (key, value) in state {
            self.session.put(&PUT_STATE, params![run.0, *key, *value]);
        }
    }

    fn write_patch(&mut self, before: Head, commit: &Commit) -> Result<(), Trouble> {
        let mut head = before;
        rules::apply(&mut head, commit);
        if rules::writes_row(&before, commit) {
            match &commit.patch {
                Patch::Finish { output, error, .. } => self.finish(&head, commit, output, error),
                Patch::RollBack { error, .. } => {
                    self.write_head(&head, None);
                    let sql = "UPDATE runs SET error = $2 WHERE no = $1";
                    self.execute(sql, params![commit.run.0, *error]);
                }
                Patch::Run { .. } => self.write_running(&head),
                Patch::Park { waiting, .. } => self.write_fresh_head(&head, Some(waiting)),
                Patch::Pause { reason } => self.write_head(&head, Some(reason)),
                Patch::Continue {
                    workflow,
                    version,
                    pool,
                    input,
                } => {
                    self.write_fresh_head(&head, None);
                    let sql = "UPDATE runs SET generation = $2, workflow = $3, version = $4, \
                               pool = $5, input = $6 WHERE no = $1";
                    let run = commit.run.0;
                    let (workflow, pool) = (&**workflow, &**pool);
                    self.execute(
                        sql,
                        params![run, head.generation, workflow, *version, pool, *input],
                    );
                    let sql = "INSERT INTO old_generations (run, generation) VALUES ($1, $2) \
                               ON CONFLICT DO NOTHING";
                    self.execute(sql, params![run, before.generation]);
                }
                Patch::Keep => {
                    let row = params![head.id.no().0, last_number(&head), self.now];
                    self.session.put(&WRITE_NUMBER, row);
                }
            }
        }
        self.remember(commit.run, head);
        Ok(())
    }

    fn finish(
        &mut self,
        head: &Head,
        commit: &Commit,
        output: &Option<Vec<u8>>,
        error: &Option<Vec<u8>>,
    ) {
        let run = commit.run.0;
        let (status, last_number) = (head.status.code(), last_number(head));
        let row = params![run, status, self.now, last_number, *output, *error];
        self.session.put(&FINISH, row);
        if head.links != 0 {
            // Whoever waits for its end is told in this batch.
            let ending = Finished {
                status: head.status,
                output: output.clone(),
                error: error.clone(),
            };
            self.families.endings.insert(commit.run, ending);
        }
        if head.inbox_seq == 0 {
            // It was never sent anything, so there is nothing unread and nobody waits.
            return;
        }
        self.bury_inbox(head.id);
        self.session.put(&END_REQUESTS, params![run]);
    }

    /// Writes everything of the row that decisions are made from, and why it waits.
    pub(super) fn write_head(&self, head: &Head, waiting: Option<&str>) {
        self.write_whole_head(head, waiting, false);
    }

    /// As [`write_head`](Self::write_head), of a run that has made progress.
    pub(super) fn write_fresh_head(&self, head: &Head, waiting: Option<&str>) {
        self.write_whole_head(head, waiting, true);
    }

    fn write_whole_head(&self, head: &Head, waiting: Option<&str>, is_fresh: bool) {
        let row = params![
            head.id.no().0,
            head.status.code(),
            head.ending.map(RunStatus::code),
            head.available_at.map(Timestamp::as_millis),
            head.attempts,
            head.inbox_seq as i64,
            head.cancel.map(|cancel| cancel.rollback),
            last_number(head),
            self.now,
            waiting,
            head.resume_at.map(Timestamp::as_millis),
            is_fresh,
        ];
        self.session.put(&WRITE_HEAD, row);
    }

    fn write_running(&self, head: &Head) {
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, status) = (head.id.no().0, head.status.code());
        let row = params![run, status, available_at, last_number(head), self.now];
        self.session.put(&WRITE_RUNNING, row);
    }

    pub(super) fn start(&mut self, new: &NewRun) -> Result<Outcome, Trouble> {
        let keyed = match &new.key {
            Some(key) => self.keyed(&new.workflow, key)?,
            None => None,
        };
        let is_tombstone_over = matches!(keyed, Some(Keyed::Deleted(_)));
        match keyed {
            Some(Keyed::Run(run)) => return self.attach(run, new, true),
            Some(Keyed::Deleted(tombstone)) if !tombstone.is_over(self.now()) => {
                return Ok(Outcome::Refused(tombstone.refusal()));
            }
            _ => {}
        }
        let run = new.id.no();
        if self.is_grave(run)? {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        if self.head(run)?.is_some() {
            return self.attach(run, new, false);
        }
        let pool = self.pool_no(&new.pool)?;
        let shard = new.id.shard_in(pool);
        let claimed = new.claim && new.available_at.is_none() && self.owns_shard(shard)?;
        let available_at = (!claimed).then(|| new.available_at.unwrap_or(self.now()));
        let head = Head::new(new.id, pool, available_at);
        let tags = (!new.tags.is_empty()).then(|| columns::to_json(&new.tags));
        let row = params![
            run.0,
            new.id.as_uuid(),
            &*new.workflow,
            new.version,
            new.key,
            &*new.pool,
            head.shard.0,
            head.status.code(),
            available_at.map(Timestamp::as_millis),
            new.deadline_at.map(Timestamp::as_millis),
            self.now,
            tags,
            new.input,
            new.parent.map(|parent| *parent.as_uuid().as_bytes()),
            new.trace,
        ];
        self.session.put(&INSERT_RUN, row);
        if claimed {
            self.entries.insert(run, Keys::none());
        }
        if let Some(key) = &new.key {
            self.put_key(run, &new.workflow, key, is_tombstone_over);
        }
        for (name, value) in &new.tags {
            self.put_tag(run, name, value);
        }
        self.remember(run, head);
        let id = new.id;
        let (attached, input_differs) = (false, false);
        Ok(Outcome::Started(Started {
            id,
            attached,
            input_differs,
            claimed,
            available_at,
        }))
    }

    pub(super) fn put_tag(&self, run: RunNo, name: &str, value: &str) {
        self.session.put(&PUT_TAG, params![run.0, name, value]);
    }

    pub(super) fn delete_tag(&self, run: RunNo, name: &str, value: &str) {
        self.session.put(&DELETE_TAG, params![run.0, name, value]);
    }

    fn attach(&self, run: RunNo, new: &NewRun, by_key: bool) -> Result<Outcome, Trouble> {
        // What a run was first started with is gone once it has continued as a new one.
        let sql = "SELECT id, input = $2 OR generation > 1 FROM runs WHERE no = $1";
        let found = self.session.row(sql, params![run.0, new.input], |row| {
            Ok((columns::run_id(row, 0)?, row.get::<bool>(1)?))
        })?;
        let Some((id, is_same_input)) = found else {
            return Ok(Outcome::Refused(Refusal::Gone));
        };
        // Another id can have the same number. It cannot be stored beside the first, and the
        // client makes a new id.
        if !by_key && id != new.id {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        let (attached, claimed, available_at) = (true, false, None);
        let input_differs = !is_same_input;
        Ok(Outcome::Started(Started {
            id,
            attached,
            input_differs,
            claimed,
            available_at,
        }))
    }

    pub(super) fn owns_shard(&mut self, shard: ShardId) -> Result<bool, Trouble> {
        let Some(runner) = self.runner else {
            return Ok(false);
        };
        let held = match &mut self.shards {
            Some(held) => held,
            shards => shards.insert(columns::shards_of(self.session, runner)?),
        };
        Ok(held.contains(shard))
    }

    pub(super) fn deliver(&mut self, delivery: &Delivery) -> Result<Delivered, Trouble> {
        let Some(mut head) = self.find(&delivery.target)? else {
            return Ok(Delivered {
                receipt: Receipt::Unknown,
                run: None,
                seq: None,
            });
        };
        let (run, id) = (head.id.no(), Some(head.id));
        if let Some(receipt) = self.refuse_message(&head, delivery)? {
            let receipt = match receipt {
                Receipt::Finished => letters::after_the_end(self, &head, delivery)?,
                receipt => receipt,
            };
            return Ok(Delivered {
                receipt,
                run: id,
                seq: None,
            });
        }
        let seq = rules::deliver(&mut head, self.now());
        let row = rules::message(delivery, seq, self.now());
        self.put_inbox(&head, &row)?;
        if row.on_end.is_some() {
            rules::tables::link(self, run, rules::tables::links::EVENTS)?;
        }
        if let Some(key) = &delivery.dedupe {
            let sql = "INSERT INTO dedupes (run, key) VALUES ($1, $2)";
            self.execute(sql, params![run.0, *key]);
        }
        if let Some(request) = delivery.request {
            let sql = "INSERT INTO requests (id, run, state) VALUES ($1, $2, 0) \
                       ON CONFLICT (id) DO UPDATE SET run = excluded.run, state = 0, body = NULL";
            self.execute(sql, params![request, run.0]);
        }
        Ok(Delivered {
            receipt: Receipt::Delivered,
            run: id,
            seq: Some(seq),
        })
    }

    fn refuse_message(&self, head: &Head, delivery: &Delivery) -> Result<Option<Receipt>, Trouble> {
        let run = head.id.no().0;
        if let Some(key) = &delivery.dedupe {
            let sql = "SELECT 1 FROM dedupes WHERE run = $1 AND key = $2";
            if self.session.exists(sql, params![run, *key])? {
                return Ok(Some(Receipt::Duplicate));
            }
        }
        // There cannot be more unread messages than there were messages.
        let unread = if head.inbox_seq < delivery.inbox_max {
            0
        } else {
            let sql =
                "SELECT count(*) FROM (SELECT 1 FROM inbox WHERE run = $1 LIMIT $2) AS unread";
            let limit = columns::limit(delivery.inbox_max);
            let count = self
                .session
                .row(sql, params![run, limit], |row| columns::number(row, 0))?;
            count.unwrap_or(0)
        };
        Ok(rules::refuse_message(head, unread, delivery))
    }

    pub(super) fn control(
        &mut self,
        target: &Target,
        control: Control,
    ) -> Result<Controlled, Trouble> {
        let Some(mut head) = self.find(target)? else {
            return Ok(Controlled::Unknown);
        };
        let controlled = rules::control(&mut head, control, self.now());
        if let Controlled::Done { .. } = controlled {
            match control {
                Control::Pause => self.write_head(&head, Some(rules::PAUSED_BY_REQUEST)),
                Control::Resume => self.write_fresh_head(&head, None),
                Control::Cancel { rollback } => {
                    let sql = "UPDATE runs SET cancel_requested = $2, available_at = $3, \
                               updated_at = $4 WHERE no = $1";
                    let available_at = head.available_at.map(Timestamp::as_millis);
                    let run = head.id.no().0;
                    self.execute(sql, params![run, rollback, available_at, self.now]);
                }
            }
            self.remember(head.id.no(), head);
        }
        Ok(controlled)
    }

    fn reopen(&mut self, reopen: &Reopen) -> Result<Outcome, Trouble> {
        let Some(mut head) = self.head(reopen.run)? else {
            return Ok(Outcome::Refused(Refusal::Gone));
        };
        if !rules::reopen(&mut head, reopen) {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        self.write_entries(reopen.run, head.generation, &reopen.deletes, &reopen.puts);
        self.write_fresh_head(&head, None);
        let sql = "UPDATE runs SET output = NULL, error = NULL, finished_at = NULL WHERE no = $1";
        self.execute(sql, params![reopen.run.0]);
        self.remember(reopen.run, head);
        Ok(Outcome::Committed(Vec::new()))
    }

    fn has_effects(&self, commit: &Commit) -> bool {
        !commit.effects.is_empty()
            || commit.results_only
            || (!self.closing.is_empty() && self.closing.contains(&commit.run))
    }

    /// What a commit does to others, in order; last what is left to do if its code is over.
    fn effects(&mut self, commit: &Commit) -> Result<Vec<EffectDone>, Trouble> {
        for transaction in rules::transactions(commit) {
            self.session.call(transaction)?;
            self.look_again()?;
            if let Some(Put { key, value }) = transaction.written() {
                self.put(commit.run, commit.generation, &key, &value);
            }
        }
        let mut done = Vec::new();
        for effect in &commit.effects {
            done.extend(effects::apply(self, commit, effect)?);
        }
        if effects::has_sequel(commit)
            && let Some(head) = self.head(commit.run)?
        {
            done.extend(effects::follow_up(self, &head, commit)?);
        }
        Ok(done)
    }

    /// A body of the user's may have started runs and sent messages in this transaction: what was
    /// read before it is read again. Numbers of entries are not in the rows, and are the owner's alone.
    fn look_again(&mut self) -> Result<(), Trouble> {
        let before = std::mem::take(&mut self.heads);
        let there = before.iter().filter(|(_, head)| head.is_some());
        let runs: Vec<RunNo> = there.map(|(run, _)| *run).collect();
        self.lock_heads(&runs)?;
        for (run, old) in before {
            if let Some(old) = old
                && let Some(Some(now)) = self.heads.get_mut(&run)
                && now.generation == old.generation
            {
                now.last_number = old.last_number;
                now.last_number_exact = old.last_number_exact;
            }
        }
        self.keys.clear();
        self.event_names.clear();
        self.queues = queues::Known::default();
        self.tails = streams::Tails::default();
        self.ahead = Ahead::default();
        Ok(())
    }

    /// Removes entries of generations that are over; whether there are more.
    fn sweep(&self, limit: u32) -> Result<bool, Trouble> {
        let sql = "SELECT run, generation FROM old_generations \
                   ORDER BY run, generation LIMIT 1 FOR UPDATE SKIP LOCKED";
        let next = self.session.row(sql, Vec::new(), |row| {
            Ok((row.get::<i64>(0)?, row.get::<u32>(1)?))
        })?;
        let Some((run, generation)) = next else {
            return Ok(false);
        };
        let sql = "DELETE FROM history WHERE run = $1 AND generation = $2 AND key IN (SELECT key \
                   FROM history WHERE run = $1 AND generation = $2 ORDER BY key LIMIT $3)";
        let params = params![run, generation, limit];
        let removed = self.session.execute_now(sql, params)?;
        if removed < limit as usize {
            let sql = "DELETE FROM old_generations WHERE run = $1 AND generation = $2";
            self.execute(sql, params![run, generation]);
        }
        Ok(true)
    }
}

impl Tables for Applier<'_> {
    type Error = Trouble;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn head(&mut self, run: RunNo) -> Result<Option<Head>, Trouble> {
        Applier::head(self, run)
    }

    fn find(&mut self, target: &Target) -> Result<Option<Head>, Trouble> {
        Applier::find(self, target)
    }

    fn put_inbox(&mut self, head: &Head, row: &InboxRow) -> Result<(), Trouble> {
        let run = head.id.no();
        let on_end = row.on_end.as_deref().map(columns::fallback_json);
        let seq = row.seq as i64;
        let params = params![
            run.0,
            seq,
            row.name,
            row.body,
            row.request.map(Uuid::into_bytes),
            row.sent_at.as_millis(),
            row.kind.code(),
            row.wait,
            on_end,
        ];
        self.session.put(&PUT_INBOX, params);
        self.ahead.arrived(run, row);
        let available_at = head.available_at.map(Timestamp::as_millis);
        let row = params![run.0, seq, available_at, self.now];
        self.session.put(&WRITE_INBOX_SEQ, row);
        self.remember(run, *head);
        Ok(())
    }

    fn send(&mut self, delivery: &Delivery) -> Result<Delivered, Trouble> {
        letters::send(self, delivery)
    }

    fn put_entry(&mut self, of: &Waiter, value: Vec<u8>) -> Result<(), Trouble> {
        self.put(of.run, of.generation, &of.key, &value);
        Ok(())
    }

    fn take_all_answers(&mut self, run: RunNo) -> Result<Vec<InboxRow>, Trouble> {
        if let Some(taken) = self.take_known(run, |row| row.kind != InboxKind::Message) {
            return Ok(taken);
        }
        let sql = format!(
            "WITH taken AS (DELETE FROM inbox WHERE run = $1 AND kind <> 0 RETURNING *) \
             SELECT {} FROM taken ORDER BY seq",
            columns::INBOX_ROW
        );
        self.session.rows(sql, params![run.0], columns::inbox_row)
    }

    fn take_answers(&mut self, run: RunNo, wait: &[u8]) -> Result<Vec<InboxRow>, Trouble> {
        if let Some(taken) = self.take_known(run, |row| row.wait.as_deref() == Some(wait)) {
            return Ok(taken);
        }
        let sql = format!(
            "WITH taken AS (DELETE FROM inbox WHERE run = $1 AND wait = $2 RETURNING *) \
             SELECT {} FROM taken ORDER BY seq",
            columns::INBOX_ROW
        );
        self.session
            .rows(sql, params![run.0, wait], columns::inbox_row)
    }

    fn write_links(&mut self, head: &Head) -> Result<(), Trouble> {
        let run = head.id.no();
        self.session.put(&WRITE_LINKS, params![run.0, head.links]);
        self.remember(run, *head);
        Ok(())
    }

    fn control(&mut self, target: &Target, control: Control) -> Result<Controlled, Trouble> {
        Applier::control(self, target, control)
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

/// Waits for the advisory locks of names, in order.
fn lock_names<'l>(session: &Session<'_>, schema: u32, locks: impl Iterator<Item = &'l Lock>) {
    if let Some(Op { sql, params }) = names_op(schema, locks) {
        session.execute(sql, params);
    }
}

fn names_op<'l>(schema: u32, locks: impl Iterator<Item = &'l Lock>) -> Option<Op> {
    let numbers: Vec<i64> = locks.filter_map(|lock| lock.advisory(schema)).collect();
    // The order of the numbers is the order of the locks.
    let sql = "SELECT pg_advisory_xact_lock(number) FROM \
               (SELECT number FROM unnest($1::bigint[]) AS number ORDER BY number) AS names";
    (!numbers.is_empty()).then(|| Op::new(sql, params![numbers]))
}

/// The number as it is stored: null where a row that is not `Running` would have to have an exact
/// one and only its owner knows it.
pub(super) fn last_number(head: &Head) -> Option<i64> {
    let is_known = head.last_number_exact || head.status == RunStatus::Running;
    is_known.then_some(head.last_number as i64)
}

pub(super) fn read_head(row: &Row) -> Result<Head, Trouble> {
    let status = columns::status(row, 2)?;
    let last_number = row.get::<Option<i64>>(9)?;
    Ok(Head {
        id: columns::run_id(row, 1)?,
        status,
        ending: columns::optional_status(row, 3)?,
        generation: row.get(4)?,
        available_at: columns::optional_time(row, 5)?,
        attempts: row.get(6)?,
        inbox_seq: columns::number(row, 7)?,
        cancel: columns::cancel(row, 8)?,
        last_number: last_number.unwrap_or(0) as u64,
        // Commits that only add entries do not write the row.
        last_number_exact: last_number.is_some() && status != RunStatus::Running,
        links: row.get(10)?,
        resume_at: columns::optional_time(row, 11)?,
        shard: ShardId(row.get(12)?),
    })
}
