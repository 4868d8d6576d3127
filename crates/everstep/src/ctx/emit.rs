//! `ctx.emit` and `Step::emit`: what clients follow while a run goes on.
//!
//! What the workflow's own code emits rides on the run's next commit. Each such item has a [`Mark`],
//! and the mark of the last one is stored in the same commit, so that a replay knows which items
//! are in their stream already: each is there exactly once.
//!
//! What a body emits is handed to the committer at once, so that it can be read while the body
//! runs. It is queued before the body's result can be, so it is durable before that or with it. If the
//! committer does not know whether an item was written, it writes nothing more of this stay of the run
//! in memory ([`RunStreams::lose`]); the run is read again, and the body runs again. How
//! much may be queued is bounded by bytes, for all bodies of a process together: a body that emits
//! faster than the disk can take it waits.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;

use super::{Ctx, Sealer, Whose, encode, step::Step};
use crate::{
    codec::{DecodeError, bare},
    commit::{Effect, Emission, Emit, EmittedBy},
    error::{Error, Failure, FailureKind, Result},
    name::check_name,
    run::{
        core::{Core, Mode},
        owner::Owner,
    },
    run_id::RunNo,
    settings::Settings,
};

impl Ctx {
    /// Appends an item to a stream of this run, which clients follow with
    /// [`RunHandle::stream`](crate::RunHandle::stream) while the run goes on, and can read for as
    /// long as the run is kept.
    ///
    /// It becomes durable together with what the workflow does next, exactly once, however often
    /// the run is recovered. A run that is tried again as a whole emits again what comes after the
    /// step that failed. From inside a body use [`Step::emit`].
    ///
    /// ```
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn import(ctx: Ctx, files: Vec<String>) -> Result<()> {
    ///     for file in &files {
    ///         ctx.step("import", async || Ok(())).await?;
    ///         ctx.emit("done", file)?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::in_memory().register(import).start().await?;
    /// let run = engine.client().start(import, vec!["a".into(), "b".into()]).await?;
    /// let mut done = run.stream::<String>("done");
    /// let mut seen = Vec::new();
    /// while let Some(item) = done.next().await? {
    ///     seen.push((item.position, item.value));
    /// }
    /// assert_eq!(seen, [(0, "a".to_owned()), (1, "b".to_owned())]);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the item cannot be encoded or is larger than the limit for payloads, or if the run would
    /// have more streams than [`Settings::streams_max`].
    pub fn emit<T: Serialize + ?Sized>(&self, stream: &str, item: &T) -> Result<()> {
        let core = self.core();
        core.check_outside_body(|| {
            format!("an item of the stream `{stream}` with `ctx.emit`, not with `Step::emit`")
        })?;
        let streams = core.streams();
        let body = encode(core, item, Whose::Runs, || format!("an item of the stream `{stream}`"))?;
        let emit = prepare(&core.env.settings, &streams, stream, body, None)?;
        core.emit(emit);
        Ok(())
    }
}

impl Step {
    /// Appends an item to a stream of the run, which clients can read at once, before the body
    /// ends. See [`Ctx::emit`].
    ///
    /// The item is tagged with the step and the attempt. A body that runs again, after a failed
    /// attempt or a crash, emits again; what it emitted before stays, and readers are told (see
    /// [`StreamItem::restarted`](crate::StreamItem::restarted)). Everything that a body has emitted
    /// is durable before its result is, or with it. If the store cannot say whether an item was
    /// written, as after a lost connection, the result is not recorded: the body runs again, as after
    /// a crash. What is emitted after the run has ended, or by a process that has lost the run, is
    /// dropped.
    ///
    /// It waits only while too much of what bodies have emitted is not durable yet.
    ///
    /// ```
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn answer(ctx: Ctx, words: Vec<String>) -> Result<usize> {
    ///     ctx.step_with("think", async |step| {
    ///         for word in &words {
    ///             step.emit("words", word).await?;
    ///         }
    ///         Ok(words.len())
    ///     })
    ///     .await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::in_memory().register(answer).start().await?;
    /// let run = engine.client().start(answer, vec!["forty".into(), "two".into()]).await?;
    /// let item = run.stream::<String>("words").next().await?.expect("the first word");
    /// assert_eq!(item.value, "forty");
    /// assert_eq!(item.by.expect("a body").location, "think");
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Ctx::emit`].
    pub async fn emit<T: Serialize + ?Sized>(&self, stream: &str, item: &T) -> Result<()> {
        let emitter = self.emitter();
        let emit = emitter.prepare(stream, item)?;
        emitter.send(emit).await;
        Ok(())
    }

    /// As [`emit`](Step::emit), for a body that blocks ([`Ctx::blocking`]).
    ///
    /// # Errors
    ///
    /// As [`Ctx::emit`].
    pub fn emit_blocking<T: Serialize + ?Sized>(&self, stream: &str, item: &T) -> Result<()> {
        let emitter = self.emitter();
        let emit = emitter.prepare(stream, item)?;
        crate::seam::block_on(emitter.send(emit), "room to emit");
        Ok(())
    }
}

/// How a body emits. On whatever thread it runs.
pub(crate) struct Emitter {
    /// None where a run is tried, or driven by hand.
    owner: Option<Arc<dyn Owner>>,
    /// Of the lease that the run is in memory under.
    epoch: u64,
    settings: Arc<Settings>,
    sealer: Sealer,
    streams: Arc<RunStreams>,
    run: RunNo,
    generation: u32,
    by: EmittedBy,
}

impl Emitter {
    pub(crate) fn new(core: &Core, key: &[u8], attempt: u32) -> Emitter {
        let epoch = core.env.epoch.get();
        Emitter {
            owner: core.env.owner.clone(),
            epoch,
            settings: core.env.settings.clone(),
            sealer: Sealer::of(core),
            streams: core.streams(),
            run: core.facts.id.no(),
            generation: core.facts.generation,
            by: EmittedBy {
                step: key.to_vec(),
                attempt,
                // No two owners have one epoch, and a process gives no number twice. They do not rise: a
                // shard may go to a runner that has registered before.
                life: epoch << 32 | u64::from(core.life()),
            },
        }
    }

    fn prepare<T: Serialize + ?Sized>(&self, stream: &str, item: &T) -> Result<Emit> {
        let by = Some(self.by.clone());
        let body = self.sealer.encode(item)?;
        prepare(&self.settings, &self.streams, stream, body, by)
    }

    /// Waits for room and hands the item to the committer.
    async fn send(&self, emit: Emit) {
        let Some(owner) = &self.owner else { return };
        let bytes = emit.body.len() + emit.stream.len() + self.by.step.len() + ITEM_BYTES;
        let emission = Emission { run: self.run, generation: self.generation, items: vec![emit] };
        owner.emit(self.epoch, emission, bytes, &self.streams).await;
    }
}

/// What an item costs in the queue besides its bytes.
const ITEM_BYTES: usize = 256;

fn prepare(
    settings: &Settings,
    streams: &RunStreams,
    stream: &str,
    body: Vec<u8>,
    by: Option<EmittedBy>,
) -> Result<Emit> {
    check_name(stream).map_err(Error::fatal)?;
    streams.admit(stream, settings.streams_max)?;
    Ok(Emit { stream: stream.to_owned(), by, body, items_max: settings.stream_items_max })
}

/// The streams of a run, for one stay in memory: shared by its code, its bodies and the committer.
#[derive(Debug, Default)]
pub(crate) struct RunStreams {
    names: Mutex<BTreeSet<String>>,
    /// An item that a body has emitted in this stay is missing, or may be. Never taken back.
    has_lost: AtomicBool,
}

impl RunStreams {
    pub(crate) fn new(names: Vec<String>) -> RunStreams {
        let names = Mutex::new(names.into_iter().collect());
        RunStreams { names, has_lost: AtomicBool::new(false) }
    }

    /// An item may be missing. From now on nothing of this stay is written: a result that follows would
    /// be recorded without its items.
    pub(crate) fn lose(&self) {
        self.has_lost.store(true, Ordering::Release);
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }

    /// Lets a stream in that is known, or that there is room for. A run that has a stream keeps it,
    /// so what was let in once is let in by every replay.
    fn admit(&self, stream: &str, limit: usize) -> Result<()> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(stream) {
            return Ok(());
        }
        if names.len() >= limit {
            let text = format!(
                "the stream `{stream}` cannot be begun: the run has {} streams, and the limit is \
                 {limit}; put items of several kinds into one stream, or raise `streams_max`",
                names.len()
            );
            let failure = Failure::new(FailureKind::Limit, text);
            return Err(Error::recorded(failure, Vec::new()));
        }
        names.insert(stream.to_owned());
        Ok(())
    }
}

/// Which item of the workflow's own code this is: how many completions the code had taken, and
/// which item it is since then. The same on every replay, and rising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    pub(crate) count: u64,
}

/// The format of [`Mark::encode`].
const MARK_VERSION: u16 = 1;

impl Mark {
    /// The mark of the next item, when the code has taken this number.
    pub(crate) fn next(self, number: u64) -> Mark {
        let count = if number > self.number { 1 } else { self.count + 1 };
        let number = number.max(self.number);
        Mark { number, count }
    }

    /// The last mark that stands when the numbers from `lowest` on are taken anew.
    pub(crate) fn before(self, lowest: u64) -> Mark {
        let (number, count) = (lowest.saturating_sub(1), u64::MAX);
        self.min(Mark { number, count })
    }

    /// A 2-byte version, then BARE.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = bare::Writer::new(&mut bytes);
        writer.u16(MARK_VERSION);
        writer.uint(self.number);
        writer.uint(self.count);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Mark, DecodeError> {
        let mut reader = bare::Reader::new(bytes);
        let found = reader.u16()?;
        if found != MARK_VERSION {
            return Err(DecodeError::UnknownVersion { what: "a mark", found, known: MARK_VERSION });
        }
        let (number, count) = (reader.uint()?, reader.uint()?);
        reader.finish()?;
        Ok(Mark { number, count })
    }
}

impl Core {
    pub(crate) fn streams(&self) -> Arc<RunStreams> {
        let mut st = self.state.borrow_mut();
        st.streams.get_or_insert_default().clone()
    }

    /// Puts an item of the workflow's own code into the next commit, unless it is stored already.
    fn emit(&self, emit: Emit) {
        let mut st = self.state.borrow_mut();
        // What is collected for a rollback has said all that it had to say.
        if st.mode == Mode::Collect {
            return;
        }
        st.emit_mark = st.emit_mark.next(st.taken);
        if st.emit_mark > st.emitted {
            st.effects.push(Effect::Emit(Box::new(emit)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_has_a_fixed_format() {
        let mark = Mark { number: 300, count: 2 };
        assert_eq!(mark.encode(), [1, 0, 0xAC, 2, 2]);
        assert_eq!(Mark::decode(&mark.encode()), Ok(mark));
        assert!(Mark::decode(&[1, 0, 0xAC, 2]).is_err());
        assert!(Mark::decode(&[2, 0, 1, 1]).is_err());
    }

    #[test]
    fn marks_rise_with_every_item_and_count_anew_after_every_completion() {
        let first = Mark::default().next(0);
        let second = first.next(0);
        let third = second.next(4);
        assert!(Mark::default() < first && first < second && second < third);
        assert_eq!((third.number, third.count), (4, 1));
        // From number 3 on all is done again: what came after number 2 stands.
        assert_eq!(third.before(3), Mark { number: 2, count: u64::MAX });
        assert_eq!(second.before(3), second);
    }
}
