//! The messages of a run that it has not read, as far as its owner has seen them.

use std::collections::{BTreeMap, VecDeque};

use crate::commit::{InboxKind, InboxRow};

/// Unread messages by name, each in order of arrival.
#[derive(Default)]
pub(crate) struct Inbox {
    by_name: BTreeMap<String, VecDeque<InboxRow>>,
    /// What is for one operation alone, by its key.
    answers: BTreeMap<Vec<u8>, InboxRow>,
    /// The last message that was seen, read or not.
    seen: u64,
}

impl Inbox {
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Notes that everything up to here was seen, though it may have been read long ago.
    pub(crate) fn set_seen(&mut self, seq: u64) {
        self.seen = self.seen.max(seq);
    }

    /// Adds a message, unless it is here or was read already. A message that does not follow the
    /// last one is not added: the owner must read what is between first.
    pub(crate) fn push(&mut self, row: &InboxRow) -> bool {
        if row.seq <= self.seen {
            return false;
        }
        self.seen = row.seq;
        if let Some(wait) = &row.wait {
            // One answer is all that an operation takes; the first counts.
            self.answers.entry(wait.clone()).or_insert_with(|| row.clone());
            return true;
        }
        debug_assert_eq!(row.kind, InboxKind::Message, "all else is for an operation");
        self.by_name.entry(row.name.clone()).or_default().push_back(row.clone());
        true
    }

    /// What has come for this operation.
    pub(crate) fn answer(&self, key: &[u8]) -> Option<&InboxRow> {
        self.answers.get(key)
    }

    /// Takes what has come for this operation.
    pub(crate) fn take_answer(&mut self, key: &[u8]) -> Option<InboxRow> {
        self.answers.remove(key)
    }

    /// Whether there is a message of one of these names; any name if there are none.
    pub(crate) fn has(&self, names: &[String]) -> bool {
        self.first(names).is_some()
    }

    /// The name of the oldest message of one of these names.
    fn first(&self, names: &[String]) -> Option<&str> {
        let queues: &mut dyn Iterator<Item = (&String, &VecDeque<InboxRow>)> = if names.is_empty() {
            &mut self.by_name.iter()
        } else {
            &mut names.iter().filter_map(|name| self.by_name.get_key_value(name))
        };
        let fronts = queues.filter_map(|(name, queue)| Some((queue.front()?.seq, name)));
        fronts.min().map(|(_, name)| name.as_str())
    }

    /// Takes up to `batch` messages, oldest first.
    pub(crate) fn take(&mut self, names: &[String], batch: usize) -> Vec<InboxRow> {
        let mut taken = Vec::new();
        while taken.len() < batch {
            let Some(name) = self.first(names).map(str::to_owned) else {
                break;
            };
            let Some(queue) = self.by_name.get_mut(&name) else {
                break;
            };
            taken.extend(queue.pop_front());
            if queue.is_empty() {
                self.by_name.remove(&name);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn row(seq: u64, name: &str) -> InboxRow {
        let sent_at = Timestamp::from_millis(0);
        InboxRow {
            seq,
            kind: InboxKind::Message,
            name: name.into(),
            body: vec![],
            wait: None,
            request: None,
            sent_at,
            on_end: None,
        }
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn several_names_are_taken_in_order_of_arrival() {
        let mut inbox = Inbox::default();
        for (seq, name) in [(1, "b"), (2, "a"), (3, "c"), (4, "b")] {
            assert!(inbox.push(&row(seq, name)));
        }
        assert!(!inbox.push(&row(4, "b")), "a message that was seen is not added again");
        let taken = inbox.take(&names(&["a", "b"]), 9);
        assert_eq!(taken.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(!inbox.has(&names(&["a"])));
        assert!(inbox.has(&[]), "no names means any");
    }
}
