//! What the eBPF programs and the loader share: map rows, reasons, and the pure decision about a frame.
//!
//! The code here runs in the kernel (compiled for `bpfel-unknown-none`) and under the host's tests, and it is the same
//! code: [`fn@classify`] looks at the first [`HEADER_BYTES`] bytes of a frame and at the row of the interface that it came
//! in on, and says what becomes of it. It allocates nothing, has no panicking path and no unsafe.
//!
//! Start with [`fn@classify`]; [`Reason`] lists every way that a frame can end, and is what the counters are named after.
#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "one straight-line program for the verifier, whatever the compiler would think of its size"
)]

mod classify;
mod egress;
mod header;
mod reason;
mod rows;

pub use classify::classify;
pub use egress::{Outgoing, guard};
pub use header::{Described, HEADER_BYTES, Header, describe};
pub use reason::{Effect, REASON_SLOTS, Reason};
pub use rows::{CounterRow, EventRow, SandboxRow, SocketKey};

/// The upper half of the mark of every frame that passed ingress; the lower half is the sandbox's slot.
pub const MARK: u32 = 0x4e57_0000;

/// Where the sandboxes' IPv4 addresses and their gateway live: 100.127.0.0/16, the end of the shared address space
/// (RFC 6598), which neither the synthetic names (198.18.0.0/15) nor RFC 1918 sites use.
pub const SANDBOX_NET4: [u8; 2] = [100, 127];

/// Where the sandboxes' IPv6 addresses and their gateways live: `fd57:616c:6c67::/48` (RFC 4193).
pub const SANDBOX_NET6: [u8; 6] = [0xfd, 0x57, 0x61, 0x6c, 0x6c, 0x67];

/// The only UDP port that is answered, and the TCP port that has a listener of its own.
pub const DNS_PORT: u16 = 53;

/// What a frame has earned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the network stack of the wall's namespace.
    Pass(Reason),
    /// It ends here.
    Drop(Reason),
}

impl Verdict {
    /// Why.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Pass(reason) | Self::Drop(reason) => reason,
        }
    }
}

/// Which of a sandbox's sockets a new flow goes to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// TCP to any port but 53.
    Tcp = 0,
    /// UDP to port 53.
    DnsUdp = 1,
    /// TCP to port 53.
    DnsTcp = 2,
}

impl Listener {
    /// Every listener of a sandbox.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::DnsUdp, Self::DnsTcp];

    /// The counter of flows that reached it.
    #[must_use]
    pub const fn steered(self) -> Reason {
        match self {
            Self::Tcp => Reason::SteerTcp,
            Self::DnsUdp => Reason::SteerDnsUdp,
            Self::DnsTcp => Reason::SteerDnsTcp,
        }
    }
}

/// The listener for a new flow, or `None` to refuse it at once: a UDP sender then gets an ICMP port unreachable, so
/// that QUIC falls back to TCP without waiting.
#[inline(always)]
#[must_use]
pub const fn steer(protocol: u32, destination_port: u32) -> Option<Listener> {
    const TCP: u32 = header::TCP as u32;
    const UDP: u32 = header::UDP as u32;
    const DNS: u32 = DNS_PORT as u32;
    match (protocol, destination_port) {
        (TCP, DNS) => Some(Listener::DnsTcp),
        (TCP, _) => Some(Listener::Tcp),
        (UDP, DNS) => Some(Listener::DnsUdp),
        _ => None,
    }
}
