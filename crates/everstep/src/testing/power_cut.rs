//! [`CrashTest`] on a SQLite file, with the power cut after every operation on
//! its files in turn, or with the store dying at every write.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    CrashPoint, CrashTest, CrashingStore, VirtualClock,
    audit::Audit,
    crash_everywhere::{CrashReport, Found, Life, within_limit},
    vfs::{FaultVfs, PowerCut},
};
use crate::store::{SqliteOptions, SqliteStore, Store, StoreError};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let n = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("everstep-cut-{}-{n}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Cuts the power after 0, 1, 2, .. operations, until the run ends first.
pub(super) async fn report(test: &CrashTest) -> CrashReport {
    let vfs = FaultVfs::register();
    let clean = cut(test, &vfs, None).await;
    let mut report = CrashReport::of(&clean);
    test.judge("never", &clean, &clean, &mut report);
    for operations in 0.. {
        if !report.differences.is_empty() && operations == 0 {
            break;
        }
        let mut was_cut = false;
        for how in [PowerCut::DropUnsynced, PowerCut::Torn(operations)] {
            let found = cut(test, &vfs, Some((operations, how))).await;
            was_cut |= found.deaths > 0;
            report.points += found.deaths as u64;
            let at = format!("after operation {operations} on the files ({how:?})");
            test.judge(&at, &clean, &found, &mut report);
        }
        if !was_cut {
            break;
        }
    }
    report
}

/// One test: dies at each of these writes in turn, and goes on with the file as it is then.
pub(super) async fn die_on_file(test: &CrashTest, points: &[CrashPoint]) -> Found {
    let lives = async {
        let scratch = Scratch::new().expect("the directory of a test can be made");
        let path = scratch.0.join("run.db");
        fs::write(&path, empty_file()).expect("the file of a test can be written");
        let audit = Audit::default();
        let mut life = Life::new(test, VirtualClock::new());
        loop {
            let point = points.get(life.deaths).copied();
            let store = SqliteStore::create_unsynced(&path);
            let store = store.expect("the file of a test can be opened");
            let store = Arc::new(CrashingStore::audited(store, point, audit.clone()));
            life.live(store.clone(), &audit).await;
            life.writes = store.writes();
            if !life.died {
                return life.found(audit);
            }
        }
    };
    within_limit(lives, || format!("{points:?}")).await
}

/// What a file without runs holds. To make one takes longer than most tests.
fn empty_file() -> &'static [u8] {
    static EMPTY: OnceLock<Vec<u8>> = OnceLock::new();
    EMPTY.get_or_init(|| {
        let make = || -> Result<Vec<u8>, Box<dyn std::error::Error>> {
            let scratch = Scratch::new()?;
            let path = scratch.0.join("empty.db");
            SqliteStore::create_unsynced(&path)?.migrate()?;
            Ok(fs::read(&path)?)
        };
        make().expect("an empty file can be made")
    })
}

/// One test: a run on a file, cut off after so many operations, and gone on with on the copy.
async fn cut(test: &CrashTest, vfs: &FaultVfs, at: Option<(u64, PowerCut)>) -> Found {
    let what = || format!("{at:?}");
    within_limit(
        async {
            match try_cut(test, vfs, at).await {
                Ok(found) => found,
                Err(error) => panic!("the files of the test cannot be used: {error}"),
            }
        },
        what,
    )
    .await
}

async fn try_cut(
    test: &CrashTest,
    vfs: &FaultVfs,
    at: Option<(u64, PowerCut)>,
) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
    let scratch = Scratch::new()?;
    let (path, copy) = (scratch.0.join("run.db"), scratch.0.join("copy.db"));
    vfs.restore_power();
    let store = open(&path, Some(vfs))?;
    store.migrate()?;
    let audit = Audit::default();
    let mut life = Life::new(test, VirtualClock::new());
    let shim = vfs.clone();
    if let Some((operations, _)) = at {
        vfs.cut_power_after(operations);
    }
    let store = CrashingStore::dying_when(store, move || shim.is_cut(), Some(audit.clone()));
    let store = Arc::new(store);
    life.live(store, &audit).await;
    let Some((_, how)) = at.filter(|_| life.died) else {
        return Ok(life.found(audit));
    };
    vfs.power_cut(&path, &copy, how)?;
    let store = open(&copy, None)?;
    store.migrate()?;
    // The batch that the power was cut in may have survived or not: the file knows.
    let survived = Audit::default();
    if let Some(run) = life.run
        && let Some(loaded) = store.load(run.no())?
    {
        survived.reload(&loaded);
    }
    let store = CrashingStore::dying_when(store, || false, Some(survived.clone()));
    life.live(Arc::new(store), &survived).await;
    Ok(life.found(survived))
}

fn open(path: &Path, vfs: Option<&FaultVfs>) -> Result<SqliteStore, StoreError> {
    let options = SqliteOptions {
        create: true,
        vfs: vfs.map(|vfs| vfs.name().to_owned()),
        ..SqliteOptions::default()
    };
    SqliteStore::open_with(path, options)
}
