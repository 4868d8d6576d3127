//! The C functions through which SQLite calls the VFS.
//!
//! Each hands its call on to the default VFS; those that change a file also tell [`super::disk`],
//! and fail first if that is planned. This is the only place of the VFS that is unsafe.

#![expect(unsafe_code, reason = "a VFS is a table of C functions over memory that SQLite owns")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::size_of,
    path::PathBuf,
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, Ordering},
    },
};

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use super::{
    Fault, FileKind,
    disk::{Change, State},
};

/// Registers a VFS of this name over the default one.
///
/// # Panics
///
/// If SQLite has no default VFS or does not take another one.
pub(super) fn register(name: &str) -> &'static Shared {
    // SAFETY: SQLite is initialised by the call; no name means the default VFS, which lives
    // until the process ends.
    let real = unsafe {
        ffi::sqlite3_initialize();
        ffi::sqlite3_vfs_find(ptr::null())
    };
    assert!(!real.is_null(), "SQLite has a default VFS");
    // All three are leaked: connections may outlive any value of ours, and use them.
    let shared: &'static Shared =
        Box::leak(Box::new(Shared { real: AtomicPtr::new(real), state: Mutex::default() }));
    let c_name = CString::new(name).expect("the name has no NUL");
    // SAFETY: `real` was just checked, and a registered VFS does not change.
    let real = unsafe { &*real };
    let vfs = Box::leak(Box::new(vfs_over(real, c_name.into_raw(), shared)));
    // SAFETY: `vfs` is complete, and lives for ever.
    let code = unsafe { ffi::sqlite3_vfs_register(vfs, 0) };
    assert_eq!(code, ffi::SQLITE_OK, "SQLite takes another VFS");
    shared
}

/// What all connections through one VFS share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The VFS beneath. Never changes.
    real: AtomicPtr<sqlite3_vfs>,
    /// Held over each write, with the write itself, so that a cut falls between two of them.
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// An open file. SQLite allocates it, with the file of the VFS beneath right behind it.
#[repr(C)]
struct FaultFile {
    base: sqlite3_file,
    /// From a `Box`, which `close` takes back. Null for a file that is not tracked.
    tracked: *mut Handle,
}

/// What a tracked open file is.
struct Handle {
    shared: &'static Shared,
    path: PathBuf,
    kind: FileKind,
    /// Whether the next sync of a WAL or journal also syncs its directory.
    sync_names: AtomicBool,
}

/// The table of the functions below, which call those of `real`.
fn vfs_over(real: &sqlite3_vfs, name: *const c_char, shared: &'static Shared) -> sqlite3_vfs {
    sqlite3_vfs {
        // Version 3 adds the replacing of system calls, which nobody asks of this.
        iVersion: 2,
        szOsFile: size_of::<FaultFile>() as c_int + real.szOsFile,
        mxPathname: real.mxPathname,
        pNext: ptr::null_mut(),
        zName: name,
        pAppData: ptr::from_ref(shared).cast_mut().cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }
}

/// Of version 2: version 3 adds memory mapping, by which pages would be read past this.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// # Safety
///
/// `vfs` must be one that [`vfs_over`] made.
unsafe fn shared_of(vfs: *mut sqlite3_vfs) -> &'static Shared {
    // SAFETY: `vfs_over` puts a `&'static Shared` there.
    unsafe { &*(*vfs).pAppData.cast::<Shared>() }
}

/// The VFS beneath `vfs`.
///
/// # Safety
///
/// `vfs` must be one that [`vfs_over`] made.
unsafe fn real_vfs(vfs: *mut sqlite3_vfs) -> *mut sqlite3_vfs {
    // SAFETY: as the caller promises.
    unsafe { shared_of(vfs) }.real.load(Ordering::Relaxed)
}

