//! What workflow code sees: a [`Ctx`], and the operations it makes.
//!
//! An operation is a builder and a future at once. Its location is claimed when it is made, its
//! options are set before it is first polled, and it resolves only when the run offers it its
//! completion (see [`crate::run`]). One file per primitive is in `ctx/`.

use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
    sync::Arc,
};

use serde::Serialize;
use uuid::Uuid;

use crate::{
    codec::{hook::SealError, payload},
    commit::Effect,
    error::{Error, Failure, FailureKind, Result},
    hash::FastMap,
    history::{EntryKind, Key, OpId},
    location::{Location, keys},
    name::check_name,
    random,
    run::{
        Halt,
        core::{Core, Op},
    },
    run_id::RunId,
    settings::Settings,
    time::Timestamp,
};

pub(crate) mod attempt;
pub(crate) mod child;
pub(crate) mod composite;
pub(crate) mod continue_as;
pub(crate) mod deferred;
pub(crate) mod emit;
pub(crate) mod enqueue;
pub(crate) mod event;
pub(crate) mod join;
pub(crate) mod limit;
pub(crate) mod listen;
pub(crate) mod map;
pub(crate) mod operation;
pub(crate) mod publish;
pub(crate) mod race;
pub(crate) mod removed;
pub(crate) mod repeat;
pub(crate) mod rollback;
pub(crate) mod send;
pub(crate) mod sleep;
pub(crate) mod step;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod transaction;

/// What a workflow is handed to do durable things with.
///
/// It is cheap to clone and stays on the engine thread that owns the run. Every operation has a
/// name; a name that is used again in the same scope gets an ordinal in the order of the calls
/// (`charge`, `charge#2`), so that a plain loop works.
#[derive(Clone)]
pub struct Ctx {
    scope: Rc<Scope>,
}

/// A place in the run below which names are counted on their own.
struct Scope {
    core: Rc<Core>,
    key: Key,
    names: RefCell<Names>,
    randoms: Cell<u64>,
}

/// The names that were used in a scope.
///
/// Most scopes have a few: those are looked through. Many are looked up.
#[derive(Default)]
struct Names {
    few: Vec<(Box<str>, NameUse)>,
    many: FastMap<Box<str>, NameUse>,
}

const FEW: usize = 12;

impl Names {
    fn get_mut(&mut self, name: &str) -> Option<&mut NameUse> {
        if self.many.is_empty() {
            let found = self.few.iter_mut().find(|(other, _)| **other == *name);
            return found.map(|(_, used)| used);
        }
        self.many.get_mut(name)
    }

    fn insert(&mut self, name: &str, used: NameUse) {
        if self.many.is_empty() && self.few.len() < FEW {
            return self.few.push((Box::from(name), used));
        }
        self.many.extend(self.few.drain(..));
        self.many.insert(Box::from(name), used);
    }
}

/// How often a name was used in a scope, and by which operation last.
struct NameUse {
    count: u32,
    last: Option<OpId>,
}

/// An operation that was made, or why it could not be.
pub(crate) type Claim = Result<Op, Option<Error>>;

/// Refuses an operation that was given a value with which it cannot work.
pub(crate) fn refuse_if<E: fmt::Display + 'static>(claim: &mut Claim, checked: Result<(), E>) {
    if let Err(error) = checked {
        *claim = Err(Some(Error::fatal(error)));
    }
}

/// The key of an operation; `None` if it was refused.
pub(crate) fn key_of(claim: &Claim) -> Option<Key> {
    claim.as_ref().ok()?.key()
}

/// The error that workflow code gets for a failure at this key.
pub(crate) fn error_at(key: &[u8], mut failure: Failure) -> Error {
    failure.location = Location::from_key(key).ok();
    Error::recorded(failure, vec![Box::from(key)])
}

impl Ctx {
    pub(crate) fn root(core: Rc<Core>) -> Ctx {
        Ctx::at(core, Key::from(keys::HISTORY))
    }

    pub(crate) fn at(core: Rc<Core>, key: Key) -> Ctx {
        let names = RefCell::default();
        Ctx { scope: Rc::new(Scope { core, key, names, randoms: Cell::new(0) }) }
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.scope.core
    }

    /// What the bodies of this run seal their results with.
    pub(crate) fn sealer(&self) -> Sealer {
        Sealer::of(self.core())
    }

