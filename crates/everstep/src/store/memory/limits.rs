//! Limits and the places under them, in memory.

use super::{
    rows::{LimitTables, Of, Place, Waiter},
    *,
};

/// The rows.
#[derive(Clone, Default)]
pub(super) struct Limits {
    limits: BTreeMap<(String, String), LimitRow>,
    pub(super) places: BTreeMap<Waiter, Place>,
    /// The places that are waited for, in order.
    line: BTreeMap<(String, String, u64), Waiter>,
}

impl Limits {
    pub(super) fn list(&self, name: Option<&str>, limit: usize) -> Vec<LimitRow> {
        let wanted = self.limits.values().filter(|row| name.is_none_or(|name| row.name == name));
        wanted.take(limit).cloned().collect()
    }

    pub(super) fn of_run(&self, run: RunNo) -> impl Iterator<Item = &Place> {
        let places = self.places.range(Waiter::first_of(run)..);
        let of_run = places.take_while(move |(of, _)| of.run == run);
        of_run.map(|(_, place)| place)
    }
}

fn key_of(row: &LimitRow) -> (String, String) {
    (row.name.clone(), row.key.clone())
}

fn in_line(place: &Place) -> (String, String, u64) {
    (place.limit.clone(), place.limit_key.clone(), place.arrival)
}

impl Data {
    /// The places of a run, with who has one there.
    pub(super) fn limit_places(&self, run: RunNo) -> Vec<LimitPlace> {
        let places = &self.limits.places;
        let of_run = places.values().filter(|place| place.of.run == run);
        of_run
            .map(|mine| {
                let given = places.values().filter(|other| {
                    other.given
                        && (&other.limit, &other.limit_key) == (&mine.limit, &mine.limit_key)
                });
                let known = given.filter(|other| self.runs.contains_key(&other.of.run));
                let holder = known.min_by_key(|other| other.arrival);
                LimitPlace {
                    name: mine.limit.clone(),
                    key: mine.limit_key.clone(),
                    operation: mine.of.key.clone(),
                    given: mine.given,
                    holder: holder.map(|other| self.runs[&other.of.run].head.id),
                }
            })
            .collect()
    }
}

impl LimitTables for Data {
    fn limit(&mut self, name: &str, key: &str) -> Result<Option<LimitRow>, Infallible> {
        let key = (name.to_owned(), key.to_owned());
        Ok(self.limits.limits.get(&key).cloned())
    }

    fn put_limit(&mut self, row: &LimitRow) -> Result<(), Infallible> {
        self.limits.limits.insert(key_of(row), row.clone());
        Ok(())
    }

    fn remove_limit(&mut self, row: &LimitRow) -> Result<(), Infallible> {
        self.limits.limits.remove(&key_of(row));
        Ok(())
    }

    fn remove_idle(&mut self, name: &str, now_us: i64, max: u32) -> Result<(), Infallible> {
        let first = (name.to_owned(), String::new());
        let rows = self.limits.limits.range(first..);
        let of_name = rows.take_while(|((other, _), _)| other == name);
        let idle =
            of_name.filter(|(_, row)| row.held == 0 && row.waiting == 0 && row.turn_us <= now_us);
        let mut idle: Vec<_> = idle.map(|(key, row)| (row.turn_us, key.clone())).collect();
        idle.sort();
        for (_, key) in idle.into_iter().take(max as usize) {
            self.limits.limits.remove(&key);
        }
        Ok(())
    }

    fn put_place(&mut self, place: &Place) -> Result<(), Infallible> {
        let limits = &mut self.limits;
        if place.given {
            limits.line.remove(&in_line(place));
        } else {
            limits.line.insert(in_line(place), place.of.clone());
        }
        limits.places.insert(place.of.clone(), place.clone());
        Ok(())
    }

    fn remove_place(&mut self, of: &Waiter) -> Result<(), Infallible> {
        if let Some(place) = self.limits.places.remove(of) {
            self.limits.line.remove(&in_line(&place));
        }
        Ok(())
    }

    fn first_in_line(&mut self, name: &str, key: &str) -> Result<Option<Place>, Infallible> {
        let limits = &self.limits;
        let first = (name.to_owned(), key.to_owned(), 0);
        let next = limits.line.range(first..).next();
        let here = next.filter(|((limit, other, _), _)| limit == name && other == key);
        Ok(here.and_then(|(_, of)| limits.places.get(of)).cloned())
    }

    fn places(&mut self, of: Of<'_>) -> Result<Vec<Place>, Infallible> {
        let places = self.limits.of_run(of.run());
        Ok(places.filter(|place| of.includes(&place.of)).cloned().collect())
    }
}
