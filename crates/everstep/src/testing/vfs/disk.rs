//! The disk as it would be after a power cut: a model without any file.
//!
//! [`super::functions`] tells it what SQLite does to each file; [`super::FaultVfs`] asks it what
//! would be left. What is always true of it is said there.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{Fault, FileCounts, FileKind, PowerCut};
use crate::random;

/// The unit in which a disk writes: a torn write ends at a multiple of this.
const SECTOR_BYTES: usize = 512;

/// What is known about the files of one VFS.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: HashMap<PathBuf, TrackedFile>,
    counts: HashMap<FileKind, FileCounts>,
    pub(super) write_fault: Option<Planned>,
    pub(super) sync_fault: Option<Planned>,
    pub(super) cut_in: Option<u64>,
    pub(super) cut: bool,
    /// How many bytes all files may have together.
    pub(super) room: Option<u64>,
    /// How many each has.
    sizes: HashMap<PathBuf, u64>,
}

/// A failure that is to come.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) left: u64,
    pub(super) fault: Fault,
    pub(super) goes_on: bool,
}

/// A file: what is durable of it (`None`: that it is not there), and what was done to it since.
#[derive(Debug)]
pub(super) struct TrackedFile {
    durable: Option<Vec<u8>>,
    unsynced: Vec<Change>,
}

#[derive(Debug)]
pub(super) enum Change {
    Create,
    Write { at: usize, data: Vec<u8> },
    Truncate { len: usize },
    Delete,
}

impl State {
    /// Begins to follow a file that was opened. `found` tells what was in it, or `None` if it was
    /// not there; what was there before we knew it is taken as durable.
    pub(super) fn opened(&mut self, path: &Path, found: impl FnOnce() -> Option<Vec<u8>>) {
        let file = self.files.entry(path.to_owned());
        let sizes = &mut self.sizes;
        file.or_insert_with(|| {
            let durable = found();
            let size = durable.as_ref().map_or(0, Vec::len);
            sizes.insert(path.to_owned(), size as u64);
            TrackedFile { durable, unsynced: Vec::new() }
        });
    }

    /// Notes that a write makes a file so long; `false`, and nothing is noted, if the disk is full.
    pub(super) fn grow(&mut self, path: &Path, end: u64) -> bool {
        let size = self.sizes.get(path).copied().unwrap_or(0);
        let more = end.saturating_sub(size);
        let used: u64 = self.sizes.values().sum();
        if more > 0 && self.room.is_some_and(|room| used + more > room) {
            return false;
        }
        self.sizes.insert(path.to_owned(), size + more);
        true
    }

    /// Notes that a file was cut, or is gone.
    pub(super) fn shrink(&mut self, path: &Path, len: u64) {
        if let Some(size) = self.sizes.get_mut(path) {
            *size = len.min(*size);
        }
    }

    /// Records that a file was created by being opened, unless the power is cut. Not counted as an
    /// operation.
    pub(super) fn created(&mut self, path: &Path) {
        if !self.cut
            && let Some(file) = self.files.get_mut(path)
        {
            file.unsynced.push(Change::Create);
        }
    }

    /// Counts down a planned failure; the fault if it is its turn.
    pub(super) fn due(planned: &mut Option<Planned>) -> Option<Fault> {
        let plan = planned.as_mut()?;
        plan.left = plan.left.saturating_sub(1);
        if plan.left > 0 {
            return None;
        }
        let fault = plan.fault;
        if !plan.goes_on {
            *planned = None;
        }
        Some(fault)
    }

    /// Records a change of a file, unless the power is cut.
    pub(super) fn record(&mut self, path: &Path, change: Change) {
        if self.count_down() {
            return;
        }
        if let Some(file) = self.files.get_mut(path) {
            file.unsynced.push(change);
        }
    }

    /// Makes durable what was done to a file, unless the power is cut.
    pub(super) fn sync(&mut self, path: &Path) {
        if self.count_down() {
            return;
        }
        if let Some(file) = self.files.get_mut(path) {
            file.sync();
        }
    }

    /// Makes durable which files are there, in the directory of this one, unless the power is cut.
    pub(super) fn sync_names_beside(&mut self, path: &Path) {
        if self.cut {
            return;
        }
        for (other, file) in &mut self.files {
            if other.parent() == path.parent() {
                file.sync_name();
            }
        }
    }

    /// Counts an operation; whether the power is cut before it.
    fn count_down(&mut self) -> bool {
        match &mut self.cut_in {
            Some(0) => self.cut = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.cut
    }

    pub(super) fn counts(&mut self, kind: FileKind) -> &mut FileCounts {
        self.counts.entry(kind).or_default()
    }
}

impl TrackedFile {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Create => self.durable = Some(Vec::new()),
                Change::Delete => self.durable = None,
                Change::Truncate { len } => {
                    if let Some(content) = &mut self.durable {
                        content.truncate(len);
                    }
                }
                Change::Write { at, data } => {
                    write_at(self.durable.get_or_insert_default(), at, &data);
                }
            }
        }
    }

    /// Makes durable whether the file is there, but not what was written to it.
    fn sync_name(&mut self) {
        let names_it = |change: &Change| matches!(change, Change::Create | Change::Delete);
        if let Some(last) = self.unsynced.iter().rposition(names_it) {
            let created = matches!(self.unsynced[last], Change::Create);
            self.durable = created.then(Vec::new);
            self.unsynced.drain(..=last);
        }
    }

    /// What is found of the file after a power cut.
    pub(super) fn after(&self, how: PowerCut, file_no: u64) -> Option<Vec<u8>> {
        let mut content = self.durable.clone();
        let PowerCut::Torn(seed) = how else {
            return content;
        };
        let mut luck = Luck::new(seed, file_no);
        for change in &self.unsynced {
            match change {
                // What is done to a file after its name has changed hands is done to another file:
                // if the change of the name is lost, so is all that follows.
                Change::Create if luck.survives() => content = Some(Vec::new()),
                Change::Delete if luck.survives() => content = None,
                Change::Create | Change::Delete => break,
                Change::Truncate { len } => {
                    if luck.survives() {
                        content.as_mut().into_iter().for_each(|content| content.truncate(*len));
                    }
                }
                Change::Write { at, data } => {
                    for (at, data) in sectors(*at, data) {
                        if luck.survives() {
                            write_at(content.get_or_insert_default(), at, data);
                        }
                    }
                }
            }
        }
        content
    }
}

fn write_at(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    let end = at + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(data);
}

/// The parts of a write that lie in different sectors.
pub(super) fn sectors(mut at: usize, mut data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let len = data.len().min(SECTOR_BYTES - at % SECTOR_BYTES);
        let (sector, rest) = data.split_at_checked(len).filter(|_| len > 0)?;
        let item = (at, sector);
        (at, data) = (at + len, rest);
        Some(item)
    })
}

/// Decides what survives.
struct Luck {
    state: u64,
    /// Of 256. Differs between cuts, so that almost all, about half or almost none survives.
    chance: u64,
}

impl Luck {
    fn new(seed: u64, file_no: u64) -> Luck {
        let state = random::mix(random::mix(seed).wrapping_add(file_no));
        let chance = [16, 128, 240][(state % 3) as usize];
        Luck { state, chance }
    }

    fn survives(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        random::mix(self.state) & 0xFF < self.chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_torn_at_sectors() {
        let data = [7; 1_000];
        let parts: Vec<_> = sectors(500, &data).map(|(at, part)| (at, part.len())).collect();
        assert_eq!(parts, [(500, 12), (512, 512), (1_024, 476)]);
        assert_eq!(sectors(3, &[]).count(), 0);
    }
}
