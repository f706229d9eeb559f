//! P1: every frame that leaves a sandbox is answered by the broker or dropped. Frames are sent from real taps.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;

use rustix::net::{RecvFlags, recv};
use wallgate_tests::frames::{
    Guest, SYN, arp, at, counters, difference, ethernet, host, icmp6, ip, solicitation, syn, tcp, tcp_flags,
    udp, wall_or_skip, wall_with,
};
use wallgate_tests::hostile;
use wallgate_wall::Reason::{self, *};
use wallgate_wall::{Wall, WallOptions, dns, fault};

const FIRST: u16 = 2;
const SECOND: u16 = hostile::VICTIM;

/// Two guests, and whoever looks on.
struct Scene {
    wall: Wall,
    first: Guest,
    second: Guest,
    sniffer: std::os::fd::OwnedFd,
}

impl Scene {
    fn set(test: &str) -> Option<Self> {
        let mut wall = wall_or_skip(test)?;
        let first = Guest::attach(&mut wall, FIRST).unwrap();
        let second = Guest::attach(&mut wall, SECOND).unwrap();
        let sniffer = fault::sniffer(&mut wall).unwrap();
        Some(Self {
            wall,
            first,
            second,
            sniffer,
        })
    }

    /// How many frames the wall's namespace has seen since the last look, on all interfaces and in both directions.
    fn seen(&self) -> usize {
        let mut buffer = vec![0; 65_600];
        let mut count = 0;
        while recv(&self.sniffer, buffer.as_mut_slice(), RecvFlags::empty()).is_ok() {
            count += 1;
        }
        count
    }

    /// Sends one frame as the first guest. Exactly the counters `moved` must move; when the frame is dropped, nothing
    /// else may be seen anywhere: not on either tap, not in the namespace, not on a socket.
    #[track_caller]
    fn check(&self, name: &str, frame: &[u8], moved: &[Reason]) {
        let before = counters(&self.wall).unwrap();
        let _earlier = (self.seen(), self.first.received(), self.second.received());
        self.first
            .tap
            .send(frame)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let after = counters(&self.wall).unwrap();
        let expected: BTreeMap<_, _> = moved.iter().map(|reason| ((FIRST, *reason), 1)).collect();
        assert_eq!(difference(&before, &after), expected, "{name}");
        assert_eq!(
            self.second.received(),
            Vec::<Vec<u8>>::new(),
            "{name}: the other sandbox heard it"
        );
        if let [reason] = moved
            && reason.effect() == wallgate_wall::Effect::Dropped
        {
            assert_eq!(self.seen(), 1, "{name}: more than the frame itself was seen");
            assert_eq!(
                self.first.received(),
                Vec::<Vec<u8>>::new(),
                "{name}: it was answered"
            );
        }
        for guest in [&self.first, &self.second] {
            let accepted = guest
                .attachment
                .tcp
                .accept()
                .map(drop)
                .map_err(|error| error.kind());
            assert_eq!(accepted, Err(ErrorKind::WouldBlock), "{name}: a socket got it");
        }
    }
}

#[test]
fn every_hostile_frame_moves_its_own_counter_and_reaches_nothing() {
    let Some(scene) = Scene::set("every_hostile_frame_moves_its_own_counter_and_reaches_nothing") else {
        return;
    };
    let own = scene.first.addressing();
    for row in hostile::all(own) {
        scene.check(row.name, &row.frame, &[row.reason]);
    }
}

#[test]
fn two_hundred_other_ethertypes_are_dropped() {
    let Some(scene) = Scene::set("two_hundred_other_ethertypes_are_dropped") else {
        return;
    };
    for step in 0..200_u16 {
        let kind = 0x0900 + step * 167;
        if !matches!(kind, 0x86dd | 0x8100 | 0x88a8 | 0x9100) {
            let frame = ethernet(scene.first.addressing(), kind, &[0; 46]);
            scene.check(&format!("{kind:#06x}"), &frame, &[Ethertype]);
        }
    }
}

