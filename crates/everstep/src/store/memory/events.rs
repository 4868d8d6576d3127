//! Events in memory.

use super::{
    rows::{EventName, EventTables, EventWaiter, Of, StoredEvent, Waiter},
    *,
};

/// Everything about events.
#[derive(Clone, Default)]
pub(super) struct Events {
    names: BTreeMap<String, EventName>,
    stored: BTreeMap<(String, u64), StoredEvent>,
    waiters: BTreeMap<(String, u64), EventWaiter>,
    /// Those who wait and were given nothing.
    waiting: BTreeSet<(String, Option<String>, u64)>,
    pub(super) by_operation: BTreeMap<Waiter, (String, u64)>,
    cursors: BTreeMap<(RunNo, String, Option<String>), u64>,
    dedupes: HashMap<(String, String), Timestamp>,
}

impl Events {
    /// What a deleted run has seen.
    pub(super) fn forget(&mut self, run: RunNo) {
        self.cursors.retain(|(of, ..), _| *of != run);
    }

    pub(super) fn row(&self, name: &str) -> Option<EventRow> {
        let row = self.names.get(name)?;
        let waiting = self.waiting.iter().filter(|(other, ..)| other == name);
        Some(EventRow {
            name: name.to_owned(),
            published: row.last_seq,
            kept: row.kept,
            dropped: row.dropped,
            waiting: waiting.count() as u64,
        })
    }

    pub(super) fn to_tend(&self, now: Timestamp) -> bool {
        let mut stored = self.stored.values();
        stored.any(|event| event.told.is_some() || is_expired(event, now))
            || self.dedupes.values().any(|until| *until <= now)
    }

    /// The events of a name after this one.
    fn after(&self, name: &str, after: u64) -> impl Iterator<Item = &StoredEvent> {
        let range = (
            Bound::Excluded((name.to_owned(), after)),
            Bound::Included((name.to_owned(), u64::MAX)),
        );
        self.stored.range(range).map(|(_, event)| event)
    }

    fn remove_waiter(&mut self, waiter: &EventWaiter) {
        let place = (waiter.name.clone(), waiter.no);
        self.waiters.remove(&place);
        self.by_operation.remove(&waiter.waiter);
        self.waiting.remove(&(place.0, waiter.matching.clone(), place.1));
    }
}

