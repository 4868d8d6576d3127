//! The dead letters: messages that no run will read.

use serde_json::Value as Json;

use super::{Client, ClientError, named, page};
use crate::{
    commit::{
        DeadLetter, LetterDone, LetterFilter, LetterWrite, Receipt, ReplayTo, RunStatus, Target,
        Write,
    },
    ctx::send::ToTarget,
    event::fallback,
    run_id::RunId,
    time::Timestamp,
};

/// How many dead letters are handled together.
const SLICE: usize = 500;

impl Client {
    /// Messages that no run will read, oldest first: left over when a run ended, or refused. Set
    /// filters, then await it for a page of them, or [replay](DeadLetters::replay_all) or
    /// [drop](DeadLetters::drop_all) all.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # async fn show(client: Client, run: everstep::RunId) -> Result<(), everstep::ClientError> {
    /// let page = client.dead_letters().run(run).name("approval").await?;
    /// for letter in &page.letters {
    ///     println!("{}: {} ({})", letter.no, letter.body, letter.reason);
    ///     let replayed = client.replay_dead_letter(letter.no).await?;
    ///     println!("{replayed:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters { client: self.clone(), filter: LetterFilter::default(), after: 0, limit: 100 }
    }

    /// Sends a dead letter again, as if it were sent now: to the run that it was for, unless
    /// something else is said. Await it.
    pub fn replay_dead_letter(&self, no: u64) -> ReplayLetter {
        ReplayLetter { client: self.clone(), no, to: To::Same }
    }

    /// Removes a dead letter; `false` if there is none of this number.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn drop_dead_letter(&self, no: u64) -> Result<bool, ClientError> {
        Ok(self.drop_letters(vec![no]).await? > 0)
    }

    async fn drop_letters(&self, nos: Vec<u64>) -> Result<u64, ClientError> {
        let write = Write::Letter(Box::new(LetterWrite::Drop(nos)));
        match self.ask(write).await? {
            LetterDone::Dropped(dropped) => Ok(dropped),
            _ => Err(ClientError::Closed),
        }
    }

    async fn replay(&self, no: u64, to: ReplayTo) -> Result<Replayed, ClientError> {
        let replay =
            LetterWrite::Replay { no, to, inbox_max: self.shared.settings.inbox_messages_max };
        let write = Write::Letter(Box::new(replay));
        Ok(match self.ask(write).await? {
            LetterDone::Unknown => Replayed::Unknown,
            LetterDone::Published(published) => Replayed::Published { told: published.told },
            LetterDone::Delivered(delivered) => match (delivered.receipt, delivered.run) {
                (Receipt::Delivered, Some(run)) => Replayed::Delivered { run },
                (receipt, _) => {
                    Replayed::Refused { reason: crate::store::rules::undeliverable(receipt) }
                }
            },
            _ => return Err(ClientError::Closed),
        })
    }
}

/// A list of dead letters. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct DeadLetters {
    client: Client,
    filter: LetterFilter,
    after: u64,
    limit: usize,
}

/// A page of dead letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// The letters, oldest first.
    pub letters: Vec<DeadLetterInfo>,
    /// What to give to [`DeadLetters::after`] for the next page, if there is one.
    pub next: Option<u64>,
}

/// A message that no run will read, for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterInfo {
    /// Its number.
    pub no: u64,
    /// The run that it was for, if it is still there.
    pub run: Option<RunId>,
    /// What that run is now.
    pub status: Option<RunStatus>,
    /// Whom it was sent to, as the sender had it; absent if that was not recorded.
    pub target: Option<Target>,
    /// The name that it was sent by.
    pub name: String,
    /// What it says.
    pub body: Json,
    /// Why nobody will read it.
    pub reason: String,
    /// When it became a dead letter.
    pub at: Timestamp,
}

impl DeadLetters {
    /// Only those that were sent to this run.
    pub fn run(mut self, run: RunId) -> Self {
        self.filter.run = Some(run.no());
        self
    }