#[test]
fn every_ip_protocol_but_three_is_dropped() {
    let Some(scene) = Scene::set("every_ip_protocol_but_three_is_dropped") else {
        return;
    };
    for number in (0..=u8::MAX).filter(|number| !matches!(number, 1 | 6 | 17)) {
        let frame = ip(scene.first.addressing(), host("198.51.100.7"), number, &[0; 40]);
        scene.check(&format!("protocol {number}"), &frame, &[Protocol]);
    }
}

#[test]
fn a_connection_to_anywhere_is_steered_to_the_broker() {
    let Some(scene) = Scene::set("a_connection_to_anywhere_is_steered_to_the_broker") else {
        return;
    };
    let own = scene.first.addressing();
    let everywhere = [
        ("198.51.100.7:443", PassTcp4, SteerTcp),
        ("10.0.0.1:22", PassTcp4, SteerTcp),
        ("100.127.255.254:1", PassTcp4, SteerTcp),
        ("8.8.8.8:853", PassTcp4, SteerTcp),
        ("8.8.8.8:53", PassTcp4, SteerDnsTcp),
        ("[2001:db8::7]:443", PassTcp6, SteerTcp),
        ("[2001:4860:4860::8888]:53", PassTcp6, SteerDnsTcp),
        ("[fd57:616c:6c67:1::2]:65535", PassTcp6, SteerTcp),
    ];
    for (to, pass, steer) in everywhere {
        scene.check(to, &syn(own, at(to)), &[pass, steer, EgressPass]);
        let answers = scene.first.received();
        assert!(
            answers
                .iter()
                .any(|frame| tcp_flags(frame, at(to).is_ipv6()) == Some(SYN | 0x10)),
            "{to}"
        );
    }
}

#[test]
fn udp_is_refused_at_once_each_time() {
    let Some(scene) = Scene::set("udp_is_refused_at_once_each_time") else {
        return;
    };
    let own = scene.first.addressing();
    let rows = [
        ("198.51.100.7:443", RefuseQuic),
        ("198.51.100.7:123", RefuseUdp),
        ("198.51.100.7:3478", RefuseUdp),
        ("198.51.100.7:51820", RefuseUdp),
        ("198.51.100.7:853", RefuseUdp),
        ("198.51.100.7:5353", RefuseUdp),
        ("[2001:db8::7]:443", RefuseQuic),
        ("[2001:db8::7]:123", RefuseUdp),
    ];
    for (to, reason) in rows {
        for round in 0..50 {
            scene.check(
                &format!("{to} {round}"),
                &udp(own, 5000, at(to), b"hello"),
                &[reason, SteerRefused, EgressPass],
            );
            let answers = scene.first.received();
            let (protocol_at, protocol, kind_at) = if at(to).is_ipv6() {
                (20, 58, 54)
            } else {
                (23, 1, 34)
            };
            let unreachable = if at(to).is_ipv6() { [1, 4] } else { [3, 3] };
            assert_eq!(answers.len(), 1, "{to} {round}");
            assert_eq!(answers[0][protocol_at], protocol, "{to} {round}");
            assert_eq!(
                answers[0][kind_at..kind_at + 2],
                unreachable,
                "{to} {round}: port unreachable"
            );
        }
    }
}

#[test]
fn dns_is_answered_by_the_broker_whatever_resolver_is_asked() {
    let Some(scene) = Scene::set("dns_is_answered_by_the_broker_whatever_resolver_is_asked") else {
        return;
    };
    let socket = &scene.first.attachment.dns_udp;
    let rows = [
        ("1.1.1.1:53", PassDns4),
        ("100.127.255.254:53", PassDns4),
        ("[2001:4860:4860::8888]:53", PassDns6),
    ];
    for (to, pass) in rows {
        let question = udp(scene.first.addressing(), 5000, at(to), b"question");
        scene.check(to, &question, &[pass, SteerDnsUdp]);
        let mut buffer = [0; 512];
        let received = dns::receive(socket, &mut buffer).unwrap();
        assert_eq!(
            (&buffer[..received.bytes], received.original),
            (&b"question"[..], at(to))
        );
        dns::reply(socket, b"answer", &received).unwrap();
        let answers = scene.first.received();
        assert_eq!(answers.len(), 1, "{to}");
        assert!(answers[0].ends_with(b"answer"), "{to}");
        let source = if at(to).is_ipv6() {
            answers[0][22..38].to_vec()
        } else {
            answers[0][26..30].to_vec()
        };
        let asked = match at(to).ip() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        assert_eq!(source, asked, "{to}: answered from the address that was asked");
        let other = dns::receive(&scene.second.attachment.dns_udp, &mut buffer).unwrap_err();
        assert_eq!(
            other.kind(),
            ErrorKind::WouldBlock,
            "{to}: the other's socket got it"
        );
    }
}

