//! The workflow that performs programs.

mod children;
mod events;
mod parts;

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::{Arc, OnceLock},
    time::Duration,
};

use everstep::{EntryKind, Outcome, prelude::*};
use futures_util::future::LocalBoxFuture;

use super::{
    Order, bodies,
    bodies::{Done, Made},
    key,
    limits::{Limited, TURNS},
    messages::{HearOp, Heard},
    program::{Body, End, Op, Program, StepOp},
    queues::{EnqueueOp, Enqueued, QueuePlan},
};
use crate::oracle::ledger::{Got, Ledger, Place, Stay, Taken, fold};

/// The code of a process: what it knows besides its input.
pub(crate) struct Code {
    pub(crate) programs: Arc<Vec<Program>>,
    pub(crate) ledger: Arc<Ledger>,
    /// The name of the process.
    pub(crate) process: String,
    /// Whether it looks at its own clock.
    pub(crate) is_fenced: bool,
    /// The limit that all runs are under.
    pub(crate) gate: Option<Limited>,
    pub(crate) queue: Option<QueuePlan>,
    /// Whether it is the code after the change.
    pub(crate) is_changed: bool,
    /// The client of its engine, once that has started.
    pub(crate) client: OnceLock<Client>,
}

/// Performs a program; gives a number that depends on everything that it has seen, in order.
pub(crate) async fn perform(code: Arc<Code>, ctx: Ctx, order: Order) -> Result<u64> {
    let program = order.find(&code.programs);
    let program = program.ok_or_else(|| Error::fatal("there is no such program"))?;
    let stay = code.ledger.stay_begins(&ctx, order, &code);
    if let Some(gate) = code.gate {
        code.ledger.limited_run_begins(ctx.run_id(), gate.of_run(), &gate.key_of(&order));
    }
    let fold = Rc::new(Cell::new(order.carry));
    let stage = Stage { code: &code, order, stay: stay.clone(), ctx, at: String::new(), fold };
    let mut whole = pin!(stage.whole(program));
    poll_fn(|polled| {
        stay.poll_begins();
        whole.as_mut().poll(polled)
    })
    .await
}

/// Where in a program the code is.
struct Stage<'a> {
    code: &'a Arc<Code>,
    order: Order,
    stay: Arc<Stay>,
    ctx: Ctx,
    /// The names of the operations that this is inside of.
    at: String,
    /// A number that depends on everything that was taken, in order: by the run outside of its loops, or
    /// by this iteration of one.
    fold: Rc<Cell<u64>>,
}

