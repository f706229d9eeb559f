//! Named walls: their namespace is bound to a file, so that tools find it. A file outlives its process, so whoever starts
//! next sweeps: a name whose lock nobody holds has no owner.
//!
//! ```text
//! /run/wallgate/walls/NAME/lock    held (flock) while the owner lives
//! /run/wallgate/walls/NAME/netns   the namespace, bound here
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tracing::warn;

use crate::error::WallError;
use crate::namespace::Namespace;

const DIRECTORY: &str = "/run/wallgate/walls";

/// The longest [`WallName`], in bytes.
pub const MAX_WALL_NAME_BYTES: usize = 32;

/// A wall's name: 1 to 32 bytes of `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WallName(String);

/// The text is no [`WallName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a wall's name has 1 to {MAX_WALL_NAME_BYTES} of a-z, 0-9 and -")]
pub struct WallNameError;

impl FromStr for WallName {
    type Err = WallNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > MAX_WALL_NAME_BYTES || !text.bytes().all(allowed) {
            return Err(WallNameError);
        }
        Ok(Self(text.to_owned()))
    }
}

/// Something that a dead owner left and that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The wall's name.
    pub wall: String,
}

/// A claimed name. Dropping it removes the files.
#[derive(Debug)]
pub(crate) struct Named {
    directory: PathBuf,
    _lock: File,
}

impl Named {
    pub(crate) fn claim(name: &WallName, namespace: &Namespace) -> Result<Self, WallError> {
        let directory = Path::new(DIRECTORY).join(&name.0);
        let failed = |step| move |source| WallError::Directory { step, source };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed("make the wall's directory"))?;
        let lock = lock(&directory)
            .map_err(failed("lock the wall's name"))?
            .ok_or_else(|| WallError::NameTaken(name.0.clone()))?;
        let named = Self {
            directory,
            _lock: lock,
        };
        let file = named.directory.join("netns");
        File::create(&file).map_err(failed("make the namespace's file"))?;
        let source = format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd());
        mount_bind(source, &file).map_err(|errno| failed("bind the namespace")(errno.into()))?;
        Ok(named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.directory) {
            warn!(%error, "the wall's name could not be removed; the next start will");
        }
    }
}

/// Removes what dead owners of named walls left: bindings and directories. The namespaces go with them.
///
/// # Errors
///
/// A leftover that cannot be removed. Walls with living owners are passed over.
pub fn sweep() -> Result<Vec<Leftover>, WallError> {
    let failed = |step| move |source| WallError::Directory { step, source };
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list named walls")(error)),
    };
    let mut swept = Vec::new();
    for entry in entries {
        let directory = entry.map_err(failed("list named walls"))?.path();
        // Held until its files are gone, so that nobody claims the name in between.
        let Some(_lock) = lock(&directory).map_err(failed("lock a wall's name"))? else {
            continue;
        };
        remove(&directory).map_err(failed("remove a leftover"))?;
        let wall = directory
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        swept.push(Leftover { wall });
    }
    Ok(swept)
}

/// `None` when a living process holds it.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    let namespace = directory.join("netns");
    match unmount(&namespace, UnmountFlags::DETACH) {
        // Not bound, or not there.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    fs::remove_dir_all(directory)
}