    /// The id of the run.
    pub fn run_id(&self) -> RunId {
        self.core().facts.id
    }

    /// The version that the run was started with.
    pub fn workflow_version(&self) -> u32 {
        self.core().facts.version
    }

    /// How often the run was tried as a whole, this time included.
    pub fn run_attempt(&self) -> u32 {
        self.core().facts.attempts
    }

    /// The tick of the schedule that started the run; `None` if none did.
    ///
    /// This is when the run should have begun, however late it did: a report on yesterday asks for
    /// the day before its tick.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # #[workflow]
    /// # async fn report(ctx: Ctx, _: ()) -> Result<()> {
    /// let until = ctx.scheduled_at().unwrap_or_else(|| ctx.now());
    /// let since = until - days(1);
    /// # let _ = since;
    /// # Ok(()) }
    /// ```
    pub fn scheduled_at(&self) -> Option<Timestamp> {
        self.core().facts.scheduled_at
    }

    /// A dependency that the engine was given with `provide`.
    ///
    /// # Panics
    ///
    /// If there is none of this type: the run fails and the message names the type.
    pub fn get<T: Send + Sync + 'static>(&self) -> &T {
        self.core().env.services.get::<T>()
    }

    /// A `Ctx` of its own for a part of the workflow: names in it are counted on their own.
    ///
    /// Give one to each branch of a plain `join!` or `select!` that uses the same names.
    pub fn scope(&self, name: &str) -> Ctx {
        let is_refused = self.refuses_in_body("ctx.scope", name);
        let key = match check_name(name) {
            Ok(()) if !is_refused => self.next_key(name).0,
            // A scope does nothing by itself; what is made in it will say that its name is bad.
            _ => self.scope.key.clone(),
        };
        Ctx::at(self.core().clone(), key)
    }

    /// The time, as the run sees it: the same on every replay.
    ///
    /// It is the later of its last value and the time of the last completion that was taken, so it
    /// stands still between operations.
    pub fn now(&self) -> Timestamp {
        self.core().workflow_now()
    }

    /// A random number, the same on every replay: derived from the run, the scope and how often it
    /// was asked for there.
    pub fn random(&self) -> u64 {
        self.random_parts().0
    }

    /// A random UUID (version 4), the same on every replay. Do not use it as a secret.
    pub fn uuid(&self) -> Uuid {
        let (high, low) = self.random_parts();
        uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
            .into_uuid()
    }

    fn random_parts(&self) -> (u64, u64) {
        self.core().refuses_in_body(|| "a random number with `ctx`".to_owned());
        let n = self.scope.randoms.replace(self.scope.randoms.get() + 1);
        let facts = &self.core().facts;
        let identity = self.core().identity();
        let seed = random::hash(u64::from(facts.generation), identity.as_uuid().as_bytes());
        let scope = random::hash(seed ^ n, &self.scope.key);
        (random::mix(scope), random::mix(scope.wrapping_add(0x9E37_79B9_7F4A_7C15)))
    }

    /// Sets a value that clients may read while the run goes on, with
    /// [`RunHandle::state`](crate::RunHandle::state) or as it changes with
    /// [`watch_state`](crate::RunHandle::watch_state). The last value of a key counts; for all of
    /// them see [`emit`](Ctx::emit).
    ///
    /// It becomes durable together with what the workflow does next.
    ///
    /// # Errors
    ///
    /// If the value cannot be encoded, or is larger than the limit for payloads.
    pub fn set_state<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<()> {
        check_name(key).map_err(Error::fatal)?;
        let what = || format!("the state `{key}`");
        self.core().check_outside_body(what)?;
        let bytes = encode(self.core(), value, Whose::Runs, what)?;
        let mut st = self.core().state.borrow_mut();
        if !st.quiet_effects {
            st.set_state.retain(|(other, _)| other != key);
            st.set_state.push((key.to_owned(), bytes));
        }
        Ok(())
    }

    /// Sets a tag of this run, in the place of all its tags of this name: what people and programs
    /// find it by. It is stored with the next commit of the run.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # async fn work(ctx: Ctx, country: String) -> Result<()> {
    /// ctx.set_tag("country", &country)?;
    /// ctx.set_tag("phase", "payment")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the name or the value is empty, or has more than 256 bytes. A run has at most 100 tags;
    /// one more is not set.
    pub fn set_tag(&self, name: &str, value: &str) -> Result<()> {
        check_name(name).map_err(Error::fatal)?;
        check_name(value).map_err(Error::fatal)?;
        self.change_tag(name, Some(value.to_owned()))
    }

    /// Removes all tags of this name from this run.
    pub fn remove_tag(&self, name: &str) {
        // Without a value there is nothing else to refuse, and the run is halted.
        _ = self.change_tag(name, None);
    }

    fn change_tag(&self, name: &str, value: Option<String>) -> Result<()> {
        self.core().check_outside_body(|| format!("a change of the tag `{name}`"))?;
        let mut st = self.core().state.borrow_mut();
        if !st.quiet_effects {
            let name = name.to_owned();
            st.effects.push(Effect::Tag { name, value });
        }
        Ok(())
    }

    /// Which of several ways this run goes: gates a change to the code under running work.
    ///
    /// Gives `latest`, unless the run had come to this place with code that had no gate here: then it gives
    /// 1, even if that code has recorded nothing since. The answer is recorded and never changes. This holds
    /// in branches of a join, of a race and of a `select!`, too.
    ///
    /// The way of 1 must be what the code was without the gate. A run of which nothing is recorded begins
    /// anew and goes the new way.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # async fn work(ctx: Ctx) -> Result<()> {
    /// if ctx.version("send-receipt", 2) >= 2 {
    ///     ctx.step("receipt", async || Ok(())).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn version(&self, change: &str, latest: u32) -> u32 {
        if self.refuses_in_body("ctx.version", change) {
            return latest.max(1);
        }
        match self.claim(EntryKind::Version, change) {
            Ok(op) => self.core().gate(op.id, latest.max(1)),
            Err(_) => latest.max(1),
        }
    }

    /// Whether this call is made inside of a body, which halts the run.
    fn refuses_in_body(&self, call: &str, name: &str) -> bool {
        self.core().refuses_in_body(|| format!("`{call}` of `{name}`"))
    }

    /// Claims the next location of this name.
    pub(crate) fn claim(&self, kind: EntryKind, name: &str) -> Claim {
        self.claim_by(name, |core, key| core.claim(kind, key))
    }

    /// Claims the next location of this name for the operation that `make` makes there.
    fn claim_by(&self, name: &str, make: impl FnOnce(&Rc<Core>, Key) -> Op) -> Claim {
        if let Err(error) = check_name(name) {
            return Err(Some(Error::fatal(error)));
        }
        if let Some(error) = self.history_full() {
            return Err(Some(error));
        }
        let (key, before) = self.next_key(name);
        if let Some(before) = before {
            self.core().warn_if_open(before, &key);
        }
        let op = make(self.core(), key);
        if let Some(used) = self.scope.names.borrow_mut().get_mut(name) {
            used.last = Some(op.id);
        }
        Ok(op)
    }

    /// Claims the next location of this name for an operation that hands a value out. A value that
    /// cannot be encoded is refused, and takes no location.
    pub(crate) fn claim_with<T: Serialize + ?Sized>(
        &self,
        kind: EntryKind,
        name: &str,
        value: &T,
        what: impl FnOnce() -> String,
    ) -> (Claim, Vec<u8>) {
        match encode(self.core(), value, Whose::Others, what) {
            Ok(bytes) => (self.claim(kind, name), bytes),
            Err(error) => (Err(Some(error)), Vec::new()),
        }
    }

    fn history_full(&self) -> Option<Error> {
        let limit = self.core().env.settings.history_entries_max;
        let entries = self.core().state.borrow().entries;
        (entries >= limit).then(|| {
            let text = format!(
                "the history has {entries} entries, and the limit is {limit}; use `ctx.repeat`, \
                 which trims what is done, or raise `history_entries_max`"
            );
            Error::recorded(Failure::new(FailureKind::Limit, text), Vec::new())
        })
    }

    /// The key for the next use of a name here, and who used it last.
    fn next_key(&self, name: &str) -> (Key, Option<OpId>) {
        let (count, last) = {
            let mut names = self.scope.names.borrow_mut();
            match names.get_mut(name) {
                Some(used) => {
                    used.count += 1;
                    (used.count, used.last)
                }
                None => {
                    names.insert(name, NameUse { count: 1, last: None });
                    (1, None)
                }
            }
        };
        (
            build_key(|key| {
                key.extend_from_slice(&self.scope.key);
                keys::push_name(key, name, count);
            }),
            last,
        )
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ctx({} at `{}`)", self.run_id(), Core::location(&self.scope.key))
    }
}

