//! How far long work is, on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, if somebody looks; it is gone when the work is done.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For work whose amount is known.
    pub(crate) fn of(total: u64, what: &'static str) -> Progress {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        // The template is a constant, so it is right always or never; a bar of another look is no harm.
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left")
        {
            bar.set_style(style);
        }
        bar.set_message(what);
        Progress(bar)
    }

    /// So much is done.
    pub(crate) fn is(&self, done: u64) {
        self.0.set_position(done);
    }

    /// The amount has turned out to be this.
    pub(crate) fn total(&self, total: u64) {
        self.0.set_length(total);
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// What is done now.
    pub(crate) fn message(&self, what: &'static str) {
        self.0.set_message(what);
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
