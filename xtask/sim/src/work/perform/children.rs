//! Children, the ends of other runs, and generations.

use std::time::Duration;

use everstep::{ChildError, Close, RunStatus, prelude::*};

use super::Stage;
use crate::{
    oracle::{
        children::{ChildEnd, Ending},
        ledger::Got,
    },
    work::{
        Order, PERFORM, key,
        keys::child_key,
        program::{Care, ChildOp},
    },
};

impl Stage<'_> {
    /// Starts a child.
    pub(super) async fn child(&self, op: &ChildOp) -> Result<()> {
        let name = format!("child-{}", op.id);
        let ctx = self.ctx.scope(&name);
        let origin = self.place(&name).number();
        let order = Order { child: op.id, origin, carry: 0, ..self.order };
        let mut child = ctx.child(PERFORM.version(op.program.version), order);
        if let Some(key) = op.key {
            child = child.key(child_key(key));
            self.code.ledger.book().child_keys.insert(self.place(&name), key);
        }
        let is_closed = !op.leave && op.key.is_none() && op.care != Care::Detached;
        let birth = (self.ctx.run_id(), is_closed);
        self.code.ledger.book().births.insert(origin, birth);
        if op.leave {
            child = child.close(Close::Leave);
        }
        let end = match op.care {
            Care::Awaited => end_of(child.outcome().await?),
            Care::Detached => ChildEnd::Started(child.detach().await?),
            Care::GivenUp(after) => everstep::select! {
                ended = child.outcome() => end_of(ended?),
                time = ctx.sleep("patience", after) => {
                    time?;
                    ChildEnd::GivenUp
                }
            },
        };
        if let (Some(key), ChildEnd::Started(run)) = (op.key, end) {
            self.code.ledger.key_is_of(key, run);
        }
        self.take(&name, Got::Child(end));
        Ok(())
    }

    /// Waits for the end of the run of a program.
    pub(super) async fn finished(
        &self,
        id: u32,
        of: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let name = format!("finished-{id}");
        let ctx = self.ctx.scope(&name);
        let key = key(of);
        let finished = ctx.finished(("perform", key.as_str()));
        let ended = match timeout {
            Some(timeout) => finished.timeout(timeout).await,
            None => finished.await.map(Some),
        };
        let got = match ended {
            Ok(Some(ended)) => Got::Ended(of, Ending::of(ended.status, ended.output()?)),
            Ok(None) => Got::Nothing,
            // There is no such run yet.
            Err(_) => Got::Failure,
        };
        self.take(&name, got);
        Ok(())
    }

    /// Begins the next generation of the run.
    pub(super) async fn goes_on_as_another(&self) -> Result<u64> {
        let carry = self.fold.get();
        self.code.ledger.continues(&self.stay, carry);
        let next = Order { carry, ..self.order };
        self.ctx.continue_as(next).forget_rollbacks().await
    }
}

fn end_of(ended: Result<u64, ChildError>) -> ChildEnd {
    let end = match ended {
        Ok(value) => Ending::Completed(value),
        Err(error) if error.status == RunStatus::Cancelled => Ending::Cancelled,
        Err(_) => Ending::Failed,
    };
    ChildEnd::Ended(end)
}
