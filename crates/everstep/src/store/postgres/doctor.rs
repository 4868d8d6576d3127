//! What the doctor asks of the server itself.

use super::{Sql, error::Trouble, session::Session};
use crate::store::doctor::PlaceFact;

/// Whether the database is kept safely.
pub(super) fn place(session: &Session<'_>) -> Result<Vec<PlaceFact>, Trouble> {
    let mut facts = Vec::new();
    let mut say = |replication, is_error, what: &str| {
        facts.push(PlaceFact { replication, is_error, what: what.to_owned() });
    };
    let sql = "SELECT current_setting('synchronous_standby_names') <> '', \
               current_setting('fsync') = 'on', pg_is_in_recovery(), \
               (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'), \
               (SELECT count(*) FROM pg_stat_replication \
               WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')), \
               (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL)";
    let seen = session.row(sql, &[], |row| {
        Ok((
            row.get::<bool>(0)?,
            row.get::<bool>(1)?,
            row.get::<bool>(2)?,
            [row.get::<i64>(3)?, row.get(4)?, row.get(5)?],
        ))
    })?;
    let Some((names_standbys, syncs, in_recovery, counts)) = seen else {
        return Ok(facts);
    };
    if let Some((is_error, what)) = replication(names_standbys, counts) {
        say(true, is_error, what);
    }
    if in_recovery {
        let what = "this server is a standby: nothing can be written to it; connect to the primary";
        say(true, true, what);
    }
    if !syncs {
        let what = "`fsync` is off: a crash of the server damages everything; turn it on";
        say(false, true, what);
    }
    Ok(facts)
}

/// What is wrong with the copies of a database, and whether it is an error, given how many standbys
/// there are, how many of them are synchronous, and how many this role may know nothing of.
fn replication(names_standbys: bool, standbys: [i64; 3]) -> Option<(bool, &'static str)> {
    let [standbys, synchronous, hidden] = standbys;
    match (names_standbys, standbys, synchronous) {
        _ if hidden > 0 => Some((
            false,
            "the database is replicated, and this role cannot see how; grant it `pg_monitor`",
        )),
        (true, _, 0) => Some((
            true,
            "`synchronous_standby_names` is set, and no synchronous standby is connected: every \
             commit waits for one; bring a standby back, or take it out of the setting",
        )),
        (false, 1.., 0) => Some((
            false,
            "the database is replicated, and no standby is synchronous: a failover may lose what \
             was committed last, and steps are then run again; name one in \
             `synchronous_standby_names`",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synchronous_standby_is_asked_for_where_there_are_standbys() {
        assert_eq!(replication(false, [0, 0, 0]), None);
        assert_eq!(replication(true, [2, 1, 0]), None);
        assert_eq!(replication(false, [1, 1, 0]), None);
        assert!(matches!(replication(true, [0, 0, 0]), Some((true, _))));
        assert!(matches!(replication(true, [1, 0, 0]), Some((true, _))));
        assert!(matches!(replication(false, [2, 0, 0]), Some((false, _))));
        assert!(matches!(replication(true, [0, 0, 1]), Some((false, _))));
    }
}