    /// Only those that were sent by this name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.filter.name = Some(name.into());
        self
    }

    /// How many a page has at most; 100 if this is not said, 1 000 at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, 1_000);
        self
    }

    /// Goes on after the last letter of another page: see [`DeadLetterPage::next`].
    pub fn after(mut self, no: u64) -> Self {
        self.after = no;
        self
    }

    /// Sends all of them again to the runs that they were for; how many were taken, and how many
    /// are dead letters still because their run is gone, has ended, or is full.
    ///
    /// # Errors
    ///
    /// If the store cannot be used. What was sent until then is sent.
    pub async fn replay_all(self) -> Result<ReplayedAll, ClientError> {
        let mut all = ReplayedAll::default();
        let client = self.client.clone();
        let mut place = self.after;
        while let Some(slice) = self.slice(place).await? {
            for letter in slice {
                place = letter.no;
                match client.replay(letter.no, ReplayTo::Same).await? {
                    Replayed::Delivered { .. } | Replayed::Published { .. } => all.replayed += 1,
                    Replayed::Refused { .. } => all.refused += 1,
                    // Somebody else has seen to it.
                    Replayed::Unknown => {}
                }
            }
        }
        Ok(all)
    }

    /// Removes all of them; how many.
    ///
    /// # Errors
    ///
    /// If the store cannot be used. What was removed until then is removed.
    pub async fn drop_all(self) -> Result<u64, ClientError> {
        let mut dropped = 0;
        let mut place = self.after;
        while let Some(slice) = self.slice(place).await? {
            place = slice.last().map_or(place, |letter| letter.no);
            let nos = slice.iter().map(|letter| letter.no).collect();
            dropped += self.client.drop_letters(nos).await?;
        }
        Ok(dropped)
    }

    /// The next letters; none at the end.
    async fn slice(&self, after: u64) -> Result<Option<Vec<DeadLetter>>, ClientError> {
        let filter = self.filter.clone();
        let slice =
            self.client.read(move |store| store.dead_letters(&filter, after, SLICE)).await?;
        Ok(Some(slice).filter(|slice| !slice.is_empty()))
    }
}

impl DeadLetters {
    async fn read(self) -> Result<DeadLetterPage, ClientError> {
        let (filter, after, limit) = (self.filter, self.after, self.limit);
        // One more than asked for shows whether there is another page.
        let letters =
            self.client.read(move |store| store.dead_letters(&filter, after, limit + 1)).await?;
        let (letters, next) = page(letters, limit, |letter| letter.no);
        Ok(DeadLetterPage {
            letters: letters.into_iter().map(|letter| shown(letter, &self.client)).collect(),
            next,
        })
    }
}

awaited!([] DeadLetters, read => Result<DeadLetterPage, ClientError>);

fn shown(letter: DeadLetter, client: &Client) -> DeadLetterInfo {
    let body = client.decode_json(&letter.body, None, || "the message".to_owned());
    DeadLetterInfo {
        no: letter.no,
        run: letter.run_id,
        status: letter.status,
        target: letter.target,
        name: letter.name,
        // It is still shown if its body is no payload of ours.
        body: body.unwrap_or_else(|error| Json::String(error.to_string())),
        reason: letter.reason,
        at: letter.at,
    }
}

/// A dead letter to be sent again. Await it.
#[must_use = "nothing is sent unless it is awaited"]
pub struct ReplayLetter {
    client: Client,
    no: u64,
    to: To,
}

enum To {
    Same,
    Run(Target),
    Event(String),
}

/// What became of a dead letter that was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replayed {
    /// It is in the inbox of this run, and a dead letter no more.
    Delivered {
        /// The run.
        run: RunId,
    },
    /// It was published, and is a dead letter no more.
    Published {
        /// How many waits were handed it.
        told: u64,
    },
    /// It is still a dead letter.
    Refused {
        /// Why, in words.
        reason: &'static str,
    },
    /// There is no dead letter of this number.
    Unknown,
}

/// What became of several dead letters that were sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayedAll {
    /// How many were taken.
    pub replayed: u64,
    /// How many are still dead letters.
    pub refused: u64,
}

impl ReplayLetter {
    /// To this run instead.
    pub fn to(mut self, run: impl ToTarget) -> Self {
        self.to = To::Run(run.to_target());
        self
    }

    /// As an event of this name instead: a broadcast.
    pub fn as_event(mut self, name: impl Into<String>) -> Self {
        self.to = To::Event(name.into());
        self
    }
}

impl ReplayLetter {
    async fn send(self) -> Result<Replayed, ClientError> {
        let to = match self.to {
            To::Same => ReplayTo::Same,
            To::Run(target) => ReplayTo::Run(target),
            To::Event(name) => {
                named("the event's name", &name)?;
                let settings = &self.client.shared.settings;
                ReplayTo::Event(Box::new(fallback(name, settings)))
            }
        };
        self.client.replay(self.no, to).await
    }
}

awaited!([] ReplayLetter, send => Result<Replayed, ClientError>);