/// The file beneath `file`.
///
/// # Safety
///
/// `file` must be memory of `szOsFile` bytes, as [`open`] gets it.
unsafe fn real_file(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: the memory is as long as ours and the real one's together. The size of ours is a
    // multiple of the alignment of a pointer, which is all that the real one may ask for.
    unsafe { file.cast::<FaultFile>().add(1).cast() }
}

/// # Safety
///
/// `file` must be one that [`open`] has opened, and must not be closed while the result is used.
unsafe fn handle_of<'a>(file: *mut sqlite3_file) -> Option<&'a Handle> {
    // SAFETY: `open` puts null there, or a pointer from a `Box` that lives until `close`.
    unsafe { (*file.cast::<FaultFile>()).tracked.as_ref() }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls with the VFS that was registered, a name that is null or ends with NUL,
    // and `szOsFile` bytes for the file, which nobody else uses yet.
    unsafe {
        let ours = file.cast::<FaultFile>();
        (*ours).base.pMethods = ptr::null();
        (*ours).tracked = ptr::null_mut();
        let shared = shared_of(vfs);
        let handle = handle_for(shared, name, flags);
        let mut state = shared.lock();
        let is_there = handle.as_ref().is_some_and(|handle| handle.path.exists());

        let (real_vfs, real) = (real_vfs(vfs), real_file(file));
        (*real).pMethods = ptr::null();
        let Some(real_open) = (*real_vfs).xOpen else {
            return ffi::SQLITE_CANTOPEN;
        };
        let code = real_open(real_vfs, name, real, flags, out_flags);
        if code != ffi::SQLITE_OK {
            if let Some(close) = (*real).pMethods.as_ref().and_then(|methods| methods.xClose) {
                close(real);
            }
            return code;
        }

        if let Some(handle) = &handle {
            state.opened(&handle.path, || is_there.then(|| content_of(real)).flatten());
            if !is_there {
                state.created(&handle.path);
            }
        }
        (*ours).tracked = handle.map_or(ptr::null_mut(), |handle| Box::into_raw(Box::new(handle)));
        (*ours).base.pMethods = &raw const METHODS;
        ffi::SQLITE_OK
    }
}

/// All that is in an open file. It is read through the file itself: to open it once more, and close
/// it, would take away the locks that this process has on it.
///
/// # Safety
///
/// `real` must be an open file of the VFS beneath.
unsafe fn content_of(real: *mut sqlite3_file) -> Option<Vec<u8>> {
    // SAFETY: as the caller promises; the size and the bytes go to memory of ours that is as long
    // as we say.
    unsafe {
        let methods = &*(*real).pMethods;
        let mut size = 0;
        (methods.xFileSize?(real, &raw mut size) == ffi::SQLITE_OK).then_some(())?;
        let mut content = vec![0; usize::try_from(size).ok()?];
        let len = c_int::try_from(size).ok()?;
        let code = methods.xRead?(real, content.as_mut_ptr().cast(), len, 0);
        (code == ffi::SQLITE_OK).then_some(content)
    }
}

/// What is to be known about the file, if it is one of a database.
///
/// # Safety
///
/// `name` must be null or end with NUL.
unsafe fn handle_for(shared: &'static Shared, name: *const c_char, flags: c_int) -> Option<Handle> {
    let kinds = [
        (ffi::SQLITE_OPEN_MAIN_DB, FileKind::Database),
        (ffi::SQLITE_OPEN_WAL, FileKind::Wal),
        (ffi::SQLITE_OPEN_MAIN_JOURNAL, FileKind::Journal),
    ];
    let (_, kind) = kinds.into_iter().find(|(flag, _)| flags & flag != 0)?;
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { path_of(name) };
    let sync_names = AtomicBool::new(kind != FileKind::Database);
    Some(Handle { shared, path, kind, sync_names })
}

