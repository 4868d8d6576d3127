//! Schedules, from outside: made, looked at, paused, triggered, filled up.

use std::{ops::Range, sync::Arc, time::Duration};

use serde_json::Value as Json;

use super::{Client, ClientError, RunHandle, check_tags, encode, encode_json, named, page};
use crate::{
    commit::{
        Fire, FireCause, Fired, NewSchedule, Refusal, ScheduleOutcome, ScheduleRow, ScheduleWrite,
        Started, Write,
    },
    engine::schedules::{home_among, run_of_tick, run_of_trigger},
    run_id::RunId,
    schedule::{Overlap, ScheduleSpec, Ticks},
    store::Store,
    time::{Timestamp, hours},
    workflow::WorkflowRef,
};

/// The longest name of a schedule: the keys of its runs are made of it.
const NAME_BYTES_MAX: usize = 128;

/// How many ticks one backfill may have.
const BACKFILL_MAX: usize = 10_000;

/// How many runs of a backfill are started together.
const BACKFILL_PAGE: usize = 500;

impl Client {
    /// Starts a run of a workflow again and again. Say when, then await it: a schedule with this
    /// name is made, or takes the place of the one that is there.
    ///
    /// Every tick starts exactly one run, however many processes there are and however often they
    /// are killed. A program may make its schedules each time that it starts: one that is there
    /// already goes on as it was, and what it owes from the time when nobody ran is started, as far
    /// as [`catch_up`](Schedule::catch_up) says.
    ///
    /// ```
    /// use everstep::{prelude::*, testing::VirtualClock, Overlap};
    ///
    /// #[workflow]
    /// async fn report(ctx: Ctx, to: String) -> Result<()> {
    ///     let day = ctx.scheduled_at();
    ///     ctx.step("send", async || Ok(println!("to {to}: what happened until {day:?}"))).await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = VirtualClock::new();
    /// let engine = Engine::in_memory().clock(clock.clone()).register(report).start().await?;
    /// let held = clock.hold();
    /// let schedule = engine
    ///     .client()
    ///     .schedule("nightly-report", report, "Ada".to_owned())
    ///     .cron("0 3 * * *")
    ///     .time_zone("Europe/Berlin")
    ///     .overlap(Overlap::Queue)
    ///     .await?;
    /// let _held = held.sleep(days(7)).await;
    /// assert_eq!(schedule.info().await?.started, 7);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn schedule<W: WorkflowRef>(
        &self,
        name: impl Into<String>,
        workflow: W,
        input: W::Input,
    ) -> Schedule {
        let input = encode(&input, "the input", self);
        self.schedule_encoded(name.into(), workflow.name(), workflow.version(), input)
    }

    /// As [`schedule`](Client::schedule), of a workflow that is only known by name.
    ///
    /// The version is the newest that is registered in this process, or 1.
    pub fn schedule_json(&self, name: impl Into<String>, workflow: &str, input: &Json) -> Schedule {
        let version = self.newest_version(workflow);
        let input = encode_json(input, "the input", self);
        self.schedule_encoded(name.into(), workflow, version, input)
    }

    fn schedule_encoded(
        &self,
        name: String,
        workflow: &str,
        version: u32,
        input: Result<Vec<u8>, ClientError>,
    ) -> Schedule {
        Schedule {
            client: self.clone(),
            name,
            workflow: workflow.to_owned(),
            version,
            input,
            spec: None,
            time_zone: None,
            tags: Vec::new(),
            overlap: Overlap::default(),
            catch_up: hours(1),
            paused: false,
        }
    }

    /// A handle to a schedule by its name, without looking whether it is there.
    pub fn schedule_named(&self, name: impl Into<String>) -> ScheduleHandle {
        ScheduleHandle { client: self.clone(), name: name.into(), made: ScheduleOutcome::Unchanged }
    }

    /// A schedule as it is now; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn schedule_info(&self, name: &str) -> Result<Option<ScheduleInfo>, ClientError> {
        let row = self.schedule_row(name).await?;
        Ok(row.map(|row| ScheduleInfo::new(row, self)))
    }

    /// Schedules, by name. Await it.
    pub fn schedules(&self) -> Schedules {
        Schedules { client: self.clone(), after: None, limit: 100 }
    }

    async fn schedule_row(&self, name: &str) -> Result<Option<ScheduleRow>, ClientError> {
        let name = name.to_owned();
        self.read(move |store| store.schedule(&name)).await
    }

    async fn write_schedule(&self, write: ScheduleWrite) -> Result<ScheduleOutcome, ClientError> {
        self.ask(Write::Schedule(Box::new(write))).await
    }
}