impl<'a> Stage<'a> {
    fn inside(&self, name: &str, ctx: Ctx) -> Stage<'a> {
        Stage {
            code: self.code,
            order: self.order,
            stay: self.stay.clone(),
            ctx,
            at: format!("{}{name}/", self.at),
            fold: self.fold.clone(),
        }
    }

    async fn whole(&self, program: &Program) -> Result<u64> {
        self.ops(&program.ops).await?;
        if self.ctx.generation() < program.generations {
            return self.goes_on_as_another().await;
        }
        match program.end {
            End::Completes => Ok(self.fold.get()),
            End::Fails => Err(Error::fatal("as its program says")),
            End::FailsInStep { attempts } => {
                self.last_step(self.ctx.run_attempt() <= attempts).await?;
                Ok(self.fold.get())
            }
        }
    }

    fn ops<'b>(&'b self, ops: &'b [Op]) -> LocalBoxFuture<'b, Result<()>> {
        Box::pin(async move {
            for op in ops {
                self.op(op).await?;
                if op.takes_completion() {
                    self.code.ledger.check_order(&self.stay, &self.at, op);
                }
            }
            Ok(())
        })
    }

    /// Something that the rest of the program depends on.
    fn take(&self, name: &str, got: Got) {
        let taken = Taken { at: format!("{}{name}", self.at), got };
        self.fold.set(fold(self.fold.get(), &taken));
        self.stay.take(taken);
    }

    /// Something that is written down, and that nothing depends on.
    fn note(&self, name: &str, got: Got) {
        self.stay.take(Taken { at: format!("{}{name}", self.at), got });
    }

    async fn op(&self, op: &Op) -> Result<()> {
        match op {
            Op::Step(step) => self.step(step).await,
            Op::Sleep { id, lasts } => {
                let name = format!("sleep-{id}");
                self.ctx.sleep(&name, *lasts).await?;
                self.take(&name, Got::Time);
                Ok(())
            }
            Op::Listen { id, channel, timeout } => {
                let name = format!("channel-{channel}");
                let heard: Option<String> = match timeout {
                    Some(timeout) => self.ctx.listen(&name).timeout(*timeout).await?,
                    None => Some(self.ctx.listen(&name).await?),
                };
                let got = match heard {
                    Some(message) => Got::Message(*channel, message),
                    None => Got::Nothing,
                };
                self.take(&format!("listen-{id}"), got);
                Ok(())
            }
            Op::Send { id, to, channel } => {
                let (name, to) = (format!("channel-{channel}"), key(*to));
                let message = self.message(&format!("send-{id}"));
                let sent = self.ctx.send(("perform", to.as_str()), &name, &message);
                // The other may not be there yet, or have ended.
                let is_delivered = sent.await.is_ok();
                let got = Got::Receipt(to, *channel, message, is_delivered);
                self.take(&format!("send-{id}"), got);
                Ok(())
            }
            Op::Event(op) => self.event(op).await,
            Op::Publish { id, event, key } => self.publish(*id, *event, *key).await,
            Op::Deferred(op) => self.deferred(op).await,
            Op::Child(op) => self.child(op).await,
            Op::Finished { id, of, timeout } => self.finished(*id, *of, *timeout).await,
            Op::Enqueue(op) => self.enqueue(op).await,
            Op::Show(op) => op.perform(&self.ctx, &self.stay, &self.at),
            Op::Hear(op) => self.hear(op).await,
            Op::Turn { id, key } => self.turn(*id, *key).await,
            Op::Removed(op) => self.removed(op).await,
            Op::Parts { id, how, parts } => {
                let name = format!("{}-{id}", how.name());
                self.parts(&name, *how, parts).await
            }
        }
    }

    /// Waits for messages. Each that has come is taken by itself.
    async fn hear(&self, op: &HearOp) -> Result<()> {
        let name = format!("hear-{}", op.id);
        let heard = op.perform(&self.ctx).await?;
        if heard.is_empty() {
            self.take(&name, Got::Nothing);
        }
        for (number, Heard { channel, body }) in heard.into_iter().enumerate() {
            self.take(&format!("{name}/{number}"), Got::Message(channel, body));
        }
        Ok(())
    }

    /// Waits for its turn under a rate.
    async fn turn(&self, id: u32, key: u64) -> Result<()> {
        let name = format!("turn-{id}");
        let ctx = self.ctx.scope(&name);
        ctx.rate_limit(TURNS).key(key).await?;
        let at = format!("{}{name}/{}", self.at, TURNS.name());
        self.code.ledger.check_turn(&self.stay, &at);
        self.take(&name, Got::Time);
        Ok(())
    }

    /// Makes a step, or says that it is gone. Nothing is taken of it: the code after the change knows
    /// nothing of its result.
    async fn removed(&self, op: &StepOp) -> Result<()> {
        let name = format!("step-{}", op.id);
        match self.code.is_changed {
            true => self.ctx.removed(&name, EntryKind::Step).await?,
            false => _ = self.outcome(op, &name).await?,
        }
        Ok(())
    }

    async fn enqueue(&self, op: &EnqueueOp) -> Result<()> {
        let Some(queue) = self.code.queue else {
            return Ok(());
        };
        let name = format!("enqueue-{}", op.id);
        let at = format!("{}{name}", self.at);
        let got = match op.perform(queue, &self.ctx, at).await? {
            Enqueued::Left => Got::Item,
            Enqueued::Done(done) => Got::Value(done.value),
            Enqueued::Failed => Got::Failure,
            Enqueued::TimedOut => Got::Nothing,
        };
        self.take(&name, got);
        Ok(())
    }

    /// The words of the next message: no two are the same, and a replay says the same ones.
    fn message(&self, name: &str) -> String {
        let (run, generation) = (self.ctx.run_id(), self.ctx.generation());
        format!("{run}.{generation}:{}{name}", self.at)
    }

    /// The place of the operation of this name.
    fn place(&self, name: &str) -> Place {
        Place {
            run: self.ctx.run_id(),
            generation: self.ctx.generation(),
            at: format!("{}{name}", self.at),
        }
    }

    /// A step whose failure is that of the run, so that it can be tried again.
    async fn last_step(&self, fails: bool) -> Result<()> {
        let op = StepOp { fails: u32::from(fails), ..StepOp::plain(0) };
        let made = Made {
            op,
            stay: self.stay.clone(),
            ledger: self.code.ledger.clone(),
            taken: self.stay.taken(),
        };
        let last =
            self.ctx.step_with("last", async move |step| bodies::run_async(&made, step).await);
        let done = last.retry(Retry::fixed(1, Duration::ZERO)).await?;
        self.take("last", Got::Value(done.value));
        Ok(())
    }

    async fn step(&self, op: &StepOp) -> Result<()> {
        let name = format!("step-{}", op.id);
        let got = self.outcome(op, &name).await?;
        self.take(&name, got);
        Ok(())
    }

    async fn outcome(&self, op: &StepOp, name: &str) -> Result<Got> {
        let made = Made {
            op: op.clone(),
            stay: self.stay.clone(),
            ledger: self.code.ledger.clone(),
            taken: self.stay.taken(),
        };
        let ctx = &self.ctx;
        let mut call = match op.body {
            Body::Async => {
                ctx.step_with(name, async move |step| bodies::run_async(&made, step).await)
            }
            Body::Clogging => {
                ctx.step_with(name, async move |step| bodies::run_clogging(&made, &step))
            }
            Body::Blocking => ctx.blocking(name, move |step| bodies::run_blocking(&made, &step)),
            Body::Spawned => ctx.spawn(name, move |step| bodies::run_spawned(made.clone(), step)),
        };
        call = call.retry(Retry::fixed(op.attempts, op.delay));
        if let Some(limit) = op.limit {
            call = limit.on_step(call);
        }
        if let Some(timeout) = op.timeout {
            call = call.timeout(timeout);
        }
        if op.retry_on_timeout {
            call = call.retry_on_timeout();
        }
        if op.ephemeral {
            call = call.ephemeral();
        }
        if op.rollback {
            let (ledger, stay) = (self.code.ledger.clone(), self.stay.clone());
            call =
                call.rollback(async move |undo, _: Done| bodies::undo(&ledger, &stay, &undo).await);
        }
        Ok(match call.outcome().await? {
            Outcome::Completed(done) => Got::Value(done.value),
            Outcome::Failed { .. } => Got::Failure,
        })
    }
}
