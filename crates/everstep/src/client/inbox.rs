//! What a run has not read yet.

use serde_json::Value as Json;

use super::{ClientError, RunHandle, view};
use crate::{
    commit::{InboxKind, InboxRow},
    location::keys,
    time::Timestamp,
};

/// The greatest number of messages that are read at a time.
const INBOX_PAGE_MAX: usize = 1_000;

/// Something that was delivered to a run and that it has not read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UnreadMessage {
    /// Its place in the inbox, from 1. Greater ones came later.
    pub seq: u64,
    /// What it is: a message, or an answer that an operation waits for.
    pub kind: InboxKind,
    /// The name that it was sent by; empty if it has none.
    pub name: String,
    /// A message's body, or the answer, as JSON; absent if it has none.
    pub body: Option<Json>,
    /// The location of the operation that it is for. Absent for a message, which is for whoever
    /// listens.
    pub location: Option<String>,
    /// Whether somebody waits for a reply.
    pub is_request: bool,
    /// When it was delivered.
    pub sent_at: Timestamp,
}

impl UnreadMessage {
    fn new(row: InboxRow, reader: &view::PayloadReader<'_>) -> UnreadMessage {
        UnreadMessage {
            seq: row.seq,
            kind: row.kind,
            body: view::unread_body(row.kind, &row.body, reader),
            location: row.wait.as_deref().map(keys::describe),
            name: row.name,
            is_request: row.request.is_some(),
            sent_at: row.sent_at,
        }
    }
}

impl<O> RunHandle<O> {
    /// What was delivered to the run and that it has not read, the first one first, at most `limit`
    /// and 1 000. Nothing is consumed: the run reads them as if nobody had looked.
    ///
    /// A run that is in memory may have taken one of them, which is written down with its next step.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn wait(ctx: Ctx, _: ()) -> Result<()> { ctx.listen::<()>("go").await }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(wait).start().await?;
    /// # let run = engine.client().start(wait, ()).await?;
    /// run.send("note", &"nobody listens to this").await?;
    /// let unread = run.inbox(10).await?;
    /// assert_eq!(unread[0].name, "note");
    /// assert_eq!(unread[0].body, Some("nobody listens to this".into()));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn inbox(&self, limit: usize) -> Result<Vec<UnreadMessage>, ClientError> {
        let no = self.row().await?.id.no();
        let limit = limit.min(INBOX_PAGE_MAX);
        let rows = self.client.read(move |store| store.unread(no, 0, limit)).await?;
        let reader = self.payload_reader();
        let rows = rows.into_iter();
        Ok(rows.map(|row| UnreadMessage::new(row, &reader)).collect())
    }
}
