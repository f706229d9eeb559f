//! Frames that a hostile guest sends, with the one reason that each must be counted under.
//!
//! The numbers are those of the attack list: N01 other protocols, N02 tags, N03 neighbour poisoning, N04 spoofing,
//! N05 headers, N06 ICMP, N10 the host itself, N11 other sandboxes, D09 forged DNS.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use wallgate_wall::Reason::{
    self, ArpMalformed, ArpSpoof, ArpTarget, Dhcp, Ethertype, ExtensionHeader, ForeignMac, Fragment, Icmp,
    IpHeader, LengthLie, Llc, NdAdvertisement, NdRouter, NdSpoof, NdTarget, Protocol, SpoofIp4, SpoofIp6,
    SpoofMac, ToBroadcast, ToEmbedded, ToLinkLocal, ToLoopback, ToMetadata, ToMulticast, ToSandbox,
    ToUnspecified, Truncated, Vlan,
};
use wallgate_wall::{Addressing, SandboxSlot};

use crate::frames::{arp, at, ethernet, host, icmp6, ip, solicitation, syn, udp, with};

/// The slot of the sandbox that is impersonated and attacked.
pub const VICTIM: u16 = 3;

/// One frame.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it tries.
    pub name: &'static str,
    /// Its bytes.
    pub frame: Vec<u8>,
    /// The only counter that it may move.
    pub reason: Reason,
}

fn rows(list: Vec<(&'static str, Vec<u8>, Reason)>) -> Vec<Row> {
    list.into_iter()
        .map(|(name, frame, reason)| Row { name, frame, reason })
        .collect()
}

/// The victim's addresses.
#[must_use]
pub fn other() -> Addressing {
    SandboxSlot::new(VICTIM).map_or_else(|| unreachable!("a slot"), Addressing::of)
}

/// All of them, as a guest with these addresses sends them.
#[must_use]
pub fn all(own: &Addressing) -> Vec<Row> {
    [
        protocols,
        tags,
        neighbours,
        macs,
        sources,
        headers,
        icmp,
        host_addresses,
        sandboxes,
        names,
        lengths,
    ]
    .into_iter()
    .flat_map(|kind| kind(own))
    .collect()
}

/// N01: other `EtherType`s.
#[must_use]
pub fn protocols(own: &Addressing) -> Vec<Row> {
    let payload = [0; 46];
    rows(vec![
        ("experimental", ethernet(own, 0x88b5, &payload), Ethertype),
        ("LLDP", ethernet(own, 0x88cc, &payload), Ethertype),
        ("MPLS", ethernet(own, 0x8847, &payload), Ethertype),
        ("PPPoE discovery", ethernet(own, 0x8863, &payload), Ethertype),
        ("PPPoE session", ethernet(own, 0x8864, &payload), Ethertype),
        ("802.1X", ethernet(own, 0x888e, &payload), Ethertype),
        ("RARP", ethernet(own, 0x8035, &payload), Ethertype),
        ("loopback protocol", ethernet(own, 0x9000, &payload), Ethertype),
    ])
}

/// N02: tags and LLC.
#[must_use]
pub fn tags(own: &Addressing) -> Vec<Row> {
    let payload = [0; 46];
    rows(vec![
        ("a VLAN", tagged(own, &[[0x81, 0, 0, 5]]), Vlan),
        ("a priority tag", tagged(own, &[[0x81, 0, 0, 0]]), Vlan),
        (
            "a tag in a tag",
            tagged(own, &[[0x81, 0, 0, 5], [0x81, 0, 0, 6]]),
            Vlan,
        ),
        (
            "a provider's tag",
            tagged(own, &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]]),
            Vlan,
        ),
        ("three tags", tagged(own, &[[0x81, 0, 0, 0]; 3]), Vlan),
        ("an old provider's tag", tagged(own, &[[0x91, 0, 0, 5]]), Vlan),
        (
            "LLC: spanning tree",
            ethernet(own, 0x0026, &[&[0x42, 0x42, 3][..], &payload].concat()),
            Llc,
        ),
        (
            "SNAP around IPv4",
            ethernet(
                own,
                0x0030,
                &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &payload].concat(),
            ),
            Llc,
        ),
    ])
}

