//! DNS over UDP, on a socket that gets datagrams for every address.
//!
//! The kernel says with each datagram which address it was sent to and on which interface it came (RFC 3542, section 6;
//! `ip(7)`, `IP_PKTINFO`); the answer is sent from that address on that interface, since a client takes an answer from no
//! other. A dual-stack socket gets IPv4 as mapped addresses.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket as StdUdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use nix::cmsg_space;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrLike as _, SockaddrStorage, recvmsg, sendmsg,
    setsockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::message::Transport;
use super::{DnsError, DnsServer, NameGate};
use crate::edge_limits::{MAX_DNS_IN_FLIGHT, MAX_DNS_QUERY_BYTES};

/// Where a datagram came from and where it was sent to.
#[derive(Clone, Copy, Debug)]
struct Path {
    peer: SockaddrStorage,
    asked: Asked,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl<G: NameGate> DnsServer<G> {
    /// Answers what comes on `socket` until `stop` is cancelled; then waits for what is under way.
    ///
    /// # Errors
    /// [`DnsError`] when the socket cannot be used. The sandbox then has no DNS: nothing falls back.
    pub async fn serve_udp(
        self: &Arc<Self>,
        socket: StdUdpSocket,
        stop: CancellationToken,
    ) -> Result<(), DnsError> {
        let socket = Arc::new(prepare(socket).map_err(DnsError::Setup)?);
        let mut answering = JoinSet::new();
        // One byte more than is accepted, so that a longer datagram is seen to be longer.
        let mut buffer = [0_u8; MAX_DNS_QUERY_BYTES + 1];
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = answering.join_next() => continue,
                received = socket.async_io(Interest::READABLE, || receive(&socket, &mut buffer)) => received,
            };
            let (length, path) = match received {
                Ok(Some(received)) => received,
                Ok(None) => {
                    self.tally.count("unanswerable");
                    continue;
                }
                Err(error) if is_passing(&error) => {
                    self.tally.count("unanswerable");
                    continue;
                }
                Err(error) => return Err(DnsError::Receive(error)),
            };
            if answering.len() >= MAX_DNS_IN_FLIGHT {
                self.tally.count("overloaded");
                continue;
            }
            let message = buffer.get(..length).unwrap_or_default().to_vec();
            let (server, socket) = (Arc::clone(self), Arc::clone(&socket));
            answering.spawn(async move {
                if let Some(answer) = server.answer(&message, Transport::Udp).await {
                    // A full buffer or a vanished route loses the answer, as UDP may.
                    drop(reply(&socket, &answer, &path));
                }
            });
        }
        while answering.join_next().await.is_some() {}
        Ok(())
    }
}

/// Whether the next datagram may well be received although this one was not.
fn is_passing(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let passing = [
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EINTR,
        Errno::ECONNREFUSED,
        Errno::EHOSTUNREACH,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| passing.contains(&Errno::from_raw(code)))
}

fn prepare(socket: StdUdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    if socket.local_addr()?.is_ipv6() {
        setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, Ipv4PacketInfo, &true)?;
    }
    UdpSocket::from_std(socket)
}

/// One datagram, or `None` for one that cannot be answered.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<(usize, Path)>> {
    // Room for what else the socket's maker may have asked the kernel to say.
    let mut control = cmsg_space!(in_pktinfo, in6_pktinfo, [u8; 64]);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let asked = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(Asked::V4(info)),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(Asked::V6(info)),
        _ => None,
    });
    let path = received
        .address
        .zip(asked)
        .map(|(peer, asked)| Path { peer, asked });
    let answerable = path.filter(|path| path.peer.family().is_some() && !is_port_0(&path.peer));
    Ok(answerable.map(|path| (received.bytes, path)))
}

fn is_port_0(peer: &SockaddrStorage) -> bool {
    let v4 = peer.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::port);
    let v6 = peer.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port);
    v4.or(v6).is_none_or(|port| port == 0)
}

fn reply(socket: &UdpSocket, answer: &[u8], path: &Path) -> io::Result<()> {
    let parts = [IoSlice::new(answer)];
    let v4;
    let control = match &path.asked {
        Asked::V4(info) => {
            // `ipi_spec_dst` is what an answer is sent from; on arrival it is the interface's own address.
            v4 = in_pktinfo {
                ipi_spec_dst: info.ipi_addr,
                ..*info
            };
            ControlMessage::Ipv4PacketInfo(&v4)
        }
        Asked::V6(info) => ControlMessage::Ipv6PacketInfo(info),
    };
    sendmsg(
        socket.as_raw_fd(),
        &parts,
        &[control],
        MsgFlags::MSG_DONTWAIT,
        Some(&path.peer),
    )?;
    Ok(())
}
