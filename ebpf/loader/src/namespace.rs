//! Network namespaces by descriptor: nothing has a name in the file system, so nothing outlives its owner.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::WallError;

const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace that lives as long as this, or as long as a socket inside it.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// Makes an empty one.
    pub(crate) fn create() -> Result<Self, WallError> {
        let failed = |step| move |source| WallError::Namespace { step, source };
        let made = on_own_thread(|| {
            // SAFETY: only CLONE_NEWNET is unshared, which touches no descriptor, memory or file-system state that the
            // rest of the process relies on, and this thread ends right after.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open(CURRENT)
        });
        Ok(Self(
            made.and_then(|inner| inner).map_err(failed("create"))?.into(),
        ))
    }

    /// The namespace of the calling thread.
    pub(crate) fn current() -> Result<Self, WallError> {
        let file = File::open(CURRENT).map_err(|source| WallError::Namespace {
            step: "open our own",
            source,
        })?;
        Ok(Self(file.into()))
    }

    /// A second reference.
    pub(crate) fn from_fd(fd: BorrowedFd<'_>) -> Result<Self, WallError> {
        let owned = fd.try_clone_to_owned().map_err(|source| WallError::Namespace {
            step: "duplicate",
            source,
        })?;
        Ok(Self(owned))
    }

    /// Runs `work` on a thread that has entered the namespace; the calling thread stays where it is.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, WallError> + Send,
    ) -> Result<T, WallError> {
        let failed = |source| WallError::Namespace {
            step: "enter",
            source,
        };
        on_own_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|errno| failed(errno.into()))?;
            work()
        })
        .map_err(failed)?
    }

    /// Writes settings below `/proc/sys/net`, which show the namespace of the thread that looks. Call inside [`Self::run`].
    pub(crate) fn set(settings: &[(&str, &str)]) -> Result<(), WallError> {
        for (name, value) in settings {
            fs::write(format!("/proc/sys/net/{name}"), value).map_err(|source| WallError::Setting {
                name: (*name).to_owned(),
                source,
            })?;
        }
        Ok(())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("wall-netns".to_owned())
            .spawn_scoped(scope, work)?
            .join()
            .map_err(|_panic| io::Error::other("the namespace thread panicked"))
    })
}