/// A schedule to be made. Say when with `cron` or [`every`](Schedule::every), then await it.
#[must_use = "nothing is scheduled unless it is awaited"]
pub struct Schedule {
    client: Client,
    name: String,
    workflow: String,
    version: u32,
    input: Result<Vec<u8>, ClientError>,
    spec: Option<ScheduleSpec>,
    time_zone: Option<String>,
    tags: Vec<(String, String)>,
    overlap: Overlap,
    catch_up: Duration,
    paused: bool,
}

impl Schedule {
    /// A tick whenever a clock matches this: minute, hour, day of month, month, day of week, and
    /// seconds before them if there are six fields. Names (`MON`, `JAN`), ranges, steps (`*/5`, `10-40/5`)
    /// and lists are understood, and the short forms `@yearly`, `@monthly`, `@weekly`, `@daily` and
    /// `@hourly`. In the day of the month `L` is the last day and `15W` the weekday nearest to the 15th; in
    /// the day of the week 0 and 7 are Sunday, `FRI#3` is the third Friday of a month and `FRI#L` the last
    /// one. If neither of these two fields is `*`, a day that matches one of them is enough, unless the day
    /// of the week begins with `+` (`0 9 13 * +FRI`).
    ///
    /// Where clocks are changed, a tick at a fixed time of day comes once on that day: right after
    /// the gap if clocks go forward over it, the first time if they go back over it. A field with
    /// `*` or a step follows the clock: no tick in the gap, and ticks in both passes of an hour that
    /// is there twice.
    #[cfg(feature = "cron")]
    pub fn cron(mut self, expression: impl AsRef<str>) -> Self {
        // One space between fields, so that equal ones are equal.
        let fields = expression.as_ref().split_whitespace();
        self.spec = Some(ScheduleSpec::Cron {
            expression: fields.collect::<Vec<_>>().join(" "),
            time_zone: String::new(),
        });
        self
    }

    /// Which clock the cron expression means, by its IANA name (`Europe/Berlin`): that of UTC if
    /// this is not said.
    #[cfg(feature = "cron")]
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = Some(name.into());
        self
    }

    /// A tick each time that this long has passed since the schedule was made. Replacing it by one
    /// with the same interval does not begin anew.
    pub fn every(mut self, interval: Duration) -> Self {
        self.spec = Some(ScheduleSpec::Every(interval));
        self
    }

    /// What becomes of a tick while the last run has not ended; it is skipped if this is not said.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// How late a tick may be and still start its run, after a time when no engine ran: an hour if
    /// this is not said. Ticks that are later are counted as missed. It is never less than ten
    /// seconds. What becomes of each follows from [`overlap`](Schedule::overlap), so that most are
    /// skipped unless that says otherwise.
    pub fn catch_up(mut self, limit: Duration) -> Self {
        self.catch_up = limit;
        self
    }

    /// A new schedule has no ticks before it is resumed. One that is there stays as it is: to deploy
    /// a program resumes and pauses nothing.
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }

    /// The version of the workflow, if another than the reference says.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Something that its runs can be found by. All have the tag `everstep.schedule` with the name
    /// of the schedule.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((name.into(), value.into()));
        self
    }

    /// Several tags.
    pub fn tags<N: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let tags = tags.into_iter();
        self.tags.extend(tags.map(|(name, value)| (name.into(), value.into())));
        self
    }

    async fn send(self) -> Result<ScheduleHandle, ClientError> {
        self.client.learn_time().await?;
        self.check_names()?;
        let wrong =
            |problem: String| ClientError::Schedule { schedule: self.name.clone(), problem };
        let spec = match (self.spec, self.time_zone) {
            (Some(ScheduleSpec::Cron { expression, .. }), zone) => ScheduleSpec::Cron {
                expression,
                time_zone: zone.unwrap_or_else(|| "UTC".to_owned()),
            },
            (Some(ScheduleSpec::Every(_)), Some(_)) => {
                let problem = "an interval has no time zone; leave `.time_zone(..)` out";
                return Err(wrong(problem.to_owned()));
            }
            (Some(spec), None) => spec,
            (None, _) => {
                let problem = "it has no ticks; say when with `.cron(..)` or `.every(..)`";
                return Err(wrong(problem.to_owned()));
            }
        };
        let anchor = self.client.shared.now();
        let first_at = Ticks::new(&spec, anchor)
            .map_err(wrong)?
            .next_after(anchor)
            .ok_or_else(|| wrong(format!("`{spec}` never comes")))?;
        let new = NewSchedule {
            name: self.name.clone(),
            workflow: Arc::from(self.workflow.as_str()),
            version: self.version,
            input: self.client.seal(self.input?, "the input")?,
            tags: self.tags,
            spec: spec.to_string(),
            anchor,
            first_at: Some(first_at),
            overlap: self.overlap,
            // As much of it as is stored, so that an equal one is equal.
            catch_up: Duration::from_millis(self.catch_up.as_millis().min(i64::MAX as u128) as u64),
            paused: self.paused,
        };
        let made = self.client.write_schedule(ScheduleWrite::Put(new)).await?;
        Ok(ScheduleHandle { client: self.client, name: self.name, made })
    }

    fn check_names(&self) -> Result<(), ClientError> {
        named("the schedule's name", &self.name)?;
        if self.name.len() > NAME_BYTES_MAX {
            return Err(ClientError::Name {
                what: "the schedule's name".to_owned(),
                problem: format!(
                    "it has {} bytes, and the limit is {NAME_BYTES_MAX}",
                    self.name.len()
                ),
            });
        }
        named("the workflow's name", &self.workflow)?;
        check_tags(&self.tags)
    }
}

