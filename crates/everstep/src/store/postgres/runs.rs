//! The rows of runs as far as every step reads and writes them, and what is locked for the rules.

use super::{
    batch::Applier,
    columns,
    error::{FENCED, Trouble},
    known::Keys,
    locks::{Lock, Named},
    session::{Bulk, Op, Session},
    value::{Value, params},
};
use crate::{
    run_id::{RunNo, ShardId},
    store::{
        rows::{EventWaiter, Head, Place, Waiter},
        sql::{
            Sql, SqlTables, Subject,
            ahead::Ahead,
            runs::{HEAD, head},
        },
        *,
    },
    time::Timestamp,
};

static INSERT_RUN: Bulk = Bulk::over_arrays(
    "everstep_runs",
    1,
    "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, generation, \
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
);

static FINISH: Bulk = Bulk::over_arrays(
    "everstep_runs",
    1,
    "UPDATE everstep_runs SET status = new.status, ending = NULL, available_at = NULL, \
          updated_at = new.now, finished_at = new.now, last_number = new.last_number, \
          waiting = NULL, output = new.output, error = new.error \
          FROM (SELECT unnest($1::bigint[]) AS no, unnest($2::bigint[]) AS status, \
          unnest($3::bigint[]) AS now, unnest($4::bigint[]) AS last_number, \
          unnest($5::bytea[]) AS output, unnest($6::bytea[]) AS error) AS new \
          WHERE everstep_runs.no = new.no",
);

static PUT: Bulk = Bulk::over_arrays(
    "everstep_history",
    3,
    "INSERT INTO everstep_history (run, generation, key, value) \
          SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bytea[]), \
          unnest($4::bytea[]) ON CONFLICT (run, generation, key) DO UPDATE SET value = excluded.value",
);

/// For keys under which there is nothing.
static PUT_NEW: Bulk = Bulk::over_arrays(
    "everstep_history",
    0,
    "INSERT INTO everstep_history (run, generation, key, value) \
          SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bytea[]), \
          unnest($4::bytea[])",
);

static DELETE_ENTRIES: Bulk = Bulk::over_arrays(
    "everstep_history",
    0,
    "DELETE FROM everstep_history USING \
          unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) AS gone (r, g, a, b) \
          WHERE run = r AND generation = g AND key >= a AND key < b",
);

/// What stands under the keys of a batch.
pub(super) fn keys_of_batch(named: &Named) -> Op {
    let names = named.keys.iter().cloned();
    let (workflows, keys) = names.map(|(workflow, key)| (Some(workflow), Some(key))).unzip();
    let sql = "SELECT everstep_keys.workflow, everstep_keys.key, run, deleted_id, deleted_at, kept_until FROM everstep_keys \
               JOIN unnest($1::text[], $2::text[]) AS asked (w, k) ON everstep_keys.workflow = w \
               AND everstep_keys.key = k ORDER BY everstep_keys.workflow, everstep_keys.key FOR UPDATE OF everstep_keys";
    Op::keeping(sql, vec![Value::Texts(workflows), Value::Texts(keys)])
}

impl<'a> SqlTables for Applier<'a> {
    type Error = Trouble;
    type Sql = Session<'a>;

