//! Schedules: every tick starts one run, whatever happens.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "cron")]

use crate::scenario;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use everstep::{
    Clock, EngineBuilder, Overlap, RunInfo, RunStatus, ScheduleHandle, Timestamp, Triggered,
    prelude::*,
    store::{MemoryStore, Store},
    testing::{self, CrashPoint, CrashingStore, Hold, VirtualClock},
};

/// Takes as long as its input says.
const WORK: Workflow<u64, Option<i64>> = Workflow::new("work");

fn engine_on(store: Arc<dyn Store>, clock: &Arc<VirtualClock>) -> EngineBuilder {
    Engine::on(store).clock(clock.clone()).settings(|settings| settings.threads = 2).register_fn(
        WORK,
        |ctx: Ctx, seconds_long: u64| async move {
            if seconds_long > 0 {
                ctx.sleep("work", seconds(seconds_long)).await?;
            }
            Ok(ctx.scheduled_at().map(Timestamp::as_millis))
        },
    )
}

/// An engine on virtual time, with the clock held.
struct World {
    clock: Arc<VirtualClock>,
    store: Arc<dyn Store>,
    engine: Engine,
    began: Timestamp,
    held: Option<Hold>,
}

impl World {
    async fn new() -> World {
        World::at(VirtualClock::new()).await
    }

    async fn at(clock: Arc<VirtualClock>) -> World {
        let held = Some(clock.hold());
        let store = testing::store();
        let engine = engine_on(store.clone(), &clock);
        World { began: clock.now(), engine: engine.start().await.unwrap(), clock, store, held }
    }

    /// Lets this much time pass since the beginning, and everything happen that is due by then.
    async fn pass_until(&mut self, since_beginning: Duration) {
        let held = self.held.take().unwrap_or_else(|| self.clock.hold());
        let at = held.sleep_until(self.began + since_beginning).await;
        // What is due at this very instant happens too; the clock stands still meanwhile.
        let quiet = self.clock.quiet().await;
        drop(at);
        self.held = Some(quiet);
    }

    async fn schedule(&self, every: u64, takes: u64, overlap: Overlap) -> ScheduleHandle {
        let client = self.engine.client();
        let schedule = client.schedule("s", WORK, takes).every(seconds(every));
        schedule.overlap(overlap).await.unwrap()
    }

    /// Stops the engine, lets time pass, and starts another one on the same store.
    async fn down_for(self, downtime: Duration) -> World {
        let World { clock, store, engine, began, held } = self;
        engine.shutdown().await;
        clock.advance(downtime);
        let engine = engine_on(store.clone(), &clock);
        World { engine: engine.start().await.unwrap(), clock, store, began, held }
    }

    fn since(&self, at: Timestamp) -> i64 {
        (at.as_millis() - self.began.as_millis()) / 1_000
    }

    /// The ticks that have started a run, in seconds, with the status of the run and when it began.
    async fn runs(&self) -> Vec<(i64, RunStatus, i64)> {
        let runs = runs_of(&self.engine.client(), "s").await;
        let runs = runs.iter().map(|run| {
            let tick = self.since(run.scheduled_at.unwrap());
            (tick, run.status, self.since(run.created_at))
        });
        let mut runs: Vec<_> = runs.collect();
        runs.sort();
        runs
    }
}

/// All runs of a schedule.
async fn runs_of(client: &Client, schedule: &str) -> Vec<RunInfo> {
    let list = client.list().tag("everstep.schedule", schedule);
    let page = list.limit(1_000).await.unwrap();
    assert_eq!(page.next, None);
    page.runs
}

use RunStatus::{Cancelled, Completed, Sleeping};

