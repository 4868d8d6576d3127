//! Arguments that several commands have.

use std::time::Duration;

use clap::Args;
use everstep::{Client, Filter, RunHandle, RunId, RunStatus, ShortId, Target, Timestamp};
use serde_json::Value as Json;

use crate::{Exit, trouble::Trouble};

/// A shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(crate) fn completions(args: Completions, mut command: clap::Command) -> Exit {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    crate::output::print(&String::from_utf8_lossy(&script));
    Exit::Done
}

/// Whether this can be the name of a store. A URL of something else is no file either.
pub(crate) fn check_store(db: &std::path::Path) -> Result<(), Trouble> {
    let text = db.to_string_lossy();
    match text.split_once("://") {
        // What comes after it may be a password.
        Some((scheme, _)) if !is_postgres(scheme) => Err(Trouble::usage(format!(
            "a URL that begins with `{scheme}://` names no store; give a SQLite file, or \
                 `postgres://user@host/database`"
        ))),
        _ => Ok(()),
    }
}

/// Whether this is the scheme of a PostgreSQL URL, in upper or lower case.
pub(crate) fn is_postgres(scheme: &str) -> bool {
    let known = ["postgres", "postgresql"];
    known.iter().any(|it| scheme.eq_ignore_ascii_case(it))
}

/// A run, by its id, by the beginning or the end of its id, or as `workflow/key`.
#[derive(Clone, Debug)]
pub(crate) enum RunRef {
    Target(Target),
    Short(ShortId),
}

impl std::str::FromStr for RunRef {
    type Err = String;

    fn from_str(text: &str) -> Result<RunRef, String> {
        if let Ok(id) = text.parse::<RunId>() {
            return Ok(RunRef::Target(Target::Id(id)));
        }
        match text.split_once('/') {
            Some((workflow, key)) if !workflow.is_empty() && !key.is_empty() => {
                let (workflow, key) = (workflow.to_owned(), key.to_owned());
                Ok(RunRef::Target(Target::Key { workflow, key }))
            }
            _ => match text.parse() {
                Ok(short) => Ok(RunRef::Short(short)),
                Err(_) => Err("not a run id; give the whole id, at least 8 digits of its \
                               beginning or its end, or `workflow/key`"
                    .to_owned()),
            },
        }
    }
}

impl std::fmt::Display for RunRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunRef::Target(Target::Id(id)) => id.fmt(f),
            RunRef::Target(Target::Key { workflow, key }) => write!(f, "{workflow}/{key}"),
            RunRef::Short(short) => short.fmt(f),
        }
    }
}

impl RunRef {
    pub(crate) async fn find(&self, client: &Client) -> Result<RunHandle, Trouble> {
        let found = client.get(self.target(client).await?).await?;
        found.ok_or_else(|| {
            let text =
                format!("there is no run {self}; it may have been deleted, or is in another store");
            Trouble::new(Exit::NotFound, text)
        })
    }

    pub(crate) async fn target(&self, client: &Client) -> Result<Target, Trouble> {
        Ok(match self {
            RunRef::Target(target) => target.clone(),
            RunRef::Short(short) => Target::Id(client.run_by_short_id(short).await?),
        })
    }
}

/// Which runs are meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Which {
    /// Those with this status; may be said several times, or with commas.
    #[arg(long, short, value_delimiter = ',')]
    pub(crate) status: Vec<RunStatus>,
    /// Those of this workflow.
    #[arg(long, short)]
    pub(crate) workflow: Option<String>,
    /// Those of this version.
    #[arg(long = "of-version", value_name = "VERSION")]
    pub(crate) version: Option<u32>,
    /// Those whose key begins with this.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) key: Option<String>,
    /// Those with this tag; may be said several times.
    #[arg(long, short, value_name = "NAME:VALUE")]
    pub(crate) tag: Vec<Pair>,
    /// Started at this time or later: an instant, or how long ago: `2h`.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Moment>,
    /// Started before this time.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Moment>,
    /// Ended at this time or later.
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_since: Option<Moment>,
    /// Ended before this time.
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_until: Option<Moment>,
}

impl Which {
    pub(crate) fn is_everything(&self) -> bool {
        self.status.is_empty()
            && self.workflow.is_none()
            && self.version.is_none()
            && self.key.is_none()
            && self.tag.is_empty()
            && self.since.is_none()
            && self.until.is_none()
            && self.ended_since.is_none()
            && self.ended_until.is_none()
    }

    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::new();
        for status in &self.status {
            filter = filter.status(*status);
        }
        if let Some(workflow) = &self.workflow {
            filter = filter.workflow(workflow);
        }
        if let Some(version) = self.version {
            filter = filter.version(version);
        }
        if let Some(prefix) = &self.key {
            filter = filter.key_prefix(prefix);
        }
        for Pair(name, value) in &self.tag {
            filter = filter.tag(name, value);
        }
        if let Some(Moment(at)) = self.since {
            filter = filter.created_from(at);
        }
        if let Some(Moment(at)) = self.until {
            filter = filter.created_before(at);
        }
        if let Some(Moment(at)) = self.ended_since {
            filter = filter.finished_from(at);
        }
        if let Some(Moment(at)) = self.ended_until {
            filter = filter.finished_before(at);
        }
        filter
    }
}