    fn sql(&self) -> &Session<'a> {
        self.session
    }

    fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    fn instant(&self) -> Timestamp {
        self.now
    }

    fn noticed(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    /// The row as it is in this transaction, locked.
    fn row_of(&mut self, run: RunNo) -> Result<Option<Head>, Trouble> {
        if let Some(head) = self.heads.get(&run) {
            return Ok(*head);
        }
        let sql =
            format!("SELECT {HEAD} FROM everstep_runs WHERE no = $1 FOR NO KEY UPDATE NOWAIT");
        let found = self.session.row(sql, params![run], head);
        let head = match found {
            Err(trouble) if trouble.code() == Some("55P03") => {
                return Err(Trouble::Contended(Lock::Run(run)));
            }
            found => found?.map(|head| self.completed(head)),
        };
        self.heads.insert(run, head);
        Ok(head)
    }

    fn keep(&mut self, head: &Head) {
        self.heads.insert(head.id.no(), Some(*head));
    }

    fn buried(&mut self, run: RunNo) {
        self.graves.insert(run);
        self.heads.insert(run, None);
    }

    fn known_grave(&mut self, run: RunNo) -> Result<Option<bool>, Trouble> {
        let is_grave = self.graves.contains(&run);
        // Those of new runs were asked for at the beginning.
        let is_known = is_grave || self.terms.named.new_runs.contains(&run);
        Ok(is_known.then_some(is_grave))
    }

    fn require_fence(&mut self, fence: Fence) -> Result<bool, Trouble> {
        if !self.terms.fenced {
            return Ok(false);
        }
        // Written so that no row is an error: what is sent behind it must not be made.
        self.execute(
            "SELECT everstep_require(count(*) = 1, $3) FROM (SELECT 1 FROM everstep_runners \
             WHERE id = $1 AND epoch = $2 FOR KEY SHARE) AS held",
            params![fence.runner, fence.epoch, FENCED],
        );
        self.fence = Some(fence);
        Ok(true)
    }

    fn has_shard(&mut self, shard: ShardId) -> Result<bool, Trouble> {
        let Some(fence) = self.fence else {
            return Ok(false);
        };
        let held = match &mut self.shards {
            Some(held) => held,
            shards => shards.insert(columns::shards_of(self.session, fence.runner)?),
        };
        Ok(held.contains(shard))
    }

    /// The number is free, or its row is locked.
    fn insert_run(&mut self, new: &NewRun, head: &Head) -> Result<bool, Trouble> {
        let run = new.id.no();
        if self.row_of(run)?.is_some() {
            return Ok(false);
        }
        let tags = columns::list_json(&new.tags);
        let row = params![
            run,
            new.id,
            new.workflow,
            new.version,
            new.key,
            new.pool,
            head.shard,
            head.status,
            head.available_at,
            new.deadline_at,
            self.now,
            tags,
            new.input,
            new.parent,
            new.trace,
        ];
        self.session.put(&INSERT_RUN, row);
        if head.status == RunStatus::Running {
            // It is in the memory of this runner from the first moment.
            self.entries.insert(run, Keys::none());
        }
        Ok(true)
    }

    fn end_run(
        &mut self,
        head: &Head,
        _: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> Result<(), Trouble> {
        let (run, number) = (head.id.no(), head.stored_number());
        let row = params![run, head.status, self.now, number, output, error];
        self.session.put(&FINISH, row);
        Ok(())
    }

    fn put_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), Trouble> {
        for KeyRange { start, end } in deletes {
            let row = params![run, generation, start, end];
            self.session.put(&DELETE_ENTRIES, row);
        }
        for Put { key, value } in puts {
            let keys = self.entries.get_mut(&run);
            let is_new = keys.is_some_and(|keys| keys.add(generation, key));
            let bulk = if is_new { &PUT_NEW } else { &PUT };
            self.session.put(bulk, params![run, generation, key, value]);
        }
        Ok(())
    }

    fn run_body(&mut self, transaction: &Transaction) -> Result<(), Trouble> {
        self.session.call(transaction)?;
        self.look_again()
    }

    fn lock_and_read(&mut self, batch: &Batch) -> Result<(), Trouble> {
        Applier::lock_and_read(self, batch)?;
        self.look_ahead(batch)
    }

    fn writes_for(&mut self, run: RunNo) {
        if !self.entries.contains_key(&run) {
            let keys = self.terms.take_keys(self.fence, run);
            self.entries.insert(run, keys);
        }
    }

    fn lock_runs(&mut self, runs: &[RunNo]) -> Result<(), Trouble> {
        self.lock_heads(runs)
    }

    fn lock_watchers(&mut self, run: RunNo, watchers: Vec<Waiter>) -> Result<Vec<Waiter>, Trouble> {
        Applier::lock_watchers(self, run, watchers)
    }

    fn lock(&mut self, subject: Subject<'_>) -> Result<(), Trouble> {
        Applier::lock(self, Lock::of(subject))
    }

    fn lock_expired(&mut self, events: Vec<(String, u64)>) -> Result<Vec<(String, u64)>, Trouble> {
        Applier::lock_expired(self, events)
    }

    fn lock_waiting(&mut self, page: &[EventWaiter]) -> Result<(), Trouble> {
        self.lock_page(page)
    }

    fn is_placeless(&self, of: &Waiter) -> bool {
        Applier::is_placeless(self, of)
    }

    fn gets_place(&mut self, of: &Waiter) {
        Applier::gets_place(self, of);
    }

    fn lock_holders(&mut self, places: &[Place]) -> Result<(), Trouble> {
        Applier::lock_holders(self, places.iter().map(|place| &place.of))
    }
}
