//! A runner as a process: started, told to end, or killed.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use everstep_drill::Problem;

/// How long a runner may take to end once it is told to.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Where runners work.
pub(crate) struct Site {
    pub(crate) url: String,
    pub(crate) directory: PathBuf,
}

impl Site {
    pub(crate) fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }
}

/// A runner. Dropping it kills it.
pub(crate) struct Runner {
    child: Child,
    pub(crate) version: u32,
}

impl Runner {
    /// Starts the program of this version, which lies beside this one.
    pub(crate) fn start(site: &Site, version: u32) -> Result<Runner, Problem> {
        let this = std::env::current_exe()?;
        let program = this.with_file_name(format!("deploy-drill-runner-{version}"));
        let log = site.directory.join("runners.log");
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(&program)
            .arg(&site.url)
            .arg(site.ledger())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| not_started(&program, &error))?;
        Ok(Runner { child, version })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// An error if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), Problem> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let (process, version) = (self.process(), self.version);
                let what = format!("runner {process} of version {version} ended with {status}");
                Err(what.into())
            }
        }
    }

    /// Sends SIGTERM and waits for its end, which must be a good one.
    pub(crate) async fn drain(mut self) -> Result<(), Problem> {
        let process = self.process().to_string();
        let told = Command::new("kill").args(["-TERM", &process]).status()?;
        if !told.success() {
            return Err(format!("runner {process} took no signal").into());
        }
        let begun = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("runner {process} ended with {status}").into()),
                None if begun.elapsed() > DRAIN_LIMIT => {
                    let what = format!("runner {process} did not end within {DRAIN_LIMIT:?}");
                    return Err(what.into());
                }
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Sends SIGKILL: it gets no chance to tidy up.
    pub(crate) fn kill(mut self) -> Result<(), Problem> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn not_started(program: &Path, error: &std::io::Error) -> String {
    let program = program.display();
    format!("{program}: {error}; `cargo xtask deploy-drill` builds it")
}
