//! The settings without which a server may lose what it has confirmed.

use std::fmt;

use crate::{Error, Session};

/// What a server does about durability. What a drill or a measurement says counts only with all
/// of them on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it waits for the disk.
    pub fsync: String,
    /// What a commit waits for.
    pub synchronous_commit: String,
    /// Whether a page that was half written can be repaired.
    pub full_page_writes: String,
}

impl Settings {
    /// A query for them, in the order of the fields.
    pub const QUERY: &str = "SELECT current_setting('fsync'), \
                             current_setting('synchronous_commit'), \
                             current_setting('full_page_writes')";

    /// Asks for them.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn of(session: &mut Session) -> Result<Self, Error> {
        let mut columns = session.query(Self::QUERY)?.into_iter().flatten().flatten();
        let mut next = || columns.next().unwrap_or_default();
        Ok(Settings { fsync: next(), synchronous_commit: next(), full_page_writes: next() })
    }

    /// Whether a confirmed commit survives the loss of power and, where there is a synchronous
    /// standby, of the machine.
    ///
    /// # Errors
    ///
    /// If one of them is off, with its name.
    pub fn check(&self) -> Result<(), Error> {
        let weak = [
            ("fsync", self.fsync != "on"),
            (
                "synchronous_commit",
                !["on", "remote_apply"].contains(&self.synchronous_commit.as_str()),
            ),
            ("full_page_writes", self.full_page_writes != "on"),
        ];
        match weak.iter().find(|(_, weak)| *weak) {
            None => Ok(()),
            Some((name, _)) => Err(Error::failed(
                format!("the server may lose what it has confirmed ({self}); turn `{name}` on"),
                "",
            )),
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fsync={} synchronous_commit={} full_page_writes={}",
            self.fsync, self.synchronous_commit, self.full_page_writes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: [&str; 3]) -> Settings {
        let [fsync, synchronous_commit, full_page_writes] = values.map(str::to_owned);
        Settings { fsync, synchronous_commit, full_page_writes }
    }

    #[test]
    fn each_setting_that_is_off_is_named() {
        settings(["on", "on", "on"]).check().unwrap();
        settings(["on", "remote_apply", "on"]).check().unwrap();
        for (values, name) in [
            (["off", "on", "on"], "`fsync`"),
            (["on", "off", "on"], "`synchronous_commit`"),
            (["on", "local", "on"], "`synchronous_commit`"),
            (["on", "on", "off"], "`full_page_writes`"),
            (["on", "on", ""], "`full_page_writes`"),
        ] {
            let error = settings(values).check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
