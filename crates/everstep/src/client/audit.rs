//! The audit log: who has changed what.

use super::{Client, ClientError, page};
use crate::{
    store::{AuditRow, NewAudit},
    time::Timestamp,
};

/// The longest name of somebody, of an action or of what it is done to; longer ones are cut.
const NAME_BYTES_MAX: usize = 1_024;

/// The longest detail, and the longest outcome; longer ones are cut.
const DETAIL_BYTES_MAX: usize = 16 << 10;

impl Client {
    /// The audit log of this store: who has changed what, and what became of it.
    ///
    /// Whoever changes something on behalf of somebody notes so first and goes on only when that is
    /// durable, and notes the outcome afterwards. So nothing is done that the log does not know of;
    /// an entry without an outcome tells that its end was not noted, and that it may have happened.
    /// Entries are kept for [`Settings::audit_kept`](crate::Settings::audit_kept).
    ///
    /// ```
    /// # use everstep::{AuditNew, RunId, prelude::*};
    /// # async fn cancel(client: Client, run: RunId) -> Result<(), everstep::ClientError> {
    /// let audit = client.audit();
    /// let no = audit.begin(AuditNew::new("ada", "cancel").target(run)).await?;
    /// let cancelled = client.run::<()>(run).cancel().await;
    /// let outcome = cancelled.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
    /// audit.end(no, outcome).await?;
    /// # Ok(()) }
    /// ```
    pub fn audit(&self) -> Audit {
        Audit { client: self.clone() }
    }
}

/// The audit log of a store: see [`Client::audit`].
#[derive(Clone)]
pub struct Audit {
    client: Client,
}

/// Something that is about to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditNew {
    /// Who does it: the name of a token, of a user, of a program.
    pub who: String,
    /// What is done, in a word or two.
    pub action: String,
    /// What it is done to: the id of a run, the name of a schedule. May be empty.
    pub target: String,
    /// What else there is to say. May be empty.
    pub detail: String,
}

impl AuditNew {
    /// `who` is about to do `action`.
    pub fn new(who: impl Into<String>, action: impl Into<String>) -> AuditNew {
        AuditNew {
            who: who.into(),
            action: action.into(),
            target: String::new(),
            detail: String::new(),
        }
    }

    /// What it is done to.
    pub fn target(mut self, target: impl ToString) -> AuditNew {
        self.target = target.to_string();
        self
    }

    /// What else there is to say.
    pub fn detail(mut self, detail: impl Into<String>) -> AuditNew {
        self.detail = detail.into();
        self
    }
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Its number. Numbers rise and are never used again.
    pub no: u64,
    /// When it was begun.
    pub at: Timestamp,
    /// Who has done it.
    pub who: String,
    /// What was done.
    pub action: String,
    /// What it was done to; may be empty.
    pub target: String,
    /// What else there was to say; may be empty.
    pub detail: String,
    /// What became of it; absent if its end was never noted.
    pub outcome: Option<String>,
}

/// A page of the audit log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditPage {
    /// The entries, newest first.
    pub entries: Vec<AuditEntry>,
    /// What to give to [`Audit::list`] for the next page, if there is one.
    pub next: Option<u64>,
}

impl Audit {
    /// Notes what is about to be done; the number of the entry, once it is durable. What is longer
    /// than an entry holds is cut.
    ///
    /// # Errors
    ///
    /// If the store cannot be written: then it should not be done.
    pub async fn begin(&self, new: AuditNew) -> Result<u64, ClientError> {
        let begun = NewAudit {
            at: self.client.shared.now(),
            who: cut(new.who, NAME_BYTES_MAX),
            action: cut(new.action, NAME_BYTES_MAX),
            target: cut(new.target, NAME_BYTES_MAX),
            detail: cut(new.detail, DETAIL_BYTES_MAX),
        };
        self.client.read(move |store| store.begin_audit(&begun)).await
    }

    /// Notes what became of it. `false` if there is no such entry, or it has an outcome already,
    /// which stays.
    ///
    /// # Errors
    ///
    /// If the store cannot be written: the entry then has no outcome.
    pub async fn end(&self, no: u64, outcome: impl Into<String>) -> Result<bool, ClientError> {
        let outcome = cut(outcome.into(), DETAIL_BYTES_MAX);
        self.client.read(move |store| store.end_audit(no, &outcome)).await
    }

    /// Entries, newest first: those after `cursor`, which is [`AuditPage::next`] of the page before,
    /// or the newest. At least one and at most 1 000.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn list(&self, cursor: Option<u64>, limit: usize) -> Result<AuditPage, ClientError> {
        let limit = limit.clamp(1, 1_000);
        // One more than asked for shows whether there is another page.
        let rows = self.client.read(move |store| store.audits(cursor, limit + 1));
        let (rows, next) = page(rows.await?, limit, |row| row.no);
        Ok(AuditPage { entries: rows.into_iter().map(AuditEntry::new).collect(), next })
    }
}

impl AuditEntry {
    fn new(row: AuditRow) -> AuditEntry {
        let NewAudit { at, who, action, target, detail } = row.begun;
        AuditEntry { no: row.no, at, who, action, target, detail, outcome: row.outcome }
    }
}

/// The text, or as much of it as there is room for, with a sign that there was more.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let sign = '…';
        let mut end = bytes_max - sign.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push(sign);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        assert_eq!(cut("abc".to_owned(), 3), "abc");
        let cut = cut("ä".repeat(10), 8);
        assert_eq!(cut, "ää…");
        assert!(cut.len() <= 8);
    }
}
