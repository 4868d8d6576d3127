//! Bodies of steps: they take their time, and write into the ledger that they did.

use std::sync::Arc;

use everstep::{Rollback, Token, prelude::*, testing::simulation};
use serde::{Deserialize, Serialize};

use super::{
    events::PROMISE,
    perform::Code,
    program::{Body, Settler, StepOp},
    streams::OF_BODIES,
};
use crate::oracle::{
    events::Settled,
    ledger::{Ledger, Place, Stay},
    limits::Holder,
    streams::item_of_body,
};

/// What a body gives: where it was, and a number that no other has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) at: String,
    pub(crate) value: u64,
}

/// What a body knows of the code that made it.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) op: StepOp,
    pub(crate) stay: Arc<Stay>,
    pub(crate) ledger: Arc<Ledger>,
    /// How many results the code had taken when it made the step.
    pub(crate) taken: usize,
}

impl Made {
    /// The body begins, in the state that the code is in by now: all of that must be kept.
    pub(crate) fn begin(&self, step: &Step) -> Running {
        self.begin_after(step, self.stay.taken())
    }

    /// The body begins on another thread, while the code goes on: what is known to be kept is what the
    /// code had taken when it made the step.
    pub(crate) fn begin_elsewhere(&self, step: &Step) -> Running {
        self.begin_after(step, self.taken)
    }

    fn begin_after(&self, step: &Step, taken: usize) -> Running {
        let place = Place {
            run: step.run_id(),
            generation: step.generation(),
            at: step.location().to_owned(),
        };
        let attempt = step.attempt();
        let firm = !self.op.ephemeral;
        self.ledger.body_starts(&self.stay, &place, attempt, firm, taken);
        let limited = self.op.limit;
        let holder = limited.and_then(|it| self.ledger.limited_body_starts(&self.stay, &place, it));
        // What runs elsewhere may go on when its step was given up.
        let holder = match self.op.body {
            Body::Async | Body::Clogging => holder,
            Body::Blocking | Body::Spawned => {
                holder.iter().for_each(|holder| self.ledger.limited_body_ends(holder));
                None
            }
        };
        let number = match self.op.emits {
            0 => 0,
            _ => simulation::random(),
        };
        Running { made: self.clone(), place, attempt, has_ended: false, number, holder }
    }
}

/// A body between its start and its end.
pub(crate) struct Running {
    made: Made,
    place: Place,
    attempt: u32,
    has_ended: bool,
    /// Tells it from all others, if it gives items to a stream.
    number: u64,
    /// Under its limit, if it has one.
    holder: Option<Holder>,
}

impl Running {
    /// The body goes on after a wait, which it must not if its run has moved on elsewhere.
    pub(crate) fn goes_on(&self) {
        let is_task = self.made.op.body == Body::Spawned;
        self.made.ledger.body_goes_on(&self.made.stay, &self.place, is_task);
    }

    /// Gives its items to a stream.
    async fn emit(&self, step: &Step) -> Result<()> {
        for index in 0..self.made.op.emits {
            step.emit(OF_BODIES, &self.item(index)).await?;
        }
        Ok(())
    }

    fn item(&self, index: u32) -> String {
        item_of_body(&self.place.at, index, self.number)
    }

    pub(crate) fn end(mut self) -> Result<Done> {
        self.has_ended = true;
        let op = &self.made.op;
        if self.attempt <= op.fails {
            self.made.ledger.body_ends(&self.place, None);
            return Err(Error::msg(format!("attempt {} fails", self.attempt)));
        }
        let at = self.place.at.clone();
        let value = match op.ephemeral {
            // It may be lost with the process, so it is the same each time.
            true => at.len() as u64,
            false => simulation::random(),
        };
        self.made.ledger.body_ends(&self.place, Some(value));
        if op.emits > 0 && op.body != Body::Clogging {
            let emitter = (self.number, op.emits);
            self.made.ledger.book().emitters.insert(value, emitter);
        }
        Ok(Done { at, value })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(holder) = &self.holder {
            self.made.ledger.limited_body_ends(holder);
        }
        if !self.has_ended {
            self.made.ledger.body_ends(&self.place, None);
        }
    }
}

/// On the engine thread, as a future.
pub(crate) async fn run_async(made: &Made, step: Step) -> Result<Done> {
    let running = made.begin(&step);
    simulation::point("in a body");
    running.emit(&step).await?;
    if !made.op.lasts.is_zero() {
        simulation::pause(made.op.lasts).await;
        running.goes_on();
    }
    running.end()
}

/// On the engine thread, which it blocks.
pub(crate) fn run_clogging(made: &Made, step: &Step) -> Result<Done> {
    // It gives no items: it cannot wait.
    let running = made.begin(step);
    simulation::sleep(made.op.lasts);
    running.end()
}

/// On a thread of its own.
pub(crate) fn run_blocking(made: &Made, step: &Step) -> Result<Done> {
    let running = made.begin_elsewhere(step);
    for index in 0..made.op.emits {
        step.emit_blocking(OF_BODIES, &running.item(index))?;
    }
    simulation::sleep(made.op.lasts);
    running.end()
}

/// As a task of its own.
pub(crate) async fn run_spawned(made: Made, step: Step) -> Result<Done> {
    let running = made.begin_elsewhere(&step);
    simulation::point("in a spawned body");
    running.emit(&step).await?;
    if !made.op.lasts.is_zero() {
        simulation::pause(made.op.lasts).await;
        running.goes_on();
    }
    running.end()
}

/// Hands the token of a deferred out, and settles the deferred if it is to.
pub(crate) async fn hand_out(
    made: &Made,
    step: &Step,
    code: &Arc<Code>,
    place: Place,
    token: Token,
    settler: Settler,
    rejects: bool,
) -> Result<Done> {
    let running = made.begin(step);
    made.ledger.hands_out(&place, &token);
    let client = code.client.get().cloned();
    match (client, settler) {
        (Some(client), Settler::Body) => {
            settle(&made.ledger, &client, "a body", place, token, rejects).await;
        }
        (Some(client), Settler::Later(after)) => {
            let ledger = made.ledger.clone();
            simulation::spawn("settler", move || {
                simulation::sleep(after);
                let settled = settle(&ledger, &client, "a thread", place, token, rejects);
                simulation::block_on(settled);
            });
        }
        (_, Settler::Clients) | (None, _) => {}
    }
    running.end()
}

/// Settles a deferred, and writes down what it was told.
pub(crate) async fn settle(
    ledger: &Ledger,
    client: &Client,
    who: &str,
    place: Place,
    token: Token,
    rejects: bool,
) {
    let word = format!("{who} {:016x}", simulation::random());
    let verdict = match rejects {
        true => Err(word.clone()),
        false => Ok(word.clone()),
    };
    let index = ledger.settles(place, verdict);
    let resolver = client.deferred(PROMISE, &token);
    let settled = match rejects {
        true => resolver.reject(&word).await,
        false => resolver.resolve(&word).await,
    };
    ledger.is_settled(index, Settled::of(settled));
}

/// Undoes a step.
pub(crate) async fn undo(ledger: &Ledger, stay: &Stay, undo: &Rollback) -> Result<()> {
    // run:generation:location
    let mut parts = undo.idempotency_key().splitn(3, ':').skip(1);
    let generation = parts.next().and_then(|it| it.parse().ok()).unwrap_or(1);
    let place =
        Place { run: undo.run_id(), generation, at: parts.next().unwrap_or_default().to_owned() };
    ledger.undo_starts(stay, &place);
    simulation::point("in a rollback");
    Ok(())
}
