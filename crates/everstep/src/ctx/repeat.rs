//! `ctx.repeat`: a durable loop whose state is its checkpoint.
//!
//! Each boundary between iterations is a numbered completion whose value is the state. Replay jumps
//! to the last one that is recorded: iterations before it are not run again, so what they changed
//! outside the state is gone after a replay.

use std::{
    future::Future,
    ops::ControlFlow,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
};

use futures_util::future::{Either, select};

use super::{
    Claim, Ctx, Whose,
    composite::{Place, poll_structure},
    decode, encode,
    operation::{self, Operation},
    refuse_if,
    step::LocalBox,
};
use crate::{
    codec::Value,
    error::Result,
    history::{EntryKind, EntryValue, Key, OpId},
    location::keys,
    run::core::Core,
    settings::SettingsError,
};

/// How a loop is written down.
#[derive(Clone, Copy)]
struct Options {
    commit_every: u64,
    history_every: u64,
    history_keep: u64,
}

/// The default of all three options.
const EVERY: u64 = 20;

type Start<'a, B> = Box<dyn FnOnce(Place, Options) -> LocalBox<'a, Result<B>> + 'a>;

/// A durable loop. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Repeat<'a, S, B> {
    pub(crate) claim: Claim,
    options: Options,
    start: Option<Start<'a, B>>,
    running: Option<LocalBox<'a, Result<B>>>,
    state: std::marker::PhantomData<fn() -> S>,
}

impl Ctx {
    /// Runs `code` with a state over and over: `Continue` gives the next state, `Break` ends it.
    ///
    /// The state is written with whatever else is written, and at least every
    /// [`commit_every`](Repeat::commit_every) iterations; older iterations are deleted. After a
    /// crash the loop goes on in its last iteration. What an iteration changes outside its state
    /// (a variable of the workflow) is gone then.
    pub fn repeat<'a, S, B, F>(&self, name: &str, state: S, code: F) -> Repeat<'a, S, B>
    where
        S: Value,
        B: 'a,
        F: AsyncFn(Ctx, S) -> Result<ControlFlow<B, S>> + 'a,
    {
        let loop_name = name.to_owned();
        let start = move |place: Place, options: Options| -> LocalBox<'a, Result<B>> {
            Box::pin(run_loop(place, loop_name, state, code, options))
        };
        Repeat {
            claim: self.claim(EntryKind::Repeat, name),
            options: Options { commit_every: EVERY, history_every: EVERY, history_keep: EVERY },
            start: Some(Box::new(start)),
            running: None,
            state: std::marker::PhantomData,
        }
    }
}

impl<S, B> Repeat<'_, S, B> {
    fn checked(mut self, option: &'static str, n: u64) -> Self {
        refuse_if(&mut self.claim, SettingsError::check_count(option, n));
        self
    }

    /// At the latest after this many iterations the state is written, also if nothing else is;
    /// 20 if this is not said.
    pub fn commit_every(mut self, n: u64) -> Self {
        self.options.commit_every = n;
        self.checked("commit_every", n)
    }

    /// After every so many iterations old ones are deleted; 20 if this is not said.
    pub fn history_every(mut self, n: u64) -> Self {
        self.options.history_every = n;
        self.checked("history_every", n)
    }

    /// How many iterations are kept when old ones are deleted; 20 if this is not said.
    ///
    /// An iteration in which a step with a rollback has completed is kept beyond that, since the
    /// rollback must be found again.
    pub fn history_keep(mut self, n: u64) -> Self {
        self.options.history_keep = n;
        self.checked("history_keep", n)
    }
}