/// N03: ARP and neighbour discovery that lie.
#[must_use]
pub fn neighbours(own: &Addressing) -> Vec<Row> {
    let other = other();
    let gateway = own.gateway_v4.octets();
    let mine = own.v4.octets();
    let nd = |changes: &[(usize, &[u8])]| with(solicitation(own), changes);
    rows(vec![
        (
            "ARP reply: I am the gateway",
            arp(own, 2, gateway, gateway),
            ArpSpoof,
        ),
        (
            "ARP: I am the other sandbox",
            arp(own, 1, other.v4.octets(), other.v4.octets()),
            ArpSpoof,
        ),
        (
            "ARP with another's MAC inside",
            with(arp(own, 1, mine, gateway), &[(22, &other.mac)]),
            ArpSpoof,
        ),
        (
            "ARP for the other sandbox",
            arp(own, 1, mine, other.v4.octets()),
            ArpTarget,
        ),
        (
            "ARP for the internet",
            arp(own, 1, mine, [198, 51, 100, 1]),
            ArpTarget,
        ),
        ("gratuitous ARP", arp(own, 1, mine, mine), ArpTarget),
        ("inverse ARP", arp(own, 8, mine, gateway), ArpMalformed),
        ("a router advertisement", nd(&[(54, &[134])]), NdRouter),
        ("a router solicitation", nd(&[(54, &[133])]), NdRouter),
        ("a redirect", nd(&[(54, &[137])]), NdRouter),
        ("an advertisement", nd(&[(54, &[136])]), NdAdvertisement),
        (
            "an advertisement as the gateway",
            nd(&[(54, &[136]), (22, &own.gateway_v6.octets())]),
            NdAdvertisement,
        ),
        (
            "a solicitation as the other",
            nd(&[(22, &other.v6.octets())]),
            NdSpoof,
        ),
        (
            "a solicitation with another's MAC",
            nd(&[(80, &other.mac)]),
            NdSpoof,
        ),
        (
            "a solicitation of the other",
            nd(&[(62, &other.v6.octets())]),
            NdTarget,
        ),
        ("duplicate detection", nd(&[(22, &[0; 16])]), NdTarget),
        ("a fragmented solicitation", nd(&[(20, &[44])]), Fragment),
        ("a padded solicitation", nd(&[(20, &[0])]), ExtensionHeader),
    ])
}

/// N04: another's MAC address.
#[must_use]
pub fn macs(own: &Addressing) -> Vec<Row> {
    let other = other();
    let tcp4 = || syn(own, at("198.51.100.7:443"));
    rows(vec![
        ("another's MAC", with(tcp4(), &[(6, &other.mac)]), SpoofMac),
        (
            "the gateway's MAC",
            with(tcp4(), &[(6, &own.gateway_mac)]),
            SpoofMac,
        ),
        (
            "a multicast source MAC",
            with(tcp4(), &[(6, &[0x33, 0x33, 0, 0, 0, 1])]),
            SpoofMac,
        ),
        ("to another's MAC", with(tcp4(), &[(0, &other.mac)]), ForeignMac),
        ("to everybody", with(tcp4(), &[(0, &[0xff; 6])]), ForeignMac),
    ])
}

/// N04: another's IP address.
#[must_use]
pub fn sources(own: &Addressing) -> Vec<Row> {
    let other = other();
    let tcp4 = || syn(own, at("198.51.100.7:443"));
    let tcp6 = || syn(own, at("[2001:db8::7]:443"));
    let internet = host("198.51.100.7");
    let proto4 = |number| ip(own, internet, number, &[0; 40]);
    let source4 = |octets: [u8; 4]| with(tcp4(), &[(26, &octets)]);
    let source6 = |segments: [u16; 8]| with(tcp6(), &[(22, &Ipv6Addr::from(segments).octets())]);
    rows(vec![
        ("as the other", source4(other.v4.octets()), SpoofIp4),
        ("as the gateway", source4(own.gateway_v4.octets()), SpoofIp4),
        ("as loopback", source4([127, 0, 0, 1]), SpoofIp4),
        ("as a host on the internet", source4([198, 51, 100, 7]), SpoofIp4),
        ("as the other, IPv6", source6(other.v6.segments()), SpoofIp6),
        (
            "as itself, mapped",
            source6(own.v4.to_ipv6_mapped().segments()),
            SpoofIp6,
        ),
        ("as ::1", source6(Ipv6Addr::LOCALHOST.segments()), SpoofIp6),
        (
            "raw IP as the other",
            with(proto4(255), &[(26, &other.v4.octets())]),
            SpoofIp4,
        ),
    ])
}

