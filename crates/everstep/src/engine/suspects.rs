//! Suspects: runs that were in memory each time that a process died, and got nowhere.
//!
//! One of them may be what kills the process. A few run at the same time; one that was recorded as
//! running at several deaths runs alone, so that in the end only the culprit is recorded every
//! time, and the innocent get on.

use std::sync::Arc;

use super::{mailbox::Event, shared::Shared};
use crate::seam::{Leaf, LeafGuard};

/// How many suspects run at the same time.
const TOGETHER: usize = 4;

/// Recorded as running at this many deaths, a suspect runs alone.
pub(crate) const ALONE_AFTER: u32 = 3;

/// Lets suspects in.
#[derive(Default)]
pub(crate) struct Gate(Leaf<Inside>);

#[derive(Default)]
struct Inside {
    suspects: usize,
    alone: bool,
}

/// The right of one suspect to be in memory. Given back when dropped.
pub(crate) struct Pass {
    shared: Arc<Shared>,
    alone: bool,
}

impl Gate {
    /// A pass, if there is room, together with what else its run needs to be read.
    ///
    /// Both are taken at once. To give back a pass because the other is missing would wake the thread that
    /// asks, which would ask again at once, and so on until the other is there.
    pub(crate) fn enter<P>(
        shared: &Arc<Shared>,
        alone: bool,
        place: impl FnOnce() -> Option<P>,
    ) -> Option<(Pass, P)> {
        let mut inside = shared.suspects.lock();
        let room = if alone { inside.suspects == 0 } else { inside.suspects < TOGETHER };
        if inside.alone || !room {
            return None;
        }
        let place = place()?;
        inside.suspects += 1;
        inside.alone = alone;
        Some((Pass { shared: shared.clone(), alone }, place))
    }

    fn lock(&self) -> LeafGuard<'_, Inside> {
        self.0.lock()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        {
            let mut inside = self.shared.suspects.lock();
            inside.suspects -= 1;
            inside.alone &= !self.alone;
        }
        // Others may be waiting, on any thread.
        for thread in &self.shared.threads {
            thread.push(Event::Timer);
        }
    }
}