async fn run_loop<S, B, F>(
    place: Place,
    name: String,
    first: S,
    code: F,
    options: Options,
) -> Result<B>
where
    S: Value,
    F: AsyncFn(Ctx, S) -> Result<ControlFlow<B, S>>,
{
    let core = &place.core;
    let recorded = core.recorded_iterations(&place.key);
    let mut trimmed = recorded.first().map_or(0, |first| first.saturating_sub(1));
    let (mut n, mut state) = (0, first);
    if core.reruns(&place.key) {
        // Every iteration that is left is run, to meet what it did. It may never end, since no
        // body starts; the next boundary ends it.
        for next in recorded {
            let boundary = Boundary::new(core, &place.key, &name, next, None);
            // The first iteration has no boundary of its own that would be deleted with it.
            let left = n > 0 || core.has_entries(&iteration_key(&place.key, &name, 0));
            state = if left {
                let iteration = pin!(code(iteration_ctx(&place, &name, n), state));
                match select(iteration, boundary).await {
                    Either::Right((state, _)) => state?,
                    Either::Left((ended, boundary)) => match ended? {
                        ControlFlow::Break(value) => return Ok(value),
                        ControlFlow::Continue(_) => boundary.await?,
                    },
                }
            } else {
                boundary.await?
            };
            n = next;
        }
    } else if let Some(last) = recorded.last() {
        // Jump: the state at the start of the last iteration is recorded.
        n = *last;
        state = Boundary::new(core, &place.key, &name, n, None).await?;
    }
    loop {
        let ctx = iteration_ctx(&place, &name, n);
        match code(ctx, state).await? {
            ControlFlow::Break(value) => {
                trim(
                    core,
                    &place.key,
                    &name,
                    &mut trimmed,
                    (n + 1).saturating_sub(options.history_keep),
                );
                return Ok(value);
            }
            ControlFlow::Continue(next) => {
                n += 1;
                let firm = n % options.commit_every == 0;
                let what = || format!("the state of the loop `{name}`");
                let bytes = encode(core, &next, Whose::Runs, what)?;
                let boundary = Boundary::new(core, &place.key, &name, n, Some((bytes, firm)));
                state = boundary.await?;
                if n % options.history_every == 0 {
                    trim(
                        core,
                        &place.key,
                        &name,
                        &mut trimmed,
                        n.saturating_sub(options.history_keep),
                    );
                }
                core.check_kept_rollbacks(&place.key)?;
            }
        }
    }
}

fn iteration_ctx(place: &Place, name: &str, n: u64) -> Ctx {
    Ctx::at(place.core.clone(), iteration_key(&place.key, name, n))
}

fn iteration_key(loop_key: &[u8], name: &str, n: u64) -> Key {
    super::build_key(|key| {
        key.extend_from_slice(loop_key);
        keys::push_iteration(key, name, n);
    })
}

/// Deletes the iterations before `end` that can be deleted.
fn trim(core: &Rc<Core>, loop_key: &[u8], name: &str, trimmed: &mut u64, end: u64) {
    if end > *trimmed {
        core.trim_iterations(loop_key, name, *trimmed, end);
        *trimmed = end;
    }
}

/// The start of an iteration: gives its state, decoded from what is stored.
struct Boundary<S> {
    claim: Claim,
    given: Option<(Vec<u8>, bool)>,
    state: std::marker::PhantomData<fn() -> S>,
}

impl<S: Value> Boundary<S> {
    fn new(
        core: &Rc<Core>,
        loop_key: &[u8],
        name: &str,
        n: u64,
        given: Option<(Vec<u8>, bool)>,
    ) -> Boundary<S> {
        let key = iteration_key(loop_key, name, n);
        Boundary {
            claim: Ok(core.claim_boundary(key, given.is_some())),
            given,
            state: std::marker::PhantomData,
        }
    }
}

impl<S: Value> Operation for Boundary<S> {
    type Output = S;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some((state, firm)) = self.given.take() {
            core.activate_boundary(id, state, firm);
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<S>> {
        let bytes = core.take(id, |entry| match &entry.value {
            EntryValue::Payload(bytes) => bytes.clone(),
            _ => Vec::new(),
        });
        let what = || {
            let at = core.key_of(id).map(|key| Core::location(&key));
            format!("the state of the loop at `{}`", at.unwrap_or_default())
        };
        decode(core, &bytes.unwrap_or_default(), what).map(Ok)
    }
}

impl<S: Value> Future for Boundary<S> {
    type Output = Result<S>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<S>> {
        operation::poll(&mut *self, cx)
    }
}

impl<S, B> Future for Repeat<'_, S, B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<B>> {
        let this = &mut *self;
        let options = this.options;
        let start = this.start.take();
        let start = start.map(|start| move |place| start(place, options));
        poll_structure(&mut this.claim, start, &mut this.running, cx)
    }
}
