//! The state directory: one directory of mode 0700, one lock, and nothing of it anywhere else.
//!
//! ```text
//!  lock      held (flock) by the one wallgate that uses the directory
//!  ca/       the root that sandboxes trust; its key never leaves
//!  ledger/   the records
//!  run/      one directory a run, gone when it ends; what a kill -9 left is swept at the next start
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// All that is ever in a state directory.
const ENTRIES: &[&str] = &["lock", "ca", "ledger", "run"];

/// Why a state directory cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be made, read or written.
    #[error("cannot use the state directory {}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Somebody else could change or read it.
    #[error("the state directory {} must belong to this user and hold nothing but wallgate's own files, or be closed to others (mode 0700)", .0.display())]
    Open(PathBuf),
    /// Another wallgate uses it.
    #[error("the state directory {} is in use by another wallgate (process {holder})", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that wrote the lock file, as it wrote itself down.
        holder: String,
    },
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::new(Exit::State, error)
    }
}

/// Where things are in a state directory; says nothing about whether they are there.
#[derive(Clone, Debug)]
pub struct StatePaths(PathBuf);

impl StatePaths {
    /// The paths of the state directory at `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger")
    }

    /// The root certificate and its key.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.0.join("ca")
    }

    fn runs(&self) -> PathBuf {
        self.0.join("run")
    }
}

/// A state directory that this process alone uses. The lock goes with the value, or with the process.
#[derive(Debug)]
pub struct StateDir {
    paths: StatePaths,
    run: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the directory if need be, locks it, sweeps what dead runs left, and makes this run's directory.
    ///
    /// # Errors
    /// See [`StateError`]. Nothing is left behind but the directory itself.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        let failed = |source| StateError::Io {
            path: root.to_owned(),
            source,
        };
        make_private(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        close_to_others(&root)?;
        let lock = take_lock(&root)?;
        let paths = StatePaths::new(&root);
        // The lock is ours, so whoever made what is in there is dead.
        match fs::remove_dir_all(paths.runs()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let run = paths.runs().join(std::process::id().to_string());
        for directory in [paths.authority(), paths.runs(), run.clone()] {
            make_private(&directory).map_err(failed)?;
        }
        Ok(Self {
            paths,
            run,
            _lock: lock,
        })
    }

    /// Where things are.
    #[must_use]
    pub const fn paths(&self) -> &StatePaths {
        &self.paths
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // What cannot be removed now is swept at the next start.
        let _swept_later = fs::remove_dir_all(&self.run);
        let _swept_later = fs::remove_dir(self.paths.runs());
    }
}

/// Sees to it that nobody else can enter. A directory that is somebody else's, or that holds other things than ours, is
/// refused rather than changed.
fn close_to_others(root: &Path) -> Result<(), StateError> {
    let failed = |source| StateError::Io {
        path: root.to_owned(),
        source,
    };
    let metadata = fs::metadata(root).map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(StateError::Open(root.to_owned()));
    }
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(root).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !ENTRIES.iter().any(|own| name == *own) {
            return Err(StateError::Open(root.to_owned()));
        }
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(failed)
}

fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).recursive(false).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                // Directories above are the operator's: made with the usual mode.
                fs::create_dir_all(parent)?;
            }
            DirBuilder::new().mode(0o700).create(path)
        }
        other => other,
    }
}

fn take_lock(root: &Path) -> Result<File, StateError> {
    let failed = |source| StateError::Io {
        path: root.to_owned(),
        source,
    };
    let path = root.join("lock");
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            return Err(StateError::InUse {
                path: root.to_owned(),
                holder: holder.trim().to_owned(),
            });
        }
        Err(error) => return Err(failed(error.into())),
    }
    // Only for the message above. On a full disk the lock holds all the same.
    let _only_told = lock.set_len(0);
    let _only_told = writeln!(lock, "{}", std::process::id());
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_uses_it_and_nothing_stays_but_the_directory() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("a/state");
        let state = StateDir::open(&root).unwrap();
        assert!(matches!(StateDir::open(&root), Err(StateError::InUse { .. })));
        drop(state);
        assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!root.join("run").exists());
        StateDir::open(&root).unwrap();
    }

    #[test]
    fn sweeps_what_a_dead_run_left() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("state");
        fs::create_dir_all(root.join("run/1")).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(root.join("run/1/left"), "x").unwrap();
        let state = StateDir::open(&root).unwrap();
        assert!(!root.join("run/1/left").exists());
        drop(state);
    }

    #[test]
    fn closes_its_own_directory_and_refuses_one_that_holds_other_things() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("state");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("letter"), "").unwrap();
        assert!(matches!(StateDir::open(&root), Err(StateError::Open(_))));
        fs::remove_file(root.join("letter")).unwrap();
        let state = StateDir::open(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
        drop(state);
    }
}
