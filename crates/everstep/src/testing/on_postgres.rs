//! [`CrashTest`] in a PostgreSQL database, with the store dying at every write.

use std::sync::Arc;

use super::{
    CrashPoint, CrashTest, CrashingStore, VirtualClock,
    audit::Audit,
    crash_everywhere::{Found, Life, within_limit},
};
use crate::store::PostgresStore;

/// One test: dies at each of these writes in turn, and goes on with the schema as it is then.
pub(super) async fn die_on_postgres(test: &CrashTest, url: &str, points: &[CrashPoint]) -> Found {
    let lives = async {
        let mut store = match PostgresStore::lent(url) {
            Ok(store) => store,
            Err(error) => panic!("no schema for a test: {error:?}"),
        };
        let audit = Audit::default();
        let mut life = Life::new(test, VirtualClock::new());
        loop {
            let point = points.get(life.deaths).copied();
            let dying = Arc::new(CrashingStore::audited(store, point, audit.clone()));
            life.live(dying.clone(), &audit).await;
            life.writes = dying.writes();
            if !life.died {
                return life.found(audit);
            }
            store = dying.inner().reborn();
        }
    };
    within_limit(lives, || format!("{points:?}, on PostgreSQL")).await
}
