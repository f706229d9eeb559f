//! Where a connection came from, where the sandbox thought it was going, and what kind of address an address is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Serialize, Serializer};

/// The address that a sandbox dialled. It says which synthetic name was meant, and is never dialled itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginalDst(pub SocketAddr);

/// The address that a sandbox dialled from. It identifies nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestAddr(pub SocketAddr);

/// What kind of address this is (IANA special-purpose registries, RFC 6890), after unwrapping IPv4 inside IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressClass {
    /// Globally reachable unicast: the only class that needs no explicit exception.
    Public,
    /// RFC 1918.
    Private,
    /// 127.0.0.0/8, `::1`.
    Loopback,
    /// 169.254.0.0/16, `fe80::/10`, and the deprecated site-local `fec0::/10`.
    LinkLocal,
    /// An instance metadata service of a cloud. Refused whatever policy says.
    Metadata,
    /// Multicast, and the IPv4 broadcast address.
    Multicast,
    /// Reserved for documentation.
    Documentation,
    /// Carrier-grade NAT, 100.64.0.0/10 (RFC 6598).
    Shared,
    /// `fc00::/7` (RFC 4193).
    UniqueLocal,
    /// 0.0.0.0/8, `::`.
    Unspecified,
    /// 198.18.0.0/15, where our own synthetic addresses live.
    Benchmarking,
    /// An IPv6 transition form (6to4, Teredo, ISATAP, IPv4-compatible) of a public IPv4 address.
    Transition,
    /// Anything else that is not globally reachable.
    Reserved,
}

impl AddressClass {
    /// The name that policy sees.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link_local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Documentation => "documentation",
            Self::Shared => "shared",
            Self::UniqueLocal => "unique_local",
            Self::Unspecified => "unspecified",
            Self::Benchmarking => "benchmarking",
            Self::Transition => "transition",
            Self::Reserved => "reserved",
        }
    }

    /// The class of `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        if METADATA_V4.contains(&address) {
            return Self::Metadata;
        }
        match address.octets() {
            [0, ..] => Self::Unspecified,
            [127, ..] => Self::Loopback,
            [169, 254, ..] => Self::LinkLocal,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Private,
            [100, 64..=127, ..] => Self::Shared,
            [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Self::Documentation,
            [198, 18..=19, ..] => Self::Benchmarking,
            [224..=239, ..] | [255, 255, 255, 255] => Self::Multicast,
            // IETF protocol assignments, AS112, AMT, deprecated 6to4 relays, and the former class E.
            [192, 0, 0, _]
            | [192, 31, 196, _]
            | [192, 52, 193, _]
            | [192, 175, 48, _]
            | [192, 88, 99, _]
            | [240..=255, ..] => Self::Reserved,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        if METADATA_V6.contains(&address) {
            return Self::Metadata;
        }
        if let Some(inner) = Embedded::find(address) {
            return inner.class();
        }
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Self::Unspecified,
            [0, 0, 0, 0, 0, 0, 0, 1] => Self::Loopback,
            [0xfe80..=0xfeff, ..] => Self::LinkLocal,
            [0xfc00..=0xfdff, ..] => Self::UniqueLocal,
            [0xff00..=0xffff, ..] => Self::Multicast,
            [0x2001, 0x0db8, ..] | [0x3fff, 0x0000..=0x0fff, ..] => Self::Documentation,
            [0x2001, 0x0002, 0, ..] => Self::Benchmarking,
            // IETF protocol assignments (2001::/23).
            [0x2001, 0x0000..=0x01ff, ..] => Self::Reserved,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Reserved,
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for AddressClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Where clouds answer with credentials: EC2 and most others, ECS, EKS, Azure, Alibaba, Oracle.
const METADATA_V4: [Ipv4Addr; 6] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// The same over IPv6: EC2, EKS, Google.
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254),
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0023),
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254),
];

/// An IPv4 address inside an IPv6 one, and how it got there.
enum Embedded {
    /// A notation or a translation that really reaches the IPv4 address: `::ffff:0:0/96`, `64:ff9b::/96` (RFC 6052).
    Translated(Ipv4Addr),
    /// A tunnel that might: 6to4 (RFC 3056), Teredo (RFC 4380), ISATAP (RFC 5214), IPv4-compatible, local NAT64.
    Tunnelled(Ipv4Addr),
}

impl Embedded {
    fn find(address: Ipv6Addr) -> Option<Self> {
        let low = |high: u16, low: u16| {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            Ipv4Addr::new(a, b, c, d)
        };
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
            [0, 0, 0, 0, 0, 0xffff, g, h] | [0x0064, 0xff9b, 0, 0, 0, 0, g, h] => {
                Some(Self::Translated(low(g, h)))
            }
            [0, 0, 0, 0, 0 | 0xffff, 0, g, h] | [0x0064, 0xff9b, 1, _, _, _, g, h] => {
                Some(Self::Tunnelled(low(g, h)))
            }
            [0x2002, b, c, ..] => Some(Self::Tunnelled(low(b, c))),
            // The client's address is stored inverted (RFC 4380, section 4).
            [0x2001, 0, _, _, _, _, g, h] => Some(Self::Tunnelled(low(!g, !h))),
            [_, _, _, _, 0 | 0x0200, 0x5efe, g, h] => Some(Self::Tunnelled(low(g, h))),
            _ => None,
        }
    }

    fn class(&self) -> AddressClass {
        match self {
            Self::Translated(v4) => AddressClass::of_v4(*v4),
            Self::Tunnelled(v4) => match AddressClass::of_v4(*v4) {
                AddressClass::Public => AddressClass::Transition,
                other => other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AddressClass as C;
    use super::*;

    #[test]
    fn every_address_that_is_not_plainly_public_has_its_class() {
        let rows = [
            ("8.8.8.8", C::Public),
            ("10.1.2.3", C::Private),
            ("172.32.0.1", C::Public),
            ("100.64.0.1", C::Shared),
            ("100.100.100.200", C::Metadata),
            ("169.254.169.254", C::Metadata),
            ("169.254.1.1", C::LinkLocal),
            ("168.63.129.16", C::Metadata),
            ("192.0.0.192", C::Metadata),
            ("198.18.3.4", C::Benchmarking),
            ("224.0.0.1", C::Multicast),
            ("255.255.255.255", C::Multicast),
            ("240.0.0.1", C::Reserved),
            ("0.0.0.0", C::Unspecified),
            ("::", C::Unspecified),
            ("::1", C::Loopback),
            ("fe80::1", C::LinkLocal),
            ("fd12::1", C::UniqueLocal),
            ("fd00:ec2::254", C::Metadata),
            ("ff02::1", C::Multicast),
            ("2001:db8::1", C::Documentation),
            ("2606:4700::1111", C::Public),
            ("4000::1", C::Reserved),
            ("::ffff:127.0.0.1", C::Loopback),
            ("::ffff:8.8.8.8", C::Public),
            ("::127.0.0.1", C::Loopback),
            ("::8.8.8.8", C::Transition),
            ("64:ff9b::10.0.0.1", C::Private),
            ("64:ff9b::8.8.8.8", C::Public),
            ("64:ff9b:1::a9fe:a9fe", C::Metadata),
            ("2002:7f00:1::", C::Loopback),
            ("2002:808:808::", C::Transition),
            ("2001:0:1:2:3:4:5601:5601", C::Metadata),
            ("2606:4700::5efe:10.0.0.1", C::Private),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse().map(AddressClass::of), Ok(expected), "{text}");
        }
    }
}
