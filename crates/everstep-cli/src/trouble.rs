//! What went wrong, and the code that the process ends with.

use std::process::ExitCode;

use everstep::ClientError;

/// The codes that a process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It is done.
    Done = 0,
    /// It could not be done.
    Failed = 1,
    /// The command is wrong.
    Usage = 2,
    /// There is no such run, schedule, item or letter.
    NotFound = 3,
    /// It is there, and not in a state for this.
    Conflict = 4,
    /// The store cannot be reached.
    Unavailable = 5,
    /// The run that was watched has failed or was cancelled; or a preflight or a doctor has found
    /// something.
    Bad = 10,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
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

    pub(crate) fn of(error: impl std::error::Error) -> Trouble {
        Trouble::new(Exit::Failed, full(&error))
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn print(&self) {
        eprintln!("error: {}", self.text);
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Trouble {
        use ClientError as E;
        let exit = match &error {
            E::Store(_) | E::Closed => Exit::Unavailable,
            E::UnknownRun { .. } | E::UnknownItem { .. } | E::UnknownSchedule { .. } => {
                Exit::NotFound
            }
            E::Finished { .. }
            | E::WrongStatus { .. }
            | E::InboxFull { .. }
            | E::TagsFull { .. }
            | E::Taken { .. }
            | E::KeyUsed { .. }
            | E::OldToken { .. } => Exit::Conflict,
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
