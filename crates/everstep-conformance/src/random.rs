//! Random batches, which often fit what is stored, and often do not.

use super::*;

/// Makes batches that often fit what is stored, and often do not.
pub(super) struct Random {
    pub(super) seed: u64,
    /// Choices that are taken before those of the seed, until they are used up.
    pub(super) tape: Option<std::vec::IntoIter<u16>>,
    /// Whether each store makes all batches in one life and with one runner. It then knows the last number
    /// of every run; otherwise what is in its owner's memory may be unknown to it.
    pub(super) knows_numbers: bool,
    pub(super) ids: RunIds,
    pub(super) runs: Vec<RunId>,
    /// The keys of operations that were made to wait for an event.
    pub(super) subscribed: Vec<Vec<u8>>,
    pub(super) open_numbers: numbers::OpenNumbers,
    pub(super) names: Names,
}

/// The queues, and the one that most is about first.
pub(super) const QUEUES: [&str; 2] = ["thumbs", "mails"];

/// How many ids requests have here.
pub(super) const REQUESTS: u64 = 30;

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random {
            seed,
            tape: None,
            knows_numbers: true,
            ids: RunIds::new(seed),
            runs: Vec::new(),
            subscribed: Vec::new(),
            open_numbers: numbers::OpenNumbers::default(),
            names: Names::drawn(),
        }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if let Some(tape) = &mut self.tape {
            return tape.next().map_or(0, |choice| u64::from(choice) % bound);
        }
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        internal::mix(self.seed) % bound
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        // With nothing left to decide by, what is rare does not happen.
        self.below(bound) == if self.tape.is_some() { bound - 1 } else { 0 }
    }

    pub(super) fn run(&mut self) -> RunId {
        let no = self.below(self.runs.len() as u64 + 1) as usize;
        self.runs.get(no).copied().unwrap_or_else(|| self.ids.next(START))
    }

    pub(super) fn batch(&mut self, model: &dyn Store, fence: Fence, now: Timestamp) -> Batch {
        let mut committed = Vec::new();
        let mut writes = Vec::new();
        for _ in 0..self.below(6) {
            let id = self.run();
            let write = match self.below(20) {
                16.. => Write::Queue(Box::new(self.queue_write(model, now))),
                12 => match self.end_of_tick(model, &committed, now) {
                    Some(commit) => {
                        committed.push(commit.0);
                        Write::Commit(Box::new(commit.1))
                    }
                    None => Write::Schedule(Box::new(self.schedule_write(model, now))),
                },
                0 | 1 => Write::Start(Box::new(self.start(now))),
                2 | 3 => Write::Deliver(Box::new(self.delivery(id))),
                4 => Write::Control(self.target(id), self.control()),
                5 => Write::Reopen(Box::new(self.reopening(model, id))),
                6 if self.one_in(2) => self.event_write(id),
                6 => Write::Emit(Box::new(self.emission(id))),
                13 if self.one_in(4) => Write::Import(Box::new(self.import(now))),
                13 => Write::Tag(Box::new(self.tagging(id))),
                14 if self.one_in(2) => Write::Fork(Box::new(self.fork(now))),
                14 => Write::Delete(Box::new(self.deletion(id, now))),
                15 if self.one_in(2) => Write::HandOver(Box::new(self.hand_over(id))),
                15 => Write::Resolve(Box::new(self.resolution(id))),
                // At most one commit per run.
                _ if committed.contains(&id) => continue,
                _ => {
                    committed.push(id);
                    Write::Commit(Box::new(self.commit(model, id, now)))
                }
            };
            writes.push(write);
        }
        let fence = if self.one_in(30) { None } else { Some(fence) };
        let batch = Batch { fence, now, writes };
        self.open_numbers.before(model, &batch, self.knows_numbers);
        batch
    }

    pub(super) fn queue(&mut self) -> String {
        QUEUES[usize::from(self.one_in(4))].to_owned()
    }

    pub(super) fn new_item(&mut self, now: Timestamp) -> NewItem {
        let delay = Duration::from_millis(self.below(20));
        let (queue, payload) = (self.queue(), self.below(256) as u8);
        NewItem {
            queue,
            payload: vec![payload],
            priority: self.below(3) as i32 - 1,
            available_at: self.one_in(3).then(|| now + delay),
            dedupe: self.one_in(3).then(|| self.below(4).to_string()),
            keep: Duration::from_millis(10 * self.below(3)),
            trace: trace_of(u64::from(payload)),
        }
    }

    pub(super) fn queue_write(&mut self, model: &dyn Store, now: Timestamp) -> QueueWrite {
        let queue = self.queue();
        let items = model.queue_items(&queue, None, None, 100);
        let items = items.expect("queue_items");
        let item = match items.get(self.below(items.len() as u64 + 1) as usize) {
            Some(item) => item.id,
            None => ItemId(1 + self.below(60)),
        };
        let claim = Uuid::from_u128(u128::from(self.below(2)));
        let later = now + Duration::from_millis(self.below(30));
        if self.one_in(12) {
            return QueueWrite::Revoke;
        }
        match self.below(8) {
            0 | 1 => QueueWrite::Enqueue(self.new_item(now)),
            2 | 3 => QueueWrite::Claim(ClaimItems {
                queue,
                claim,
                max: self.below(4) as usize,
                attempts_max: 2,
                visibility: Duration::from_millis(20),
                limit: self.one_in(2).then(|| self.claim_limit()),
            }),
            4 => QueueWrite::Extend(vec![Extend { item, claim, until: later }]),
            5 => {
                let controls = [ItemControl::Cancel, ItemControl::Replay, ItemControl::Drop];
                QueueWrite::Control(item, controls[self.below(3) as usize])
            }
            _ => QueueWrite::Settle(Settle {
                item,
                claim,
                settlement: match self.below(4) {
                    0 => Settlement::Done(vec![1]),
                    1 => Settlement::Retry { at: later, error: vec![2] },
                    2 => Settlement::Failed(vec![3]),
                    _ => Settlement::Release,
                },
            }),
        }
    }

    pub(super) fn target(&mut self, id: RunId) -> Target {
        if self.one_in(3) {
            let key = self.below(4).to_string();
            Target::Key { workflow: "checkout".to_owned(), key }
        } else {
            Target::Id(id)
        }
    }

    pub(super) fn start(&mut self, now: Timestamp) -> NewRun {
        let id = if self.one_in(10) { self.run() } else { self.ids.next(now) };
        // The runs that most is about: later ones take the place of earlier ones now and then.
        match self.below(24) as usize {
            _ if self.runs.len() < 12 => self.runs.push(id),
            place @ ..12 => self.runs[place] = id,
            _ => {}
        }
        let delay = Duration::from_millis(self.below(50));
        NewRun {
            id,
            workflow: "checkout".into(),
            version: 1,
            key: self.one_in(3).then(|| self.below(4).to_string()),
            pool: if self.one_in(5) { "gpu" } else { "default" }.into(),
            available_at: self.one_in(4).then(|| now + delay),
            deadline_at: self.one_in(6).then(|| now + 10 * delay),
            tags: if self.one_in(6) {
                vec![("1".to_owned(), self.below(2).to_string())]
            } else {
                Vec::new()
            },
            trace: trace_of(id.no().0.unsigned_abs()),
            input: vec![self.below(2) as u8],
            parent: None,
            claim: !self.one_in(3),
        }
    }

    pub(super) fn delivery(&mut self, id: RunId) -> Delivery {
        let on_end = match self.below(4) {
            0 => OnEnd::DeadLetter,
            1 => OnEnd::Publish(Box::new(events::fallback("e0"))),
            _ => OnEnd::Error,
        };
        Delivery {
            on_end,
            target: self.target(id),
            body: vec![self.below(256) as u8],
            dedupe: self.one_in(2).then(|| self.below(5).to_string()),
            request: self.one_in(4).then(|| Uuid::from_u128(u128::from(self.below(REQUESTS)))),
            inbox_max: 1 + self.below(6),
            ..message(id)
        }
    }

    pub(super) fn resolution(&mut self, id: RunId) -> Resolution {
        Resolution {
            run: id,
            generation: self.one_in(2).then(|| 1 + self.below(2) as u32),
            tag: [self.below(3) as u8; 16],
            body: vec![self.below(256) as u8],
        }
    }

    pub(super) fn tagging(&mut self, id: RunId) -> Tagging {
        Tagging {
            target: self.target(id),
            name: self.below(3).to_string(),
            value: (!self.one_in(3)).then(|| self.below(2).to_string()),
        }
    }

    pub(super) fn fork(&mut self, now: Timestamp) -> Fork {
        Fork {
            new: self.start(now),
            history: vec![put([1, self.below(3) as u8], [7])],
            last_number: self.below(4),
            state: vec![("forked".to_owned(), vec![2])],
        }
    }

    pub(super) fn deletion(&mut self, id: RunId, now: Timestamp) -> Delete {
        let later = now + Duration::from_millis(self.below(20));
        Delete {
            target: self.target(id),
            finished_before: self.one_in(3).then_some(now),
            key_kept_until: self.one_in(2).then_some(later),
        }
    }

    pub(super) fn control(&mut self) -> Control {
        match self.below(5) {
            0 => Control::Cancel { rollback: self.one_in(2) },
            1 | 2 => Control::Pause,
            _ => Control::Resume,
        }
    }

    pub(super) fn row(model: &dyn Store, id: RunId) -> Option<RunRow> {
        model.run(&Target::Id(id)).expect("run")
    }

    /// To where the runner has shards, or to where nobody has.
    pub(super) fn hand_over(&mut self, id: RunId) -> HandOver {
        let pools = ["default", "gpu", "gpu", "default", "default@checkout/1"];
        HandOver { run: id.no(), pool: pools[self.below(5) as usize].into() }
    }

    pub(super) fn reopening(&mut self, model: &dyn Store, id: RunId) -> Reopen {
        let row = Random::row(model, id);
        Reopen {
            run: id.no(),
            status: row.as_ref().map_or(RunStatus::Failed, |row| row.status),
            attempts: row.map_or(1, |row| row.attempts) + u32::from(self.one_in(4)),
            puts: vec![self.put()],
            deletes: vec![self.range()],
        }
    }

    pub(super) fn put(&mut self) -> Put {
        put([self.below(8) as u8, self.below(3) as u8], [self.below(256) as u8])
    }

    pub(super) fn range(&mut self) -> KeyRange {
        range([self.below(8) as u8], [self.below(9) as u8, self.below(2) as u8])
    }

    pub(super) fn commit(&mut self, model: &dyn Store, id: RunId, now: Timestamp) -> Commit {
        let row = Random::row(model, id);
        let is_running = row.as_ref().is_some_and(|row| row.status == RunStatus::Running);
        let (base, inbox_seq, generation) =
            row.map_or((0, 0, 1), |row| (row.last_number, row.inbox_seq, row.generation));
        // A store may not know the last number of a run in its owner's memory, or of one that was paused
        // there, and then does not see that one is left out.
        let is_paused_open = self.open_numbers.is_open(id.no());
        let is_open = (is_running && !self.knows_numbers) || is_paused_open;
        let leaves_out = self.one_in(12) && !is_open;
        let base = base + u64::from(leaves_out);
        // A commit without numbers writes the row only where the last one was unknown.
        let numbers = self.below(3).max(u64::from(is_paused_open));
        let results_only = self.one_in(4);
        let is_stale = self.one_in(6);
        let seen = inbox_seq.saturating_sub(u64::from(is_stale));
        Commit {
            run: id.no(),
            generation: generation + u32::from(self.one_in(20)),
            inbox_seq: self.one_in(2).then_some(seen),
            results_only,
            last_number: base + numbers,
            numbers,
            deletes: if self.one_in(4) { vec![self.range()] } else { Vec::new() },
            puts: (0..self.below(4)).map(|_| self.put()).collect(),
            consumed: if self.one_in(3) { vec![1 + self.below(8)] } else { Vec::new() },
            state: if self.one_in(5) { vec![("s".to_owned(), vec![1])] } else { Vec::new() },
            effects: self.effects(now),
            patch: if results_only { Patch::Keep } else { self.patch(seen, now) },
        }
    }

    /// A few, each of an operation of its own, as an owner has them.
    pub(super) fn effects(&mut self, now: Timestamp) -> Vec<Effect> {
        let count = match self.below(8) {
            0..6 => 1,
            more => more - 4,
        };
        let mut effects: Vec<Effect> = Vec::new();
        for _ in 0..count {
            let Some(effect) = self.effect(now) else {
                continue;
            };
            let key = operation(&effect);
            if key.is_none() || effects.iter().all(|before| operation(before) != key) {
                effects.push(effect);
            }
        }
        effects
    }

    pub(super) fn effect(&mut self, now: Timestamp) -> Option<Effect> {
        let receiver = self.run();
        match self.below(23) {
            19 => Some(Effect::StartChild(Box::new(self.child(now)))),
            20 => Some(Effect::Watch {
                target: self.target(receiver),
                key: vec![12, self.below(3) as u8],
                entry: vec![1],
            }),
            21 => Some(Effect::Abandon {
                kind: InboxKind::RunEnded,
                key: vec![12, self.below(3) as u8],
            }),
            10 | 11 => Some(Effect::AwaitDeferred(DeferredWait {
                key: vec![9, self.below(4) as u8],
                tag: [self.below(3) as u8; 16],
                looks: self.one_in(4),
            })),
            12 => Some(Effect::Abandon {
                kind: InboxKind::Deferred,
                key: vec![9, self.below(4) as u8],
            }),
            3 => Some(Effect::Tag {
                name: self.below(3).to_string(),
                value: (!self.one_in(3)).then(|| self.below(2).to_string()),
            }),
            0 | 1 => Some(Effect::Send {
                delivery: self.delivery(receiver),
                key: vec![9, self.below(3) as u8],
                receipt: vec![1],
            }),
            4 | 5 => Some(self.event_effect()),
            2 => Some(Effect::Reply {
                request: Uuid::from_u128(u128::from(self.below(REQUESTS))),
                body: vec![self.below(256) as u8],
            }),
            6 => Some(Effect::Emit(Box::new(self.emit()))),
            7 => Some(Effect::Enqueue {
                item: self.new_item(now),
                key: vec![10, self.below(2) as u8],
                then: AfterEnqueue::Wait { leave: self.one_in(3) },
            }),
            8 => Some(Effect::Enqueue {
                item: self.new_item(now),
                key: vec![11, self.below(2) as u8],
                then: AfterEnqueue::Record(vec![1]),
            }),
            9 => Some(Effect::Abandon {
                kind: InboxKind::QueueResult,
                key: vec![10, self.below(2) as u8],
            }),
            13 | 15 => Some(self.acquire()),
            22 => Some(Effect::Abandon {
                kind: InboxKind::LimitGrant,
                key: vec![self.below(3) as u8],
            }),
            14 => Some(Effect::Release { key: vec![self.below(3) as u8] }),
            _ => None,
        }
    }

    pub(super) fn child(&mut self, now: Timestamp) -> StartChild {
        StartChild {
            new: self.start(now),
            key: vec![12, self.below(3) as u8],
            entry: vec![1],
            awaited: !self.one_in(3),
            close: if self.one_in(2) { Close::Cancel } else { Close::Leave },
        }
    }

    /// A run from elsewhere, as a start would have made it.
    pub(super) fn import(&mut self, now: Timestamp) -> ImportedRun {
        let new = self.start(now);
        let status = match self.below(4) {
            0 => RunStatus::Sleeping,
            1 => RunStatus::Paused,
            2 => RunStatus::Completed,
            _ => RunStatus::Running,
        };
        let terminal = status.is_terminal();
        ImportedRun {
            row: RunRow {
                id: new.id,
                workflow: new.workflow,
                version: new.version,
                key: new.key,
                shard: new.id.shard_in(PoolNo::DEFAULT),
                pool: new.pool,
                status,
                ending: None,
                generation: 1 + self.below(2) as u32,
                available_at: new.available_at.filter(|_| status == RunStatus::Sleeping),
                deadline_at: None,
                created_at: now,
                updated_at: now,
                finished_at: terminal.then_some(now),
                attempts: 1,
                recoveries: 0,
                inbox_seq: 1,
                cancel_requested: None,
                last_number: self.below(3),
                waiting: None,
                tags: Vec::new(),
                trace: new.trace,
                parent: None,
                resume_at: None,
                input: new.input,
                output: terminal.then(|| vec![2]),
                error: None,
            },
            history: vec![self.put()],
            inbox: vec![InboxRow {
                on_end: None,
                seq: 1,
                kind: InboxKind::Message,
                name: "hello".to_owned(),
                body: vec![3],
                wait: None,
                request: None,
                sent_at: now,
            }],
            state: vec![("s".to_owned(), vec![9])],
        }
    }

    pub(super) fn claim_limit(&mut self) -> ClaimLimit {
        let Effect::Acquire(acquire) = self.acquire() else {
            unreachable!("it is one");
        };
        ClaimLimit { limit: acquire.limit, limit_key: acquire.limit_key, rule: acquire.rule }
    }

    pub(super) fn acquire(&mut self) -> Effect {
        let rate = LimitRate {
            count: 1 + self.below(3) as u32,
            per_ms: 20,
            burst: 1 + self.below(2) as u32,
        };
        Effect::Acquire(Box::new(Acquire {
            limit: "limit".to_owned(),
            limit_key: self.below(4).to_string(),
            rule: LimitRule {
                concurrency: self.one_in(2).then_some(1 + self.below(2) as u32),
                rate: self.one_in(2).then_some(rate),
            },
            holds: !self.one_in(4),
            key: vec![self.below(3) as u8],
        }))
    }

    pub(super) fn patch(&mut self, inbox_seq: u64, now: Timestamp) -> Patch {
        let later = now + Duration::from_millis(self.below(40));
        match self.below(13) {
            0..=2 => Patch::Keep,
            12 => Patch::Continue {
                workflow: "checkout".into(),
                version: 1 + self.below(2) as u32,
                pool: if self.one_in(4) { "gpu" } else { "default" }.into(),
                input: vec![self.below(2) as u8],
            },
            3..=5 => Patch::Run { inbox_seq },
            6 | 7 => park(self.one_in(2).then_some(later)),
            8 => Patch::Park {
                status: RunStatus::Pending,
                available_at: Some(later),
                waiting: "its next attempt".to_owned(),
                attempts: 2,
            },
            9 if self.one_in(2) => Patch::RollBack { ending: RunStatus::Cancelled, error: None },
            9 => roll_back(),
            10 => pause(),
            _ => match self.below(3) {
                0 => finish(RunStatus::Failed),
                1 => finish(RunStatus::Cancelled),
                _ => finish(RunStatus::Completed),
            },
        }
    }
}

/// The trace of every third, which says which one it is.
pub(super) fn trace_of(n: u64) -> Option<String> {
    n.is_multiple_of(3).then(|| format!("trace {n}"))
}

pub(super) fn of_key(key: u64) -> Target {
    Target::Key { workflow: "checkout".to_owned(), key: key.to_string() }
}

/// The key of the operation that an effect is about, if it is about one.
pub(super) fn operation(effect: &Effect) -> Option<&[u8]> {
    match effect {
        Effect::Send { key, .. }
        | Effect::Publish { key, .. }
        | Effect::Took { key }
        | Effect::Watch { key, .. }
        | Effect::Release { key }
        | Effect::Abandon { key, .. }
        | Effect::Enqueue { key, .. } => Some(key),
        Effect::Subscribe(subscription) => Some(&subscription.key),
        Effect::AwaitDeferred(wait) => Some(&wait.key),
        Effect::StartChild(child) => Some(&child.key),
        Effect::Acquire(acquire) => Some(&acquire.key),
        Effect::Reply { .. } | Effect::Emit(_) | Effect::Transaction(_) | Effect::Tag { .. } => {
            None
        }
    }
}
