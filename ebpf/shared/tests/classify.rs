//! The decision about a frame, as rows of frames and verdicts, and as properties of whatever passes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use proptest::prelude::*;
use wallgate_wall_shared::Reason::*;
use wallgate_wall_shared::Verdict::{Drop, Pass};
use wallgate_wall_shared::*;

const DESTINATION4: [u8; 4] = [198, 51, 100, 7];

fn address6(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

fn row() -> SandboxRow {
    SandboxRow {
        slot: 2,
        flags: 0,
        generation: 1,
        ip4: [100, 127, 0, 2],
        gateway4: [100, 127, 255, 254],
        mac: [2, 0x57, 0x47, 0, 0, 2],
        gateway_mac: [2, 0x57, 0x47, 1, 0, 2],
        ip6: address6("fd57:616c:6c67::2"),
        gateway6: address6("fd57:616c:6c67:1::2"),
        link_local6: address6("fe80::57:47ff:fe00:2"),
    }
}

fn ethernet(kind: u16) -> Vec<u8> {
    [&row().gateway_mac[..], &row().mac, &kind.to_be_bytes()].concat()
}

fn ip4_to(destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap();
    let mut frame = ethernet(0x0800);
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(row().ip4);
    frame.extend(destination);
    frame.extend(payload);
    frame
}

fn ip6_to(destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(0x86dd);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend([next_header, 64]);
    frame.extend(row().ip6);
    frame.extend(address6(destination));
    frame.extend(payload);
    frame
}

fn tcp() -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[12] = 0x50;
    segment
}

fn udp(port: u16) -> Vec<u8> {
    let mut datagram = vec![0x12, 0x34];
    datagram.extend(port.to_be_bytes());
    datagram.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    datagram
}

fn arp(operation: u16, sender_mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = ethernet(0x0806);
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(sender_mac);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

/// A neighbour solicitation as Linux sends it: to the group of the gateway, with the sender's own link-layer address.
fn solicitation() -> Vec<u8> {
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    body.extend(row().gateway6);
    body.extend([1, 1]);
    body.extend(row().mac);
    let mut frame = ip6_to("ff02::1:ff00:2", 58, &body);
    frame[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 2]);
    frame[21] = 255;
    frame
}

fn run_as(frame: &[u8], row: &SandboxRow) -> Verdict {
    let mut header = [0; HEADER_BYTES];
    let seen = frame.len().min(HEADER_BYTES);
    header[..seen].copy_from_slice(&frame[..seen]);
    classify(&header, u32::try_from(frame.len()).unwrap(), row)
}

fn run(frame: &[u8]) -> Verdict {
    run_as(frame, &row())
}

