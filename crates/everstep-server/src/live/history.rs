//! The history of a run, followed without reading all of it at every change.
//!
//! It is read in pages by location. A page is looked at again if something in it has not ended, if it
//! has changed in one of the last looks, or if it is the last: there new entries come. What comes
//! elsewhere is found because each look takes up one of the other pages, too, until all were looked at
//! since the run last changed. When a run has ended, all of it is read once more.

use std::collections::{HashMap, VecDeque};

use everstep::{ClientError, EntryStatus, HistoryEntry, RunHandle, Timestamp};

use super::Mark;

/// How many entries a page has at first. It is cut in two when it has grown to twice as many.
const PAGE: usize = 500;

/// For how many looks a page is looked at again after it has changed.
const WARM: u32 = 4;

/// For how many looks all is as it was before nothing is read: two changes may have the same time.
const SAME: u32 = 2;

/// What changes of an entry when anything does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: EntryStatus,
    number: Option<u64>,
    attempts: u32,
    started_at: Option<Timestamp>,
    wake_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
    size: usize,
}

impl Seen {
    fn of(entry: &HistoryEntry) -> Seen {
        Seen {
            status: entry.status,
            number: entry.number,
            attempts: entry.attempts,
            started_at: entry.started_at,
            wake_at: entry.wake_at,
            completed_at: entry.completed_at,
            size: entry.size,
        }
    }
}

#[derive(Debug, Default)]
struct Page {
    /// The cursor that it begins after.
    after: Option<String>,
    /// The location of its first entry, at which the page before it ends.
    first: Option<String>,
    seen: HashMap<String, Seen>,
    is_open: bool,
    /// For how many looks it has not changed.
    calm: u32,
}

/// What was told of the history of a run.
pub(super) struct Follower {
    run: RunHandle,
    pages: Vec<Page>,
    mark: Option<Mark>,
    /// How many looks all has been as it was.
    same: u32,
    /// How many pages there are to be looked at since the run last changed, beside those that are
    /// looked at anyway.
    unswept: usize,
    /// Which of them is next.
    sweep: usize,
}

/// One look, page by page.
pub(super) struct Look<'f> {
    follower: &'f mut Follower,
    pages: VecDeque<usize>,
}

impl Follower {
    pub(super) fn new(run: RunHandle) -> Follower {
        Follower { run, pages: Vec::new(), mark: None, same: 0, unswept: 0, sweep: 0 }
    }

    /// Looks for what is new, now that the run is like this.
    pub(super) fn look(&mut self, mark: Mark, has_ended: bool) -> Look<'_> {
        let before = self.mark.replace(mark);
        let is_same = before == self.mark;
        if before.map(|it| it.generation) != self.mark.as_ref().map(|it| it.generation) {
            self.pages = vec![Page::default()];
        }
        if is_same {
            self.same = self.same.saturating_add(1);
        } else {
            (self.same, self.unswept) = (0, self.pages.len());
        }
        let pages = match self.same {
            0 if has_ended => (0..self.pages.len()).collect(),
            0..SAME => self.warm(),
            _ => self.swept().into_iter().collect(),
        };
        Look { follower: self, pages }
    }

    /// The pages where something is likely to be new, and one more.
    fn warm(&mut self) -> VecDeque<usize> {
        let last = self.pages.len() - 1;
        let pages = self.pages.iter().enumerate();
        let warm = pages.filter(|(at, page)| *at == last || page.is_open || page.calm < WARM);
        let mut warm: VecDeque<usize> = warm.map(|(at, _)| at).collect();
        if let Some(at) = self.swept().filter(|at| !warm.contains(at)) {
            warm.push_front(at);
            warm.make_contiguous().sort_unstable();
        }
        warm
    }

    /// The next page that was not looked at since the run changed.
    fn swept(&mut self) -> Option<usize> {
        self.unswept = self.unswept.checked_sub(1)?;
        self.sweep = (self.sweep + 1) % self.pages.len();
        Some(self.sweep)
    }

    /// Reads a page again: what is new in it; nothing if the pages are no more what they were, and
    /// all has to be read anew.
    async fn read(&mut self, at: usize) -> Result<Option<Vec<HistoryEntry>>, ClientError> {
        let after = self.pages[at].after.clone();
        let found = self.page(&after, self.pages[at].seen.len() + PAGE).await?;
        let mut entries = found.entries;
        let has_more = found.next.is_some();
        match self.pages.get(at + 1) {
            Some(next) => {
                let end = entries.iter().position(|it| next.first.as_ref() == Some(&it.location));
                let Some(end) = end else { return Ok(None) };
                entries.truncate(end);
            }
            None => {
                if let Some(after) = found.next {
                    let after = Some(after);
                    self.pages.push(Page { after, ..Page::default() });
                }
            }
        }
        let page = &mut self.pages[at];
        page.first = entries.first().map(|it| it.location.clone());
        page.is_open = entries.iter().any(|it| !it.status.is_terminal());
        let now: HashMap<String, Seen> =
            entries.iter().map(|it| (it.location.clone(), Seen::of(it))).collect();
        let before = std::mem::replace(&mut page.seen, now);
        // Not if there is a page after it now, of which nothing is known yet.
        if entries.len() > 2 * PAGE && !(at + 2 == self.pages.len() && has_more) {
            self.cut(at, &entries).await?;
        }
        entries.retain(|it| before.get(&it.location) != Some(&Seen::of(it)));
        let page = &mut self.pages[at];
        page.calm = if entries.is_empty() { page.calm.saturating_add(1) } else { 0 };
        Ok(Some(entries))
    }

    /// Makes two pages of one that has grown.
    async fn cut(&mut self, at: usize, entries: &[HistoryEntry]) -> Result<(), ClientError> {
        let half = self.page(&self.pages[at].after, PAGE).await?;
        let last = half.entries.last().map(|it| &it.location);
        let end = entries.iter().position(|it| Some(&it.location) == last);
        let (Some(after), Some(end)) = (half.next, end) else {
            return Ok(());
        };
        let Some(rest) = entries.get(end + 1..).filter(|rest| !rest.is_empty()) else {
            return Ok(());
        };
        let mut new = Page {
            after: Some(after),
            first: Some(rest[0].location.clone()),
            is_open: self.pages[at].is_open,
            ..Page::default()
        };
        for entry in rest {
            if let Some(seen) = self.pages[at].seen.remove(&entry.location) {
                new.seen.insert(entry.location.clone(), seen);
            }
        }
        self.pages.insert(at + 1, new);
        Ok(())
    }

    async fn page(
        &self,
        after: &Option<String>,
        limit: usize,
    ) -> Result<everstep::HistoryPage, ClientError> {
        let mut read = self.run.history().limit(limit);
        if let Some(after) = after {
            read = read.after(after.clone());
        }
        read.page().await
    }
}

impl Look<'_> {
    /// The next entries that are new or have changed; nothing when all that is to be looked at was.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<HistoryEntry>>, ClientError> {
        while let Some(at) = self.pages.pop_front() {
            let count = self.follower.pages.len();
            let Some(new) = self.follower.read(at).await? else {
                self.follower.pages = vec![Page::default()];
                self.pages = VecDeque::from([0]);
                continue;
            };
            // A page that was cut has moved those after it; one that is new at the end is read, too.
            if self.follower.pages.len() > count {
                let is_last = at + 1 == count;
                for later in &mut self.pages {
                    *later += 1;
                }
                if is_last {
                    self.pages.push_back(at + 1);
                }
            }
            if !new.is_empty() {
                return Ok(Some(new));
            }
        }
        Ok(None)
    }
}
