//! P1, "from the first frame to the last": while the wall is being attached, broken, killed or misconfigured.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use wallgate_tests::frames::{Guest, at, counters, difference, syn, tap_name, udp, wall_or_skip, with};
use wallgate_tests::hostile;
use wallgate_wall::Reason::{self, *};
use wallgate_wall::{Addressing, Interface, SandboxSlot, Wall, WallOptions, fault, leftovers, make_tap};

const FIRST: u16 = 2;
const SECOND: u16 = hostile::VICTIM;

/// The listeners are closed, as when the broker is killed: everything is refused, and nothing is let through instead.
#[test]
fn without_a_broker_everything_is_refused() {
    let Some(mut wall) = wall_or_skip("without_a_broker_everything_is_refused") else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    let own = *guest.addressing();
    let Guest { tap, attachment } = guest;
    drop((attachment.tcp, attachment.dns_tcp, attachment.dns_udp));
    let before = counters(&wall).unwrap();
    tap.send(&syn(&own, at("198.51.100.7:443"))).unwrap();
    tap.send(&udp(&own, 5000, at("1.1.1.1:53"), b"question")).unwrap();
    let moved = difference(&before, &counters(&wall).unwrap());
    let expected = [
        (PassTcp4, 1),
        (PassDns4, 1),
        (SteerNoListener, 2),
        (EgressPass, 2),
    ];
    assert_eq!(
        moved,
        expected.map(|(reason, count)| ((FIRST, reason), count)).into()
    );
}

/// The worst day: somebody gave the namespace an uplink with default routes and switched forwarding on.
#[test]
fn nothing_leaks_through_an_uplink_that_should_not_be_there() {
    let Some(mut wall) = wall_or_skip("nothing_leaks_through_an_uplink_that_should_not_be_there") else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    let uplink = fault::add_uplink(&mut wall).unwrap();
    let slot = guest.attachment.slot;
    let own = *guest.addressing();
    let attempts: Vec<Vec<u8>> = hostile::all(&own)
        .into_iter()
        .map(|row| row.frame)
        .chain(["198.51.100.7:443", "8.8.8.8:53", "[2001:db8::7]:443"].map(|to| syn(&own, at(to))))
        .chain(
            ["198.51.100.7:443", "8.8.8.8:53", "[2001:db8::7]:123"].map(|to| udp(&own, 5000, at(to), b"out")),
        )
        .collect();
    let ours = |frame: &[u8]| {
        let has = |address: &[u8]| frame.windows(address.len()).any(|window| window == address);
        has(&own.v4.octets()) || has(&own.v6.octets()) || has(&[198, 51, 100, 7])
    };
    let mut buffer = vec![0; 65_600];
    let mut escaped = |day: &str| {
        for frame in &attempts {
            guest.tap.send(frame).unwrap();
        }
        while let Ok(length) = uplink.receive(&mut buffer) {
            assert!(
                !ours(&buffer[..length]),
                "{day}: a frame went out: {:02x?}",
                &buffer[..length.min(64)]
            );
        }
    };
    // And the other way: what comes in by the uplink, for the sandbox or for a listener.
    let inbound: Vec<Vec<u8>> = ["100.127.0.2:80", "100.127.255.254:53", "[fd57:616c:6c67::2]:80"]
        .map(|to| {
            with(
                syn(&own, at(to)),
                &[(0, &fault::UPLINK_MAC), (6, &[2, 0, 0, 0, 0, 9])],
            )
        })
        .map(|frame| {
            if frame[12] == 8 {
                with(frame, &[(26, &[203, 0, 113, 1])])
            } else {
                frame
            }
        })
        .to_vec();
    let _earlier = guest.received();
    for frame in &inbound {
        uplink.send(frame).unwrap();
    }
    assert!(guest.received().is_empty(), "a frame came in");
    assert!(guest.attachment.tcp.accept().is_err());
    escaped("the wall stands");
    fault::break_steering(&mut wall);
    escaped("the steering program is gone");
    fault::break_ingress(&mut wall, slot);
    escaped("the ingress program is gone");
    fault::break_egress(&mut wall, slot);
    escaped("the egress program is gone");
    assert!(wall.verify(slot).is_err(), "and the wall notices");
}

