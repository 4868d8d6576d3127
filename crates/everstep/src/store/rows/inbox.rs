//! The rows of inboxes: messages, requests, dedupe keys and dead letters.

use uuid::Uuid;

use super::RunTables;
use crate::{
    commit::{DeadLetter, Delivery, InboxKind, InboxRow},
    run_id::{RunId, RunNo},
};

/// The rows of an inbox that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxPart<'a> {
    /// Answers to the operation with this key.
    Answers(&'a [u8]),
    /// Answers to any operation: every row that is no [`Message`](InboxKind::Message).
    AllAnswers,
    /// Messages that become events when the run ends: rows with an
    /// [`on_end`](InboxRow::on_end).
    Fallbacks,
}

impl InboxPart<'_> {
    /// Whether this row is meant.
    pub fn includes(self, row: &InboxRow) -> bool {
        match self {
            InboxPart::Answers(key) => row.wait.as_deref() == Some(key),
            InboxPart::AllAnswers => row.kind != InboxKind::Message,
            InboxPart::Fallbacks => row.on_end.is_some(),
        }
    }
}

/// The rows of inboxes: messages, requests, dedupe keys and dead letters. The inbox of a run is
/// changed under the lock of the run.
pub trait InboxTables: RunTables {
    /// Inserts a row into the inbox of a run. Its [`seq`](InboxRow::seq) is new there.
    fn insert_inbox(&mut self, run: RunNo, row: &InboxRow) -> Result<(), Self::Error>;

    /// The rows of an inbox after this one, in order.
    fn inbox_after(&mut self, run: RunNo, seen: u64) -> Result<Vec<InboxRow>, Self::Error>;

    /// How many rows an inbox has; counted no further than to `max`.
    fn count_inbox(&mut self, run: RunNo, max: u64) -> Result<u64, Self::Error>;

    /// Removes rows from an inbox by their sequence numbers.
    fn consume(&mut self, run: RunNo, seqs: &[u64]) -> Result<(), Self::Error>;

    /// Removes part of an inbox, and gives it in order.
    fn take_inbox(&mut self, run: RunNo, part: InboxPart<'_>)
    -> Result<Vec<InboxRow>, Self::Error>;

    /// The run has ended. Its unread messages become dead letters with this reason, in order, except
    /// for [fallbacks](InboxPart::Fallbacks). Its open requests are answered with
    /// [`Answer::RunEnded`](crate::store::Answer::RunEnded). Answers to operations stay.
    fn end_inbox(&mut self, run: RunId, reason: &str) -> Result<(), Self::Error>;

    /// Whether a message with this dedupe key has come to a run.
    fn has_dedupe(&mut self, run: RunNo, key: &str) -> Result<bool, Self::Error>;

    /// Notes that a message with this dedupe key has come to a run.
    fn note_dedupe(&mut self, run: RunNo, key: &str) -> Result<(), Self::Error>;

    /// Enters a request to a run, which is open until it is answered.
    fn open_request(&mut self, request: Uuid, run: RunNo) -> Result<(), Self::Error>;

    /// Answers a request, unless it has an answer: the first answer stays.
    fn reply_if_open(&mut self, request: Uuid, body: &[u8]) -> Result<(), Self::Error>;

    /// Makes a message a dead letter, with the number after the greatest. `run` is the run that the
    /// message was for, if there is one.
    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), Self::Error>;

    /// A dead letter by its number, locked, with the id and the status of its run.
    fn letter(&mut self, no: u64) -> Result<Option<DeadLetter>, Self::Error>;

    /// Removes a dead letter; `false` if there is none.
    fn remove_letter(&mut self, no: u64) -> Result<bool, Self::Error>;
}