/// Builds a key in a buffer that is used again and again, so that it is allocated once.
pub(crate) fn build_key(fill: impl FnOnce(&mut Vec<u8>)) -> Key {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        fill(buffer);
        Key::from(buffer.as_slice())
    })
}

/// Whose a payload is, as codecs are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// It belongs to this run alone.
    Runs,
    /// It goes to others.
    Others,
}

/// Encodes values in bodies, on whatever thread they run.
#[derive(Clone)]
pub(crate) struct Sealer {
    settings: Arc<Settings>,
    run: Option<RunId>,
}

/// Why a value could not be encoded.
enum Unencodable {
    /// It cannot be, whoever tries.
    Value(Error),
    /// The codec could not.
    Codec(SealError),
}

impl Sealer {
    /// For what belongs to this run alone.
    pub(crate) fn of(core: &Core) -> Sealer {
        Sealer { settings: core.env.settings.clone(), run: Some(core.facts.id) }
    }

    /// Encodes what a body gives. When the codec cannot, the attempt has failed, and is made again.
    pub(crate) fn encode<T: Serialize + ?Sized>(&self, value: &T) -> Result<Vec<u8>> {
        try_encode(value, &self.settings, self.run).map_err(|error| match error {
            Unencodable::Value(error) => error,
            Unencodable::Codec(error) => Error::msg(format!("the result is not stored: {error}")),
        })
    }
}

