//! What the doctor asks of the file itself.

use super::session::Session;
use crate::store::doctor::PlaceFact;

/// What SQLite itself says about the file.
pub(super) fn place(session: &Session<'_>) -> rusqlite::Result<Vec<PlaceFact>> {
    let mut facts = Vec::new();
    let mut say = |is_error, what: String| {
        facts.push(PlaceFact { replication: false, is_error, what });
    };
    let mut statement = session.conn.prepare("PRAGMA quick_check(20)")?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    for line in said {
        let line = line?;
        if line != "ok" {
            let what = format!("the file is damaged: {line}; restore it from a backup");
            say(true, what);
        }
    }
    let mut statement =
        session.conn.prepare("SELECT DISTINCT \"table\" FROM pragma_foreign_key_check")?;
    let tables = statement.query_map([], |row| row.get::<_, String>(0))?;
    for table in tables {
        let table = table?;
        let what = format!(
            "rows of your table `{table}` refer to rows that do not exist; mend them, everstep \
             does not touch them"
        );
        say(false, what);
    }
    let mode: String = session.conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        let what = format!(
            "the journal mode of the file is `{mode}`, and readers and writers hold each other \
             up; stop all processes and run `PRAGMA journal_mode = WAL` on it"
        );
        say(true, what);
    }
    Ok(facts)
}
