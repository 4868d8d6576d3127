//! `ctx.listen` and `ctx.receive`: the next message, in order of arrival.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    Claim, Ctx, Whose, decode, encode,
    operation::{Operation, Until, timed},
    refuse_if,
};
use crate::{
    codec::Value,
    commit::Effect,
    error::Result,
    history::{EntryKind, EntryValue, OpId, TakenMessage},
    name::check_name,
    run::core::{Core, ListenSpec},
    settings::SettingsError,
    time::{Timestamp, When},
};

/// How a message is handed to the workflow: its [`Body`], or the [`Whole`] of it.
pub trait Take: sealed::Read {}

impl<K: sealed::Read> Take for K {}

/// The run that a message was sent to.
pub struct Source(Rc<Core>);

mod sealed {
    use super::{Source, TakenMessage};

    pub trait Read: 'static {
        /// What the workflow gets.
        type Item: 'static;

        /// Makes it of the message that was taken; `None` if it cannot be decoded.
        fn read(source: &Source, message: TakenMessage) -> Option<Self::Item>;
    }
}

/// The body of a message.
pub struct Body<T>(PhantomData<fn() -> T>);

/// A whole [`Message`].
pub struct Whole<T>(PhantomData<fn() -> T>);

impl<T: Value> sealed::Read for Body<T> {
    type Item = T;

    fn read(source: &Source, message: TakenMessage) -> Option<T> {
        read_body(&source.0, &message)
    }
}

impl<T: Value> sealed::Read for Whole<T> {
    type Item = Message<T>;

    fn read(source: &Source, message: TakenMessage) -> Option<Message<T>> {
        let body = read_body(&source.0, &message)?;
        let TakenMessage { name, request, sent_at, .. } = message;
        Some(Message { name, body, sent_at, request, core: source.0.clone() })
    }
}

fn read_body<T: DeserializeOwned>(core: &Core, message: &TakenMessage) -> Option<T> {
    let what = || format!("the message `{}` (number {})", message.name, message.seq);
    decode(core, &message.body, what)
}

/// A message that can be answered.
pub struct Message<T> {
    /// The name that it was sent by.
    pub name: String,
    /// What it says.
    pub body: T,
    /// When it was sent.
    pub sent_at: Timestamp,
    request: Option<Uuid>,
    core: Rc<Core>,
}

impl<T> Message<T> {
    /// Whether somebody waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.request.is_some()
    }

    /// Answers it, if somebody waits for that; the first answer counts. It is handed out once
    /// what the workflow does next is durable.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, or is larger than the limit for payloads.
    pub fn reply<R: Serialize>(&self, answer: &R) -> Result<()> {
        let what = || format!("the reply to `{}`", self.name);
        self.core.check_outside_body(what)?;
        let body = encode(&self.core, answer, Whose::Others, what)?;
        let mut st = self.core.state.borrow_mut();
        if let (Some(request), false) = (self.request, st.quiet_effects) {
            st.effects.push(Effect::Reply { request, body });
        }
        Ok(())
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("name", &self.name).field("body", &self.body).finish()
    }
}

impl Ctx {
    /// Waits for the next message of this name and gives its body.
    ///
    /// Messages are taken in the order in which they were sent, each once. One that was sent
    /// before the wait began is taken at once.
    pub fn listen<T: Value>(&self, name: &str) -> Listen<Body<T>> {
        self.listening(name)
    }

    /// As [`listen`](Ctx::listen), with the whole message, which can be answered.
    pub fn receive<T: Value>(&self, name: &str) -> Listen<Whole<T>> {
        self.listening(name)
    }

    fn listening<K>(&self, name: &str) -> Listen<K> {
        Listen {
            claim: self.claim(EntryKind::Listen, name),
            spec: Some(ListenSpec { names: vec![name.to_owned()], batch: 1 }),
            until: None,
            kind: PhantomData,
        }
    }
}

/// A wait for a message. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Listen<K> {
    pub(crate) claim: Claim,
    spec: Option<ListenSpec>,
    until: Option<When>,
    kind: PhantomData<fn() -> K>,
}

/// A wait for several messages at once. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct ListenBatch<K> {
    pub(crate) listen: Listen<K>,
}

impl<K: Take> Listen<K> {
    /// Waits for messages of these names instead of the operation's own; any message if there are
    /// none.
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        refuse_if(&mut self.claim, names.iter().try_for_each(|name| check_name(name)));
        if let Some(spec) = &mut self.spec {
            spec.names = names;
        }
        self
    }

    /// Gives up to `n` messages that are there, and waits only while there is none.
    pub fn batch(mut self, n: usize) -> ListenBatch<K> {
        let checked = SettingsError::check_count("batch", n as u64);
        refuse_if(&mut self.claim, checked);
        if let Some(spec) = &mut self.spec {
            spec.batch = n;
        }
        ListenBatch { listen: self }
    }

    /// The messages; none if the time ran out first.
    fn take_all(&self, core: &Rc<Core>, id: OpId) -> Option<Vec<K::Item>> {
        let messages = core.take(id, |entry| match &entry.value {
            EntryValue::Messages(messages) => messages.clone(),
            _ => Vec::new(),
        })?;
        let source = Source(core.clone());
        let read = |message| K::read(&source, message);
        messages.into_iter().map(read).collect()
    }
}

timed!([K: Take] Listen<K>, "no message has come", " A message that is there wins.");

impl<K: Take> Until<Listen<K>> {
    /// As [`Listen::names`].
    pub fn names<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        Until(self.0.names(names))
    }

    /// As [`Listen::batch`]; none when the time runs out.
    pub fn batch(self, n: usize) -> ListenBatch<K> {
        self.0.batch(n)
    }
}

impl<K: Take> ListenBatch<K> {
    /// As [`Listen::names`].
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.listen = self.listen.names(names);
        self
    }

    /// Gives none when no message has come after this long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.listen.until = Some(When::After(timeout));
        self
    }

    /// Gives none when no message has come by this instant.
    pub fn until(mut self, at: Timestamp) -> Self {
        self.listen.until = Some(When::At(at));
        self
    }
}

impl<K: Take> Operation for Listen<K> {
    type Output = Option<K::Item>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(spec) = self.spec.take() {
            core.activate_listen(id, spec, self.until);
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Self::Output>> {
        Some(Ok(self.take_all(core, id)?.into_iter().next()))
    }
}

impl<K: Take> Operation for ListenBatch<K> {
    type Output = Vec<K::Item>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.listen.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        self.listen.activate(core, id);
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Self::Output>> {
        self.listen.take_all(core, id).map(Ok)
    }
}
