//! P2: who is asking is the interface that the frame came in on.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use wallgate_tests::frames::{Guest, at, counters, difference, syn, tcp_flags, wall_or_skip, with};
use wallgate_wall::Reason::{SpoofIp4, SpoofMac};
use wallgate_wall::{Addressing, SandboxSlot, accepted_mark, fault};

const FIRST: u16 = 2;
const SECOND: u16 = 3;

fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Accepts what was dialled by hand, and says what the broker would know of it.
fn accepted(listener: &TcpListener) -> Option<(SocketAddr, SocketAddr, u32)> {
    let (stream, peer) = listener.accept().ok()?;
    Some((
        plain(stream.local_addr().unwrap()),
        plain(peer),
        accepted_mark(&stream).unwrap(),
    ))
}

fn refused(listener: &TcpListener) -> bool {
    listener
        .accept()
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn two_sandboxes_at_once_reach_each_its_own_listener() {
    let Some(mut wall) = wall_or_skip("two_sandboxes_at_once_reach_each_its_own_listener") else {
        return;
    };
    let guests = [FIRST, SECOND].map(|slot| Guest::attach(&mut wall, slot).unwrap());
    for to in [
        "198.51.100.7:443",
        "[2001:db8::7]:8443",
        "100.127.255.254:80",
        "10.0.0.1:22",
    ]
    .map(at)
    {
        for guest in &guests {
            guest.dial(40_000, to).unwrap();
        }
        for guest in &guests {
            let own = guest.addressing();
            let from = if to.is_ipv6() {
                own.v6.into()
            } else {
                own.v4.into()
            };
            let expected = (to, SocketAddr::new(from, 40_000), guest.attachment.mark);
            assert_eq!(accepted(&guest.attachment.tcp), Some(expected));
            assert!(
                refused(&guest.attachment.tcp) && refused(&guest.attachment.dns_tcp),
                "once, and there only"
            );
        }
    }
    guests[0].dial(40_001, at("8.8.8.8:53")).unwrap();
    assert!(refused(&guests[0].attachment.tcp));
    assert!(
        accepted(&guests[0].attachment.dns_tcp).is_some(),
        "TCP to port 53 has a listener of its own"
    );
}

#[test]
fn nobody_can_ask_as_somebody_else() {
    let Some(mut wall) = wall_or_skip("nobody_can_ask_as_somebody_else") else {
        return;
    };
    let [first, second] = [FIRST, SECOND].map(|slot| Guest::attach(&mut wall, slot).unwrap());
    let theirs = *second.addressing();
    let to = at("198.51.100.7:443");
    let rows = [
        (
            "their address",
            with(syn(first.addressing(), to), &[(26, &theirs.v4.octets())]),
            SpoofIp4,
        ),
        (
            "their MAC address",
            with(syn(first.addressing(), to), &[(6, &theirs.mac)]),
            SpoofMac,
        ),
        ("their whole frame", syn(&theirs, to), SpoofMac),
    ];
    for (name, frame, reason) in rows {
        let before = counters(&wall).unwrap();
        first.tap.send(&frame).unwrap();
        let moved = difference(&before, &counters(&wall).unwrap());
        assert_eq!(moved, [((FIRST, reason), 1)].into(), "{name}");
        for guest in [&first, &second] {
            assert!(refused(&guest.attachment.tcp), "{name}");
            assert!(guest.received().is_empty(), "{name}");
        }
    }
}

/// Guests that were cloned from one snapshot: the same MAC and IP addresses, the same ports, at the same time.
#[test]
fn clones_with_equal_addresses_are_told_apart() {
    let Some(mut wall) = wall_or_skip("clones_with_equal_addresses_are_told_apart") else {
        return;
    };
    let shared = Addressing::of(SandboxSlot::new(FIRST).unwrap());
    let clones = [FIRST, SECOND]
        .map(|slot| Guest::attach_as(&mut wall, SandboxSlot::new(slot).unwrap(), shared).unwrap());
    for to in ["198.51.100.7:443", "[2001:db8::7]:443"].map(at) {
        for clone in &clones {
            clone.dial(40_000, to).unwrap();
        }
        for clone in &clones {
            let (original, _, mark) = accepted(&clone.attachment.tcp).unwrap();
            assert_eq!((original, mark), (to, clone.attachment.mark));
            assert!(refused(&clone.attachment.tcp));
        }
    }
}

/// Without the filter there is no mark; without a mark there is no way in, and the answer would have no way out.
#[test]
fn without_the_ingress_program_nothing_is_accepted() {
    let Some(mut wall) = wall_or_skip("without_the_ingress_program_nothing_is_accepted") else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    fault::break_ingress(&mut wall, guest.attachment.slot);
    for to in ["198.51.100.7:443", "[2001:db8::7]:443"] {
        guest.dial(40_000, at(to)).unwrap_err();
        assert!(refused(&guest.attachment.tcp), "{to}");
    }
    assert!(wall.verify(guest.attachment.slot).is_err());
}

#[test]
fn a_connection_that_did_not_pass_the_filter_has_no_mark() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    assert_eq!(accepted_mark(&stream).unwrap(), 0);
}

/// Without the steering program a sandbox could dial a listener's real port: but each is bound to its own interface.
#[test]
fn without_the_steering_program_no_listener_hears_another_sandbox() {
    let Some(mut wall) = wall_or_skip("without_the_steering_program_no_listener_hears_another_sandbox")
    else {
        return;
    };
    let [first, second] = [FIRST, SECOND].map(|slot| Guest::attach(&mut wall, slot).unwrap());
    fault::break_steering(&mut wall);
    let port = second.attachment.tcp.local_addr().unwrap().port();
    for to in [
        SocketAddr::new(first.addressing().gateway_v4.into(), port),
        at("198.51.100.7:443"),
    ] {
        first.tap.send(&syn(first.addressing(), to)).unwrap();
        let answers = first.received();
        let flags: Vec<u8> = answers
            .iter()
            .filter_map(|frame| tcp_flags(frame, false))
            .collect();
        assert_eq!(flags, [0x14], "{to}: reset");
        assert!(refused(&second.attachment.tcp), "{to}");
    }
}

/// Real clients in a sandbox's own namespace, at the same time as a guest on a tap.
#[test]
fn a_veth_sandbox_is_told_from_a_tap() {
    let Some(mut wall) = wall_or_skip("a_veth_sandbox_is_told_from_a_tap") else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    let (attachment, namespace) = wall.veth_sandbox(SandboxSlot::new(SECOND).unwrap()).unwrap();
    for to in ["198.51.100.7:443", "[2001:db8::7]:443"].map(at) {
        guest.dial(40_000, to).unwrap();
        let client = fault::inside(namespace.as_fd(), || {
            TcpStream::connect_timeout(&to, Duration::from_secs(5))
        });
        let client = client.unwrap().unwrap();
        let (original, peer, mark) = accepted(&attachment.tcp).unwrap();
        assert_eq!(
            (original, peer, mark),
            (to, client.local_addr().unwrap(), attachment.mark)
        );
        assert_eq!(
            accepted(&guest.attachment.tcp).map(|(_, _, mark)| mark),
            Some(guest.attachment.mark)
        );
    }
}
