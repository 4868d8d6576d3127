//! Events and deferreds.

use everstep::prelude::*;

use super::Stage;
use crate::{
    oracle::ledger::Got,
    work::{
        bodies::{self, Made},
        events::{EVENTS, PROMISE, event_key},
        program::{DeferredOp, EventOp, StepOp},
    },
};

impl Stage<'_> {
    /// Waits for an event.
    pub(super) async fn event(&self, op: &EventOp) -> Result<()> {
        let name = format!("event-{}", op.id);
        let ctx = self.ctx.scope(&name);
        self.wait_begins(&name);
        let mut wait = ctx.event(EVENTS[op.event]);
        if let Some(key) = op.key {
            wait = wait.matching(event_key(key));
        }
        let seen = match op.timeout {
            Some(timeout) => wait.timeout(timeout).await?,
            None => Some(wait.await?),
        };
        if seen.is_some() {
            self.code.ledger.event_is_taken(&self.place(&name));
        }
        self.take(&name, Got::Event { event: op.event, matching: op.key, body: seen });
        Ok(())
    }

    /// Publishes one.
    pub(super) async fn publish(&self, id: u32, event: usize, key: Option<u32>) -> Result<()> {
        let name = format!("publish-{id}");
        let body = self.message(&name);
        let ctx = self.ctx.scope(&name);
        let mut publish = ctx.publish(EVENTS[event], &body);
        if let Some(key) = key {
            publish = publish.key(&event_key(key));
        }
        let ledger = &self.code.ledger;
        ledger.publishes(event, key, &body);
        publish.await?;
        ledger.is_published(&body);
        self.take(&name, Got::Published { event, key, body });
        Ok(())
    }

    /// Makes a promise, hands its token out, and waits for what becomes of it.
    pub(super) async fn deferred(&self, op: &DeferredOp) -> Result<()> {
        let name = format!("deferred-{}", op.id);
        let ctx = self.ctx.scope(&name);
        let gate = ctx.deferred(PROMISE);
        let (token, place) = (gate.token(), self.place(&name));
        let made = Made {
            op: StepOp::plain(op.id),
            stay: self.stay.clone(),
            ledger: self.code.ledger.clone(),
            taken: self.stay.taken(),
        };
        let (code, settler, rejects) = (self.code.clone(), op.settler, op.rejects);
        let hand_out = ctx.step_with("hand-out", async move |step| {
            let (token, place) = (token.clone(), place.clone());
            bodies::hand_out(&made, &step, &code, place, token, settler, rejects).await
        });
        let done = hand_out.await?;
        self.take(&format!("{name}/hand-out"), Got::Value(done.value));
        let verdict = |at: String, verdict| self.take(&at, Got::Verdict(verdict));
        for look in 0..op.looks {
            let at = format!("{name}/peek-{look}");
            self.wait_begins(&at);
            verdict(at, gate.peek().await?);
        }
        for (number, timeout) in op.timeouts.iter().enumerate() {
            let at = format!("{name}/wait-{number}");
            self.wait_begins(&at);
            verdict(at, gate.timeout(*timeout).await?);
        }
        if op.waits {
            let at = format!("{name}/end");
            verdict(at, Some(gate.await?));
        }
        Ok(())
    }

    /// A wait is made now, if it was not made in an earlier stay.
    fn wait_begins(&self, name: &str) {
        self.code.ledger.wait_begins(self.place(name));
    }
}
