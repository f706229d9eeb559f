//! What is put behind the wall, and what comes back.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::BorrowedFd;

use crate::slot::{Addressing, SandboxSlot};

/// An interface to put behind the wall.
#[derive(Debug)]
pub enum Interface<'a> {
    /// A tap that a VMM holds.
    Tap {
        /// Its name.
        name: &'a str,
        /// The namespace that it is in; `None` is the caller's.
        from: Option<BorrowedFd<'a>>,
    },
    /// One end of a veth pair; the other is in the sandbox.
    Veth {
        /// Its name.
        name: &'a str,
        /// The namespace that it is in; `None` is the caller's.
        from: Option<BorrowedFd<'a>>,
    },
}

/// What the kernel confirms about an attached sandbox, asked after everything was in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachProof {
    /// The interface, in the wall's namespace.
    pub ifindex: u32,
    /// The only program on its ingress.
    pub ingress_program: u32,
    /// The only program on its egress.
    pub egress_program: u32,
    /// The program that steers.
    pub steer_program: u32,
    /// The number of the row that the kernel returned: it grows with each row that this wall wrote.
    pub map_generation: u32,
    /// SHA-256 of the object that the programs are from, in hexadecimal.
    pub object_sha256: String,
}

/// A sandbox behind the wall, with the sockets that its traffic ends in.
#[derive(Debug)]
pub struct Attachment {
    /// Its slot.
    pub slot: SandboxSlot,
    /// Its interface, in the wall's namespace.
    pub ifindex: u32,
    /// The mark that an accepted connection must have: see [`accepted_mark`](crate::accepted_mark).
    pub mark: u32,
    /// What it has to call itself.
    pub addressing: Addressing,
    /// TCP to any address and any port but 53; `local_addr` of an accepted connection is what was dialled. Non-blocking.
    pub tcp: TcpListener,
    /// TCP to port 53 of any address. Non-blocking.
    pub dns_tcp: TcpListener,
    /// UDP to port 53 of any address: see [`dns`](crate::dns). Non-blocking.
    pub dns_udp: UdpSocket,
    /// That the programs are there.
    pub proof: AttachProof,
}