#[tokio::test(flavor = "multi_thread")]
async fn every_tick_of_an_interval_starts_a_run_that_knows_its_tick() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 0, Overlap::Skip).await;
    assert!(schedule.created());
    world.pass_until(seconds(200)).await;
    let expected = [60, 120, 180].map(|tick| (tick, Completed, tick));
    assert_eq!(world.runs().await, expected);
    for run in runs_of(&world.engine.client(), "s").await {
        let tick = run.scheduled_at.unwrap();
        assert_eq!(run.key, Some(format!("schedule/s/{tick}")));
        assert_eq!(run.output, Some(tick.as_millis().into()), "what the code saw");
    }
    let info = schedule.info().await.unwrap();
    assert_eq!((info.started, info.skipped, info.missed), (3, 0, 0));
    let next = [240, 300].map(|s| world.began + seconds(s));
    assert_eq!(info.upcoming(2), next);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_no_schedule_started_has_no_tick() {
    let world = World::new().await;
    let run = world.engine.client().start(WORK, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), None);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_is_skipped_while_the_last_run_is_live() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 150, Overlap::Skip).await;
    world.pass_until(seconds(300)).await;
    let expected = [(60, Completed, 60), (240, Sleeping, 240)];
    assert_eq!(world.runs().await, expected);
    let info = schedule.info().await.unwrap();
    assert_eq!((info.started, info.skipped, info.missed), (2, 3, 0));
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_waits_for_the_end_of_the_last_run() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 150, Overlap::Queue).await;
    world.pass_until(seconds(400)).await;
    // Each begins when the one before it has ended, at the very instant.
    let expected = [(60, Completed, 60), (120, Completed, 210), (180, Sleeping, 360)];
    assert_eq!(world.runs().await, expected);
    let info = schedule.info().await.unwrap();
    let waiting = [240, 300, 360].map(|s| world.began + seconds(s));
    assert_eq!((info.queued, info.skipped), (waiting.to_vec(), 0));
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_that_wait_survive_a_restart() {
    let mut world = World::new().await;
    world.schedule(60, 150, Overlap::Queue).await;
    world.pass_until(seconds(190)).await;
    let mut world = world.down_for(seconds(60)).await;
    world.pass_until(seconds(260)).await;
    let expected = [(60, Completed, 60), (120, Sleeping, 250)];
    assert_eq!(world.runs().await, expected);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_may_overlap() {
    let mut world = World::new().await;
    world.schedule(60, 150, Overlap::Allow).await;
    world.pass_until(seconds(250)).await;
    let expected =
        [(60, Completed, 60), (120, Sleeping, 120), (180, Sleeping, 180), (240, Sleeping, 240)];
    assert_eq!(world.runs().await, expected);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_run_is_cancelled_for_the_new_one() {
    let mut world = World::new().await;
    world.schedule(60, 90, Overlap::CancelOld).await;
    world.pass_until(seconds(190)).await;
    let expected = [(60, Cancelled, 60), (120, Cancelled, 120), (180, Sleeping, 180)];
    assert_eq!(world.runs().await, expected);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_of_a_downtime_are_started_as_far_as_the_window_goes() {
    let mut world = World::new().await;
    let client = world.engine.client();
    let schedule = client.schedule("s", WORK, 0).every(minutes(1));
    let schedule = schedule.overlap(Overlap::Allow).catch_up(minutes(5));
    let schedule = schedule.await.unwrap();
    world.pass_until(seconds(90)).await;
    drop((client, schedule));
    // From 90 s to 990 s nobody runs: 15 ticks, of which those from 690 s on are caught up.
    let mut world = world.down_for(seconds(900)).await;
    world.pass_until(seconds(1_025)).await;
    let mut expected = vec![(60, Completed, 60)];
    expected.extend([720, 780, 840, 900, 960].map(|tick| (tick, Completed, 990)));
    expected.push((1_020, Completed, 1_020));
    assert_eq!(world.runs().await, expected);
    let info = world.engine.client().schedule_info("s").await.unwrap();
    let info = info.unwrap();
    // 17 ticks: 120 .. 660 came too late.
    assert_eq!((info.started, info.skipped, info.missed), (7, 0, 10));
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_makes_its_schedule_at_every_start_disturbs_nothing() {
    let mut world = World::new().await;
    world.schedule(60, 0, Overlap::Skip).await;
    world.pass_until(seconds(90)).await;
    let mut world = world.down_for(seconds(60)).await;
    let again = world.schedule(60, 0, Overlap::Skip).await;
    assert!(!again.created() && !again.replaced());
    world.pass_until(seconds(185)).await;
    let expected = [(60, Completed, 60), (120, Completed, 150), (180, Completed, 180)];
    assert_eq!(world.runs().await, expected);
    // With another interval it begins anew.
    let other = world.schedule(100, 0, Overlap::Skip).await;
    assert!(other.replaced());
    world.pass_until(seconds(300)).await;
    assert_eq!(world.runs().await.last(), Some(&(285, Completed, 285)));
    assert_eq!(other.info().await.unwrap().started, 4);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_schedule_has_no_ticks_and_a_resumed_one_only_those_to_come() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 0, Overlap::Skip).await;
    world.pass_until(seconds(90)).await;
    assert!(schedule.pause().await.unwrap());
    assert!(!schedule.pause().await.unwrap());
    world.pass_until(seconds(310)).await;
    assert_eq!(schedule.info().await.unwrap().upcoming(3), []);
    assert!(schedule.resume().await.unwrap());
    assert!(!schedule.resume().await.unwrap());
    world.pass_until(seconds(425)).await;
    let expected = [60, 360, 420].map(|tick| (tick, Completed, tick));
    assert_eq!(world.runs().await, expected);
    assert_eq!(schedule.info().await.unwrap().missed, 0);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_starts_the_ticks_that_have_no_run_and_can_be_repeated() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 0, Overlap::Skip).await;
    world.pass_until(seconds(125)).await;
    schedule.pause().await.unwrap();
    world.pass_until(seconds(330)).await;
    let range = world.began..world.began + days(1);
    let done = schedule.backfill(range.clone()).await.unwrap();
    // 180, 240 and 300; what is still to come is left to the schedule.
    assert_eq!((done.started, done.present), (3, 2));
    let done = schedule.backfill(range).await.unwrap();
    assert_eq!((done.started, done.present), (0, 5));
    world.pass_until(seconds(340)).await;
    let mut expected = [60, 120].map(|tick| (tick, Completed, tick)).to_vec();
    expected.extend([180, 240, 300].map(|tick| (tick, Completed, 330)));
    assert_eq!(world.runs().await, expected);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_has_a_bound() {
    let world = World::new().await;
    let client = world.engine.client();
    let schedule = client.schedule("s", WORK, 0).cron("* * * * *").paused();
    let schedule = schedule.await.unwrap();
    let range = world.began - days(8)..world.began;
    let error = schedule.backfill(range).await.unwrap_err().to_string();
    assert!(error.contains("more than 10000 ticks"), "{error}");
    assert_eq!(runs_of(&client, "s").await.len(), 0);
    // A time before the schedule was made can be filled up.
    let range = world.began - minutes(3)..world.began;
    assert_eq!(schedule.backfill(range).await.unwrap().started, 3);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_is_a_tick_now() {
    let mut world = World::new().await;
    let schedule = world.schedule(3_600, 60, Overlap::Skip).await;
    let Triggered::Started(run) = schedule.trigger().await.unwrap() else {
        panic!("nothing was live");
    };
    let second = schedule.trigger().await.unwrap();
    assert!(matches!(second, Triggered::Skipped { by } if by == Some(run.id())));
    world.pass_until(seconds(90)).await;
    assert_eq!(world.runs().await, [(0, Completed, 0)]);
    assert_eq!(run.result().await.unwrap(), world.began.as_millis());
    let info = schedule.info().await.unwrap();
    assert_eq!((info.started, info.skipped), (1, 1));
    assert_eq!(info.next_at, Some(world.began + hours(1)));
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_trigger_is_started_when_the_last_run_has_ended() {
    let mut world = World::new().await;
    let schedule = world.schedule(3_600, 60, Overlap::Queue).await;
    for _ in 0..3 {
        schedule.trigger().await.unwrap();
    }
    world.pass_until(seconds(200)).await;
    let mut runs = world.runs().await;
    runs.sort_by_key(|run| run.2);
    let expected = [0, 60, 120].map(|began| (0, Completed, began));
    // Three triggers at one instant are three runs.
    assert_eq!(runs, expected);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_schedule_has_no_ticks() {
    let mut world = World::new().await;
    let schedule = world.schedule(60, 0, Overlap::Skip).await;
    world.pass_until(seconds(70)).await;
    assert!(schedule.delete().await.unwrap());
    assert!(!schedule.delete().await.unwrap());
    world.pass_until(seconds(200)).await;
    assert_eq!(world.runs().await, [(60, Completed, 60)]);
    let error = schedule.info().await.unwrap_err().to_string();
    assert_eq!(error, "there is no schedule `s`; it may have been deleted");
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_listed_page_by_page() {
    let world = World::new().await;
    let client = world.engine.client();
    for name in ["c", "a", "b"] {
        let input = serde_json::json!(7);
        let schedule = client.schedule_json(name, "work", &input);
        schedule.every(hours(1)).tag("colour", "blue").await.unwrap();
    }
    let first = client.schedules().limit(2).await.unwrap();
    let names: Vec<_> = first.schedules.iter().map(|info| &*info.name).collect();
    assert_eq!((names, first.next.as_deref()), (vec!["a", "b"], Some("b")));
    let second = client.schedules().after(first.next.unwrap()).await.unwrap();
    let [info] = &second.schedules[..] else {
        panic!("one is left");
    };
    assert_eq!((&*info.name, second.next), ("c", None));
    assert_eq!((&info.input, &*info.workflow), (&serde_json::json!(7), "work"));
    assert_eq!(info.tags, [("colour".to_owned(), "blue".to_owned())]);
    world.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_schedule_is_said() {
    let world = World::new().await;
    let client = world.engine.client();
    let error = async |change: fn(everstep::Schedule) -> everstep::Schedule| {
        let schedule = client.schedule("nightly", WORK, 0);
        change(schedule).await.unwrap_err().to_string()
    };
    let text = error(|schedule| schedule).await;
    assert_eq!(
        text,
        "schedule `nightly`: it has no ticks; say when with `.cron(..)` or `.every(..)`"
    );
    let text = error(|schedule| schedule.cron("0 25 * * *")).await;
    assert!(text.contains("`0 25 * * *` is no cron expression"), "{text}");
    let text = error(|schedule| schedule.cron("@daily").time_zone("Mars")).await;
    assert!(text.contains("`Mars` is no time zone"), "{text}");
    let text = error(|schedule| schedule.cron("0 0 30 2 *")).await;
    assert!(text.contains("`cron UTC 0 0 30 2 *` never comes"), "{text}");
    let text = error(|schedule| schedule.every(Duration::ZERO)).await;
    assert!(text.contains("longer than nothing"), "{text}");
    let text = error(|schedule| schedule.every(hours(1)).time_zone("UTC")).await;
    assert!(text.contains("an interval has no time zone"), "{text}");
    world.engine.shutdown().await;
}

/// The ticks of a schedule in Berlin between two instants, on an engine.
async fn ticks_in_berlin(expression: &str, from: i64, hours_long: u64) -> Vec<String> {
    let clock = VirtualClock::at(Timestamp::from_millis(from));
    let mut world = World::at(clock).await;
    let client = world.engine.client();
    let schedule = client.schedule("s", WORK, 0).cron(expression);
    schedule.time_zone("Europe/Berlin").await.unwrap();
    world.pass_until(hours(hours_long)).await;
    let runs = runs_of(&client, "s").await;
    let mut ticks: Vec<_> = runs.iter().map(|run| run.scheduled_at.unwrap().to_string()).collect();
    ticks.sort();
    world.engine.shutdown().await;
    ticks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_clocks_jump_over_comes_once() {
    // From 28 March 2026, 12:00 UTC; clocks go from 02:00 to 03:00 at 01:00 UTC of the 29th.
    let ticks = ticks_in_berlin("30 2 * * *", 1_774_699_200_000, 48).await;
    assert_eq!(ticks, ["2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_clocks_go_back_over_comes_once() {
    // From 24 October 2026, 12:00 UTC; clocks go from 03:00 to 02:00 at 01:00 UTC of the 25th.
    let ticks = ticks_in_berlin("30 2 * * *", 1_792_843_200_000, 48).await;
    assert_eq!(ticks, ["2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]);
}

/// Each tick with the number of its runs.
fn count_ticks(runs: &[RunInfo]) -> BTreeMap<Timestamp, usize> {
    let mut ticks = BTreeMap::new();
    for run in runs {
        *ticks.entry(run.scheduled_at.unwrap()).or_default() += 1;
    }
    ticks
}

/// Dies at every write of three minutes with a schedule, and starts again on what has survived.
async fn crash_at(point: CrashPoint, overlap: Overlap) -> (bool, u64) {
    let clock = VirtualClock::new();
    let began = clock.now();
    let mut memory = MemoryStore::new();
    let mut points = vec![point];
    let mut died = false;
    let mut writes = 0;
    loop {
        let held = clock.hold();
        let store = Arc::new(match points.pop() {
            Some(point) => CrashingStore::new(memory, point),
            None => CrashingStore::counting(memory),
        });
        if let Ok(engine) = engine_on(store.clone(), &clock).start().await {
            let client = engine.client();
            let schedule = client.schedule("s", WORK, 90).every(seconds(60));
            let made = schedule.overlap(overlap).await;
            if made.is_ok() {
                tokio::select! {
                    _ = held.sleep_until(began + seconds(600)) => {}
                    () = async {
                        scenario::until("the death", async || store.is_dead().then_some(())).await;
                    } => {}
                }
            }
            engine.shutdown().await;
        }
        writes = u64::max(writes, store.writes());
        memory = store.inner().fork();
        if !store.is_dead() {
            break;
        }
        died = true;
    }
    check_survivor(&memory, began, overlap, point);
    (died, writes)
}

/// Every tick that was due has exactly one run, or was counted.
fn check_survivor(store: &MemoryStore, began: Timestamp, overlap: Overlap, point: CrashPoint) {
    let row = store.schedule("s").unwrap().unwrap();
    let runs = store.list(&Default::default(), None, 1_000).unwrap();
    let mut keys: Vec<_> = runs.iter().map(|run| run.key.clone().unwrap()).collect();
    keys.sort();
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all, "{point}, {overlap}: a tick has two runs");
    // The schedule may have been made after the death.
    let first = row.anchor.since(began).as_secs();
    let due = (row.next_at.unwrap().since(row.anchor).as_secs() / 60) - 1;
    assert!(first == 0 && due >= 9, "{point}, {overlap}: {due} ticks were due");
    assert_eq!(all as u64, row.started, "{point}, {overlap}");
    let dealt_with = row.started + row.skipped + row.missed + row.queue.len() as u64;
    assert_eq!(dealt_with, due, "{point}, {overlap}: {row:?}");
    match overlap {
        Overlap::Allow | Overlap::CancelOld => assert_eq!(row.started, due, "{point}, {overlap}"),
        _ => assert_eq!(row.missed, 0, "{point}, {overlap}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_due_tick_is_started_once_wherever_the_process_dies() {
    for overlap in [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::CancelOld] {
        let (_, writes) = crash_at(CrashPoint::Before(u64::MAX), overlap).await;
        assert!(writes > 20, "{writes}");
        let mut deaths = 0;
        for n in 1..=writes {
            for point in [CrashPoint::Before(n), CrashPoint::After(n)] {
                deaths += usize::from(crash_at(point, overlap).await.0);
            }
        }
        assert!(deaths > 40, "{deaths}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn two_engines_on_one_file_start_every_tick_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let clock = VirtualClock::new();
    let held = clock.hold();
    let open = || Arc::new(everstep::store::SqliteStore::create(&path).unwrap());
    let first = engine_on(open(), &clock).start().await.unwrap();
    let second = engine_on(open(), &clock).start().await.unwrap();
    let client = first.client();
    for n in 0..5 {
        let schedule = client.schedule(format!("s{n}"), WORK, 5);
        let schedule = schedule.every(seconds(10)).overlap(Overlap::Allow);
        schedule.catch_up(days(1)).await.unwrap();
    }
    let held = held.sleep(seconds(305)).await;
    for n in 0..5 {
        let name = format!("s{n}");
        // Both move the clock, so what was due before it jumped may still be on its way.
        let ticks = scenario::until("all ticks", async || {
            let ticks = count_ticks(&runs_of(&client, &name).await);
            (ticks.len() >= 30).then_some(ticks)
        })
        .await;
        assert_eq!(ticks.len(), 30, "{name}");
        assert!(ticks.values().all(|runs| *runs == 1), "{name}: {ticks:?}");
        let info = client.schedule_info(&name).await.unwrap().unwrap();
        assert_eq!((info.started, info.skipped, info.missed), (30, 0, 0));
    }
    drop(held);
    first.shutdown().await;
    second.shutdown().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_waits_is_started_by_whichever_engine_had_the_last_run() {
    const WAIT: Workflow<(), ()> = Workflow::new("wait");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let start = async || {
        let engine = Engine::open(&path)
            .register_fn(WAIT, |ctx: Ctx, ()| async move { ctx.listen("go").await })
            .settings(|settings| {
                // Nothing is found by looking now and then.
                settings.safety_poll = Duration::from_secs(600);
                settings.heartbeat = Some(Duration::from_millis(50));
            });
        engine.start().await.unwrap()
    };
    let (first, second) = (start().await, start().await);
    scenario::until("the shards to be shared out", async || {
        let rows = first.store().runners().unwrap();
        let shared = rows.iter().filter(|row| row.shards.len() > 20).count();
        (shared == 2).then_some(())
    })
    .await;
    // Without an engine: the first run of each schedule is in a shard of the one or of the other.
    let client = Client::open(&path).await.unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let schedule = client.schedule(name, WAIT, ()).every(days(1));
        let schedule = schedule.overlap(Overlap::Queue).await.unwrap();
        for _ in 0..3 {
            schedule.trigger().await.unwrap();
        }
        for n in 1..=3 {
            let info = scenario::until("the next run", async || {
                let info = schedule.info().await.unwrap();
                (info.started == n).then_some(info)
            })
            .await;
            assert_eq!(info.queued.len() as u64, 3 - n);
            let last = info.last_run.unwrap();
            client.send(last, "go", &()).await.unwrap();
        }
        assert_eq!(runs_of(&client, name).await.len(), 3);
    }
    first.shutdown().await;
    second.shutdown().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_made_by_a_process_without_an_engine_is_kept_by_one_that_has_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = Engine::open(&path)
        .register_fn(WORK, |_: Ctx, n: u64| async move { Ok(Some(n as i64)) })
        .settings(|settings| settings.safety_poll = Duration::from_secs(600))
        .start()
        .await
        .unwrap();
    let client = Client::open(&path).await.unwrap();
    let schedule = client.schedule("s", WORK, 7);
    schedule.every(Duration::from_millis(20)).await.unwrap();
    let runs = scenario::until("two runs", async || {
        let runs = runs_of(&client, "s").await;
        // The newest may be under way, whenever one looks.
        let done = runs.iter().filter(|run| run.status == Completed);
        (done.count() >= 2).then_some(runs)
    })
    .await;
    assert!(count_ticks(&runs).values().all(|runs| *runs == 1));
    engine.shutdown().await;
}
