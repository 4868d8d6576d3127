//! Why a server is not there.

use std::{fmt, io, path::Path};

/// Why something about a server did not succeed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The program is not on this machine, and could not be installed.
    Missing {
        /// What was looked for.
        program: &'static str,
        /// Why it was not installed, and what to do.
        why: String,
    },
    /// A program ended when it should not have, or did not do what it was asked for.
    Failed {
        /// What was done.
        what: String,
        /// What it wrote last.
        output: String,
    },
    /// The server refused a statement.
    Refused {
        /// The five characters of its kind of error.
        code: String,
        /// What it said.
        message: String,
    },
    /// The machine did not do what it was asked for.
    Io {
        /// What was done.
        what: String,
        /// What it said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn failed(what: impl Into<String>, output: impl Into<String>) -> Self {
        Error::Failed { what: what.into(), output: output.into() }
    }

    /// For `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Error::Io { what, source }
    }

    /// For `map_err`, about a file.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        Error::io(path.display().to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { program, why } => write!(f, "`{program}` was not found; {why}"),
            Error::Failed { what, output } if output.is_empty() => f.write_str(what),
            Error::Failed { what, output } => write!(f, "{what}; it wrote last:\n{output}"),
            Error::Refused { code, message } => write!(f, "the server answered {code}: {message}"),
            Error::Io { what, .. } => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Missing { .. } | Error::Failed { .. } | Error::Refused { .. } => None,
        }
    }
}

/// An error with its causes, for where it is only shown.
pub fn shown(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
