//! A sandbox's place on the wall, and the addresses that follow from it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use wallgate_wall_shared::{MARK, SANDBOX_NET4, SANDBOX_NET6, SandboxRow};

/// The largest slot. Above it lies the gateway's address.
pub const MAX_SLOT: u16 = 65_000;

/// A sandbox's number on this wall, 1 to [`MAX_SLOT`]. It is the lower half of its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxSlot(u16);

impl SandboxSlot {
    /// The slot with this number.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > MAX_SLOT {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The mark of every frame that the filter passed for this sandbox, and so of every connection it opened.
    #[must_use]
    pub fn mark(self) -> u32 {
        MARK | u32::from(self.0)
    }

    /// The interface's name inside the wall's namespace.
    pub(crate) fn interface_name(self) -> String {
        format!("sb{}", self.0)
    }
}

impl fmt::Display for SandboxSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the sandbox has to call itself and its gateway: the filter passes nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// The sandbox's MAC address.
    pub mac: [u8; 6],
    /// The gateway's: the wall's end of the interface.
    pub gateway_mac: [u8; 6],
    /// The sandbox's IPv4 address, a `/32`.
    pub v4: Ipv4Addr,
    /// Its IPv4 gateway, reached on the link.
    pub gateway_v4: Ipv4Addr,
    /// The sandbox's IPv6 address, a `/128`.
    pub v6: Ipv6Addr,
    /// Its IPv6 gateway, reached on the link.
    pub gateway_v6: Ipv6Addr,
    /// The largest packet, in bytes.
    pub mtu: u32,
}

impl Addressing {
    /// The addresses of `slot`: 100.127.x.y behind 100.127.255.254, and `fd57:616c:6c67::n` behind
    /// `fd57:616c:6c67:1::n`. Every sandbox has an IPv6 gateway of its own, so that the kernel's tables stay lists of one.
    #[must_use]
    pub fn of(slot: SandboxSlot) -> Self {
        let [high, low] = slot.0.to_be_bytes();
        let [net, subnet] = SANDBOX_NET4;
        let v6 = |subnet: u16| {
            let mut address = [0; 16];
            for (cell, byte) in address.iter_mut().zip(SANDBOX_NET6) {
                *cell = byte;
            }
            let fixed = u128::from_be_bytes(address);
            Ipv6Addr::from(fixed | u128::from(subnet) << 64 | u128::from(slot.0))
        };
        Self {
            mac: [0x02, 0x57, 0x47, 0x00, high, low],
            gateway_mac: [0x02, 0x57, 0x47, 0x01, high, low],
            v4: Ipv4Addr::new(net, subnet, high, low),
            gateway_v4: Ipv4Addr::new(net, subnet, 255, 254),
            v6: v6(0),
            gateway_v6: v6(1),
            mtu: 1500,
        }
    }

    /// The link-local address that an interface with the sandbox's MAC address gives itself (RFC 4291, appendix A).
    fn link_local(&self) -> Ipv6Addr {
        let [first, oui @ .., x, y, z] = self.mac;
        let [second, third] = oui;
        Ipv6Addr::from([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            first ^ 2,
            second,
            third,
            0xff,
            0xfe,
            x,
            y,
            z,
        ])
    }

    /// The row that the programs judge by.
    pub(crate) fn row(&self, slot: SandboxSlot, flags: u32, generation: u32) -> SandboxRow {
        SandboxRow {
            slot: u32::from(slot.0),
            flags,
            generation,
            ip4: self.v4.octets(),
            gateway4: self.gateway_v4.octets(),
            mac: self.mac,
            gateway_mac: self.gateway_mac,
            ip6: self.v6.octets(),
            gateway6: self.gateway_v6.octets(),
            link_local6: self.link_local().octets(),
        }
    }
}
