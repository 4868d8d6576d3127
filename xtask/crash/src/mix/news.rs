//! Events: a broadcast is heard by everybody, once and in order; one of delivery `one` is taken
//! once, however many wait.
//!
//! Events are numbered by their only publisher, so that one that is missing or comes again is seen.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use everstep::{
    Clock, Deliver, EngineBuilder, Event, PublishedEvent, Since, SystemClock, prelude::*,
};

use super::{Outside, ask, pause, until_ok};
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
    /// When each news was known to be published, by its number.
    published: Vec<Timestamp>,
    /// The number of the next job.
    next_job: u64,
    /// How many still listen to news.
    hearers: u64,
    /// Who took each job.
    taken: BTreeMap<u64, Vec<u64>>,
}

impl Known {
    /// The number of the next news.
    fn next_news(&self) -> u64 {
        self.published.len() as u64
    }

    /// The first news that a run may hear which was created at this time, when the news before this
    /// number were published. Times are stored in milliseconds: news of the run's own millisecond are
    /// heard, also those that were published before it.
    fn first_for(&self, created: Timestamp, before: u64) -> u64 {
        let earlier = self.published.iter().take(before as usize).rev();
        let same = earlier.take_while(|published| **published >= created);
        before - same.count() as u64
    }
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
    trace.end(&ctx)?;
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
                    branch("nap", async |ctx| ctx.sleep("nap", Duration::from_millis(8)).await),
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
    trace.end(&ctx)?;
    Ok(taken)
}

/// Publishes news until nobody listens any more.
pub(super) async fn publish(outside: Rc<Outside>, _part: u64) {
    let random = outside.random("news", 0);
    while !outside.stop.get() || outside.news.borrow().hearers > 0 {
        let number = outside.news.borrow().next_news();
        let key = format!("news-{number}");
        let publish = async || outside.client.publish(NEWS, &number).dedupe(&key).await;
        until_ok(publish).await;
        let now = SystemClock.now();
        outside.news.borrow_mut().published.push(now);
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
        let before = outside.news.borrow().next_news();
        let run = outside.start(hears, "hears", n, n).await;
        let after = outside.news.borrow().next_news();
        let heard = outside.result(&run).await;
        outside.news.borrow_mut().hearers -= 1;
        if let Some(heard) = heard {
            outside.count("events", heard.len() as u64);
            let created = ask(async || run.info().await).await.map(|it| it.created_at);
            let from = match &created {
                Ok(created) => outside.news.borrow().first_for(*created, before),
                Err(_) => before,
            };
            expect_heard(&outside, n, &heard, from, after);
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
            outside.news.borrow_mut().taken.entry(job).or_default().push(n);
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

#[cfg(test)]
mod tests {
    use super::{super::tests, *};

    fn heard(heard: &[u64]) -> (u64, u64) {
        let outside = tests::outside();
        expect_heard(&outside, 1, heard, 4, 5);
        (outside.counted("events_lost"), outside.counted("events_twice"))
    }

    #[test]
    fn news_that_are_missing_or_come_again_are_found() {
        assert_eq!(heard(&[4, 5, 6, 7, 8, 9]), (0, 0));
        assert_eq!(heard(&[5, 6, 7, 8, 9, 10]), (0, 0));
        assert_eq!(heard(&[4, 5, 7, 8, 9, 10]), (1, 0));
        assert_eq!(heard(&[7, 8, 9, 10, 11, 12]), (1, 0));
        assert_eq!(heard(&[4, 5, 5, 6, 7, 8]), (0, 1));
        assert_eq!(heard(&[3, 4, 5, 6, 7, 8]), (0, 1));
    }

    #[test]
    fn news_of_the_millisecond_in_which_a_run_was_created_may_be_heard() {
        let at = |ms: &[i64]| Known {
            published: ms.iter().copied().map(Timestamp::from_millis).collect(),
            ..Known::default()
        };
        let created = Timestamp::from_millis(30);
        assert_eq!(at(&[10, 20, 29]).first_for(created, 3), 3);
        assert_eq!(at(&[10, 20, 30]).first_for(created, 3), 2);
        // What was published later is no reason for earlier news.
        assert_eq!(at(&[10, 20, 29, 31]).first_for(created, 3), 3);
    }

    #[test]
    fn job_that_nobody_or_two_have_taken_is_found() {
        let outside = tests::outside();
        let taken = BTreeMap::from([(0, vec![1]), (1, vec![]), (2, vec![1, 2])]);
        outside.news.borrow_mut().taken = taken;
        check(&outside);
        assert_eq!(outside.counted("events_lost"), 1);
        assert_eq!(outside.counted("events_twice"), 1);
    }
}