/// # Safety
///
/// `name` must not be null, and must end with NUL.
unsafe fn path_of(name: *const c_char) -> PathBuf {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    PathBuf::from(name.to_string_lossy().into_owned())
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: SQLite calls with the VFS that was registered, and a name that ends with NUL.
    unsafe {
        let (shared, real, path) = (shared_of(vfs), real_vfs(vfs), path_of(name));
        let mut state = shared.lock();
        let Some(real_delete) = (*real).xDelete else {
            return ffi::SQLITE_IOERR;
        };
        let code = real_delete(real, name, 0);
        if code == ffi::SQLITE_OK && state.files.contains_key(&path) {
            state.shrink(&path, 0);
            state.record(&path, Change::Delete);
            if sync_dir != 0 {
                state.sync_names_beside(&path);
            }
        }
        code
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes each open file once, and does not use it afterwards.
    unsafe {
        let ours = file.cast::<FaultFile>();
        let tracked = std::mem::replace(&mut (*ours).tracked, ptr::null_mut());
        if !tracked.is_null() {
            drop(Box::from_raw(tracked));
        }
        let real = real_file(file);
        let code = match (*(*real).pMethods).xClose {
            Some(real_close) => real_close(real),
            None => ffi::SQLITE_OK,
        };
        (*ours).base.pMethods = ptr::null();
        code
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let Some(handle) = (unsafe { handle_of(file) }) else {
        // SAFETY: the arguments are handed on as they came.
        return unsafe { real_write(file, data, len, at) };
    };
    let mut state = handle.shared.lock();
    match State::due(&mut state.write_fault) {
        Some(Fault::Io) => return ffi::SQLITE_IOERR_WRITE,
        Some(Fault::Full) => return ffi::SQLITE_FULL,
        None => {}
    }
    let end = u64::try_from(at).unwrap_or(0) + u64::try_from(len).unwrap_or(0);
    if !state.grow(&handle.path, end) {
        return ffi::SQLITE_FULL;
    }
    // SAFETY: the arguments are handed on as they came.
    let code = unsafe { real_write(file, data, len, at) };
    if code == ffi::SQLITE_OK {
        let (Ok(at), Ok(len)) = (usize::try_from(at), usize::try_from(len)) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        let counts = state.counts(handle.kind);
        counts.writes += 1;
        counts.bytes_written += len as u64;
        // SAFETY: SQLite gives `len` bytes to be written.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec();
        state.record(&handle.path, Change::Write { at, data });
    }
    code
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, len: sqlite3_int64) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let Some(handle) = (unsafe { handle_of(file) }) else {
        // SAFETY: the arguments are handed on as they came.
        return unsafe { real_truncate(file, len) };
    };
    let mut state = handle.shared.lock();
    // SAFETY: the arguments are handed on as they came.
    let code = unsafe { real_truncate(file, len) };
    if code == ffi::SQLITE_OK {
        let len = usize::try_from(len).unwrap_or(0);
        state.shrink(&handle.path, len as u64);
        state.record(&handle.path, Change::Truncate { len });
    }
    code
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let Some(handle) = (unsafe { handle_of(file) }) else {
        return ffi::SQLITE_OK;
    };
    let mut state = handle.shared.lock();
    match State::due(&mut state.sync_fault) {
        Some(Fault::Io) => return ffi::SQLITE_IOERR_FSYNC,
        Some(Fault::Full) => return ffi::SQLITE_FULL,
        None => {}
    }
    let counts = state.counts(handle.kind);
    counts.syncs += 1;
    counts.full_syncs += u64::from(flags & 0x0F == ffi::SQLITE_SYNC_FULL);
    counts.data_only_syncs += u64::from(flags & ffi::SQLITE_SYNC_DATAONLY != 0);
    state.sync(&handle.path);
    if handle.sync_names.swap(false, Ordering::Relaxed) {
        state.sync_names_beside(&handle.path);
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    // SAFETY: the argument is handed on as it came.
    let real = unsafe { real_device_characteristics(file) };
    // Batches of atomic writes go around `write`, so SQLite must not know that there are any.
    real & !ffi::SQLITE_IOCAP_BATCH_ATOMIC
}

/// Functions of the VFS that are handed on.
macro_rules! forward_to_real_vfs {
    ($($name:ident: $field:ident($($arg:ident: $type:ty),*) -> $out:ty, else $none:expr;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs, $($arg: $type),*) -> $out {
            // SAFETY: SQLite calls with the VFS that was registered; the other arguments are handed
            // on as they came, and the VFS beneath gets itself.
            unsafe {
                let real = real_vfs(vfs);
                match (*real).$field {
                    Some(function) => function(real, $($arg),*),
                    None => $none,
                }
            }
        }
    )*};
}

type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

forward_to_real_vfs! {
    access: xAccess(name: *const c_char, flags: c_int, out: *mut c_int) -> c_int,
        else ffi::SQLITE_IOERR;
    full_pathname: xFullPathname(name: *const c_char, len: c_int, out: *mut c_char) -> c_int,
        else ffi::SQLITE_CANTOPEN;
    dl_open: xDlOpen(name: *const c_char) -> *mut c_void, else ptr::null_mut();
    dl_error: xDlError(len: c_int, out: *mut c_char) -> (), else ();
    dl_sym: xDlSym(library: *mut c_void, name: *const c_char) -> Symbol, else None;
    dl_close: xDlClose(library: *mut c_void) -> (), else ();
    randomness: xRandomness(len: c_int, out: *mut c_char) -> c_int, else 0;
    sleep: xSleep(microseconds: c_int) -> c_int, else 0;
    current_time: xCurrentTime(out: *mut f64) -> c_int, else ffi::SQLITE_ERROR;
    last_error: xGetLastError(len: c_int, out: *mut c_char) -> c_int, else 0;
    current_time_int64: xCurrentTimeInt64(out: *mut sqlite3_int64) -> c_int, else ffi::SQLITE_ERROR;
}

/// Functions of a file that are handed on.
macro_rules! forward_to_real_file {
    ($($name:ident: $field:ident($($arg:ident: $type:ty),*) -> $out:ty, else $none:expr;)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> $out {
            // SAFETY: SQLite calls with an open file, so the one beneath is open too; the other
            // arguments are handed on as they came.
            unsafe {
                let real = real_file(file);
                match (*(*real).pMethods).$field {
                    Some(function) => function(real, $($arg),*),
                    None => $none,
                }
            }
        }
    )*};
}