/// N05: fragments, options, extension headers, other protocols.
#[must_use]
pub fn headers(own: &Addressing) -> Vec<Row> {
    let tcp4 = || syn(own, at("198.51.100.7:443"));
    let tcp6 = || syn(own, at("[2001:db8::7]:443"));
    let internet = host("198.51.100.7");
    let v6 = host("2001:db8::7");
    let proto4 = |number| ip(own, internet, number, &[0; 40]);
    let proto6 = |number| ip(own, v6, number, &[0; 40]);
    rows(vec![
        ("more fragments", with(tcp4(), &[(20, &[0x20, 0])]), Fragment),
        ("a later fragment", with(tcp4(), &[(20, &[0, 1])]), Fragment),
        ("IPv4 options", with(tcp4(), &[(14, &[0x46])]), IpHeader),
        ("IPv6 as IPv4", with(tcp6(), &[(12, &[8, 0])]), IpHeader),
        ("hop-by-hop", proto6(0), ExtensionHeader),
        ("routing header", proto6(43), ExtensionHeader),
        ("fragment header", proto6(44), Fragment),
        ("destination options", proto6(60), ExtensionHeader),
        ("IPv4 in IPv4", proto4(4), Protocol),
        ("IPv6 in IPv4", proto4(41), Protocol),
        ("IPv4 in IPv6", proto6(4), Protocol),
        ("GRE", proto4(47), Protocol),
        ("ESP", proto4(50), Protocol),
        ("SCTP", proto4(132), Protocol),
        ("IGMP", proto4(2), Protocol),
        ("SCTP over IPv6", proto6(132), Protocol),
    ])
}

