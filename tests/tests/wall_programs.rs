//! The eBPF programs as the kernel runs them: that they decide what the shared functions decide, what a frame costs,
//! and that a sandbox is cut off and taken off cleanly.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use std::io::{ErrorKind, Read};

use wallgate_tests::frames::{
    Guest, at, counters, difference, solicitation, syn, tcp, udp, wall_or_skip, with,
};
use wallgate_wall::Reason::{EgressQuarantined, Quarantined};
use wallgate_wall::{Addressing, Interface, SandboxSlot, Severed, Wall, fault};
use wallgate_wall_shared::{HEADER_BYTES, SandboxRow, Verdict, classify};

/// DESIGN §16: at most this many nanoseconds per frame.
const GATE_NS: u128 = 300;
const SLOT: u16 = 2;

fn pretending(test: &str) -> Option<(Wall, Addressing)> {
    let mut wall = wall_or_skip(test)?;
    let slot = SandboxSlot::new(SLOT).unwrap();
    fault::pretend(&mut wall, slot).unwrap();
    Some((wall, Addressing::of(slot)))
}

fn row(own: &Addressing) -> SandboxRow {
    SandboxRow {
        slot: u32::from(SLOT),
        ip4: own.v4.octets(),
        gateway4: own.gateway_v4.octets(),
        mac: own.mac,
        gateway_mac: own.gateway_mac,
        ip6: own.v6.octets(),
        gateway6: own.gateway_v6.octets(),
        link_local6: "fe80::57:47ff:fe00:2"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
        ..SandboxRow::default()
    }
}

/// A sequence that is the same in each run (Knuth's constants).
fn next(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 40).unwrap()
}

#[test]
fn the_kernel_runs_the_very_decision_that_the_tests_of_the_shared_crate_hold() {
    let Some((mut wall, own)) = pretending("the_kernel_runs_the_very_decision") else {
        return;
    };
    let row = row(&own);
    let good = [
        syn(&own, at("198.51.100.7:443")),
        syn(&own, at("[2001:db8::7]:443")),
        udp(&own, 5000, at("8.8.8.8:53"), b"question"),
        solicitation(&own),
    ];
    let mut state = 7;
    for round in 0..4000 {
        let mut frame = good[round % good.len()].clone();
        for _ in 0..next(&mut state) % 4 {
            let place = next(&mut state) % frame.len();
            frame[place] = u8::try_from(next(&mut state) % 256).unwrap();
        }
        let mut header = [0; HEADER_BYTES];
        let seen = frame.len().min(HEADER_BYTES);
        header[..seen].copy_from_slice(&frame[..seen]);
        let expected = match classify(&header, u32::try_from(frame.len()).unwrap(), &row) {
            Verdict::Pass(_) => (0, wallgate_wall_shared::MARK | u32::from(SLOT)),
            Verdict::Drop(_) => (2, 0),
        };
        let ran = fault::run(&mut wall, "wall_in", &frame, 0, 1).unwrap();
        assert_eq!((ran.verdict, ran.mark), expected, "{frame:02x?}");
    }
}

#[test]
fn a_frame_costs_less_than_the_gate() {
    let Some((mut wall, own)) = pretending("a_frame_costs_less_than_the_gate") else {
        return;
    };
    let tcp4 = syn(&own, at("198.51.100.7:443"));
    let mut long = tcp(&own, 40_000, at("198.51.100.7:443"), 0x10, 1, 1);
    long.resize(1514, 7);
    let long = with(long, &[(16, &1500_u16.to_be_bytes())]);
    let rows = [
        ("SYN over IPv4", "wall_in", tcp4.clone()),
        ("SYN over IPv6", "wall_in", syn(&own, at("[2001:db8::7]:443"))),
        ("1514 bytes", "wall_in", long),
        ("a forged source", "wall_in", with(tcp4.clone(), &[(29, &[9])])),
        ("towards the sandbox", "wall_out", tcp4),
    ];
    for (name, program, frame) in rows {
        // The best of some: the others tell about the machine's other work.
        let rounds = (0..5).map(|_| {
            fault::run(&mut wall, program, &frame, 0, 200_000)
                .unwrap()
                .nanoseconds
        });
        let cost = rounds.min().unwrap();
        println!("BENCH wall frame: {name}: {cost} ns");
        assert!(cost <= GATE_NS, "{name}: {cost} ns");
    }
}

