//! Schedules in memory.

use super::{rows::ScheduleTables, *};

impl Data {
    pub(super) fn schedule_row(&self, name: &str) -> Option<ScheduleRow> {
        self.schedules.get(name).map(|row| ScheduleRow::clone(row))
    }

    pub(super) fn schedules_after(
        &self,
        after: Option<&str>,
        limit: usize,
        is_meant: impl Fn(&ScheduleRow) -> bool,
    ) -> Vec<ScheduleRow> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.schedules.range::<str, _>((first, Bound::Unbounded)).map(|(_, row)| &**row);
        let meant = rest.filter(|row| is_meant(row)).take(limit);
        meant.cloned().collect()
    }

    /// Looks at all: there are few.
    pub(super) fn due_schedules(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> DueSchedules {
        let active = self.schedules.values().filter(|row| !row.paused);
        let mut places =
            active.filter_map(|row| Some((row.next_at?, row.name.as_str()))).collect::<Vec<_>>();
        places.sort_unstable();
        let rest = places.iter().filter(|place| Some(**place) > after);
        let due = rest.filter(|(at, _)| *at <= now).take(limit);
        DueSchedules {
            rows: due.filter_map(|(_, name)| self.schedule_row(name)).collect(),
            next_at: places.iter().map(|(at, _)| *at).find(|at| *at > now),
        }
    }
}

impl ScheduleTables for Data {
    fn schedule(&mut self, name: &str) -> Result<Option<ScheduleRow>, Infallible> {
        Ok(self.schedule_row(name))
    }

    fn write_schedule(&mut self, row: &ScheduleRow) -> Result<(), Infallible> {
        let row = Arc::new(row.clone());
        self.schedules.insert(row.name.clone(), row);
        self.rows_written += 1;
        Ok(())
    }

    fn delete_schedule(&mut self, name: &str) -> Result<(), Infallible> {
        self.schedules.remove(name);
        self.rows_written += 1;
        Ok(())
    }
}
