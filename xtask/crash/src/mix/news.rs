//! Events: a broadcast is heard by everybody, once and in order; one of delivery `one` is taken
//! once, however many wait.
//!
//! Events are numbered by their only publisher, so that one that is missing or comes again is seen.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use everstep::{Deliver, EngineBuilder, Event, PublishedEvent, Since, prelude::*};

use super::{Outside, pause, until_ok};
use crate::bodies::Trace;

const NEWS: Event<u64> = Event::new("news").since(Since::Run);
const JOB: Event<u64> = Event::new("job").delivery(Deliver::One);
const HINT: Event<u64> = Event::new("hint");

/// How many news a run hears.
const HEARD: u64 = 6;

/// How many jobs a run takes, and how many are published for it.
const TAKEN: u64 = 3;

#[derive(Default)]
pub(crate) struct Known {
    /// The number of the next news, and of the next job.
    next_news: u64,
    next_job: u64,
    /// How many still listen to news.
    hearers: u64,
    /// Who took each job.
    taken: BTreeMap<u64, Vec<u64>>,
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(hears).register(takes)
}

#[workflow]
pub(crate) async fn hears(ctx: Ctx, n: u64) -> Result<Vec<u64>> {
    let trace = Trace::new(&ctx);
    let mut heard = Vec::new();
    for turn in 0..HEARD {
        // A wait that runs out has heard nothing.
        let limit = Duration::from_millis(10);
        let news = match ctx.event(NEWS).timeout(limit).await? {
            Some(news) => news,
            None => ctx.event(NEWS).await?,
        };
        trace.mix(news);
        heard.push(news);
        if turn % 2 == 1 {
            trace.run(&ctx, "work").await?;
        }
    }
    // From a run to itself: what is published is there for whoever waits later.
    ctx.publish(HINT, &n).key(&n.to_string()).await?;
    let hint = ctx.event(HINT).matching(n.to_string()).await?;
    if hint != n {
        return Err(Error::fatal(format!("the hint for {n} was {hint}")));
    }
    trace.run(&ctx, "last").await?;
    Ok(heard)
}

#[workflow]
pub(crate) async fn takes(ctx: Ctx, _n: u64) -> Result<Vec<u64>> {
    let trace = Trace::new(&ctx);
    let mut taken = Vec::new();
    for _ in 0..TAKEN {
        // A wait that loses gives back what it was handed.
        let first = ctx
            .race(
                "hurry",
                (
                    branch("job", async |ctx| ctx.event(JOB).await),
                    branch("nap", async |ctx| {
                        ctx.sleep("nap", Duration::from_millis(8)).await
                    }),
                ),
            )
            .await?;
        let job = match first {
            First2::A(job) => job,
            First2::B(_) => ctx.event(JOB).await?,
        };
        trace.mix(job);
        taken.push(job);
        trace.run(&ctx, "work").await?;
    }
    Ok(taken)
}

/// Publishes news until nobody listens any more.
pub(super) async fn publish(outside: Rc<Outside>, _part: u64) {
    let random = outside.random("news", 0);
    while !outside.stop.get() || outside.news.borrow().hearers > 0 {
        let number = outside.news.borrow().next_news;
        let key = format!("news-{number}");
        let publish = async || outside.client.publish(NEWS, &number).dedupe(&key).await;
        until_ok(publish).await;
        outside.news.borrow_mut().next_news += 1;
        // As somebody does who did not get the answer.
        if until_ok(publish).await != PublishedEvent::Duplicate {
            outside.broken("events_twice", format!("news {number} was published twice"));
        }
        pause(&random, 10, 60).await;
    }
}

pub(super) async fn drive_hearers(outside: Rc<Outside>, part: u64) {
    let random = outside.random("hearers", part);
    while !outside.stop.get() {
        let n = outside.number();
        outside.news.borrow_mut().hearers += 1;
        let before = outside.news.borrow().next_news;
        let run = outside.start(hears, "hears", n, n).await;
        let after = outside.news.borrow().next_news;
        let heard = outside.result(&run).await;
        outside.news.borrow_mut().hearers -= 1;
        if let Some(heard) = heard {
            outside.count("events", heard.len() as u64);
            expect_heard(&outside, n, &heard, before, after);
        }
        pause(&random, 0, 50).await;
    }
}

/// Each number is the next one, and the first was published about when the run was started.
fn expect_heard(outside: &Outside, n: u64, heard: &[u64], before: u64, after: u64) {
    let what = || format!("run {n} was started between {before} and {after}, and heard {heard:?}");
    // One may be published, and not known to be, on either side.
    let first = heard.first().copied().unwrap_or_default();
    let lost = first > after + 1 || heard.windows(2).any(|pair| pair[1] > pair[0] + 1);
    let twice = first < before || heard.windows(2).any(|pair| pair[1] <= pair[0]);
    if lost || heard.len() as u64 != HEARD {
        outside.broken("events_lost", what());
    }
    if twice {
        outside.broken("events_twice", what());
    }
}

pub(super) async fn drive_takers(outside: Rc<Outside>, part: u64) {
    let random = outside.random("takers", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = outside.start(takes, "takes", n, n).await;
        for _ in 0..TAKEN {
            let job = {
                let mut known = outside.news.borrow_mut();
                known.next_job += 1;
                known.next_job - 1
            };
            outside.news.borrow_mut().taken.insert(job, Vec::new());
            let key = format!("job-{job}");
            until_ok(async || outside.client.publish(JOB, &job).dedupe(&key).await).await;
            pause(&random, 0, 30).await;
        }
        let taken = outside.result(&run).await.unwrap_or_default();
        outside.count("events", taken.len() as u64);
        for job in taken {
            outside
                .news
                .borrow_mut()
                .taken
                .entry(job)
                .or_default()
                .push(n);
        }
    }
}

pub(super) fn check(outside: &Outside) {
    let known = outside.news.take();
    for (job, by) in &known.taken {
        match &by[..] {
            [_] => {}
            [] => outside.broken("events_lost", format!("nobody took job {job}")),
            by => outside.broken("events_twice", format!("job {job} was taken by {by:?}")),
        }
    }
}