/// A sandbox that floods while it is being attached: nothing passes before everything is in place.
#[test]
fn no_frame_passes_before_the_wall_is_complete() {
    let Some(mut wall) = wall_or_skip("no_frame_passes_before_the_wall_is_complete") else {
        return;
    };
    let witness = Guest::attach(&mut wall, SECOND).unwrap();
    let slot = SandboxSlot::new(FIRST).unwrap();
    let own = Addressing::of(slot);
    let forged = with(
        syn(&own, at("198.51.100.7:443")),
        &[(26, &Addressing::of(witness.attachment.slot).v4.octets())],
    );
    let name = tap_name();
    let tap = make_tap(&name).unwrap();
    let stop = AtomicBool::new(false);
    let (attached, sent) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                sent += u64::from(tap.send(&forged).is_ok());
            }
            sent
        });
        let attached = wall.attach(
            &Interface::Tap {
                name: &name,
                from: None,
            },
            slot,
        );
        stop.store(true, Ordering::Relaxed);
        (attached, flood.join().unwrap())
    });
    let _attachment = attached.unwrap();
    let counted = counters(&wall).unwrap();
    let reasons: BTreeSet<Reason> = counted
        .keys()
        .filter(|(slot, _)| *slot == FIRST)
        .map(|(_, reason)| *reason)
        .collect();
    assert!(
        reasons.is_subset(
            &[
                UnknownInterface,
                SpoofIp4,
                EgressMulticast,
                EgressUnknownInterface
            ]
            .into()
        ),
        "{reasons:?}"
    );
    let early = counted.get(&(0, UnknownInterface)).copied().unwrap_or(0);
    let late: u64 = counted
        .iter()
        .filter(|((slot, reason), _)| *slot == FIRST && matches!(reason, UnknownInterface | SpoofIp4))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(early + late, sent, "every frame that the kernel took was counted");
}

#[test]
fn a_recreated_tap_has_no_way_in() {
    let Some(mut wall) = wall_or_skip("a_recreated_tap_has_no_way_in") else {
        return;
    };
    let guest = Guest::attach(&mut wall, FIRST).unwrap();
    let slot = guest.attachment.slot;
    drop(guest);
    assert!(
        wall.verify(slot).is_err(),
        "the wall notices that the interface is gone"
    );
    wall.detach(slot).unwrap();
    let again = Guest::attach(&mut wall, FIRST).unwrap();
    let before = counters(&wall).unwrap();
    again
        .tap
        .send(&syn(again.addressing(), at("198.51.100.7:443")))
        .unwrap();
    let moved = difference(&before, &counters(&wall).unwrap());
    assert_eq!(
        moved.get(&(FIRST, SteerTcp)),
        Some(&1),
        "the slot starts afresh: {moved:?}"
    );
}

const CHILD: &str = "WALLGATE_TEST_HOLDS_A_WALL";

/// Not a test by itself: the process that [`a_killed_owner_leaves_nothing`] kills.
#[test]
fn child_that_is_killed() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let name = (!name.is_empty()).then(|| name.parse().unwrap());
    let mut wall = Wall::create(&WallOptions {
        name,
        max_sandboxes: 4,
        ..WallOptions::default()
    })
    .unwrap();
    let held = (
        wall.veth_sandbox(SandboxSlot::new(1).unwrap()).unwrap(),
        Guest::attach(&mut wall, FIRST).unwrap(),
    );
    let proof = &held.1.attachment.proof;
    println!(
        "\nHOLDING {} {} {}",
        proof.ingress_program, proof.egress_program, proof.steer_program
    );
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_killed_owner_leaves_nothing() {
    if wall_or_skip("a_killed_owner_leaves_nothing").is_none() {
        return;
    }
    let named = format!("killed-{}", std::process::id());
    for name in ["", &named] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env(CHILD, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let holding = lines
            .map_while(Result::ok)
            .find(|line| line.starts_with("HOLDING"))
            .unwrap();
        let programs: Vec<u32> = holding.split(' ').skip(1).map(|id| id.parse().unwrap()).collect();
        assert!(programs.iter().all(|id| fault::program_exists(*id)));
        child.kill().unwrap();
        child.wait().unwrap();
        // The kernel frees programs and namespaces after a grace period; the bound is some seconds.
        let freed = (0..100_000).any(|_| {
            std::thread::yield_now();
            !programs.iter().any(|id| fault::program_exists(*id))
        });
        assert!(freed, "programs are left: {holding}");
        let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        let tap = format!("wg{}x", child.id() % 100_000);
        assert!(!interfaces.contains(&tap), "an interface is left: {interfaces}");
        let swept: Vec<String> = leftovers::sweep()
            .unwrap()
            .into_iter()
            .map(|leftover| leftover.wall)
            .collect();
        assert_eq!(
            swept.contains(&named),
            !name.is_empty(),
            "only a named wall leaves something, and it is swept"
        );
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&named), "a mount is left");
    }
}
