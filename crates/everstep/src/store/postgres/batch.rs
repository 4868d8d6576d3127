//! A batch in SQL: [`crate::store::apply`] decides, this writes rows.
//!
//! It begins with one round trip that locks and reads everything the batch names ([`Named`]); what
//! is written leaves with the commit, in one more. Only what nobody could foresee (who waits for an
//! event, the parent of a run that ends) is read in between.

use std::{collections::HashSet, sync::Mutex};

use super::{
    ahead::{self, Asked, absent},
    error::{CHANGED, Trouble},
    known::{self, Keys, Known, KnownRow, Learned, Revision, WrittenBy},
    lock,
    locks::{Lock, Named},
    queues,
    runs::keys_of_batch,
    session::{Op, Session},
    value::{Param, PgRow, params},
};
use crate::{
    hash::FastMap,
    run_id::RunNo,
    store::{
        rows::{self, Head},
        sql::{
            InSql, Sql, SqlTables,
            ahead::Ahead,
            runs::{HEAD, head, keyed},
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

/// Applies a batch within a transaction; also gives what is known of its runs once it is durable.
pub(super) fn apply(
    session: &Session<'_>,
    batch: &Batch,
    terms: &Terms<'_>,
) -> Result<(Applied, Vec<(RunNo, Learned)>), Trouble> {
    let mut tables = InSql(Applier::new(session, batch.now, terms));
    let applied = rows::apply(&mut tables, batch)?;
    let InSql(mut applier) = tables;
    let learned = applier.learned();
    let mut in_hand = lock(terms.items_in_hand);
    in_hand.retain(|number| !applier.item_numbers.contains(number));
    lock(terms.spare_items).append(&mut applier.item_numbers);
    Ok((applied, learned))
}

impl Terms<'_> {
    /// The keys of the entries of a run whose owner writes the batch.
    pub(super) fn take_keys(&self, fence: Option<Fence>, run: RunNo) -> Keys {
        match self.is_first_go {
            true => lock(self.known).take_keys(fence, run),
            false => Keys::Unknown,
        }
    }
}

pub(super) struct Applier<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) now: Timestamp,
    pub(super) notices: Vec<Notice>,
    pub(super) terms: &'a Terms<'a>,
    /// The fence, if it holds.
    pub(super) fence: Option<Fence>,
    pub(super) shards: Option<ShardSet>,
    /// What is locked.
    pub(super) locks: HashSet<Lock>,
    /// The rows of runs as they are now; none if there is no such run.
    pub(super) heads: FastMap<RunNo, Option<Head>>,
    /// Who has written those that were read or compared at the beginning.
    revisions: FastMap<RunNo, Revision>,
    /// The keys of the entries of those runs whose owner this is.
    pub(super) entries: FastMap<RunNo, Keys>,
    /// Of the runs to be made, those whose number is not free yet.
    pub(super) graves: HashSet<RunNo>,
    /// Numbers for items of queues.
    pub(super) item_numbers: Vec<u64>,
    /// Rows as they are now.
    pub(super) ahead: Ahead,
    pub(super) queues: queues::Known,
}

