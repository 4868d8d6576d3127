//! `ctx.listen` and `ctx.receive`: the next message, in order of arrival.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{Claim, Ctx, Whose, decode, encode, refuse_if, sleep::Until};
use crate::{
    codec::Value,
    commit::Effect,
    error::{Error, Result},
    history::{EntryKind, EntryValue, TakenMessage},
    name::check_name,
    run::core::{Core, ListenSpec, Turn},
    settings::SettingsError,
    time::Timestamp,
};

/// How a message is handed to the workflow: its [`Body`], or the [`Whole`] of it.
pub trait Take: sealed::Read {}

impl<K: sealed::Read> Take for K {}

/// The run that a message was sent to.
pub struct Source(Rc<Core>);

mod sealed {
    use super::{Source, TakenMessage};

    pub trait Read {
        /// What the workflow gets.
        type Item;

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
        let TakenMessage {
            name,
            request,
            sent_at,
            ..
        } = message;
        Some(Message {
            name,
            body,
            sent_at,
            request,
            core: source.0.clone(),
        })
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
        f.debug_struct("Message")
            .field("name", &self.name)
            .field("body", &self.body)
            .finish()
    }
}

pub(crate) struct RawListen {
    pub(crate) claim: Claim,
    spec: Option<ListenSpec>,
    until: Option<Until>,
}

impl RawListen {
    fn set_names<N: Into<String>>(&mut self, names: impl IntoIterator<Item = N>) {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        if let Some(error) = names.iter().find_map(|name| check_name(name).err()) {
            self.claim = Err(Some(Error::fatal(error)));
        }
        if let Some(spec) = &mut self.spec {
            spec.names = names;
        }
    }

    fn set_batch(&mut self, n: usize) {
        let checked = SettingsError::check_count("batch", n as u64);
        refuse_if(&mut self.claim, checked);
        if let Some(spec) = &mut self.spec {
            spec.batch = n;
        }
    }

    /// The messages; none if the time ran out first.
    fn poll<K: Take>(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<K::Item>>> {
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return super::composite::refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                if let Some(spec) = self.spec.take() {
                    let until = self.until.map(|until| until.from(op.core.now()));
                    op.core.activate_listen(op.id, spec, until);
                }
                Poll::Pending
            }
            Turn::Take => {
                let taken = op.core.take(op.id, |entry| match &entry.value {
                    EntryValue::Messages(messages) => messages.clone(),
                    _ => Vec::new(),
                });
                let messages = taken.unwrap_or_default().into_iter();
                let source = Source(op.core.clone());
                let items: Option<Vec<_>> =
                    messages.map(|message| K::read(&source, message)).collect();
                match items {
                    Some(items) => Poll::Ready(Ok(items)),
                    // The run is halted; its code is not polled again.
                    None => Poll::Pending,
                }
            }
            _ => Poll::Pending,
        }
    }
}

impl Ctx {
    /// Waits for the next message of this name and gives its body.
    ///
    /// Messages are taken in the order in which they were sent, each once. One that was sent
    /// before the wait began is taken at once.
    pub fn listen<T: Value>(&self, name: &str) -> Listen<Body<T>> {
        Listen {
            raw: self.raw_listen(name),
            kind: PhantomData,
        }
    }

    /// As [`listen`](Ctx::listen), with the whole message, which can be answered.
    pub fn receive<T: Value>(&self, name: &str) -> Listen<Whole<T>> {
        Listen {
            raw: self.raw_listen(name),
            kind: PhantomData,
        }
    }

    fn raw_listen(&self, name: &str) -> RawListen {
        let spec = Some(ListenSpec {
            names: vec![name.to_owned()],
            batch: 1,
        });
        RawListen {
            claim: self.claim(EntryKind::Listen, name),
            spec,
            until: None,
        }
    }
}

/// A wait for a message. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Listen<K> {
    pub(crate) raw: RawListen,
    kind: PhantomData<fn() -> K>,
}

/// A wait for a message that may end without one. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct ListenUntil<K> {
    pub(crate) raw: RawListen,
    kind: PhantomData<fn() -> K>,
}

/// A wait for several messages at once. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct ListenBatch<K> {
    pub(crate) raw: RawListen,
    kind: PhantomData<fn() -> K>,
}

impl<K: Take> Listen<K> {
    /// Waits for messages of these names instead of the operation's own; any message if there are
    /// none.
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.raw.set_names(names);
        self
    }

    /// Gives `None` when no message has come after this long. A message that is there wins.
    pub fn timeout(mut self, timeout: Duration) -> ListenUntil<K> {
        self.raw.until = Some(Until::After(timeout));
        ListenUntil {
            raw: self.raw,
            kind: PhantomData,
        }
    }

    /// Gives `None` when no message has come by this instant. A message that is there wins.
    pub fn until(mut self, at: Timestamp) -> ListenUntil<K> {
        self.raw.until = Some(Until::At(at));
        ListenUntil {
            raw: self.raw,
            kind: PhantomData,
        }
    }

    /// Gives up to `n` messages that are there, and waits only while there is none.
    pub fn batch(mut self, n: usize) -> ListenBatch<K> {
        self.raw.set_batch(n);
        ListenBatch {
            raw: self.raw,
            kind: PhantomData,
        }
    }
}

impl<K: Take> ListenUntil<K> {
    /// As [`Listen::names`].
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.raw.set_names(names);
        self
    }

    /// As [`Listen::batch`]; none when the time runs out.
    pub fn batch(mut self, n: usize) -> ListenBatch<K> {
        self.raw.set_batch(n);
        ListenBatch {
            raw: self.raw,
            kind: PhantomData,
        }
    }
}

impl<K: Take> ListenBatch<K> {
    /// As [`Listen::names`].
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.raw.set_names(names);
        self
    }

    /// Gives none when no message has come after this long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.raw.until = Some(Until::After(timeout));
        self
    }

    /// Gives none when no message has come by this instant.
    pub fn until(mut self, at: Timestamp) -> Self {
        self.raw.until = Some(Until::At(at));
        self
    }
}

impl<K: Take> Future for Listen<K> {
    type Output = Result<K::Item>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::task::ready!(self.raw.poll::<K>(cx)) {
            Ok(items) => match items.into_iter().next() {
                Some(item) => Poll::Ready(Ok(item)),
                // Without a deadline it can only end with a message.
                None => Poll::Pending,
            },
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<K: Take> Future for ListenUntil<K> {
    type Output = Result<Option<K::Item>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let items = std::task::ready!(self.raw.poll::<K>(cx));
        Poll::Ready(items.map(|items| items.into_iter().next()))
    }
}

impl<K: Take> Future for ListenBatch<K> {
    type Output = Result<Vec<K::Item>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw.poll::<K>(cx)
    }
}