#[test]
fn quarantine_ends_connections_in_both_directions_and_release_restores() {
    let Some(mut wall) = wall_or_skip("quarantine_ends_connections") else {
        return;
    };
    let [guest, other] = [SLOT, 3].map(|slot| Guest::attach(&mut wall, slot).unwrap());
    for either in [&guest, &other] {
        either.dial(40_000, at("198.51.100.7:443")).unwrap();
    }
    let (mut cut, _) = guest.attachment.tcp.accept().unwrap();
    let (mut kept, _) = other.attachment.tcp.accept().unwrap();
    kept.set_nonblocking(true).unwrap();
    let slot = guest.attachment.slot;
    let _earlier = guest.received();
    assert_eq!(wall.quarantine(slot, true).unwrap(), Severed(1));
    assert_eq!(
        cut.read(&mut [0; 1]).unwrap_err().kind(),
        ErrorKind::ConnectionAborted
    );
    assert!(guest.received().is_empty(), "not even a reset reaches it");
    assert_eq!(
        kept.read(&mut [0; 1]).unwrap_err().kind(),
        ErrorKind::WouldBlock,
        "the other's goes on"
    );
    let before = counters(&wall).unwrap();
    guest
        .tap
        .send(&syn(guest.addressing(), at("198.51.100.7:443")))
        .unwrap();
    assert_eq!(
        difference(&before, &counters(&wall).unwrap()),
        [((SLOT, Quarantined), 1)].into()
    );
    assert!(
        before.contains_key(&(SLOT, EgressQuarantined)),
        "the kernel's own reset was dropped and counted"
    );
    wall.quarantine(slot, false).unwrap();
    guest.dial(40_001, at("198.51.100.7:443")).unwrap();
    assert!(guest.attachment.tcp.accept().is_ok());
}

#[test]
fn detaching_returns_the_last_counters_and_the_tap() {
    let Some(mut wall) = wall_or_skip("detaching_returns_the_last_counters_and_the_tap") else {
        return;
    };
    let guest = Guest::attach(&mut wall, SLOT).unwrap();
    let slot = guest.attachment.slot;
    guest.dial(40_000, at("198.51.100.7:443")).unwrap();
    let last = wall.detach(slot).unwrap();
    assert!(
        last.iter()
            .any(|counter| counter.slot == Some(slot) && counter.reason.as_str() == "steer_tcp")
    );
    assert!(
        guest
            .tap
            .send(&syn(guest.addressing(), at("198.51.100.7:443")))
            .is_err(),
        "it is down"
    );
    assert!(wall.detach(slot).is_err() && wall.verify(slot).is_err());
    let again = Guest::attach(&mut wall, SLOT).unwrap();
    assert!(again.attachment.proof.map_generation > guest.attachment.proof.map_generation);
}

#[test]
fn a_wall_that_is_full_or_a_slot_that_is_taken_refuses() {
    let Some(mut wall) = wall_or_skip("a_wall_that_is_full_or_a_slot_that_is_taken_refuses") else {
        return;
    };
    let guests: Vec<Guest> = (1..=16)
        .map(|slot| Guest::attach(&mut wall, slot).unwrap())
        .collect();
    let slot = |number| SandboxSlot::new(number).unwrap();
    let absent = Interface::Tap {
        name: "absent0",
        from: None,
    };
    assert_eq!(
        wall.attach(&absent, slot(1)).unwrap_err().reason(),
        "wall_slot_taken"
    );
    assert_eq!(wall.attach(&absent, slot(17)).unwrap_err().reason(), "wall_full");
    drop(guests);
    wall.detach(slot(1)).unwrap();
    assert_eq!(wall.free_slot(), Some(slot(1)));
    assert_eq!(
        wall.attach(&absent, slot(1)).unwrap_err().reason(),
        "wall_no_interface"
    );
    let (attachment, _namespace) = wall.veth_sandbox(slot(1)).unwrap();
    assert_eq!(attachment.slot, slot(1), "a failed attach leaves the slot free");
}