/// N06: ICMP that carries or diverts.
#[must_use]
pub fn icmp(own: &Addressing) -> Vec<Row> {
    let internet = host("198.51.100.7");
    let v6 = host("2001:db8::7");
    let gateway = IpAddr::V4(own.gateway_v4);
    rows(vec![
        (
            "an echo to the internet",
            ip(own, internet, 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
            Icmp,
        ),
        (
            "an oversized echo to the gateway",
            ip(own, gateway, 1, &[&[8, 0][..], &[0; 1000]].concat()),
            Icmp,
        ),
        (
            "a timestamp request",
            ip(own, gateway, 1, &[13, 0, 0, 0, 0, 0, 0, 0]),
            Icmp,
        ),
        (
            "an information request",
            ip(own, gateway, 1, &[15, 0, 0, 0, 0, 0, 0, 0]),
            Icmp,
        ),
        (
            "an ICMP redirect",
            ip(own, gateway, 1, &[5, 1, 0, 0, 0, 0, 0, 0]),
            Icmp,
        ),
        (
            "an echo over IPv6",
            icmp6(own, v6, &[128, 0, 0, 0, 0, 0, 0, 0]),
            Icmp,
        ),
        (
            "packet too big",
            icmp6(own, IpAddr::V6(own.gateway_v6), &[2, 0, 0, 0, 0, 0, 5, 0]),
            Icmp,
        ),
    ])
}

/// N10: the host itself, at every address.
#[must_use]
pub fn host_addresses(own: &Addressing) -> Vec<Row> {
    let to = |text: &str| syn(own, at(text));
    rows(vec![
        ("127.0.0.1", to("127.0.0.1:80"), ToLoopback),
        ("0.0.0.0", to("0.0.0.0:80"), ToUnspecified),
        ("broadcast", to("255.255.255.255:80"), ToBroadcast),
        ("multicast", to("224.0.0.1:80"), ToMulticast),
        ("link-local", to("169.254.7.7:80"), ToLinkLocal),
        ("metadata", to("169.254.169.254:80"), ToMetadata),
        ("::1", to("[::1]:80"), ToLoopback),
        ("::", to("[::]:80"), ToUnspecified),
        ("mapped", to("[::ffff:198.51.100.7]:80"), ToEmbedded),
        ("metadata over IPv6", to("[fd00:ec2::254]:80"), ToMetadata),
    ])
}

/// N11: another sandbox, by every route.
#[must_use]
pub fn sandboxes(own: &Addressing) -> Vec<Row> {
    let other = other();
    let to = |text: &str| syn(own, at(text));
    let to_other4 = SocketAddr::new(other.v4.into(), 80);
    let to_other6 = SocketAddr::new(other.v6.into(), 80);
    rows(vec![
        ("the other", syn(own, to_other4), ToSandbox),
        ("the other, IPv6", syn(own, to_other6), ToSandbox),
        (
            "the other's gateway",
            syn(own, SocketAddr::new(other.gateway_v6.into(), 80)),
            ToSandbox,
        ),
        (
            "the other's MAC and address",
            with(syn(own, to_other4), &[(0, &other.mac)]),
            ToSandbox,
        ),
        ("mDNS", udp(own, 5353, at("224.0.0.251:5353"), b"?"), ToMulticast),
        ("LLMNR", udp(own, 5355, at("224.0.0.252:5355"), b"?"), ToMulticast),
        (
            "SSDP",
            udp(own, 1900, at("239.255.255.250:1900"), b"?"),
            ToMulticast,
        ),
        (
            "mDNS over IPv6",
            udp(own, 5353, at("[ff02::fb]:5353"), b"?"),
            ToMulticast,
        ),
        (
            "another's link-local",
            to("[fe80::57:47ff:fe00:3]:80"),
            ToLinkLocal,
        ),
        (
            "DHCP",
            with(udp(own, 68, at("255.255.255.255:67"), b"?"), &[(26, &[0; 4])]),
            Dhcp,
        ),
    ])
}

/// D09: DNS answers that nobody asked for.
#[must_use]
pub fn names(own: &Addressing) -> Vec<Row> {
    rows(vec![
        (
            "a forged DNS reply",
            with(
                udp(own, 53, at("100.127.255.254:53"), b"?"),
                &[(26, &[8, 8, 8, 8])],
            ),
            SpoofIp4,
        ),
        (
            "a forged DNS reply to itself",
            with(
                udp(own, 53, SocketAddr::new(own.v4.into(), 4000), b"?"),
                &[(26, &[8, 8, 8, 8])],
            ),
            SpoofIp4,
        ),
    ])
}

/// Lengths that lie.
#[must_use]
pub fn lengths(own: &Addressing) -> Vec<Row> {
    let tcp4 = || syn(own, at("198.51.100.7:443"));
    let tcp6 = || syn(own, at("[2001:db8::7]:443"));
    rows(vec![
        (
            "an IPv4 length beyond the frame",
            with(tcp4(), &[(16, &[0, 90])]),
            LengthLie,
        ),
        (
            "an IPv4 length of nothing",
            with(tcp4(), &[(16, &[0, 0])]),
            LengthLie,
        ),
        (
            "an IPv6 length of nothing",
            with(tcp6(), &[(18, &[0, 0])]),
            LengthLie,
        ),
        ("a tail", [tcp4(), vec![0; 64]].concat(), LengthLie),
        ("only Ethernet", ethernet(own, 0x0800, &[]), Truncated),
        (
            "half an IPv4 header",
            ethernet(own, 0x0800, &[0x45, 0, 0, 40]),
            Truncated,
        ),
        (
            "half an IPv6 header",
            ethernet(own, 0x86dd, &[0x60, 0, 0, 0]),
            Truncated,
        ),
    ])
}

fn tagged(own: &Addressing, tags: &[[u8; 4]]) -> Vec<u8> {
    let plain = syn(own, at("198.51.100.7:443"));
    let (macs, rest) = plain.split_at(12);
    [macs, &tags.concat(), rest].concat()
}