awaited!([] Schedule, send => Result<ScheduleHandle, ClientError>);

/// A schedule, from outside. Cheap to clone.
#[derive(Clone)]
pub struct ScheduleHandle {
    client: Client,
    name: String,
    made: ScheduleOutcome,
}

impl std::fmt::Debug for ScheduleHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScheduleHandle({})", self.name)
    }
}

/// What became of [`ScheduleHandle::trigger`].
#[derive(Clone, Debug)]
pub enum Triggered {
    /// A run was started.
    Started(RunHandle<Json>),
    /// None was, because this one has not ended.
    Skipped {
        /// The run.
        by: Option<RunId>,
    },
    /// One will be, when the last run has ended.
    Queued,
}

/// What became of [`ScheduleHandle::backfill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backfilled {
    /// How many runs were started.
    pub started: u64,
    /// How many ticks had a run already.
    pub present: u64,
}

impl ScheduleHandle {
    /// The name of the schedule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether awaiting [`Client::schedule`] made it: there was none of this name.
    pub fn created(&self) -> bool {
        self.made == ScheduleOutcome::Created
    }

    /// Whether awaiting [`Client::schedule`] changed the one that was there.
    pub fn replaced(&self) -> bool {
        self.made == ScheduleOutcome::Replaced
    }