#[test]
fn only_the_gateway_is_found_on_the_link() {
    let Some(scene) = Scene::set("only_the_gateway_is_found_on_the_link") else {
        return;
    };
    let own = scene.first.addressing();
    let question = arp(own, 1, own.v4.octets(), own.gateway_v4.octets());
    scene.check("ARP", &question, &[PassArp, EgressNeighbour]);
    let answers = scene.first.received();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][20..28], [&[0, 2][..], &own.gateway_mac].concat());
    scene.check("ND", &solicitation(own), &[PassNd, EgressNeighbour]);
    assert_eq!(scene.first.received().len(), 1);
    scene.check(
        "echo",
        &ip(own, own.gateway_v4.into(), 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        &[PassEcho, EgressPass],
    );
    scene.check(
        "echo over IPv6",
        &icmp6(own, own.gateway_v6.into(), &[128, 0, 0, 0, 0, 0, 0, 0]),
        &[PassEcho, EgressPass],
    );
}

#[test]
fn a_flood_costs_the_other_sandbox_nothing_and_is_counted_exactly() {
    const FLOOD: u64 = 100_000;
    let Some(mut scene) = Scene::set("a_flood_costs_the_other_sandbox_nothing_and_is_counted_exactly") else {
        return;
    };
    let frame = ethernet(scene.first.addressing(), 0x88b5, &[0; 46]);
    let before = counters(&scene.wall).unwrap();
    for _ in 0..FLOOD {
        scene.first.tap.send(&frame).unwrap();
    }
    let moved = difference(&before, &counters(&scene.wall).unwrap());
    assert_eq!(moved, BTreeMap::from([((FIRST, Ethertype), FLOOD)]));
    let events = scene.wall.events();
    assert!(events.len() < 64 * 8, "events are sampled: {}", events.len());
    let told = |event: &wallgate_wall::Event| event.reason == Ethertype && event.ethertype == 0x88b5;
    let kernel =
        |event: &wallgate_wall::Event| matches!(event.reason, EgressMulticast | EgressUnknownInterface);
    assert!(events.iter().all(|event| told(event) || kernel(event)));
    scene.second.dial(40_000, at("198.51.100.7:443")).unwrap();
    assert!(scene.second.attachment.tcp.accept().is_ok());
}

#[test]
fn without_ipv6_nothing_passes_over_ipv6() {
    let options = WallOptions {
        ipv6: false,
        max_sandboxes: 2,
        ..WallOptions::default()
    };
    let Some(mut wall) = wall_with("without_ipv6_nothing_passes_over_ipv6", &options) else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    let before = counters(&wall).unwrap();
    guest
        .tap
        .send(&syn(guest.addressing(), at("[2001:db8::7]:443")))
        .unwrap();
    guest.tap.send(&solicitation(guest.addressing())).unwrap();
    assert_eq!(
        difference(&before, &counters(&wall).unwrap()),
        BTreeMap::from([((FIRST, Ethertype), 2)])
    );
}

#[test]
fn segments_that_belong_to_no_connection_are_reset() {
    let Some(scene) = Scene::set("segments_that_belong_to_no_connection_are_reset") else {
        return;
    };
    let stray = tcp(
        scene.first.addressing(),
        41_000,
        at("198.51.100.7:443"),
        0x10,
        7,
        7,
    );
    scene.check("a stray segment", &stray, &[PassTcp4, SteerTcp, EgressPass]);
    let answers = scene.first.received();
    assert_eq!(
        answers
            .iter()
            .filter_map(|frame| tcp_flags(frame, false))
            .collect::<Vec<_>>(),
        [0x04]
    );
}
