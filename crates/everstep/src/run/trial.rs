//! A trial: whether a stored run fits the code that is here.
//!
//! The run is made as its owner would make it, and driven until its history is replayed. No body
//! starts, no completion is new, and nothing is committed: the run is dropped. So a trial can be
//! made of a run that is in another process's memory, or in a file.

use std::{rc::Rc, sync::Arc};

use super::{
    End, Halt, Run, RunSeed,
    core::{Core, Env, Phase},
    flush::decode_origins,
    wakers::WakeSink,
};
use crate::{
    commit::{LoadedRun, Put, RunStatus},
    error::FailureKind,
    history::{OpId, decode_entry},
    location::keys,
    run::Definition,
};

/// How a trial has ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The code does what the history has.
    #[cfg_attr(
        not(feature = "testing"),
        expect(dead_code, reason = "only `testing::replay` says where a run stands")
    )]
    Fits(Standing),
    /// It does not: the reason for which the run would be paused.
    Differs(String),
}

/// Where a run that fits stands.
#[derive(Debug, Default)]
#[cfg_attr(
    not(feature = "testing"),
    expect(dead_code, reason = "only `testing::replay` says where a run stands")
)]
pub(crate) struct Standing {
    /// How many recorded completions the code has taken.
    pub(crate) completions: usize,
    /// The operations that are open, by location, in order.
    pub(crate) open: Vec<String>,
    /// Whether the code has returned.
    pub(crate) ended: bool,
}

/// Nobody is to be woken: a trial ends where it is.
struct Deaf;

impl WakeSink for Deaf {
    fn body_woken(&self, _: u32, _: u64, _: OpId) {}
    fn foreign_wake(&self, _: u32, _: u64) {}
}

/// Marks the runs of trials among those that are polled; no run of an engine has it.
const TOKEN: u64 = u64::MAX;

/// Tries a run against code.
pub(crate) fn try_run(mut loaded: LoadedRun, definition: Arc<Definition>, env: Rc<Env>) -> Verdict {
    if loaded.row.status.is_terminal() {
        forget_end(&mut loaded);
    }
    // It is not the time that is tried.
    loaded.row.deadline_at = None;
    let mut run = Run::new(RunSeed::from(loaded), definition, env, Arc::new(Deaf), TOKEN);
    let recorded = {
        let mut st = run.core.state.borrow_mut();
        // No body starts, and no completion is offered but the recorded ones.
        (st.draining, st.leaving, st.suspect) = (true, true, false);
        st.replay.len()
    };
    run.on_trial = true;
    run.drive();
    run.verdict(recorded)
}

impl Run {
    fn verdict(&self, recorded: usize) -> Verdict {
        let st = self.core.state.borrow();
        if let Some(halt) = &st.halt {
            return Verdict::Differs(halt.to_string());
        }
        if let Some(End::Error(error)) = &self.end
            && error.kind() == FailureKind::Panic
        {
            let why = error.failure().full();
            let after = st.taken;
            return Verdict::Differs(format!(
                "the code panics after completion {after}: {why}; deploy code that does not"
            ));
        }
        let open = st.ops.iter().filter(|(_, op)| op.phase != Phase::Taken);
        let mut open: Vec<String> = open.map(|(_, op)| Core::location(&op.key)).collect();
        open.sort();
        if open.is_empty() && self.end.is_none() {
            let hint = ": it is at rest with nothing durable to wait for".to_owned();
            return Verdict::Differs(Halt::ForeignAwait { hint }.to_string());
        }
        Verdict::Fits(Standing {
            completions: recorded - st.replay.len(),
            open,
            ended: self.end.is_some(),
        })
    }
}

/// Takes back how a run has ended, so that its code is replayed up to there.
///
/// The rollbacks at its end are nothing that its code has taken. They have numbers above the one that its
/// end was recorded with. Those that a race has made of its losers come before, and stay; a run without
/// that record has no others.
fn forget_end(loaded: &mut LoadedRun) {
    (loaded.row.status, loaded.row.ending) = (RunStatus::Running, None);
    let origins = keys::failure_origins();
    let end = loaded.history.iter().find(|put| put.key == origins);
    let taken = end.and_then(|put| decode_origins(&put.value)).map(|it| it.taken);
    let number = |put: &Put| decode_entry(&put.value).ok()?.number;
    let is_rollback = |put: &Put| put.key.starts_with(keys::ROLLBACKS);
    let stays = |put: &Put| taken.is_none_or(|taken| number(put).is_some_and(|n| n <= taken));
    loaded.history.retain(|put| put.key != origins && (!is_rollback(put) || stays(put)));
}
