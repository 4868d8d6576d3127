//! A synchronous standby, and what clients are told about several servers.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Instance, directory::unique, instance::USER};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

impl Instance {
    /// Makes a server that follows this one through a replication slot. From when this returns,
    /// this one confirms a commit only once the other has it on its disk.
    ///
    /// # Errors
    ///
    /// If the copy cannot be made, or does not follow.
    pub fn standby(&self) -> Result<Instance, Error> {
        let name = format!("standby_{}", unique());
        let mut standby = Instance::unmade()?;
        let primary = self.connection_string(&name);
        let mut arguments = vec!["--dbname", primary.as_str(), "--write-recovery-conf"];
        arguments.extend(["--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
        arguments.extend(["--create-slot", "--slot", &name]);
        standby.run("pg_basebackup", &arguments)?;
        standby.start_on_a_free_port()?;
        self.wait_for_standby(&name)?;
        Ok(standby)
    }

    fn connection_string(&self, application_name: &str) -> String {
        let address = self.address();
        let (host, port) = (address.ip(), address.port());
        format!("host={host} port={port} user={USER} application_name={application_name}")
    }

    /// Has every commit wait for the standby, and gives back when that is so.
    fn wait_for_standby(&self, name: &str) -> Result<(), Error> {
        let mut session = self.session()?;
        session.query(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"))?;
        session.query("SELECT pg_reload_conf()")?;
        // A new session has the postmaster's settings, which has by then told all others to read
        // them again.
        let shown = || self.session()?.value("SHOW synchronous_standby_names");
        self.until("the new settings are read", || Ok(shown()? == name))?;
        // The checkpointer is who makes commits wait. It reads the settings before it does this.
        self.session()?.query("CHECKPOINT")?;
        let sync = format!(
            "SELECT count(*) FROM pg_stat_replication \
             WHERE application_name = '{name}' AND sync_state = 'sync' AND state = 'streaming'"
        );
        self.until("the standby follows", || Ok(session.value(&sync)? == "1"))
    }

    fn until(
        &self,
        what: &str,
        mut is_so: impl FnMut() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        while !is_so()? {
            if begun.elapsed() > PATIENCE {
                return Err(self.failed(&format!("waited too long until {what}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Makes a standby a server that can be written to, and waits until it can.
    ///
    /// # Errors
    ///
    /// If it is no standby.
    pub fn promote(&self) -> Result<(), Error> {
        let wait = PATIENCE.as_secs();
        let promoted = self.session()?.value(&format!("SELECT pg_promote(true, {wait})"))?;
        if promoted == "t" {
            return Ok(());
        }
        Err(self.failed("the standby was not promoted in time"))
    }

    /// Whether it can be written to.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn is_primary(&self) -> Result<bool, Error> {
        let in_recovery = self.session()?.value("SELECT pg_is_in_recovery()")?;
        Ok(in_recovery == "f")
    }
}

/// One URL for a database on several servers, of which a client takes the one that it can write to.
pub fn url_of_all(instances: &[&Instance], database: &str) -> String {
    let addresses: Vec<String> =
        instances.iter().map(|instance| instance.address().to_string()).collect();
    format!("postgres://{USER}@{}/{database}?target_session_attrs=read-write", addresses.join(","))
}
