//! The sockets of one sandbox, made inside the wall's namespace and used from anywhere.
//!
//! Each is bound to the sandbox's interface, so that even without the steering program no other sandbox reaches it, and
//! what it sends leaves through that interface or not at all.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen, socket_with,
    sockopt::{set_ipv6_v6only, set_socket_reuseaddr},
};
use wallgate_wall_shared::DNS_PORT;

use crate::error::WallError;

/// How many connections may wait to be accepted, per listener. The kernel answers more with SYN cookies.
const BACKLOG: c_int = 1024;

/// The three of them.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) tcp: TcpListener,
    pub(crate) dns_tcp: TcpListener,
    pub(crate) dns_udp: UdpSocket,
}

impl Sockets {
    /// Makes them in the calling thread's namespace.
    pub(crate) fn open(ifindex: u32, mark: u32) -> Result<Self, WallError> {
        let failed = |source| WallError::Socket {
            step: "open a sandbox's sockets",
            source,
        };
        let tcp = |port| -> io::Result<TcpListener> {
            let fd = socket(SocketType::STREAM, port, ifindex)?;
            listen(&fd, BACKLOG)?;
            Ok(fd.into())
        };
        let datagrams = || -> io::Result<UdpSocket> {
            let fd = socket(SocketType::DGRAM, DNS_PORT, ifindex)?;
            // Which address was asked, and leave to answer from it.
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)?;
            set(&fd, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())?;
            Ok(fd.into())
        };
        Ok(Self {
            tcp: tcp(0).map_err(failed)?,
            dns_tcp: tcp(DNS_PORT).map_err(failed)?,
            dns_udp: datagrams().map_err(failed)?,
        })
    }
}

fn socket(kind: SocketType, port: u16, ifindex: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::INET6, kind, flags, None)?;
    set_ipv6_v6only(&fd, false)?;
    if kind == SocketType::STREAM {
        set_socket_reuseaddr(&fd, true)?;
    }
    let index = c_int::try_from(ifindex).map_err(io::Error::other)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)?;
    bind(&fd, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    Ok(fd)
}

fn set(fd: &OwnedFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: `fd` is open, and the kernel reads `size` bytes from a live `c_int`, which every option set here is.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The mark of an accepted connection: the sandbox's when the filter saw its first frame, else 0.
///
/// # Errors
///
/// When `socket` is no socket.
pub fn accepted_mark(socket: impl AsFd) -> io::Result<u32> {
    mark_of(socket.as_fd())
}

fn mark_of(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut mark = 0_u32;
    let mut size = libc::socklen_t::try_from(size_of::<u32>()).map_err(io::Error::other)?;
    // SAFETY: `fd` is open, and the kernel writes at most `size` bytes to a live `u32`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            (&raw mut mark).cast(),
            &raw mut size,
        )
    };
    if result == 0 {
        Ok(mark)
    } else {
        Err(io::Error::last_os_error())
    }
}