    /// The schedule as it is now.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub async fn info(&self) -> Result<ScheduleInfo, ClientError> {
        self.row().await.map(|row| ScheduleInfo::new(row, &self.client))
    }

    async fn row(&self) -> Result<ScheduleRow, ClientError> {
        let row = self.client.schedule_row(&self.name).await?;
        row.ok_or_else(|| self.unknown())
    }

    fn unknown(&self) -> ClientError {
        ClientError::UnknownSchedule { schedule: self.name.clone() }
    }

    fn wrong(&self, problem: String) -> ClientError {
        ClientError::Schedule { schedule: self.name.clone(), problem }
    }

    /// From now on it has no ticks. Ticks that wait go on waiting; runs go on. `false` if it was
    /// paused already.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub async fn pause(&self) -> Result<bool, ClientError> {
        let name = self.name.clone();
        let pause = ScheduleWrite::Pause { name };
        match self.client.write_schedule(pause).await? {
            ScheduleOutcome::Unknown => Err(self.unknown()),
            outcome => Ok(outcome == ScheduleOutcome::Done),
        }
    }

    /// It has ticks again. Those that came while it was paused are passed over: see
    /// [`backfill`](ScheduleHandle::backfill). `false` if it was not paused.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub async fn resume(&self) -> Result<bool, ClientError> {
        loop {
            let row = self.row().await?;
            let next_at = self.ticks(&row)?.next_after(self.client.shared.now());
            let (name, revision) = (row.name, row.revision);
            let resume = ScheduleWrite::Resume { name, revision, next_at };
            match self.client.write_schedule(resume).await? {
                ScheduleOutcome::Unknown => return Err(self.unknown()),
                // It was changed in between: its ticks may be others.
                ScheduleOutcome::Stale => {}
                outcome => return Ok(outcome == ScheduleOutcome::Done),
            }
        }
    }

    /// Removes it, with the ticks that wait. Its runs stay. `false` if it was not there.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn delete(&self) -> Result<bool, ClientError> {
        let name = self.name.clone();
        let delete = ScheduleWrite::Delete { name };
        let outcome = self.client.write_schedule(delete).await?;
        Ok(outcome == ScheduleOutcome::Done)
    }

    /// A tick now, also while it is paused. What becomes of it follows from
    /// [`overlap`](Schedule::overlap).
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub async fn trigger(&self) -> Result<Triggered, ClientError> {
        loop {
            let row = self.row().await?;
            let tick = self.client.shared.now();
            let home = self.home(&row).await?;
            let run = run_of_trigger(&self.client.shared, &row, tick, home);
            let fire = Fire {
                name: row.name,
                revision: row.revision,
                cause: FireCause::Trigger { tick },
                run: Some(Box::new(run)),
            };
            let fired = match self.client.write_schedule(ScheduleWrite::Fire(fire)).await? {
                ScheduleOutcome::Unknown => return Err(self.unknown()),
                ScheduleOutcome::Fired(fired) => fired,
                // It was changed in between, and so is the run.
                _ => continue,
            };
            return Ok(match fired {
                Fired::Started(run) => Triggered::Started(self.client.run(run.id)),
                Fired::Skipped { by } => Triggered::Skipped { by },
                Fired::Queued | Fired::Missed => Triggered::Queued,
            });
        }
    }

    /// Starts the run of every tick in this time that has none: ticks that were missed, skipped or
    /// passed over, or that came before the schedule was made. Ticks that are still to come are
    /// left to the schedule.
    ///
    /// The runs are started at once, whatever [`overlap`](Schedule::overlap) says, with the input
    /// that the schedule has now; they know their tick by [`Ctx::scheduled_at`](crate::Ctx::scheduled_at).
    /// To call it again, after a crash for instance, starts no second run for any tick.
    ///
    /// # Errors
    ///
    /// If it is not there, or has more than 10 000 ticks in this time.
    pub async fn backfill(&self, time: Range<Timestamp>) -> Result<Backfilled, ClientError> {
        let row = self.row().await?;
        let ticks = self.ticks_in(&row, time)?;
        let mut done = Backfilled { started: 0, present: 0 };
        for page in ticks.chunks(BACKFILL_PAGE) {
            let starts = page.iter().map(|tick| self.start_tick(&row, *tick));
            for attached in futures_util::future::try_join_all(starts).await? {
                if attached {
                    done.present += 1;
                } else {
                    done.started += 1;
                }
            }
        }
        Ok(done)
    }

    fn ticks(&self, row: &ScheduleRow) -> Result<Ticks, ClientError> {
        Ticks::from_text(&row.spec, row.anchor).map_err(|problem| self.wrong(problem))
    }

    fn ticks_in(
        &self,
        row: &ScheduleRow,
        time: Range<Timestamp>,
    ) -> Result<Vec<Timestamp>, ClientError> {
        let ticks = self.ticks(row)?;
        let now = self.client.shared.now();
        let mut found = Vec::new();
        let mut next = ticks.next_after(time.start - Duration::from_millis(1));
        while let Some(at) = next.filter(|at| *at < time.end && *at <= now) {
            if found.len() == BACKFILL_MAX {
                return Err(self.wrong(format!(
                    "there are more than {BACKFILL_MAX} ticks between {} and {}; fill up a shorter \
                     time at once",
                    time.start, time.end
                )));
            }
            found.push(at);
            next = ticks.next_after(at);
        }
        Ok(found)
    }

    /// The pool of its runs, which another process may have to say.
    async fn home(&self, row: &ScheduleRow) -> Result<Arc<str>, ClientError> {
        let (shared, row) = (self.client.shared.clone(), row.clone());
        let read = move |store: &dyn Store| {
            let now = shared.now();
            let mut runners = store.runners()?;
            runners.retain(|runner| runner.lease_until > now);
            Ok(home_among(&shared, store, &row, &runners))
        };
        self.client.read(read).await
    }

    /// Whether it was there already.
    async fn start_tick(&self, row: &ScheduleRow, tick: Timestamp) -> Result<bool, ClientError> {
        let home = self.home(row).await?;
        loop {
            let new = run_of_tick(&self.client.shared, row, tick, home.clone());
            let answer = self.client.ask(Write::Start(Box::new(new))).await?;
            // If it is refused, another process has made a run with the same number: the next id is
            // free.
            if let Result::<Started, Refusal>::Ok(started) = answer {
                return Ok(started.attached);
            }
        }
    }
}