fn try_encode<T: Serialize + ?Sized>(
    value: &T,
    settings: &Settings,
    run: Option<RunId>,
) -> Result<Vec<u8>, Unencodable> {
    let limit = settings.payload_bytes_max;
    let bytes = payload::to_vec(value).map_err(|error| Unencodable::Value(Error::fatal(error)))?;
    if bytes.len() > limit {
        let text = format!(
            "a value has {} bytes, and the limit for a payload is {limit}; store it elsewhere and \
             pass on where it is, or raise `payload_bytes_max`",
            bytes.len()
        );
        let failure = Failure::new(FailureKind::Limit, text);
        return Err(Unencodable::Value(Error::recorded(failure, Vec::new())));
    }
    settings.codecs.seal(bytes, run).map_err(Unencodable::Codec)
}

/// Encodes a value that workflow code hands out, within the limit.
///
/// If the codec cannot, the run is halted, since that is nothing that the code could have done
/// something about, and would be another time.
pub(crate) fn encode<T: Serialize + ?Sized>(
    core: &Core,
    value: &T,
    whose: Whose,
    what: impl FnOnce() -> String,
) -> Result<Vec<u8>> {
    let run = (whose == Whose::Runs).then_some(core.facts.id);
    try_encode(value, &core.env.settings, run).map_err(|error| match error {
        Unencodable::Value(error) => error,
        Unencodable::Codec(error) => {
            let (what, error) = (what(), error.to_string());
            let text = format!("{what} cannot be encoded: {error}");
            core.halt(Halt::Unsealable { what, error });
            Error::fatal(text)
        }
    })
}

/// Decodes a stored value, or halts the run: the code does not fit what is stored.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    core: &Core,
    bytes: &[u8],
    what: impl FnOnce() -> String,
) -> Option<T> {
    let codecs = &core.env.settings.codecs;
    match codecs.read(bytes, Some(core.facts.id)) {
        Ok(value) => Some(value),
        Err(error) => {
            core.halt(Halt::unreadable(what(), error));
            None
        }
    }
}

/// Makes a recorded failure readable for workflow code, or halts the run.
pub(crate) fn open_failure(core: &Core, mut failure: Failure, at: &str) -> Option<Failure> {
    match failure.open_details(&core.env.settings.codecs) {
        Ok(()) => Some(failure),
        Err(error) => {
            let what = format!("the error of `{at}`");
            core.halt(Halt::unreadable(what, error));
            None
        }
    }
}