impl<'a> Applier<'a> {
    /// Nothing is read yet.
    fn new(session: &'a Session<'a>, now: Timestamp, terms: &'a Terms<'a>) -> Applier<'a> {
        let named = terms.named;
        if named.is_repair {
            // A repair gives way: it is made again when nobody else is at it.
            session.execute("SET LOCAL lock_timeout = '2s'", &[]);
        }
        Applier {
            session,
            now,
            notices: Vec::new(),
            terms,
            fence: None,
            shards: terms.shards.clone(),
            locks: named.locks.iter().copied().collect(),
            heads: FastMap::default(),
            revisions: FastMap::default(),
            entries: FastMap::default(),
            graves: HashSet::new(),
            item_numbers: Vec::new(),
            ahead: Ahead { keys: absent(&named.keys), ..Ahead::default() },
            queues: queues::Known::new(named),
        }
    }

    /// Locks and reads what the batch names: one round trip.
    pub(super) fn lock_and_read(&mut self, batch: &Batch) -> Result<(), Trouble> {
        let (terms, session) = (self.terms, self.session);
        let named = terms.named;
        let advisory = |lock: &&Lock| matches!(lock, Lock::Event(_));
        let locks = named.locks.iter();
        lock_names(session, terms.schema, locks.clone().filter(advisory));
        if let Some(rows) = terms.rows {
            self.assume(batch, rows);
            let later = locks.filter(|lock| !matches!(lock, Lock::Event(_)));
            lock_names(session, terms.schema, later);
            return Ok(());
        }
        let runs: Vec<i64> = named.runs().map(|run| run.0).collect();
        self.heads.extend(runs.iter().map(|no| (RunNo(*no), None)));
        let sql = format!(
            "SELECT {HEAD}, xmin::text::bigint FROM everstep_runs WHERE no = ANY ($1) \
             ORDER BY no FOR NO KEY UPDATE"
        );
        let mut asked: Vec<Asked<'a>> = vec![(Op::new(sql, params![runs]), Self::take_heads)];
        if !named.keys.is_empty() {
            asked.push((keys_of_batch(named), Self::take_keys));
        }
        if !named.new_runs.is_empty() {
            let new_runs: Vec<i64> = named.new_runs.iter().map(|run| run.0).collect();
            let sql = "SELECT run FROM everstep_graves WHERE run = ANY ($1)";
            asked.push((Op::new(sql, params![new_runs]), Self::take_graves));
        }
        self.item_numbers = std::mem::take(&mut *lock(terms.spare_items));
        self.hold_item_numbers();
        let drawn = named.items.saturating_sub(self.item_numbers.len());
        if drawn > 0 {
            let sql = "SELECT nextval(pg_get_serial_sequence('everstep_queue_items', 'no')) \
                       FROM generate_series(1, $1)";
            let op = Op::new(sql, params![drawn]);
            asked.push((op, Self::take_item_numbers));
        }
        if !named.streams.is_empty() {
            let op = ahead::tails(named.streams.iter());
            asked.push((op, |applier, rows| applier.ahead.add_tails(rows)));
        }
        let later = locks.filter(|lock| !matches!(lock, Lock::Event(_)));
        if let Some(op) = names_op(terms.schema, later) {
            asked.push((op, |_, _| Ok(())));
        }
        if !named.schedules.is_empty() {
            // Behind their locks.
            self.ahead.schedules = absent(&named.schedules);
            let op = ahead::schedules(named.schedules.iter().cloned());
            asked.push((op, |applier, rows| applier.ahead.add_schedules(rows)));
        }
        self.read_ahead(asked)
    }

    /// Asks all of these in one round trip.
    pub(super) fn read_ahead(&mut self, asked: Vec<Asked<'a>>) -> Result<(), Trouble> {
        let (ops, take): (Vec<Op>, Vec<_>) = asked.into_iter().unzip();
        let answers = self.session.queries(ops)?;
        let mut answers = take.into_iter().zip(answers);
        answers.try_for_each(|(take, rows)| take(self, &rows))
    }

    fn take_heads(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let head = self.completed(head(row)?);
            self.keep(&head);
            let revision = Revision::new(row.get(13)?);
            self.revisions.insert(head.id.no(), revision);
        }
        Ok(())
    }

    fn take_keys(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let name = (row.get(0)?, row.get(1)?);
            self.ahead.keys.insert(name, Some(keyed(row, 2)?));
        }
        Ok(())
    }

    fn take_graves(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            self.graves.insert(row.get(0)?);
        }
        Ok(())
    }

    fn take_item_numbers(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            self.item_numbers.push(row.get(0)?);
        }
        self.hold_item_numbers();
        Ok(())
    }

    /// The next go has them if this one does not succeed. The lowest is taken first.
    fn hold_item_numbers(&mut self) {
        self.item_numbers.sort_unstable_by(|a, b| b.cmp(a));
        lock(self.terms.items_in_hand).clone_from(&self.item_numbers);
    }

    /// Takes these rows as they are known. What compares them is sent before anything that is read
    /// or written.
    fn assume(&mut self, batch: &Batch, rows: &[KnownRow]) {
        let mut held = known::Compared::default();
        let mut seen = known::Compared::default();
        let mut new_runs = Vec::new();
        let growing = known::growing(batch, self.terms.named, rows);
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
            if let Some(op) = compared.required(sql) {
                self.session.push(op);
            }
        }
        if !new_runs.is_empty() {
            let params = params![new_runs, CHANGED];
            self.session.execute(known::REQUIRE_NEW, params);
        }
    }

    /// Executes a statement that is not on everybody's path. It is sent with the next that is waited
    /// for.
    pub(super) fn execute(&self, sql: impl crate::store::sql::Text, params: &[Param<'_>]) {
        self.session.execute(sql, params);
    }

    /// Makes sure that this is locked. Never waits: whoever has it already makes the batch begin
    /// again.
    pub(super) fn lock(&mut self, lock: Lock) -> Result<(), Trouble> {
        if self.locks.contains(&lock) {
            return Ok(());
        }
        let Some(number) = lock.advisory(self.terms.schema) else {
            // A run is locked by reading its row.
            return Ok(());
        };
        let sql = "SELECT pg_try_advisory_xact_lock($1)";
        let is_ours = self.session.row(sql, params![number], |row| row.get::<bool>(0))?;
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
    ) -> Result<Vec<Vec<PgRow>>, Trouble> {
        let numbers: Vec<i64> =
            locks.iter().filter_map(|it| it.advisory(self.terms.schema)).collect();
        let sql = "SELECT number, pg_try_advisory_xact_lock(number) \
                   FROM unnest($1::bigint[]) AS number";
        let mut asked = vec![Op::new(sql, params![numbers])];
        asked.extend(ops);
        let mut answers = self.session.queries(asked)?;
        let got = answers.drain(..1.min(answers.len())).flatten();
        for row in got.collect::<Vec<_>>() {
            let (number, is_ours) = (row.get::<i64>(0)?, row.get::<bool>(1)?);
            let lock = locks.iter().find(|it| it.advisory(self.terms.schema) == Some(number));
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
    ) -> Result<Vec<PgRow>, Trouble> {
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
        let sql = format!(
            "SELECT {HEAD} FROM everstep_runs WHERE no = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED"
        );
        (!numbers.is_empty()).then(|| Op::new(sql, params![numbers]))
    }

    fn remember_heads(&mut self, answers: &[Vec<PgRow>]) -> Result<(), Trouble> {
        for row in answers.iter().flatten() {
            let head = self.completed(head(row)?);
            self.keep(&head);
        }
        Ok(())
    }

    /// A row as it was read, with what this runner knows beyond it.
    pub(super) fn completed(&self, mut head: Head) -> Head {
        if head.status != RunStatus::Running || self.fence.is_none() {
            return head;
        }
        let number = lock(self.terms.known).number(self.fence, head.id.no());
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

    /// A body of the user's may have started runs and sent messages in this transaction: what was
    /// read before it is read again. Numbers of entries are not in the rows, and are the owner's alone.
    pub(super) fn look_again(&mut self) -> Result<(), Trouble> {
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
        (self.ahead, self.queues) = (Ahead::default(), queues::Known::default());
        Ok(())
    }
}

/// Waits for the advisory locks of names, in order.
fn lock_names<'l>(session: &Session<'_>, schema: u32, locks: impl Iterator<Item = &'l Lock>) {
    if let Some(op) = names_op(schema, locks) {
        session.push(op);
    }
}

fn names_op<'l>(schema: u32, locks: impl Iterator<Item = &'l Lock>) -> Option<Op> {
    let numbers: Vec<i64> = locks.filter_map(|lock| lock.advisory(schema)).collect();
    // The order of the numbers is the order of the locks.
    let sql = "SELECT pg_advisory_xact_lock(number) FROM \
               (SELECT number FROM unnest($1::bigint[]) AS number ORDER BY number) AS names";
    (!numbers.is_empty()).then(|| Op::new(sql, params![numbers]))
}
