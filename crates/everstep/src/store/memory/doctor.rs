//! What the doctor asks of the store in memory. It has no tables that could come to differ, so there
//! are only its runs to be looked at, and nothing to be mended.

use super::{rows::Waiter, *};

impl Data {
    pub(super) fn examine(&self, ask: &Ask) -> Facts {
        match ask {
            Ask::Runs { live, after, limit } => {
                let meant = self.runs.iter();
                let meant = meant.filter(|(_, run)| run.head.status.is_terminal() != *live);
                let nos = meant.map(|(no, _)| *no);
                Facts::Runs(match live {
                    true => nos.filter(|no| Some(*no) > *after).take(*limit).collect(),
                    false => {
                        let is_older = |no: &RunNo| after.is_none_or(|after| *no < after);
                        nos.rev().filter(is_older).take(*limit).collect()
                    }
                })
            }
            Ask::Run(run) => {
                let facts = self.runs.get(run).map(|run| Box::new(self.run_facts(run)));
                Facts::Run(facts)
            }
            _ => Facts::Nothing,
        }
    }

    fn run_facts(&self, run: &Run) -> RunFacts {
        let head = &run.head;
        let no = head.id.no();
        RunFacts {
            no,
            id: Some(head.id),
            shard: i64::from(head.shard.0),
            status: Some(head.status),
            is_ending: head.ending.is_some(),
            generation: i64::from(head.generation),
            available_at: head.available_at.map(Timestamp::as_millis),
            updated_at: run.row.updated_at.as_millis(),
            inbox_seq: head.inbox_seq as i64,
            last_number: head.last_number_exact.then_some(head.last_number as i64),
            waiting: run.row.waiting.clone(),
            input: run.row.input.clone(),
            output: run.row.output.clone(),
            error: run.row.error.clone(),
            registered: self.registered(run),
        }
    }

    /// What the operations of a run are registered for, or have in the inbox.
    fn registered(&self, run: &Run) -> Vec<(InboxKind, Vec<u8>)> {
        let (no, generation) = (run.head.id.no(), run.head.generation);
        let is_mine = |waiter: &&Waiter| waiter.run == no && waiter.generation == generation;
        let events = self.events.by_operation.keys().filter(is_mine);
        let events = events.map(|waiter| (InboxKind::Event, waiter.key.clone()));
        let deferreds = self.deferreds.waits.iter();
        let deferreds = deferreds
            .filter(|(place, _)| place.run == no && place.generation == generation)
            .map(|(_, key)| (InboxKind::Deferred, key.clone()));
        let watches = self.children.watchers.iter().map(|(_, waiter)| waiter);
        let watches =
            watches.filter(is_mine).map(|waiter| (InboxKind::RunEnded, waiter.key.clone()));
        let items = self.queues.waits.keys().filter(is_mine);
        let items = items.map(|waiter| (InboxKind::QueueResult, waiter.key.clone()));
        let places = self.limits.places.keys().filter(is_mine);
        let places = places.map(|waiter| (InboxKind::LimitGrant, waiter.key.clone()));
        let inbox = run.inbox.values();
        let inbox = inbox.filter_map(|row| Some((row.kind, row.wait.clone()?)));
        let all = events.chain(deferreds).chain(watches);
        all.chain(items).chain(places).chain(inbox).collect()
    }
}
