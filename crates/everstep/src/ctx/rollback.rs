//! Rollbacks: how what a run has done is undone.
//!
//! A rollback is a step of its own, at a key of its own, with its own policy. Those of a run that
//! has failed run by number, last first; those of a race's losers run inside the race.

use std::{
    future::Future, marker::PhantomData, pin::Pin, rc::Rc, sync::Arc, task::Context, task::Poll,
};

use super::{
    decode, open_failure,
    step::{Attempt, LocalBox, RawStep, StepOptions, Work, idempotency_key},
};
use crate::{
    codec::Value,
    error::{Error, Result},
    history::{EntryKind, EntryStatus, EntryValue, Key},
    location::keys,
    retry::Retry,
    run::{RunEnd, RunFuture, core::Core},
    run_id::RunId,
    services::Services,
};

/// What a rollback is handed: dependencies, its own idempotency key, the attempt. No `Ctx`.
pub struct Rollback {
    run: RunId,
    attempt: u32,
    idempotency_key: String,
    services: Arc<Services>,
}

impl Rollback {
    /// A dependency that the engine was given with `provide`.
    ///
    /// # Panics
    ///
    /// If there is none of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> &T {
        self.services.get::<T>()
    }

    /// A text that is the same for every attempt of this rollback and for nothing else.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The run.
    pub fn run_id(&self) -> RunId {
        self.run
    }
}

type UndoFn = dyn Fn(&Core, Rollback, &[u8], &[u8]) -> LocalBox<'static, Result<Vec<u8>>>;

/// How a step is undone.
#[derive(Clone)]
pub(crate) struct Undo {
    code: Rc<UndoFn>,
    pub(crate) retry: Option<Retry>,
}

impl Undo {
    pub(crate) fn new<T, F>(code: F, retry: Option<Option<Retry>>) -> Undo
    where
        T: Value,
        F: AsyncFn(Rollback, T) -> Result<()> + 'static,
    {
        let code = Rc::new(code);
        let value: PhantomData<fn() -> T> = PhantomData;
        let call = move |core: &Core, rollback: Rollback, key: &[u8], bytes: &[u8]| {
            let _ = value;
            let code = code.clone();
            let what =
                || format!("the result of `{}`, which is to be rolled back", Core::location(key));
            let value: Option<T> = decode(core, bytes, what);
            let undo: LocalBox<'static, Result<Vec<u8>>> = Box::pin(async move {
                match value {
                    Some(value) => code(rollback, value).await.map(|()| NOTHING.to_vec()),
                    // The run is halted.
                    None => std::future::pending().await,
                }
            });
            undo
        };
        Undo { code: Rc::new(call), retry: retry.flatten() }
    }
}

/// The payload of `()`.
const NOTHING: &[u8] = &[0xf6];

/// One rollback, as a recorded step.
struct RollbackCall {
    raw: RawStep<'static>,
}

impl RollbackCall {
    /// The rollback of the step at this key.
    fn new(core: &Rc<Core>, step: Key, undo: Undo) -> RollbackCall {
        let key = Key::from(keys::rollback_key(&step));
        core.reset_failed_rollback(&key);
        let claim = Ok(core.claim(EntryKind::Rollback, key));
        let settings = &core.env.settings;
        let options = StepOptions {
            retry: undo.retry.unwrap_or(settings.default_rollback_retry),
            timeout: settings.default_step_timeout,
            retry_on_timeout: true,
            ephemeral: false,
            limit: None,
        };
        let make = move |attempt: &mut Attempt<'_>| {
            let core = attempt.core;
            let bytes = match core.state.borrow().history.get(&step).map(|slot| &slot.entry.value) {
                Some(EntryValue::Payload(bytes)) => bytes.clone(),
                _ => Vec::new(),
            };
            let (run, generation) = (core.facts.id, core.facts.generation);
            let location = Core::location(attempt.key);
            let rollback = Rollback {
                run,
                attempt: attempt.attempt,
                idempotency_key: idempotency_key(run, generation, &location),
                services: core.env.services.clone(),
            };
            (undo.code)(core, rollback, &step, &bytes)
        };
        RollbackCall { raw: RawStep::new(claim, Work::Body(Box::new(make)), options) }
    }
}

impl Future for RollbackCall {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        std::task::ready!(self.raw.poll_ready(cx));
        let Ok(op) = &self.raw.claim else {
            return Poll::Pending;
        };
        let failure = op.core.take(op.id, |entry| match &entry.value {
            EntryValue::Failure(failure) => Some((**failure).clone()),
            _ => None,
        });
        Poll::Ready(match failure.flatten() {
            None => Ok(()),
            Some(failure) => {
                let at = self.raw.location();
                match open_failure(&op.core, failure, &at) {
                    Some(failure) => Err(Error::recorded(failure, self.raw.origins())),
                    // The run is halted.
                    None => return Poll::Pending,
                }
            }
        })
    }
}

/// Runs these rollbacks one after another.
pub(crate) fn run_all(core: Rc<Core>, list: Vec<(Key, Undo)>) -> RunFuture {
    Box::pin(async move {
        for (key, undo) in list {
            let rollback = RollbackCall::new(&core, key.clone(), undo);
            rollback.await.map_err(|error| {
                let mut failure = error.into_failure();
                failure.location = crate::location::Location::from_key(&key).ok();
                RunEnd::Error(Error::recorded(failure, Vec::new()))
            })?;
        }
        Ok(Vec::new())
    })
}

/// Runs the rollbacks of what was completed at or below `losers`: what the arms of a race that
/// did not win leave behind. Last done first, as everywhere.
pub(crate) async fn compensate_below(core: &Rc<Core>, losers: &[Key], winner: &Key) -> Result<()> {
    let mut list: Vec<(u64, Key, Undo)> = {
        let st = core.state.borrow();
        let lost = |key: &Key| losers.iter().any(|loser| keys::is_under(key, loser));
        // By a race inside of this one. On replay the rollbacks of this one are there too, with
        // numbers that are still to come.
        let compensated = |key: &Key| {
            let rollback = st.history.get(&keys::rollback_key(key));
            rollback.is_some_and(|slot| slot.entry.number.is_some_and(|number| number <= st.taken))
        };
        let done = st.history.iter().filter(|(key, slot)| {
            slot.entry.compensable
                && slot.entry.status == EntryStatus::Completed
                && key.starts_with(keys::HISTORY)
                && lost(key)
                && !keys::is_under(key, winner)
                && !compensated(key)
        });
        done.filter_map(|(key, slot)| {
            let number = slot.entry.number.unwrap_or(u64::MAX);
            Some((number, key.clone(), st.undo.get(key)?.clone()))
        })
        .collect()
    };
    list.sort_by(|a, b| (b.0, &b.1).cmp(&(a.0, &a.1)));
    for (_, key, undo) in list {
        RollbackCall::new(core, key, undo).await?;
    }
    Ok(())
}