/// A schedule, as it is stored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// The workflow that it starts.
    pub workflow: String,
    /// The workflow's version.
    pub version: u32,
    /// The input of every run, as JSON.
    pub input: Json,
    /// The tags of every run.
    pub tags: Vec<(String, String)>,
    /// When its ticks are; absent if a later version of this program has written it.
    pub spec: Option<ScheduleSpec>,
    /// What becomes of a tick while the last run has not ended.
    pub overlap: Overlap,
    /// How late a tick may be and still start its run.
    pub catch_up: Duration,
    /// Whether it has no ticks for now.
    pub paused: bool,
    /// The next tick; absent while it is paused, and if no tick is left. See
    /// [`upcoming`](ScheduleInfo::upcoming).
    pub next_at: Option<Timestamp>,
    /// Ticks that wait for the end of the last run.
    pub queued: Vec<Timestamp>,
    /// The last tick that started a run.
    pub last_tick: Option<Timestamp>,
    /// That run.
    pub last_run: Option<RunId>,
    /// How many ticks have started a run. Those of a backfill are not counted.
    pub started: u64,
    /// How many started none, because the last run had not ended.
    pub skipped: u64,
    /// How many started none, because they came too late.
    pub missed: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed from outside.
    pub updated_at: Timestamp,
    /// Where intervals are counted from.
    anchor: Timestamp,
}

impl ScheduleInfo {
    fn new(row: ScheduleRow, client: &Client) -> ScheduleInfo {
        let input = client.decode_json(&row.input, None, || "its input".to_owned());
        ScheduleInfo {
            spec: ScheduleSpec::from_text(&row.spec),
            // One that cannot be read is a text that says so.
            input: input.unwrap_or_else(|error| Json::String(format!("({error})"))),
            next_at: row.next_at.filter(|_| !row.paused),
            name: row.name,
            workflow: row.workflow.to_string(),
            version: row.version,
            tags: row.tags,
            overlap: row.overlap,
            catch_up: row.catch_up,
            paused: row.paused,
            queued: row.queue.iter().map(|tick| tick.at).collect(),
            last_tick: row.last_tick,
            last_run: row.last_run,
            started: row.started,
            skipped: row.skipped,
            missed: row.missed,
            created_at: row.created_at,
            updated_at: row.updated_at,
            anchor: row.anchor,
        }
    }

    /// The next `n` ticks, as far as they can be told; none while it is paused.
    pub fn upcoming(&self, n: usize) -> Vec<Timestamp> {
        let ticks = self.spec.as_ref().and_then(|spec| Ticks::new(spec, self.anchor).ok());
        let Some(ticks) = ticks else {
            return self.next_at.into_iter().take(n).collect();
        };
        std::iter::successors(self.next_at, |at| ticks.next_after(*at)).take(n).collect()
    }
}

/// A list of schedules. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct Schedules {
    client: Client,
    after: Option<String>,
    limit: usize,
}

impl Schedules {
    /// How many schedules a page has at most; 100 if this is not said, 1 000 at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, 1_000);
        self
    }

    /// Goes on after the last schedule of another page: see [`SchedulePage::next`].
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }
}

/// Some schedules, and where the rest begins.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SchedulePage {
    /// The schedules, by name.
    pub schedules: Vec<ScheduleInfo>,
    /// What to give to [`Schedules::after`] for the next page; absent on the last.
    pub next: Option<String>,
}

impl Schedules {
    async fn read(self) -> Result<SchedulePage, ClientError> {
        let Schedules { client, after, limit } = self;
        // One more than asked for shows whether there is another page.
        let rows = client.read(move |store| store.schedules(after.as_deref(), limit + 1)).await?;
        let (rows, next) = page(rows, limit, |row| row.name.clone());
        Ok(SchedulePage {
            schedules: rows.into_iter().map(|row| ScheduleInfo::new(row, &client)).collect(),
            next,
        })
    }
}

awaited!([] Schedules, read => Result<SchedulePage, ClientError>);