forward_to_real_file! {
    read: xRead(out: *mut c_void, len: c_int, at: sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    real_write: xWrite(data: *const c_void, len: c_int, at: sqlite3_int64) -> c_int,
        else ffi::SQLITE_IOERR;
    real_truncate: xTruncate(len: sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    file_size: xFileSize(out: *mut sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    lock: xLock(level: c_int) -> c_int, else ffi::SQLITE_IOERR;
    unlock: xUnlock(level: c_int) -> c_int, else ffi::SQLITE_IOERR;
    check_reserved_lock: xCheckReservedLock(out: *mut c_int) -> c_int, else ffi::SQLITE_IOERR;
    file_control: xFileControl(op: c_int, arg: *mut c_void) -> c_int, else ffi::SQLITE_NOTFOUND;
    sector_size: xSectorSize() -> c_int, else 4096;
    real_device_characteristics: xDeviceCharacteristics() -> c_int, else 0;
    shm_map: xShmMap(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) -> c_int,
        else ffi::SQLITE_IOERR_SHMMAP;
    shm_lock: xShmLock(offset: c_int, n: c_int, flags: c_int) -> c_int,
        else ffi::SQLITE_IOERR_SHMLOCK;
    shm_barrier: xShmBarrier() -> (), else ();
    shm_unmap: xShmUnmap(delete: c_int) -> c_int, else ffi::SQLITE_OK;
}
