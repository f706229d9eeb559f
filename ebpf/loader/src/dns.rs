//! Datagrams with the address that was asked, so that the answer comes from it (RFC 3542, section 6.2).

use std::io;
use std::mem;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// Room for one `in6_pktinfo` with its header, aligned like one.
type Control = [u64; 8];

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length; more than the buffer's means that it was cut.
    pub bytes: usize,
    /// Who sent it. It identifies nobody: the socket that received it does.
    pub peer: SocketAddr,
    /// The address that was asked, on port 53.
    pub original: SocketAddr,
    local: Ipv6Addr,
    from: SocketAddrV6,
}

/// Receives one datagram; with a non-blocking socket, [`io::ErrorKind::WouldBlock`] when there is none.
///
/// # Errors
///
/// The socket's, or [`io::ErrorKind::InvalidData`] when the kernel does not tell the destination.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control: Control = [0; 8];
    let mut from = zeroed_address();
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = header(&mut from, &mut vector, &mut control);
    // SAFETY: every pointer in `message` is to a live local of the size that is stated beside it.
    let result = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
    let bytes = usize::try_from(result).map_err(|_negative| io::Error::last_os_error())?;
    let (local, _) = packet_info(&message).ok_or(io::ErrorKind::InvalidData)?;
    let from = SocketAddrV6::new(
        from.sin6_addr.s6_addr.into(),
        u16::from_be(from.sin6_port),
        0,
        from.sin6_scope_id,
    );
    let plain = |ip: Ipv6Addr, port| SocketAddr::new(ip.to_canonical(), port);
    Ok(Received {
        bytes,
        peer: plain(*from.ip(), from.port()),
        original: plain(local, wallgate_wall_shared::DNS_PORT),
        local,
        from,
    })
}

/// Answers `to` from the address that it asked.
///
/// # Errors
///
/// The socket's.
pub fn reply(socket: impl AsFd, payload: &[u8], to: &Received) -> io::Result<()> {
    let mut control: Control = [0; 8];
    let mut address = zeroed_address();
    address.sin6_family = u16::try_from(libc::AF_INET6).map_err(io::Error::other)?;
    address.sin6_addr.s6_addr = to.from.ip().octets();
    address.sin6_port = to.from.port().to_be();
    address.sin6_scope_id = to.from.scope_id();
    let mut vector = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    let mut message = header(&mut address, &mut vector, &mut control);
    let info = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr {
            s6_addr: to.local.octets(),
        },
        // The socket is bound to its interface already.
        ipi6_ifindex: 0,
    };
    write_packet_info(&mut message, info)?;
    // SAFETY: every pointer in `message` is to a live local of the size that is stated beside it; the payload is only read.
    let result = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn zeroed_address() -> libc::sockaddr_in6 {
    // SAFETY: plain old data, for which zeros are a value.
    unsafe { mem::zeroed() }
}

fn header(address: &mut libc::sockaddr_in6, vector: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain old data, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut *address).cast();
    message.msg_namelen = u32::try_from(size_of::<libc::sockaddr_in6>()).unwrap_or_default();
    message.msg_iov = &raw mut *vector;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

fn packet_info(message: &libc::msghdr) -> Option<(Ipv6Addr, u32)> {
    // SAFETY: the kernel filled in `message`, whose control buffer is still alive in the caller.
    let mut current = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !current.is_null() {
        // SAFETY: not null, so it is a complete header inside the control buffer, which is aligned for it.
        let found = unsafe { current.read() };
        if found.cmsg_level == libc::IPPROTO_IPV6 && found.cmsg_type == libc::IPV6_PKTINFO {
            // SAFETY: `current` is a header inside the control buffer.
            let data = unsafe { libc::CMSG_DATA(current) };
            // SAFETY: the kernel writes a whole in6_pktinfo after this header; it may be unaligned.
            let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
            return Some((info.ipi6_addr.s6_addr.into(), info.ipi6_ifindex));
        }
        // SAFETY: as above; it returns null after the last one.
        current = unsafe { libc::CMSG_NXTHDR(message, current) };
    }
    None
}

fn write_packet_info(message: &mut libc::msghdr, info: libc::in6_pktinfo) -> io::Result<()> {
    let size = u32::try_from(size_of::<libc::in6_pktinfo>()).map_err(io::Error::other)?;
    // SAFETY: arithmetic only.
    let space = unsafe { libc::CMSG_SPACE(size) };
    // SAFETY: arithmetic only.
    let length = unsafe { libc::CMSG_LEN(size) };
    // SAFETY: the control buffer that `message` points to is alive in the caller.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    if first.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut head = libc::cmsghdr {
        cmsg_len: length as _,
        cmsg_level: libc::IPPROTO_IPV6,
        cmsg_type: libc::IPV6_PKTINFO,
    };
    head.cmsg_len = length as _;
    // SAFETY: `first` points to the start of the control buffer, which has room for the header and is aligned for it.
    unsafe { first.write(head) };
    // SAFETY: `first` is a header inside the control buffer.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: the 64-byte buffer has room for `space` bytes (40); the data may be unaligned.
    unsafe { data.cast::<libc::in6_pktinfo>().write_unaligned(info) };
    message.msg_controllen = space as _;
    Ok(())
}
