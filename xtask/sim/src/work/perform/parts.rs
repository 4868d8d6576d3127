//! Operations that perform parts: those of `ctx`, and plain Rust over futures.

use std::{cell::Cell, future::pending, ops::ControlFlow, rc::Rc};

use everstep::prelude::*;
use futures_util::{
    StreamExt,
    future::{LocalBoxFuture, join, join_all},
    stream::FuturesUnordered,
};

use super::Stage;
use crate::{
    oracle::ledger::Got,
    work::program::{How, Op},
};

impl<'a> Stage<'a> {
    /// Performs the parts of the operation of this name.
    pub(super) async fn parts(&self, name: &str, how: How, parts: &[Vec<Op>]) -> Result<()> {
        let got = match how {
            How::Gate => {
                // Before the change, and in a run that was past this place by then, there is nothing here.
                let version = format!("{name}-version");
                if !self.code.is_changed || self.ctx.version(&version, 2) < 2 {
                    return Ok(());
                }
                let ops = parts.first().map_or(&[][..], Vec::as_slice);
                self.inside(name, self.ctx.scope(name)).ops(ops).await?;
                Got::Time
            }
            How::Join => {
                self.ctx.join(name, self.branches(name, parts, false)).await?;
                Got::Time
            }
            How::Race { first_fails } => {
                let won = self.ctx.race(name, self.branches(name, parts, first_fails)).await?;
                Got::Won(won.index)
            }
            How::Map { concurrency } => {
                let code = async |ctx, index: usize| {
                    self.inside(&format!("{name}/{index}"), ctx).ops(&parts[index]).await
                };
                let map = self.ctx.map(name, 0..parts.len(), code);
                map.concurrency(concurrency).await?;
                Got::Time
            }
            How::Attempt { fails } => {
                let code = async |ctx| {
                    self.inside(name, ctx).ops(parts.first().map_or(&[], Vec::as_slice)).await?;
                    if fails { Err(as_planned()) } else { Ok(()) }
                };
                match self.ctx.attempt(name, code).await? {
                    Ok(()) => Got::Time,
                    Err(_) => Got::Failure,
                }
            }
            How::PlainJoin => {
                self.join_plainly(name, parts).await?;
                Got::Time
            }
            How::Unordered => {
                self.unordered(name, parts).await?;
                Got::Time
            }
            How::Select => Got::Won(self.select(name, parts).await?),
            How::Repeat { .. } => Got::State(self.repeat(name, how, parts).await?),
        };
        self.take(name, got);
        Ok(())
    }

    fn branches<'b>(
        &'b self,
        name: &'b str,
        parts: &'b [Vec<Op>],
        first_fails: bool,
    ) -> Vec<everstep::Branch<'b, ()>> {
        let branches = parts.iter().enumerate().map(|(number, ops)| {
            let part = format!("part-{number}");
            let path = format!("{name}/{part}");
            branch(part, async move |ctx| {
                self.inside(&path, ctx).ops(ops).await?;
                if first_fails && number == 0 { Err(as_planned()) } else { Ok(()) }
            })
        });
        branches.collect()
    }

    /// The parts as futures, each in a scope of its own.
    fn futures<'b>(&self, name: &str, parts: &'b [Vec<Op>]) -> Vec<LocalBoxFuture<'b, Result<()>>>
    where
        'a: 'b,
    {
        let scope = self.ctx.scope(name);
        let future = |(number, ops): (usize, &'b Vec<Op>)| {
            let part = format!("part-{number}");
            let stage = self.inside(&format!("{name}/{part}"), scope.scope(&part));
            let future: LocalBoxFuture<'b, Result<()>> =
                Box::pin(async move { stage.ops(ops).await });
            future
        };
        parts.iter().enumerate().map(future).collect()
    }

    async fn join_plainly(&self, name: &str, parts: &[Vec<Op>]) -> Result<()> {
        let mut futures = self.futures(name, parts);
        let ended = match (futures.pop(), futures.pop(), futures.is_empty()) {
            (Some(one), Some(other), true) => <[_; 2]>::from(join(other, one).await).into(),
            (Some(last), Some(before), false) => {
                futures.extend([before, last]);
                join_all(futures).await
            }
            (Some(only), ..) => vec![only.await],
            (None, ..) => Vec::new(),
        };
        ended.into_iter().collect()
    }

    /// What ends is written down in the order in which it does.
    async fn unordered(&self, name: &str, parts: &[Vec<Op>]) -> Result<()> {
        let futures = self.futures(name, parts).into_iter().enumerate();
        let futures = futures.map(|(number, part)| async move { (number, part.await) });
        let mut open: FuturesUnordered<_> = futures.collect();
        while let Some((number, ended)) = open.next().await {
            ended?;
            self.take(&format!("{name}/part-{number}"), Got::Time);
        }
        Ok(())
    }

    async fn select(&self, name: &str, parts: &[Vec<Op>]) -> Result<usize> {
        // A life that is made smaller may have no part left, and nothing would end.
        if parts.is_empty() {
            return Ok(0);
        }
        let mut futures = self.futures(name, parts).into_iter();
        let mut next = || futures.next().unwrap_or_else(|| Box::pin(pending()));
        let (one, two, three) = (next(), next(), next());
        everstep::select! {
            ended = one => ended.map(|()| 0),
            ended = two => ended.map(|()| 1),
            ended = three => ended.map(|()| 2),
        }
    }

    /// The state is a number that depends on everything that the iterations have taken.
    async fn repeat(&self, name: &str, how: How, parts: &[Vec<Op>]) -> Result<u64> {
        let How::Repeat { times, commit_every, history_every, history_keep } = how else {
            return Ok(0);
        };
        let ops = parts.first().map_or(&[][..], Vec::as_slice);
        let code = async |ctx, (n, state): (u64, u64)| {
            let path = format!("{name}/~{n}");
            self.note(&path, Got::State(state));
            let mut stage = self.inside(&path, ctx);
            stage.fold = Rc::new(Cell::new(state));
            stage.ops(ops).await?;
            let state = stage.fold.get();
            Ok(match n + 1 < times {
                true => ControlFlow::Continue((n + 1, state)),
                false => ControlFlow::Break(state),
            })
        };
        let repeat = self.ctx.repeat(name, (0_u64, 0_u64), code);
        repeat
            .commit_every(commit_every)
            .history_every(history_every)
            .history_keep(history_keep)
            .await
    }
}

/// The failure of a part that is to fail.
fn as_planned() -> Error {
    Error::fatal("as its program says")
}
