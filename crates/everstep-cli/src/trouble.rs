//! What went wrong, and the code that the process ends with.

use std::process::{ExitCode, Termination};

use everstep::{ClientError, MigrateError, RunError, StartError, store::StoreError};
use serde_json::json;

use crate::output;

/// The codes that a process ends with. Scripts can rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it back from `main`"]
pub enum Exit {
    /// 0: it is done.
    Done = 0,
    /// 1: it could not be done; or what was looked for was found: the run that was watched has failed,
    /// a preflight or the doctor has found something.
    Failed = 1,
    /// 2: the command is wrong.
    Usage = 2,
    /// 3: there is no such run, schedule, item or letter.
    NotFound = 3,
    /// 4: it is there and not in a state for this, or nobody has said `--yes`.
    Conflict = 4,
    /// 5: the store cannot be reached or is no everstep database.
    Unavailable = 5,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// As it is called in JSON and in the audit log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NotFound => "not_found",
            Exit::Conflict => "conflict",
            Exit::Unavailable => "unavailable",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        self.into()
    }
}

/// Why a command could not be done.
#[derive(Debug)]
pub(crate) struct Trouble {
    exit: Exit,
    text: String,
}

/// What a command ends with.
pub(crate) type Outcome = Result<Exit, Trouble>;

impl Trouble {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Trouble {
        let text = text.into();
        Trouble { exit, text }
    }

    /// The command is wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Trouble {
        Trouble::new(Exit::Usage, text)
    }

    /// The store cannot be used. An engine would try again; a command does not.
    fn away(error: &StoreError) -> Trouble {
        let is_file = |store: &str| store.starts_with("SQLite file");
        let (store, source, what) = match error {
            StoreError::Io { store, source } => {
                let what = match is_file(store) {
                    true => "cannot be read or written; check the file and its disk",
                    false => "cannot be read or written; check its name, and whether it is up",
                };
                (store, source, what)
            }
            StoreError::Busy { store, source } => {
                let what = match is_file(store) {
                    true => "is busy: another process holds its write lock; try again",
                    false => "is busy: others hold locks on what is to be written; try again",
                };
                (store, source, what)
            }
            StoreError::CannotOpen { store, source } => (store, source, "cannot be opened"),
            _ => return Trouble::new(Exit::Unavailable, full(error)),
        };
        let cause = full(&**source);
        Trouble::new(Exit::Unavailable, format!("{store} {what}: {cause}"))
    }

    pub(crate) fn of(error: impl std::error::Error) -> Trouble {
        Trouble::new(Exit::Failed, full(&error))
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Says also what to do.
    pub(crate) fn hint(mut self, hint: &str) -> Trouble {
        self.text = format!("{}; {hint}", self.text);
        self
    }

    pub(crate) fn print(&self) {
        if output::is_json() {
            eprintln!("{}", json!({"error": self.text, "exit": self.exit.word()}));
        } else {
            eprintln!("{} {}", output::red("error:"), output::plain(&self.text));
        }
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Trouble {
        use ClientError as E;
        if let E::Store(error) = &error {
            return Trouble::away(error);
        }
        let exit = match &error {
            E::Closed => Exit::Unavailable,
            E::UnknownRun { .. }
            | E::UnknownShortId { .. }
            | E::UnknownItem { .. }
            | E::UnknownSchedule { .. } => Exit::NotFound,
            E::AmbiguousId { .. }
            | E::Finished { .. }
            | E::WrongStatus { .. }
            | E::InboxFull { .. }
            | E::TagsFull { .. }
            | E::Taken { .. }
            | E::KeyUsed { .. }
            | E::Fork { .. }
            | E::OldToken { .. }
            | E::TokenTaken { .. }
            | E::ForeignToken => Exit::Conflict,
            E::MalformedToken | E::Name { .. } | E::Schedule { .. } | E::TooLarge { .. } => {
                Exit::Usage
            }
            _ => Exit::Failed,
        };
        Trouble::new(exit, full(&error))
    }
}

impl From<RunError> for Trouble {
    fn from(error: RunError) -> Trouble {
        match error {
            RunError::Client(error) => error.into(),
            other => Trouble::of(other),
        }
    }
}

impl From<StartError> for Trouble {
    fn from(error: StartError) -> Trouble {
        let exit = match &error {
            StartError::Store(error) => return Trouble::away(error),
            _ => Exit::Failed,
        };
        Trouble::new(exit, full(&error))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::away(&error)
    }
}

impl From<MigrateError> for Trouble {
    fn from(error: MigrateError) -> Trouble {
        let exit = match &error {
            MigrateError::Store(error) => return Trouble::away(error),
            MigrateError::Unsupported { .. } => Exit::Usage,
            MigrateError::InUse { .. } | MigrateError::NotEmpty { .. } => Exit::Conflict,
            _ => Exit::Failed,
        };
        Trouble::new(exit, full(&error))
    }
}

/// An error with its causes.
fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