fn with(mut frame: Vec<u8>, changes: &[(usize, &[u8])]) -> Vec<u8> {
    for (at, bytes) in changes {
        frame[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    frame
}

fn padded(mut frame: Vec<u8>, to: usize) -> Vec<u8> {
    frame.resize(to, 0);
    frame
}

#[track_caller]
fn check(rows: &[(&str, Vec<u8>, Verdict)]) {
    for (name, frame, expected) in rows {
        assert_eq!(run(frame), *expected, "{name}");
    }
}

fn tcp4() -> Vec<u8> {
    ip4_to(DESTINATION4, 6, &tcp())
}

fn tcp6() -> Vec<u8> {
    ip6_to("2001:db8::7", 6, &tcp())
}

#[test]
fn what_a_sandbox_may_say_passes() {
    let echo4 = |length: usize| ip4_to(row().gateway4, 1, &[&[8, 0][..], &vec![0; length - 2]].concat());
    let echo6 = ip6_to("fd57:616c:6c67:1::2", 58, &[128, 0, 0, 0, 0, 0, 0, 0]);
    check(&[
        ("TCP over IPv4", tcp4(), Pass(PassTcp4)),
        ("TCP over IPv6", tcp6(), Pass(PassTcp6)),
        (
            "TCP to the gateway",
            ip4_to(row().gateway4, 6, &tcp()),
            Pass(PassTcp4),
        ),
        (
            "TCP to a synthetic name",
            ip4_to([198, 18, 0, 9], 6, &tcp()),
            Pass(PassTcp4),
        ),
        ("padded to Ethernet's minimum", padded(tcp4(), 60), Pass(PassTcp4)),
        (
            "a super-frame",
            with(padded(tcp4(), 65_549), &[(16, &[0xff, 0xff])]),
            Pass(PassTcp4),
        ),
        (
            "DNS over IPv4",
            ip4_to(DESTINATION4, 17, &udp(53)),
            Pass(PassDns4),
        ),
        (
            "DNS over IPv6",
            ip6_to("2001:db8::7", 17, &udp(53)),
            Pass(PassDns6),
        ),
        (
            "QUIC, to be refused",
            ip4_to(DESTINATION4, 17, &udp(443)),
            Pass(RefuseQuic),
        ),
        (
            "QUIC over IPv6, to be refused",
            ip6_to("2001:db8::7", 17, &udp(443)),
            Pass(RefuseQuic),
        ),
        (
            "NTP, to be refused",
            ip4_to(DESTINATION4, 17, &udp(123)),
            Pass(RefuseUdp),
        ),
        (
            "ARP for the gateway",
            arp(1, row().mac, row().ip4, row().gateway4),
            Pass(PassArp),
        ),
        (
            "padded ARP",
            padded(arp(1, row().mac, row().ip4, row().gateway4), 60),
            Pass(PassArp),
        ),
        ("a solicitation of the gateway", solicitation(), Pass(PassNd)),
        ("an echo to the gateway", echo4(64), Pass(PassEcho)),
        ("an echo to the gateway over IPv6", echo6, Pass(PassEcho)),
        ("an echo as long as may be", echo4(128), Pass(PassEcho)),
        ("a longer one", echo4(129), Drop(Icmp)),
    ]);
}

#[test]
fn nobody_speaks_for_another() {
    let other_mac = [2, 0x57, 0x47, 0, 0, 3];
    let source4 = |source: &[u8; 4]| with(tcp4(), &[(26, source)]);
    let source6 = |source: &str| with(tcp6(), &[(22, &address6(source))]);
    check(&[
        ("another's MAC", with(tcp4(), &[(6, &other_mac)]), Drop(SpoofMac)),
        (
            "the gateway's MAC",
            with(tcp4(), &[(6, &row().gateway_mac)]),
            Drop(SpoofMac),
        ),
        ("another's IPv4", source4(&[100, 127, 0, 3]), Drop(SpoofIp4)),
        ("the gateway's IPv4", source4(&row().gateway4), Drop(SpoofIp4)),
        ("loopback", source4(&[127, 0, 0, 1]), Drop(SpoofIp4)),
        ("a resolver's IPv4", source4(&[8, 8, 8, 8]), Drop(SpoofIp4)),
        ("nobody's IPv4", source4(&[0; 4]), Drop(SpoofIp4)),
        ("another's IPv6", source6("fd57:616c:6c67::3"), Drop(SpoofIp6)),
        (
            "the gateway's IPv6",
            source6("fd57:616c:6c67:1::2"),
            Drop(SpoofIp6),
        ),
        ("::1", source6("::1"), Drop(SpoofIp6)),
        (
            "its own IPv4, mapped",
            source6("::ffff:100.127.0.2"),
            Drop(SpoofIp6),
        ),
        (
            "its own link-local",
            source6("fe80::57:47ff:fe00:2"),
            Drop(SpoofIp6),
        ),
        (
            "ARP: the gateway is me",
            arp(2, row().mac, row().gateway4, row().gateway4),
            Drop(ArpSpoof),
        ),
        (
            "ARP: another is me",
            arp(1, row().mac, [100, 127, 0, 3], [100, 127, 0, 3]),
            Drop(ArpSpoof),
        ),
        (
            "ARP: another MAC inside",
            arp(1, other_mac, row().ip4, row().gateway4),
            Drop(ArpSpoof),
        ),
        (
            "ARP for another",
            arp(1, row().mac, row().ip4, [100, 127, 0, 3]),
            Drop(ArpTarget),
        ),
        (
            "ARP for anything",
            arp(1, row().mac, row().ip4, DESTINATION4),
            Drop(ArpTarget),
        ),
        (
            "gratuitous ARP",
            arp(1, row().mac, row().ip4, row().ip4),
            Drop(ArpTarget),
        ),
        (
            "an ARP probe",
            arp(1, row().mac, [0; 4], row().ip4),
            Drop(ArpTarget),
        ),
        (
            "an ARP probe for the gateway",
            arp(1, row().mac, [0; 4], row().gateway4),
            Drop(ArpTarget),
        ),
        (
            "RARP",
            arp(3, row().mac, row().ip4, row().gateway4),
            Drop(ArpMalformed),
        ),
        (
            "ARP over something else",
            with(arp(1, row().mac, row().ip4, row().gateway4), &[(15, &[6])]),
            Drop(ArpMalformed),
        ),
        (
            "ARP with a tail",
            padded(arp(1, row().mac, row().ip4, row().gateway4), 61),
            Drop(ArpMalformed),
        ),
        (
            "ARP to another's MAC",
            with(arp(1, row().mac, row().ip4, row().gateway4), &[(0, &other_mac)]),
            Drop(ForeignMac),
        ),
    ]);
}

#[test]
fn neighbour_discovery_is_for_the_gateway_and_well_formed() {
    let kind = |kind: u8| with(solicitation(), &[(54, &[kind])]);
    check(&[
        (
            "from its link-local",
            with(solicitation(), &[(22, &row().link_local6)]),
            Pass(PassNd),
        ),
        (
            "from another",
            with(solicitation(), &[(22, &address6("fd57:616c:6c67::3"))]),
            Drop(NdSpoof),
        ),
        (
            "from another link-local",
            with(solicitation(), &[(22, &address6("fe80::1"))]),
            Drop(NdSpoof),
        ),
        (
            "another MAC in the option",
            with(solicitation(), &[(85, &[3])]),
            Drop(NdSpoof),
        ),
        (
            "for another",
            with(solicitation(), &[(62, &address6("fd57:616c:6c67::3"))]),
            Drop(NdTarget),
        ),
        (
            "for another's gateway",
            with(solicitation(), &[(62, &address6("fd57:616c:6c67:1::3"))]),
            Drop(NdTarget),
        ),
        (
            "from nobody: duplicate detection",
            with(solicitation(), &[(22, &[0; 16])]),
            Drop(NdTarget),
        ),
        ("routed", with(solicitation(), &[(21, &[254])]), Drop(NdMalformed)),
        ("a code", with(solicitation(), &[(55, &[1])]), Drop(NdMalformed)),
        (
            "another option",
            with(solicitation(), &[(78, &[14])]),
            Drop(NdMalformed),
        ),
        (
            "a long option",
            with(solicitation(), &[(79, &[2])]),
            Drop(NdMalformed),
        ),
        (
            "to all nodes",
            with(solicitation(), &[(38, &address6("ff02::1"))]),
            Drop(ForeignMac),
        ),
        (
            "to another's MAC",
            with(solicitation(), &[(0, &[2, 0x57, 0x47, 0, 0, 3])]),
            Drop(ForeignMac),
        ),
        ("router solicitation", kind(133), Drop(NdRouter)),
        ("router advertisement", kind(134), Drop(NdRouter)),
        ("redirect", kind(137), Drop(NdRouter)),
        ("advertisement", kind(136), Drop(NdAdvertisement)),
        ("listener report", kind(143), Drop(Mld)),
        ("time exceeded", kind(3), Drop(Icmp)),
        (
            "a lying length",
            with(solicitation(), &[(19, &[31])]),
            Drop(LengthLie),
        ),
    ]);
}

#[test]
fn no_address_leads_elsewhere() {
    let to4 = |destination| ip4_to(destination, 6, &tcp());
    let to6 = |destination| ip6_to(destination, 6, &tcp());
    check(&[
        ("another sandbox", to4([100, 127, 0, 3]), Drop(ToSandbox)),
        ("itself", to4(row().ip4), Drop(ToSandbox)),
        ("loopback", to4([127, 0, 0, 1]), Drop(ToLoopback)),
        ("0.0.0.0", to4([0; 4]), Drop(ToUnspecified)),
        ("0/8", to4([0, 1, 2, 3]), Drop(ToUnspecified)),
        ("link-local", to4([169, 254, 1, 1]), Drop(ToLinkLocal)),
        ("EC2", to4([169, 254, 169, 254]), Drop(ToMetadata)),
        ("ECS", to4([169, 254, 170, 2]), Drop(ToMetadata)),
        ("EKS", to4([169, 254, 170, 23]), Drop(ToMetadata)),
        ("Azure", to4([168, 63, 129, 16]), Drop(ToMetadata)),
        ("Alibaba", to4([100, 100, 100, 200]), Drop(ToMetadata)),
        ("Oracle", to4([192, 0, 0, 192]), Drop(ToMetadata)),
        (
            "mDNS",
            ip4_to([224, 0, 0, 251], 17, &udp(5353)),
            Drop(ToMulticast),
        ),
        ("broadcast", to4([255; 4]), Drop(ToBroadcast)),
        ("class E", to4([240, 0, 0, 1]), Drop(ToBroadcast)),
        (
            "DHCP",
            with(ip4_to([255; 4], 17, &udp(67)), &[(26, &[0; 4]), (0, &[0xff; 6])]),
            Drop(Dhcp),
        ),
        ("another's IPv6", to6("fd57:616c:6c67::3"), Drop(ToSandbox)),
        ("another's gateway", to6("fd57:616c:6c67:1::3"), Drop(ToSandbox)),
        ("::1", to6("::1"), Drop(ToLoopback)),
        ("::", to6("::"), Drop(ToUnspecified)),
        ("mapped", to6("::ffff:198.51.100.7"), Drop(ToEmbedded)),
        (
            "translated (SIIT)",
            to6("::ffff:0:198.51.100.7"),
            Drop(ToEmbedded),
        ),
        ("compatible", to6("::198.51.100.7"), Drop(ToEmbedded)),
        ("link-local", to6("fe80::1"), Drop(ToLinkLocal)),
        ("site-local", to6("fec0::1"), Drop(ToLinkLocal)),
        ("multicast", to6("ff02::1"), Drop(ToMulticast)),
        ("EC2 over IPv6", to6("fd00:ec2::254"), Drop(ToMetadata)),
        ("EKS over IPv6", to6("fd00:ec2::23"), Drop(ToMetadata)),
        ("Google over IPv6", to6("fd20:ce::254"), Drop(ToMetadata)),
        (
            "another's MAC",
            with(tcp4(), &[(0, &[2, 0x57, 0x47, 0, 0, 3])]),
            Drop(ForeignMac),
        ),
        (
            "broadcast MAC",
            with(tcp4(), &[(0, &[0xff; 6])]),
            Drop(ForeignMac),
        ),
        (
            "another's MAC over IPv6",
            with(tcp6(), &[(0, &[2, 0x57, 0x47, 0, 0, 3])]),
            Drop(ForeignMac),
        ),
    ]);
}

#[test]
fn every_other_ethertype_is_dropped() {
    for kind in 0..=u16::MAX {
        let expected = match kind {
            0x0800 | 0x0806 | 0x86dd => continue,
            0x8100 | 0x88a8 | 0x9100 => Vlan,
            0..0x0600 => Llc,
            _ => Ethertype,
        };
        assert_eq!(run(&padded(ethernet(kind), 60)), Drop(expected), "{kind:#06x}");
    }
}

#[test]
fn every_other_protocol_is_dropped() {
    let payload = vec![0; 40];
    for protocol in 0..=u8::MAX {
        if !matches!(protocol, 6 | 17) {
            let expected = if protocol == 1 { Icmp } else { Protocol };
            assert_eq!(
                run(&ip4_to(DESTINATION4, protocol, &payload)),
                Drop(expected),
                "IPv4 {protocol}"
            );
            let expected = match protocol {
                44 => Fragment,
                58 => Icmp,
                0 | 43 | 50 | 51 | 59 | 60 | 135 | 139 | 140 | 253 | 254 => ExtensionHeader,
                _ => Protocol,
            };
            assert_eq!(
                run(&ip6_to("2001:db8::7", protocol, &payload)),
                Drop(expected),
                "IPv6 {protocol}"
            );
        }
    }
}

#[test]
fn icmp_carries_nothing() {
    let icmp = |destination, kind| ip4_to(destination, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
    for kind in 0..=u8::MAX {
        assert_eq!(
            run(&icmp(DESTINATION4, kind)),
            Drop(Icmp),
            "type {kind} to the internet"
        );
        if kind != 8 {
            assert_eq!(
                run(&icmp(row().gateway4, kind)),
                Drop(Icmp),
                "type {kind} to the gateway"
            );
        }
    }
}

#[test]
fn headers_say_exactly_what_the_frame_holds() {
    let report = {
        let mut body = vec![58, 0, 5, 2, 0, 0, 1, 0, 143, 0];
        body.resize(36, 0);
        ip6_to("ff02::16", 0, &body)
    };
    check(&[
        ("IPv4 options", with(tcp4(), &[(14, &[0x46])]), Drop(IpHeader)),
        (
            "IPv6 in an IPv4 frame",
            with(tcp4(), &[(14, &[0x60])]),
            Drop(IpHeader),
        ),
        (
            "IPv4 in an IPv6 frame",
            with(tcp6(), &[(14, &[0x45])]),
            Drop(IpHeader),
        ),
        (
            "more fragments",
            with(tcp4(), &[(20, &[0x20, 0])]),
            Drop(Fragment),
        ),
        ("a later fragment", with(tcp4(), &[(20, &[0, 1])]), Drop(Fragment)),
        (
            "the reserved flag",
            with(tcp4(), &[(20, &[0x80, 0])]),
            Drop(Fragment),
        ),
        (
            "a length beyond the frame",
            with(tcp4(), &[(16, &[0, 41])]),
            Drop(LengthLie),
        ),
        (
            "a length of nothing (BIG TCP)",
            with(tcp4(), &[(16, &[0, 0])]),
            Drop(LengthLie),
        ),
        (
            "a length below the header",
            with(tcp4(), &[(16, &[0, 19])]),
            Drop(LengthLie),
        ),
        ("a tail after the packet", padded(tcp4(), 61), Drop(LengthLie)),
        (
            "a jumbogram",
            with(padded(tcp6(), 70_000), &[(18, &[0, 0])]),
            Drop(LengthLie),
        ),
        ("a tail after IPv6", padded(tcp6(), 75), Drop(LengthLie)),
        (
            "an IPv6 length beyond",
            with(tcp6(), &[(19, &[21])]),
            Drop(LengthLie),
        ),
        (
            "a TCP header too short",
            with(tcp4(), &[(46, &[0x40])]),
            Drop(LengthLie),
        ),
        (
            "a TCP header beyond",
            with(tcp4(), &[(46, &[0x60])]),
            Drop(LengthLie),
        ),
        (
            "a UDP length beyond",
            with(ip4_to(DESTINATION4, 17, &udp(53)), &[(39, &[13])]),
            Drop(LengthLie),
        ),
        (
            "a UDP length short",
            with(ip4_to(DESTINATION4, 17, &udp(53)), &[(39, &[8])]),
            Drop(LengthLie),
        ),
        (
            "hop-by-hop",
            ip6_to("2001:db8::7", 0, &[6, 0, 1, 4, 0, 0, 0, 0]),
            Drop(ExtensionHeader),
        ),
        ("a listener report", report, Drop(Mld)),
    ]);
}

#[test]
fn a_cut_frame_never_passes() {
    for frame in [tcp4(), tcp6(), ip4_to(DESTINATION4, 17, &udp(53)), solicitation()] {
        for length in 0..frame.len() {
            assert!(
                matches!(run(&frame[..length]), Drop(_)),
                "{length} of {}",
                frame.len()
            );
        }
    }
}

#[test]
fn a_quarantined_sandbox_says_and_hears_nothing() {
    let row = SandboxRow {
        flags: SandboxRow::QUARANTINED,
        ..row()
    };
    for frame in [
        tcp4(),
        tcp6(),
        solicitation(),
        arp(1, row.mac, row.ip4, row.gateway4),
    ] {
        assert_eq!(run_as(&frame, &row), Drop(Quarantined));
    }
    let outgoing = Outgoing {
        mark: MARK | row.slot,
        ingress_ifindex: 0,
        frame_bytes: 60,
    };
    assert_eq!(
        guard(&[0; HEADER_BYTES], &outgoing, &row),
        Drop(EgressQuarantined)
    );
}

#[test]
fn without_ipv6_there_is_no_ipv6() {
    let row = SandboxRow {
        flags: SandboxRow::NO_IPV6,
        ..row()
    };
    for frame in [tcp6(), solicitation()] {
        assert_eq!(run_as(&frame, &row), Drop(Ethertype));
    }
    assert_eq!(run_as(&tcp4(), &row), Pass(PassTcp4));
}

/// A frame to the sandbox: Ethernet and addresses, as far as the guard looks.
fn towards(kind: u16, destination: &[u8]) -> Header {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&row().mac);
    header[12..14].copy_from_slice(&kind.to_be_bytes());
    let at = match kind {
        0x0800 => 30,
        _ => 38,
    };
    header[at..at + destination.len()].copy_from_slice(destination);
    header
}

#[test]
fn only_its_own_sockets_speak_to_a_sandbox() {
    let (mark, none, other) = (MARK | 2, 0, MARK | 3);
    let advertisement = {
        let mut header = towards(0x86dd, &row().ip6);
        header[20] = 58;
        header[54] = 136;
        header[62..78].copy_from_slice(&row().gateway6);
        header
    };
    let ip4 = towards(0x0800, &row().ip4);
    let ip6 = towards(0x86dd, &row().ip6);
    let wrong_mac = {
        let mut header = ip4;
        header[5] = 9;
        header
    };
    let housekeeping = {
        let mut header = towards(0x86dd, &address6("ff02::16"));
        header[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 0x16]);
        header
    };
    let rows = [
        ("its own, IPv4", ip4, mark, 0, Pass(EgressPass)),
        ("its own, IPv6", ip6, mark, 0, Pass(EgressPass)),
        ("unmarked", ip4, none, 0, Drop(EgressUnmarked)),
        ("unmarked, IPv6", ip6, none, 0, Drop(EgressUnmarked)),
        ("another's mark", ip4, other, 0, Drop(EgressUnmarked)),
        ("forwarded", ip4, mark, 7, Drop(EgressForwarded)),
        (
            "to another address",
            towards(0x0800, &[100, 127, 0, 3]),
            mark,
            0,
            Drop(EgressForeign),
        ),
        ("to another MAC", wrong_mac, mark, 0, Drop(EgressForeign)),
        (
            "multicast",
            towards(0x86dd, &address6("ff02::1")),
            mark,
            0,
            Drop(EgressForeign),
        ),
        (
            "a link\'s own housekeeping",
            housekeeping,
            none,
            0,
            Drop(EgressMulticast),
        ),
        (
            "housekeeping, half built",
            housekeeping,
            212,
            0,
            Drop(EgressMulticast),
        ),
        (
            "a socket\'s multicast",
            housekeeping,
            mark,
            0,
            Drop(EgressForeign),
        ),
        (
            "ARP to it",
            towards(0x0806, &row().ip4),
            none,
            0,
            Pass(EgressNeighbour),
        ),
        (
            "ARP about another",
            towards(0x0806, &[100, 127, 0, 3]),
            none,
            0,
            Drop(EgressForeign),
        ),
        (
            "the gateway's advertisement",
            advertisement,
            none,
            0,
            Pass(EgressNeighbour),
        ),
        ("another type", towards(0x88cc, &[]), mark, 0, Drop(EgressForeign)),
    ];
    for (name, header, mark, ingress_ifindex, expected) in rows {
        let outgoing = Outgoing {
            mark,
            ingress_ifindex,
            frame_bytes: 74,
        };
        assert_eq!(guard(&header, &outgoing, &row()), expected, "{name}");
    }
}

#[test]
fn reasons_have_distinct_stable_names() {
    let names: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
    for (index, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(reason.index(), index);
        assert_eq!(Reason::from_index(u32::try_from(index).unwrap()), Some(*reason));
        assert!(
            reason
                .as_str()
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        );
    }
    assert_eq!(Reason::from_index(u32::MAX), None);
}

#[test]
fn only_tcp_and_dns_find_a_socket() {
    for port in 0..=u32::from(u16::MAX) {
        let (tcp, udp) = if port == 53 {
            (Listener::DnsTcp, Some(Listener::DnsUdp))
        } else {
            (Listener::Tcp, None)
        };
        assert_eq!(steer(6, port), Some(tcp));
        assert_eq!(steer(17, port), udp);
    }
    assert_eq!(steer(132, 53), None);
}

fn good_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(tcp4()),
        Just(tcp6()),
        Just(ip4_to(DESTINATION4, 17, &udp(53))),
        Just(ip6_to("2001:db8::7", 17, &udp(53))),
        Just(solicitation()),
        Just(arp(1, row().mac, row().ip4, row().gateway4)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES), length: u32, mark: u32) {
        let header: Header = bytes.try_into().unwrap();
        let _verdict = classify(&header, length, &row());
        let _described = describe(&header);
        let _verdict = guard(&header, &Outgoing { mark, ingress_ifindex: 0, frame_bytes: length }, &row());
    }

    /// Whatever is done to a good frame: when it still passes, it speaks for this sandbox and to nobody but the wall.
    #[test]
    fn what_passes_is_the_sandboxs_own(
        frame in good_frame(),
        changes in proptest::collection::vec((0_usize..90, any::<u8>()), 1..6),
        cut in 14_usize..90,
    ) {
        let mut frame = frame;
        for (at, byte) in changes {
            if let Some(cell) = frame.get_mut(at) {
                *cell = byte;
            }
        }
        frame.truncate(cut);
        let own = row();
        match run(&frame) {
            Drop(_) => {}
            Pass(PassArp) => {
                prop_assert_eq!(&frame[6..12], &own.mac);
                prop_assert_eq!(&frame[22..28], &own.mac);
                prop_assert_eq!(&frame[28..32], &own.ip4);
                prop_assert_eq!(&frame[38..42], &own.gateway4);
            }
            Pass(PassNd) => {
                prop_assert_eq!(&frame[6..12], &own.mac);
                prop_assert!(frame[22..38] == own.ip6 || frame[22..38] == own.link_local6);
                prop_assert_eq!(&frame[62..78], &own.gateway6);
            }
            Pass(reason) => {
                prop_assert_eq!(&frame[0..6], &own.gateway_mac);
                prop_assert_eq!(&frame[6..12], &own.mac);
                if frame[12] == 0x08 {
                    prop_assert_eq!(&frame[26..30], &own.ip4, "{:?}", reason);
                    prop_assert!(matches!(frame[23], 1 | 6 | 17));
                } else {
                    prop_assert_eq!(&frame[22..38], &own.ip6, "{:?}", reason);
                    prop_assert!(matches!(frame[20], 6 | 17 | 58));
                }
            }
        }
    }
}