impl Which {
    /// As the HTTP API has it in the body of a bulk change.
    pub(crate) fn json(&self) -> Json {
        let joined: Vec<String> = self.status.iter().map(ToString::to_string).collect();
        let pairs = self.tag.iter();
        let tags: Vec<Json> =
            pairs.map(|Pair(name, value)| format!("{name}:{value}").into()).collect();
        let moment = |at: Option<Moment>| at.map(|Moment(at)| at.to_string().into());
        let fields = [
            ("status", (!joined.is_empty()).then(|| joined.join(",").into())),
            ("workflow", self.workflow.clone().map(Json::from)),
            ("version", self.version.map(Json::from)),
            ("key_prefix", self.key.clone().map(Json::from)),
            ("tag", (!tags.is_empty()).then(|| tags.into())),
            ("created_from", moment(self.since)),
            ("created_before", moment(self.until)),
            ("finished_from", moment(self.ended_since)),
            ("finished_before", moment(self.ended_until)),
        ];
        let said = fields.into_iter();
        said.filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// A name and a value, as `name:value`.
#[derive(Clone, Debug)]
pub(crate) struct Pair(pub(crate) String, pub(crate) String);

impl std::str::FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        let (name, value) =
            text.split_once(':').ok_or_else(|| "write it as `name:value`".to_owned())?;
        Ok(Pair(name.to_owned(), value.to_owned()))
    }
}

/// An instant, or how long ago it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Moment(at));
        }
        let Span(ago) = text.parse().map_err(|_| {
            "write an instant (`2026-11-15T20:47:00Z`) or how long ago it was (`90s`, `2h`, `3d`)"
                .to_owned()
        })?;
        Ok(Moment(now() - ago))
    }
}

/// A length of time: `250ms`, `90s`, `15m`, `2h`, `3d`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(pub(crate) Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
        let wrong =
            || format!("`{text}` is no length of time; write `250ms`, `90s`, `15m`, `2h` or `3d`");
        let number: u64 = text[..end].parse().map_err(|_| wrong())?;
        let ms = match &text[end..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let ms = number.checked_mul(ms).ok_or_else(wrong)?;
        Ok(Span(Duration::from_millis(ms)))
    }
}

/// The time now.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

/// JSON as an argument; `@file` reads it from a file, `-` from standard input.
pub(crate) fn json(text: &str) -> Result<Json, Trouble> {
    let usage = |text: String| Trouble::new(Exit::Usage, text);
    let (text, from) = if text == "-" {
        let read = std::io::read_to_string(std::io::stdin());
        (read.map_err(|error| usage(format!("standard input: {error}")))?, "standard input")
    } else if let Some(path) = text.strip_prefix('@') {
        let read = std::fs::read_to_string(path);
        (read.map_err(|error| usage(format!("{path}: {error}")))?, path)
    } else {
        (text.to_owned(), "the argument")
    };
    everstep::check_json_numbers(text.as_bytes())
        .map_err(|error| usage(format!("{from}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        usage(format!("{from} is no JSON: {error}; a text is JSON with its quotes: '\"text\"'"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        let ms = |text: &str| text.parse::<Span>().ok().map(|Span(it)| it.as_millis());
        assert_eq!(ms("250ms"), Some(250));
        assert_eq!(ms("90s"), Some(90_000));
        assert_eq!(ms("2h"), Some(7_200_000));
        for wrong in ["", "5", "s", "-1s", "1w", "99999999999999999d"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_run_is_named_by_its_id_or_by_workflow_and_key() {
        let by_key: RunRef = "order/2026/17".parse().expect("a key");
        assert_eq!(by_key.to_string(), "order/2026/17");
        assert!("order".parse::<RunRef>().is_err());
        assert!("/x".parse::<RunRef>().is_err());
        let id = "01a1e31b-1d59-7590-8241-3c1d14f48fdd";
        let by_id: RunRef = id.parse().expect("an id");
        assert!(matches!(by_id, RunRef::Target(Target::Id(_))));
        let by_end: RunRef = "3c1d14f48fdd".parse().expect("the end of an id");
        assert!(matches!(by_end, RunRef::Short(_)));
        assert!("48fdd".parse::<RunRef>().is_err());
    }
}
