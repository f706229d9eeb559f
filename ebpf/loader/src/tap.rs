//! A tap: the kernel's end is an interface, ours a descriptor that reads and writes whole frames.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::WallError;

const DEVICE: &str = "/dev/net/tun";
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;

/// The descriptor of a tap. The interface goes when it is closed.
#[derive(Debug)]
pub struct Tap(File);

/// Makes a tap interface in the calling thread's namespace. It is down.
///
/// # Errors
///
/// No `/dev/net/tun`, no right to it, a name that is taken or too long.
pub fn make_tap(name: &str) -> Result<Tap, WallError> {
    let failed = |source| WallError::Socket {
        step: "make a tap",
        source,
    };
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICE)
        .map_err(failed)?;
    configure(&device, name).map_err(failed)?;
    Ok(Tap(device))
}

fn configure(device: &File, name: &str) -> io::Result<()> {
    // SAFETY: plain old data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // One byte stays zero: the name's end.
    let room = request.ifr_name.len() - 1;
    if name.is_empty() || name.len() > room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (cell, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *cell = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (IFF_TAP | IFF_NO_PI).cast_signed();
    // SAFETY: the device is open, and the kernel reads and writes one live `ifreq`, which TUNSETIFF takes.
    let result: c_int = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Tap {
    /// Sends one frame, as the sandbox would.
    ///
    /// # Errors
    ///
    /// The interface is down, or the frame is shorter than an Ethernet header.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        (&self.0).write_all(frame)
    }

    /// Takes one frame that was sent to the sandbox; [`io::ErrorKind::WouldBlock`] when there is none.
    ///
    /// # Errors
    ///
    /// As said, or the interface is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