/// Whether an event is kept though its time is over.
fn is_expired(event: &StoredEvent, now: Timestamp) -> bool {
    event.expires_at <= now && event.given_to.is_none() && event.told.is_none()
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

impl EventTables for Data {
    fn event_name(&mut self, name: &str) -> Result<Option<EventName>, Infallible> {
        Ok(self.events.names.get(name).cloned())
    }

    fn write_event_name(&mut self, name: &str, row: &EventName) -> Result<(), Infallible> {
        self.rows_written += 1;
        self.events.names.insert(name.to_owned(), row.clone());
        Ok(())
    }

    fn insert_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Infallible> {
        self.rows_written += 1;
        let place = (name.to_owned(), event.seq);
        self.events.stored.insert(place, event.clone());
        Ok(())
    }

    fn stored_event(&mut self, name: &str, seq: u64) -> Result<Option<StoredEvent>, Infallible> {
        Ok(self.events.stored.get(&(name.to_owned(), seq)).cloned())
    }

    fn write_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Infallible> {
        self.insert_event(name, event)
    }

    fn delete_event(&mut self, name: &str, seq: u64) -> Result<(), Infallible> {
        self.rows_written += 1;
        self.events.stored.remove(&(name.to_owned(), seq));
        Ok(())
    }

    fn first_event(
        &mut self,
        name: &str,
        matching: Option<&str>,
        deliver: Deliver,
        after: u64,
    ) -> Result<Option<StoredEvent>, Infallible> {
        let now = self.now;
        let mut fits = self.events.after(name, after).filter(|event| {
            event.deliver == deliver
                && event.given_to.is_none()
                && event.expires_at > now
                && (matching.is_none() || event.key.as_deref() == matching)
        });
        Ok(fits.next().cloned())
    }

    fn last_event_before(&mut self, name: &str, at: Timestamp) -> Result<u64, Infallible> {
        let all = self.events.after(name, 0);
        let before = all.filter(|event| event.published_at < at);
        Ok(before.last().map_or(0, |event| event.seq))
    }

    fn oldest_kept(&mut self, name: &str) -> Result<Option<StoredEvent>, Infallible> {
        let mut all = self.events.after(name, 0);
        Ok(all.find(|event| event.given_to.is_none() && event.told.is_none()).cloned())
    }

    fn expired_events(&mut self, limit: usize) -> Result<Vec<(String, u64)>, Infallible> {
        let now = self.now;
        let expired = self.events.stored.iter();
        let mut expired: Vec<_> = expired
            .filter(|(_, event)| is_expired(event, now))
            .map(|(place, event)| (event.expires_at, place.clone()))
            .collect();
        expired.sort();
        Ok(expired.into_iter().take(limit).map(|(_, place)| place).collect())
    }

    fn spreading(&mut self, name: Option<&str>) -> Result<Option<(String, u64)>, Infallible> {
        let mut all = self.events.stored.iter();
        let found = all
            .find(|(place, event)| event.told.is_some() && name.is_none_or(|name| name == place.0));
        Ok(found.map(|(place, _)| place.clone()))
    }

    fn insert_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Infallible> {
        self.rows_written += 1;
        let place = (waiter.name.clone(), waiter.no);
        let events = &mut self.events;
        events.by_operation.insert(waiter.waiter.clone(), place.clone());
        events.waiting.insert((place.0.clone(), waiter.matching.clone(), place.1));
        events.waiters.insert(place, waiter.clone());
        Ok(())
    }

    fn waiters(
        &mut self,
        name: &str,
        matching: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventWaiter>, Infallible> {
        let place = |no| (name.to_owned(), owned(matching), no);
        let range = (Bound::Excluded(place(after)), Bound::Included(place(u64::MAX)));
        let found = self.events.waiting.range(range).take(limit);
        let found = found.filter_map(|(name, _, no)| self.events.waiters.get(&(name.clone(), *no)));
        Ok(found.cloned().collect())
    }

    fn waiters_of(&mut self, of: Of<'_>) -> Result<Vec<EventWaiter>, Infallible> {
        let rest = self.events.by_operation.range(Waiter::first_of(of.run())..);
        let of_run = rest.take_while(|(waiter, _)| waiter.run == of.run());
        let meant = of_run.filter(|(waiter, _)| of.includes(waiter));
        Ok(meant.filter_map(|(_, place)| self.events.waiters.get(place).cloned()).collect())
    }

    fn write_given(&mut self, waiter: &EventWaiter, seq: u64) -> Result<(), Infallible> {
        self.rows_written += 1;
        let place = (waiter.name.clone(), waiter.no);
        if let Some(row) = self.events.waiters.get_mut(&place) {
            row.given = Some(seq);
        }
        self.events.waiting.remove(&(place.0, waiter.matching.clone(), place.1));
        Ok(())
    }

    fn delete_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Infallible> {
        self.rows_written += 1;
        self.events.remove_waiter(waiter);
        Ok(())
    }

    fn cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
    ) -> Result<u64, Infallible> {
        let place = (run, name.to_owned(), owned(matching));
        Ok(self.events.cursors.get(&place).copied().unwrap_or(0))
    }

    fn write_cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
        seq: u64,
    ) -> Result<(), Infallible> {
        self.rows_written += 1;
        let place = (run, name.to_owned(), owned(matching));
        self.events.cursors.insert(place, seq);
        Ok(())
    }

    fn delete_cursors(&mut self, run: RunNo) -> Result<(), Infallible> {
        self.events.cursors.retain(|(other, ..), _| *other != run);
        Ok(())
    }

    fn note_event_dedupe_if_free(
        &mut self,
        name: &str,
        key: &str,
        until: Timestamp,
    ) -> Result<bool, Infallible> {
        let place = (name.to_owned(), key.to_owned());
        let before = self.events.dedupes.get(&place);
        if before.is_some_and(|before| *before > self.now) {
            return Ok(false);
        }
        self.rows_written += 1;
        self.events.dedupes.insert(place, until);
        Ok(true)
    }

    fn delete_event_dedupes(&mut self, limit: usize) -> Result<usize, Infallible> {
        let (now, dedupes) = (self.now, &mut self.events.dedupes);
        let over = dedupes.iter().filter(|(_, until)| **until <= now);
        let over: Vec<_> = over.map(|(place, _)| place.clone()).take(limit).collect();
        for place in &over {
            dedupes.remove(place);
        }
        Ok(over.len())
    }
}
