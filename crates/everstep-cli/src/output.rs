//! What is printed: tables for people, JSON for programs.
//!
//! Tables go by what they know of the terminal; data of users is printed without control characters, so
//! that nothing in it can move the cursor or change a colour.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    sync::OnceLock,
    time::Duration,
};

use clap::{Args, ValueEnum};
use everstep::{RunStatus, Timestamp};
use serde_json::Value as Json;

use crate::args::{Span, now};

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

struct Manner {
    colours: bool,
    json: bool,
}

static MANNER: OnceLock<Manner> = OnceLock::new();

/// Says once how everything is printed.
pub(crate) fn set(colour: Colour, json: bool) {
    let colours = match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            let is_forbidden = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
            std::io::stdout().is_terminal() && !is_forbidden
        }
    };
    let _ = MANNER.set(Manner {
        colours: colours && !json,
        json,
    });
}

/// Whether JSON is asked for.
pub(crate) fn is_json() -> bool {
    MANNER.get().is_some_and(|manner| manner.json)
}

fn has_colours() -> bool {
    MANNER.get().is_some_and(|manner| manner.colours)
}

/// Prints to standard output. Whoever reads may have stopped, as `head` does: then there is nobody to
/// tell.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints a document of JSON.
pub(crate) fn print_json(json: &Json) {
    let text = serde_json::to_string_pretty(json).unwrap_or_default();
    print(&format!("{text}\n"));
}

/// Says something to people, beside what is printed.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Whether something is printed again and again.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Watch {
    /// Print it again whenever this time has passed, 1s if none is said.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s")]
    watch: Option<Span>,
}

impl Watch {
    /// Prints what `look` gives, as often as is asked for.
    pub(crate) async fn run<E>(
        self,
        mut look: impl AsyncFnMut() -> Result<String, E>,
    ) -> Result<(), E> {
        let Some(Span(pace)) = self.watch else {
            print(&look().await?);
            return Ok(());
        };
        let pace = pace.max(Duration::from_millis(100));
        loop {
            let text = look().await?;
            let clears = std::io::stdout().is_terminal() && !is_json();
            print(&if clears {
                format!("\x1b[2J\x1b[H{text}")
            } else {
                text
            });
            tokio::time::sleep(pace).await;
        }
    }
}

/// A table, whose columns are as wide as what is in them.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// What is in a cell.
pub(crate) struct Cell {
    text: String,
    colour: Option<&'static str>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell {
            text: plain(&text.into()),
            colour: None,
        }
    }
}

/// A text without what a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let plain = text.chars().map(|it| match it {
        '\n' | '\t' => ' ',
        it if it.is_control() => '\u{fffd}',
        it => it,
    });
    plain.collect()
}

impl Table {
    pub(crate) fn new<H: Into<String>>(head: impl IntoIterator<Item = H>) -> Table {
        Table {
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text; what it says if it has no rows.
    pub(crate) fn text(&self, nothing: &str) -> String {
        if self.rows.is_empty() {
            return format!("{nothing}\n");
        }
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let mut text = String::new();
        let head: Vec<Cell> = self.head.iter().map(|name| dim(name.as_str())).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            line(&mut text, row, &widths);
        }
        text
    }
}

fn line(text: &mut String, row: &[Cell], widths: &[usize]) {
    let last = row.len().saturating_sub(1);
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let pad = if at == last {
            0
        } else {
            width - cell.text.chars().count() + 2
        };
        let _ = match cell.colour.filter(|_| has_colours()) {
            Some(colour) => write!(text, "\x1b[{colour}m{}\x1b[0m", cell.text),
            None => write!(text, "{}", cell.text),
        };
        text.extend(std::iter::repeat_n(' ', pad));
    }
    text.push('\n');
}

pub(crate) fn dim(text: impl Into<String>) -> Cell {
    let text = plain(&text.into());
    let colour = Some("2");
    Cell { text, colour }
}

/// A status, in its colour.
pub(crate) fn status(status: RunStatus) -> Cell {
    let colour = match status {
        RunStatus::Completed => "32",
        RunStatus::Failed => "31",
        RunStatus::Cancelled => "90",
        RunStatus::Paused => "35",
        RunStatus::RollingBack => "33",
        RunStatus::Running => "36",
        _ => "34",
    };
    Cell {
        text: status.to_string(),
        colour: Some(colour),
    }
}

/// How long ago, or in how long.
pub(crate) fn when(at: Timestamp) -> String {
    let now = now();
    if at > now {
        format!("in {}", span(at.since(now)))
    } else {
        format!("{} ago", span(now.since(at)))
    }
}

/// A length of time in its two greatest units.
pub(crate) fn span(span: Duration) -> String {
    let ms = span.as_millis();
    let s = span.as_secs();
    match s {
        0 if ms < 1 => "<1ms".to_owned(),
        0 => format!("{ms}ms"),
        1..60 => format!("{}.{}s", s, ms % 1_000 / 100),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86_400, s / 3_600 % 24),
    }
}

/// A bar of progress on standard error, if somebody looks.
pub(crate) struct Progress {
    is_seen: bool,
    what: &'static str,
}

impl Progress {
    pub(crate) fn new(what: &'static str) -> Progress {
        Progress {
            is_seen: std::io::stderr().is_terminal(),
            what,
        }
    }

    pub(crate) fn is(&self, done: u64, total: Option<u64>) {
        if !self.is_seen {
            return;
        }
        let text = match total.filter(|total| *total > 0) {
            Some(total) => {
                let share = (done.min(total) * 30 / total) as usize;
                let bar: String = "█".repeat(share) + &"░".repeat(30 - share);
                format!("{bar} {done}/{total}")
            }
            None => done.to_string(),
        };
        eprint!("\r\x1b[2K{} {text}", self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_seen {
            eprint!("\r\x1b[2K");
        }
    }
}

/// Asks before something that cannot be taken back. Without a terminal the answer is no.
pub(crate) fn confirmed(question: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        note("this needs `--yes` where nobody can be asked");
        return false;
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_data_is_obeyed_by_a_terminal() {
        assert_eq!(plain("a\x1b[31mb\u{7}\nc"), "a\u{fffd}[31mb\u{fffd} c");
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(["ID", "NAME"]);
        table.row(["1".into(), "Zoë".into()]);
        table.row(["12345".into(), "x".into()]);
        assert_eq!(table.text("none"), "ID     NAME\n1      Zoë\n12345  x\n");
        assert_eq!(Table::new(["ID"]).text("none"), "none\n");
    }

    #[test]
    fn a_length_of_time_is_said_in_its_two_greatest_units() {
        let said = |ms| span(Duration::from_millis(ms));
        assert_eq!(said(0), "<1ms");
        assert_eq!(said(250), "250ms");
        assert_eq!(said(1_550), "1.5s");
        assert_eq!(said(151_000), "2m 31s");
        assert_eq!(said(90_061_000), "1d 1h");
    }
}
