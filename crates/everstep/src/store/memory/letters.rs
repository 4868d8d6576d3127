//! Messages, requests and dead letters in memory.

use super::{
    rows::{InboxPart, InboxTables},
    *,
};

impl InboxTables for Data {
    fn insert_inbox(&mut self, run: RunNo, row: &InboxRow) -> Result<(), Infallible> {
        self.change(run, |run| run.inbox.insert(row.seq, row.clone()));
        Ok(())
    }

    fn inbox_after(&mut self, run: RunNo, seen: u64) -> Result<Vec<InboxRow>, Infallible> {
        let run = self.runs.get(&run);
        Ok(run.map_or_else(Vec::new, |run| run.inbox_after(seen)))
    }

    fn count_inbox(&mut self, run: RunNo, max: u64) -> Result<u64, Infallible> {
        let run = self.runs.get(&run);
        Ok(run.map_or(0, |run| run.inbox.len() as u64).min(max))
    }

    fn consume(&mut self, run: RunNo, seqs: &[u64]) -> Result<(), Infallible> {
        self.remove_inbox(run, |row| seqs.contains(&row.seq));
        Ok(())
    }

    fn take_inbox(&mut self, run: RunNo, part: InboxPart<'_>) -> Result<Vec<InboxRow>, Infallible> {
        Ok(self.remove_inbox(run, |row| part.includes(row)))
    }

    fn has_dedupe(&mut self, run: RunNo, key: &str) -> Result<bool, Infallible> {
        let run = self.runs.get(&run);
        Ok(run.is_some_and(|run| run.dedupes.contains(key)))
    }

    fn open_request(&mut self, request: Uuid, run: RunNo) -> Result<(), Infallible> {
        let answer = None;
        self.requests.insert(request, Request { run, answer });
        Ok(())
    }

    fn reply_if_open(&mut self, request: Uuid, body: &[u8]) -> Result<(), Infallible> {
        if let Some(request) = self.requests.get_mut(&request) {
            let reply = || Answer::Reply(body.to_vec());
            request.answer.get_or_insert_with(reply);
            self.rows_written += 1;
        }
        Ok(())
    }

    fn end_inbox(&mut self, id: RunId, reason: &str) -> Result<(), Infallible> {
        let requests = self.requests.values_mut();
        for request in requests.filter(|request| request.run == id.no()) {
            request.answer.get_or_insert(Answer::RunEnded);
        }
        let dies = |row: &InboxRow| row.kind == InboxKind::Message && row.on_end.is_none();
        for row in self.remove_inbox(id.no(), dies) {
            let delivery = Delivery {
                target: Target::Id(id),
                name: row.name,
                body: row.body,
                dedupe: None,
                request: None,
                inbox_max: 0,
                on_end: OnEnd::Error,
            };
            self.bury(Some(id.no()), &delivery, reason)?;
        }
        Ok(())
    }

    fn note_dedupe(&mut self, run: RunNo, key: &str) -> Result<(), Infallible> {
        self.change(run, |run| run.dedupes.insert(key.to_owned()));
        Ok(())
    }

    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), Infallible> {
        self.last_letter += 1;
        self.rows_written += 1;
        let letter = DeadLetter {
            no: self.last_letter,
            run,
            run_id: None,
            status: None,
            target: Some(delivery.target.clone()),
            name: delivery.name.clone(),
            body: delivery.body.clone(),
            reason: reason.to_owned(),
            at: self.now,
        };
        self.dead_letters.insert(letter.no, letter);
        Ok(())
    }

    fn letter(&mut self, no: u64) -> Result<Option<DeadLetter>, Infallible> {
        Ok(self.dead_letters.get(&no).map(|letter| self.shown(letter)))
    }

    fn remove_letter(&mut self, no: u64) -> Result<bool, Infallible> {
        self.rows_written += 1;
        Ok(self.dead_letters.remove(&no).is_some())
    }
}

impl Data {
    /// Removes the rows of an inbox that are meant, and gives them.
    fn remove_inbox(&mut self, no: RunNo, is_meant: impl Fn(&InboxRow) -> bool) -> Vec<InboxRow> {
        let taken = self.change(no, |run| {
            let (taken, rest): (BTreeMap<_, _>, _) =
                std::mem::take(&mut run.inbox).into_iter().partition(|(_, row)| is_meant(row));
            run.inbox = rest;
            taken.into_values().collect()
        });
        taken.unwrap_or_default()
    }

    /// A dead letter with what its run is now.
    fn shown(&self, letter: &DeadLetter) -> DeadLetter {
        let run = letter.run.and_then(|no| self.runs.get(&no));
        DeadLetter {
            run_id: run.map(|run| run.head.id),
            status: run.map(|run| run.head.status),
            ..letter.clone()
        }
    }

    pub(super) fn letters(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: usize,
    ) -> Vec<DeadLetter> {
        let rest = (Bound::Excluded(after), Bound::Unbounded);
        let letters = self.dead_letters.range(rest).map(|(_, letter)| letter);
        let wanted = letters.filter(|letter| {
            (filter.run.is_none() || letter.run == filter.run)
                && filter.name.as_ref().is_none_or(|name| *name == letter.name)
        });
        wanted.take(limit).map(|letter| self.shown(letter)).collect()
    }
}
