//! Clients that follow what a run gives out.

use everstep::{ClientError, RunHandle, testing::simulation};

use super::clients::Outside;
use crate::{
    oracle::{Promise, streams::Follow},
    work::streams::Followed,
};

impl Outside {
    /// Follows until the run has ended, and writes down what it was given.
    pub(crate) fn follow(&self, run: &RunHandle<u64>, what: Followed) {
        let (seen, is_over) = match what {
            Followed::State => self.follow_state(run),
            Followed::Stream(_) | Followed::Bodies => self.follow_stream(run, &what.name()),
        };
        self.ledger.book().follows.push(Follow { run: run.id(), what, seen, is_over });
    }

    fn follow_stream(&self, run: &RunHandle<u64>, name: &str) -> (Vec<String>, bool) {
        let mut reader = run.stream::<String>(name);
        let mut seen = Vec::new();
        let is_over = loop {
            match simulation::block_on(reader.next()) {
                Ok(Some(item)) => {
                    self.ledger.check_followed(run.id(), &seen, &item);
                    seen.push(item);
                }
                Ok(None) => break true,
                Err(error) if self.goes_on_after(run, &error) => {}
                Err(_) => break false,
            }
        };
        (seen.into_iter().map(|item| item.value).collect(), is_over)
    }

    fn follow_state(&self, run: &RunHandle<u64>) -> (Vec<String>, bool) {
        let mut watch = run.watch_state::<String>(&Followed::State.name());
        let mut seen: Vec<String> = Vec::new();
        let is_over = loop {
            match simulation::block_on(watch.next()) {
                Ok(Some(value)) => {
                    if seen.last() == Some(&value) {
                        let what = format!("the state of run {} is told twice: {value}", run.id());
                        self.ledger.violate(Promise::StreamsAreWhole, what);
                    }
                    seen.push(value);
                }
                Ok(None) => break true,
                Err(error) if self.goes_on_after(run, &error) => {}
                Err(_) => break false,
            }
        };
        (seen, is_over)
    }

    /// Whether it asks again after an error.
    fn goes_on_after(&self, run: &RunHandle<u64>, error: &ClientError) -> bool {
        if matches!(error, ClientError::UnknownRun { .. }) && self.ledger.may_be_deleted(run.id()) {
            return false;
        }
        self.expect_store_error("a follower", error);
        simulation::sleep(self.plan.lease);
        true
    }
}
