//! What is printed: tables for people, JSON for programs.
//!
//! Data of users is printed without control characters, so that nothing in it can move the cursor or
//! change a colour.

use std::{
    fmt::Write as _,
    io::{ErrorKind, IsTerminal, Write as _},
    sync::OnceLock,
    time::Duration,
};

use clap::{Args, ValueEnum};
use everstep::{RunStatus, Timestamp};
use serde_json::Value as Json;

use crate::{
    Exit,
    args::{Span, now},
    trouble::Trouble,
};

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
    let no_color = std::env::var_os("NO_COLOR");
    let is_forbidden = no_color.is_some_and(|it| !it.is_empty());
    let is_seen = std::io::stdout().is_terminal();
    let colours = colour.is_used(is_forbidden, is_seen) && !json;
    let _ = MANNER.set(Manner { colours, json });
}

impl Colour {
    fn is_used(self, is_forbidden: bool, is_seen: bool) -> bool {
        match self {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => is_seen && !is_forbidden,
        }
    }
}

/// Whether JSON is asked for.
pub(crate) fn is_json() -> bool {
    MANNER.get().is_some_and(|manner| manner.json)
}

fn has_colours() -> bool {
    MANNER.get().is_some_and(|manner| manner.colours)
}

/// Prints to standard output. Whoever reads may have stopped, as `head` does: then this ends too, as
/// programs do that a signal tells of it.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if printed.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(i32::from(Exit::Done.code()));
    }
}

/// Says something to people, beside what is printed.
pub(crate) fn note(text: &str) {
    eprintln!("{}", plain(text));
}

/// What a command shows: a document for programs, or a text for people.
pub(crate) enum Shown {
    Json(Json),
    Text(String),
}

impl Shown {
    /// Prints it, a document in several lines.
    pub(crate) fn print(&self) {
        match self {
            Shown::Json(json) => print(&format!("{json:#}\n")),
            Shown::Text(text) => print(text),
        }
    }

    /// Prints one of many, a document in one line.
    pub(crate) fn print_one_of_many(&self) {
        match self {
            Shown::Json(json) => print(&format!("{json}\n")),
            Shown::Text(text) => print(text),
        }
    }
}

/// Prints a document, or a line of text in its place.
pub(crate) fn say(json: Json, text: &str) {
    said(json, text).print();
}

/// The same, to be printed later.
pub(crate) fn said(json: Json, text: &str) -> Shown {
    match is_json() {
        true => Shown::Json(json),
        false => Shown::Text(format!("{}\n", plain(text))),
    }
}

/// Whether something is printed again and again.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Watch {
    /// Print it again whenever this time has passed, 1s if none is said.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    watch: Option<Span>,
}

impl Watch {
    /// Prints what `look` gives, as often as is asked for. JSON is then one document per line.
    pub(crate) async fn run(
        self,
        mut look: impl AsyncFnMut() -> Result<Shown, Trouble>,
    ) -> Result<Exit, Trouble> {
        let Some(Span(pace)) = self.watch else {
            look().await?.print();
            return Ok(Exit::Done);
        };
        let pace = pace.max(Duration::from_millis(100));
        loop {
            let shown = look().await?;
            if std::io::stdout().is_terminal() && !is_json() {
                print("\x1b[2J\x1b[H");
            }
            shown.print_one_of_many();
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
        Cell { text: plain(&text.into()), colour: None }
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
        Table { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
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
    // What is empty at the end needs no room.
    let used = row.iter().rposition(|cell| !cell.text.is_empty());
    let used = used.map_or(0, |at| at + 1);
    for (at, (cell, width)) in row.iter().zip(widths).take(used).enumerate() {
        text.push_str(&coloured(&cell.text, cell.colour));
        if at + 1 < used {
            let pad = width - cell.text.chars().count() + 2;
            text.extend(std::iter::repeat_n(' ', pad));
        }
    }
    text.push('\n');
}

fn coloured(text: &str, colour: Option<&'static str>) -> String {
    let mut done = String::new();
    let _ = match colour.filter(|_| has_colours() && !text.is_empty()) {
        Some(colour) => write!(done, "\x1b[{colour}m{text}\x1b[0m"),
        None => write!(done, "{text}"),
    };
    done
}

/// A word of alarm.
pub(crate) fn red(text: &str) -> String {
    coloured(text, Some("31"))
}

/// A cell of alarm.
pub(crate) fn alarm(text: impl Into<String>) -> Cell {
    let text = plain(&text.into());
    let colour = Some("31");
    Cell { text, colour }
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
    Cell { text: status.to_string(), colour: Some(colour) }
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
        1..60 => match ms % 1_000 / 100 {
            0 => format!("{s}s"),
            tenths => format!("{s}.{tenths}s"),
        },
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86_400, s / 3_600 % 24),
    }
}

/// So many of something: `1 run`, `2 runs`.
pub(crate) fn many(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// As much of a text as fits.
pub(crate) fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let cut: String = text.chars().take(most - 1).collect();
    cut + "…"
}

/// Asks before something that cannot be taken back, unless somebody has said `--yes`.
///
/// # Errors
///
/// If the answer is no, or nobody can be asked.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), Trouble> {
    if yes {
        return Ok(());
    }
    let refused = |text: String| Err(Trouble::new(Exit::Conflict, text));
    if !std::io::stdin().is_terminal() {
        return refused(format!(
            "{question} Nobody can be asked here, so nothing was changed; add `--yes` to do it"
        ));
    }
    eprint!("{} [y/N] ", plain(question));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    refused("nothing was changed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_data_is_obeyed_by_a_terminal() {
        assert_eq!(plain("a\x1b[31mb\u{7}\nc"), "a\u{fffd}[31mb\u{fffd} c");
    }

    #[test]
    fn colours_are_for_terminals_whose_owner_has_not_forbidden_them() {
        assert!(Colour::Auto.is_used(false, true));
        assert!(!Colour::Auto.is_used(true, true));
        assert!(!Colour::Auto.is_used(false, false));
        assert!(Colour::Always.is_used(true, false));
        assert!(!Colour::Never.is_used(false, true));
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(["ID", "NAME"]);
        table.row(["1".into(), "Zoë".into()]);
        table.row(["12345".into(), "x".into()]);
        table.row(["6".into(), "".into()]);
        let text = "ID     NAME\n1      Zoë\n12345  x\n6\n";
        assert_eq!(table.text("none"), text);
        assert_eq!(Table::new(["ID"]).text("none"), "none\n");
    }

    #[test]
    fn a_length_of_time_is_said_in_its_two_greatest_units() {
        let said = |ms| span(Duration::from_millis(ms));
        assert_eq!(said(0), "<1ms");
        assert_eq!(said(250), "250ms");
        assert_eq!(said(1_550), "1.5s");
        assert_eq!(said(2_000), "2s");
        assert_eq!(said(151_000), "2m 31s");
        assert_eq!(said(90_061_000), "1d 1h");
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(many(0, "run"), "0 runs");
        assert_eq!(many(1, "run"), "1 run");
        assert_eq!(many(2, "run"), "2 runs");
    }

    #[test]
    fn long_text_is_cut_where_a_letter_ends() {
        assert_eq!(short("Zoë", 3), "Zoë");
        assert_eq!(short("Zoës", 3), "Zo…");
    }
}
