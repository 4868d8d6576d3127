//! Schedules in memory.

use super::{
    super::rules::schedules::{self, ScheduleRows},
    *,
};

impl Data {
    pub(super) fn schedule(&mut self, write: &ScheduleWrite, now: Timestamp) -> Outcome {
        match schedules::apply(&mut Rows { data: self, now }, write, now) {
            Ok(outcome) => Outcome::Scheduled(outcome),
        }
    }

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
        let rest = self
            .schedules
            .range::<str, _>((first, Bound::Unbounded))
            .map(|(_, row)| &**row);
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
        let mut places = active
            .filter_map(|row| Some((row.next_at?, row.name.as_str())))
            .collect::<Vec<_>>();
        places.sort_unstable();
        let rest = places.iter().filter(|place| Some(**place) > after);
        let due = rest.filter(|(at, _)| *at <= now).take(limit);
        DueSchedules {
            rows: due
                .filter_map(|(_, name)| self.schedule_row(name))
                .collect(),
            next_at: places.iter().map(|(at, _)| *at).find(|at| *at > now),
        }
    }
}

struct Rows<'a> {
    data: &'a mut Data,
    now: Timestamp,
}

impl ScheduleRows for Rows<'_> {
    type Error = std::convert::Infallible;

    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, Self::Error> {
        Ok(self.data.schedule_row(name))
    }

    fn write_schedule(&mut self, row: &ScheduleRow) -> Result<(), Self::Error> {
        let row = Arc::new(row.clone());
        self.data.schedules.insert(row.name.clone(), row);
        self.data.rows_written += 1;
        Ok(())
    }

    fn delete_schedule(&mut self, name: &str) -> Result<(), Self::Error> {
        self.data.schedules.remove(name);
        self.data.rows_written += 1;
        Ok(())
    }

    fn status_of_run(&self, run: RunId) -> Result<Option<RunStatus>, Self::Error> {
        let no = self.data.find(&Target::Id(run));
        Ok(no.map(|no| self.data.runs[&no].head.status))
    }

    fn start_run(&mut self, new: &NewRun) -> Result<Outcome, Self::Error> {
        Ok(self.data.start(new, None, self.now))
    }

    fn cancel_run(&mut self, run: RunId) -> Result<Controlled, Self::Error> {
        let cancel = Control::Cancel { rollback: false };
        Ok(self.data.control(&Target::Id(run), cancel, self.now))
    }
}
