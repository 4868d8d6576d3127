//! Backups: a copy of a SQLite file while it is in use, and a file made of such a copy.
//!
//! Always true: under its final name a copy is complete, checked and durable. It is made under
//! another name beside it and renamed at the end, so that a crash leaves nothing that could be taken
//! for a backup. Nobody can read it who cannot read the original.

use std::{
    fmt, fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{Client, ClientError, DoctorReport, spawn_thread};
use crate::{
    codec::hook::Codecs,
    seam,
    store::{SqliteStore, StoreError, sqlite},
};

impl Client {
    /// Copies everything in the SQLite file of this client to a new file, while engines and clients
    /// go on. Await it.
    ///
    /// The copy is one consistent snapshot: all commits up to one instant, none after it, and your own
    /// tables in the file. It is checked by SQLite and by [`doctor`](Client::doctor), and durable when
    /// this returns. Under the name `to` there is never a part of a copy, also after a crash, and a file
    /// that is there is never replaced. On Unix the copy has the mode of the file. Runners
    /// and their leases are left out, so an engine on the copy can begin at once.
    ///
    /// [`restore`] makes a file to work on out of a backup. Work that was done after the snapshot is
    /// then done again: keep idempotency keys of outside systems for at least as long as backups.
    ///
    /// Do not copy the file itself while it is in use (`cp app.db`): the newest commits are in the
    /// `-wal` file beside it, and a copy that is made during a checkpoint is damaged.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let (path, copy) = (dir.path().join("app.db"), dir.path().join("copy.db"));
    /// # let to = dir.path().join("restored.db");
    /// let engine = Engine::open(&path).start().await?;
    /// let backup = engine.client().backup(&copy).await?;
    /// assert!(backup.is_sound());
    /// engine.shutdown().await;
    ///
    /// everstep::restore(&copy, &to).await?;
    /// let engine = Engine::open(&to).start().await?;
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BackupError::Unsupported`] if the store is not a SQLite file, [`BackupError::Exists`] if there
    /// is a file at `to`. No file is left behind then.
    pub fn backup(&self, to: impl AsRef<Path>) -> Backup {
        Backup { client: self.clone(), to: to.as_ref().to_owned(), progress: Box::new(|_| {}) }
    }
}

/// Makes the SQLite file `to` out of a backup. Await it.
///
/// The copy is checked like a backup ([`Client::backup`]) before it gets its name. Stop the engines
/// and clients that use `to`, and move the old file away first, together with its `-wal` and `-shm`:
/// SQLite would apply a `-wal` that is left there to the restored file.
///
/// # Errors
///
/// [`BackupError::Exists`] if there is a file at `to` or a `-wal`, `-shm` or `-journal` beside it,
/// [`BackupError::InUse`] if `backup` has one of those, since it is then no backup but a file in use.
pub fn restore(backup: impl AsRef<Path>, to: impl AsRef<Path>) -> Restore {
    Restore {
        from: backup.as_ref().to_owned(),
        to: to.as_ref().to_owned(),
        progress: Box::new(|_| {}),
    }
}

/// A backup that is to be made. Await it.
#[must_use = "nothing is copied unless it is awaited"]
pub struct Backup {
    client: Client,
    to: PathBuf,
    progress: Report,
}

/// A backup that is to be restored. Await it.
#[must_use = "nothing is restored unless it is awaited"]
pub struct Restore {
    from: PathBuf,
    to: PathBuf,
    progress: Report,
}

type Report = Box<dyn FnMut(BackupProgress) + Send>;

/// How far a backup has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// How much is copied: pages of a backup, bytes of a restore.
    pub copied: u64,
    /// How much there is.
    pub total: u64,
}

/// A copy that was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackedUp {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What the doctor says about it; `None` if it has an older format, which the doctor cannot read.
    pub doctor: Option<DoctorReport>,
}

impl BackedUp {
    /// Whether the doctor has found nothing.
    pub fn is_sound(&self) -> bool {
        let report = self.doctor.as_ref();
        report.is_none_or(|report| report.findings.is_empty())
    }
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store is not a SQLite file.
    #[error(
        "{store} is no SQLite file; back up PostgreSQL with its own tools: \
         `pg_dump --schema=everstep --format=custom`, or continuous archiving for recovery to a \
         point in time"
    )]
    Unsupported {
        /// Which store.
        store: String,
    },
    /// There is a file where the copy or its log would be.
    #[error("`{}` exists; nothing was changed: move it away, or give another name", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The backup is not closed.
    #[error(
        "`{}` is in use, or was not closed: `{}` is beside it; make a backup of it with \
         `everstep backup`, and restore that",
        .path.display(), .beside.display()
    )]
    InUse {
        /// The backup.
        path: PathBuf,
        /// The file that shows it.
        beside: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("`{}` cannot be {act}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried: `read`, `written`, `renamed`.
        act: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The store could not be read, or the copy could not be written, or the copy is damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy could not be looked at.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A thread could not be started, or has panicked.
    #[error("the thread that copies has ended early; try again")]
    Interrupted,
}

impl Backup {
    /// Calls `report` whenever some pages were copied, from a thread of its own.
    pub fn progress(mut self, report: impl FnMut(BackupProgress) + Send + 'static) -> Backup {
        self.progress = Box::new(report);
        self
    }

    async fn run(self) -> Result<BackedUp, BackupError> {
        let Backup { client, to, mut progress } = self;
        let (store, codecs) = (client.shared.store.clone(), client.codecs.clone());
        let name = store.describe();
        let copied = on_thread(move || {
            let partial = Partial::beside(&to)?;
            let mut report = |copied, total| progress(BackupProgress { copied, total });
            if !store.copy_to(&partial.path, &mut report)? {
                let store = store.describe();
                return Err(BackupError::Unsupported { store });
            }
            Ok(partial)
        });
        copied.await?.finish(name, codecs).await
    }
}

impl Restore {
    /// Calls `report` whenever some bytes were copied, from a thread of its own.
    pub fn progress(mut self, report: impl FnMut(BackupProgress) + Send + 'static) -> Restore {
        self.progress = Box::new(report);
        self
    }

    async fn run(self) -> Result<BackedUp, BackupError> {
        let Restore { from, to, mut progress } = self;
        let name = format!("SQLite file `{}`", from.display());
        let copied = on_thread(move || {
            let found = fs::metadata(&from).map_err(cannot(&from, "read"))?;
            if !found.is_file() {
                let source = std::io::Error::other("it is no file");
                return Err(cannot(&from, "read")(source));
            }
            for beside in beside(&from) {
                if beside.exists() {
                    return Err(BackupError::InUse { path: from, beside });
                }
            }
            let partial = Partial::beside(&to)?;
            copy_bytes(&from, &partial.path, &mut progress)?;
            Ok(partial)
        });
        copied.await?.finish(name, Codecs::default()).await
    }
}

/// A copy that has not got its name yet; removed when dropped.
struct Partial {
    path: PathBuf,
    to: PathBuf,
}

impl Partial {
    /// A name for a copy that is to be called `to`.
    fn beside(to: &Path) -> Result<Partial, BackupError> {
        refuse_existing(to)?;
        let directory = to.parent().filter(|it| !it.as_os_str().is_empty());
        // Not under the name of the copy that is not finished, which nobody has given.
        fs::metadata(directory.unwrap_or(Path::new("."))).map_err(cannot(to, "written"))?;
        let mut path = to.as_os_str().to_owned();
        path.push(format!("-partial-{:016x}", crate::seam::random()));
        let (path, to) = (path.into(), to.to_owned());
        Ok(Partial { path, to })
    }

    /// Checks the copy, makes it durable, and gives it its name.
    async fn finish(self, name: String, codecs: Codecs) -> Result<BackedUp, BackupError> {
        let partial = on_thread(move || {
            let is_current = sqlite::backup::check(&self.path, &name)?;
            Ok((self, is_current))
        });
        let (partial, is_current) = partial.await?;
        let doctor = match is_current {
            true => Some(examine(&partial.path, codecs).await?),
            false => None,
        };
        on_thread(move || partial.publish(doctor)).await
    }

    fn publish(self, doctor: Option<DoctorReport>) -> Result<BackedUp, BackupError> {
        let error = |act| cannot(&self.to, act);
        let file = fs::File::open(&self.path).map_err(error("written"))?;
        file.sync_all().map_err(error("written"))?;
        let bytes = file.metadata().map_err(error("read"))?.len();
        drop(file);
        self.take_name()?;
        sync_directory(&self.to).map_err(error("written"))?;
        let path = self.to.clone();
        Ok(BackedUp { path, bytes, doctor })
    }

    /// Gives the copy its name, unless somebody else has made a file of that name meanwhile: a rename
    /// would replace it, and a link does not.
    fn take_name(&self) -> Result<(), BackupError> {
        let error = || cannot(&self.to, "renamed");
        refuse_logs(&self.to)?;
        match fs::hard_link(&self.path, &self.to) {
            Ok(()) => fs::remove_file(&self.path).map_err(error()),
            Err(failed) if failed.kind() == std::io::ErrorKind::AlreadyExists => {
                let path = self.to.clone();
                Err(BackupError::Exists { path })
            }
            // The file system has no links.
            Err(_) => {
                refuse_existing(&self.to)?;
                fs::rename(&self.path, &self.to).map_err(error())
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let all = beside(&self.path).into_iter().chain([self.path.clone()]);
        all.for_each(|path| drop(fs::remove_file(path)));
    }
}

fn cannot(path: &Path, act: &'static str) -> impl FnOnce(std::io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::File { path, act, source }
}

/// What SQLite keeps beside a database.
fn beside(path: &Path) -> [PathBuf; 3] {
    ["-wal", "-shm", "-journal"].map(|suffix| sqlite::place::beside(path, suffix))
}

fn refuse_existing(to: &Path) -> Result<(), BackupError> {
    refuse([to.to_owned()])?;
    refuse_logs(to)
}

/// A log that is left beside a new file would be applied to it.
fn refuse_logs(to: &Path) -> Result<(), BackupError> {
    refuse(beside(to))
}

fn refuse(paths: impl IntoIterator<Item = PathBuf>) -> Result<(), BackupError> {
    let mut found = paths.into_iter().filter(|path| path.symlink_metadata().is_ok());
    match found.next() {
        Some(path) => Err(BackupError::Exists { path }),
        None => Ok(()),
    }
}

/// The doctor's report on a copy that nobody uses. The copy is closed when this returns.
async fn examine(path: &Path, codecs: Codecs) -> Result<DoctorReport, BackupError> {
    let path = path.to_owned();
    let store = on_thread(move || Ok(Arc::new(SqliteStore::open(path)?))).await?;
    let mut client = Client::on(store.clone())?;
    client.use_codecs(codecs);
    let report = client.doctor().await;
    drop(client);
    // The threads of the client close the file when they end; before that it cannot be renamed.
    on_thread(move || {
        let begun = seam::now();
        while Arc::strong_count(&store) > 1 {
            if seam::elapsed(begun) > CLOSING_LIMIT {
                return Err(BackupError::Interrupted);
            }
            seam::sleep(Duration::from_millis(1), "the file is closed");
        }
        Ok(())
    })
    .await?;
    Ok(report?)
}

/// How long the threads of that client may take to end.
const CLOSING_LIMIT: Duration = Duration::from_secs(30);

const CHUNK_BYTES: usize = 1 << 20;

fn copy_bytes(from: &Path, to: &Path, progress: &mut Report) -> Result<(), BackupError> {
    let mut source = fs::File::open(from).map_err(cannot(from, "read"))?;
    let total = source.metadata().map_err(cannot(from, "read"))?.len();
    let target = sqlite::backup::create_like(from, to);
    let mut target = target.map_err(cannot(to, "written"))?;
    let (mut copied, mut chunk) = (0, vec![0; CHUNK_BYTES]);
    loop {
        let len = source.read(&mut chunk).map_err(cannot(from, "read"))?;
        if len == 0 {
            return target.sync_all().map_err(cannot(to, "written"));
        }
        target.write_all(&chunk[..len]).map_err(cannot(to, "written"))?;
        copied += len as u64;
        progress(BackupProgress { copied, total });
    }
}

/// Makes the name of a file durable.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    match cfg!(unix) {
        true => fs::File::open(directory)?.sync_all(),
        // Elsewhere a directory cannot be opened, and its names are durable by themselves.
        false => Ok(()),
    }
}

/// Runs what blocks on a thread of its own.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let (sender, done) = oneshot::channel();
    let spawned = spawn_thread("everstep-backup", move || _ = sender.send(work()));
    spawned.map_err(|_| BackupError::Interrupted)?;
    done.await.map_err(|_| BackupError::Interrupted)?
}

awaited!([] Backup, run => Result<BackedUp, BackupError>);

awaited!([] Restore, run => Result<BackedUp, BackupError>);

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup").field("to", &self.to).finish_non_exhaustive()
    }
}

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore")
            .field("from", &self.from)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was made after the last look was replaced by the copy.
    #[test]
    fn a_file_that_is_made_just_before_the_copy_gets_its_name_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let to = dir.path().join("copy.db");
        let partial = Partial::beside(&to).expect("there is none");
        fs::write(&partial.path, "the copy").expect("write");
        fs::write(&to, "another").expect("write");
        let error = partial.take_name().expect_err("there is a file");
        assert!(matches!(&error, BackupError::Exists { path } if *path == to));
        assert_eq!(fs::read(&to).expect("read"), b"another");
        fs::remove_file(&to).expect("remove");
        partial.take_name().expect("there is none");
        assert_eq!(fs::read(&to).expect("read"), b"the copy");
        assert!(!partial.path.exists());
    }
}
