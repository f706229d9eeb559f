//! Faults, for the tests that show what holds when something else does not: programs taken away, an uplink and forwarding
//! where neither belongs. Compiled with the feature `test-support` only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use aya::programs::{TestRun, TestRunOptions, loaded_programs};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use crate::error::WallError;
use crate::namespace::Namespace;
use crate::netlink::Route;
use crate::slot::SandboxSlot;
use crate::tap::{Tap, make_tap};
use crate::wall::Wall;

/// `struct __sk_buff`, of which the tests set and read the mark.
const CONTEXT_BYTES: usize = 192;
const MARK_AT: usize = 8;

/// The wall's end of the uplink of [`add_uplink`].
pub const UPLINK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];

/// What a program did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// `TC_ACT_OK` is 0, `TC_ACT_SHOT` is 2.
    pub verdict: u32,
    /// The frame's mark afterwards.
    pub mark: u32,
    /// Nanoseconds per run, the kernel's own average.
    pub nanoseconds: u128,
}

/// Takes the ingress program off a sandbox's interface.
pub fn break_ingress(wall: &mut Wall, slot: SandboxSlot) {
    drop(wall.links_mut(slot).and_then(|links| links.ingress.take()));
}

/// Takes the egress program off a sandbox's interface.
pub fn break_egress(wall: &mut Wall, slot: SandboxSlot) {
    drop(wall.links_mut(slot).and_then(|links| links.egress.take()));
}

/// Takes the steering program off the namespace.
pub fn break_steering(wall: &mut Wall) {
    wall.parts_mut().1.unsteer();
}

/// Adds what the wall's namespace must never have: an uplink with default routes, and forwarding. Returns the far end.
///
/// # Errors
///
/// The kernel refused a step.
pub fn add_uplink(wall: &mut Wall) -> Result<Tap, WallError> {
    wall.parts_mut().0.run(|| {
        let tap = make_tap("uplink")?;
        let route = Route::open()?;
        let link = route.index_of("uplink")?;
        route.set_mac(link, UPLINK_MAC, 1500)?;
        route.set_up(link, true)?;
        route.add_address(link, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)))?;
        route.add_address(link, IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)))?;
        // Not by a gateway: where every address is local, the kernel takes none.
        route.add_default_link(link, false)?;
        route.add_default_link(link, true)?;
        Namespace::set(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
        Ok(tap)
    })
}

/// A socket that sees every frame of every interface in the wall's namespace, before any program. Non-blocking.
///
/// # Errors
///
/// The kernel refused.
pub fn sniffer(wall: &mut Wall) -> Result<OwnedFd, WallError> {
    /// `ETH_P_ALL`, in network byte order.
    const EVERYTHING: u32 = 0x0003_u16.to_be() as u32;
    wall.parts_mut().0.run(|| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = std::num::NonZeroU32::new(EVERYTHING).map(Protocol::from_raw);
        socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol).map_err(|errno| {
            WallError::Socket {
                step: "open a sniffer",
                source: errno.into(),
            }
        })
    })
}

/// Runs `work` inside a namespace.
///
/// # Errors
///
/// The namespace cannot be entered.
pub fn inside<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, WallError> {
    Namespace::from_fd(namespace)?.run(|| Ok(work()))
}

/// Gives the loopback interface of the wall's namespace, on which [`run`] runs, the row of a sandbox.
///
/// # Errors
///
/// The kernel refused.
pub fn pretend(wall: &mut Wall, slot: SandboxSlot) -> Result<(), WallError> {
    const LOOPBACK: u32 = 1;
    let (_, kernel) = wall.parts_mut();
    kernel.open_counters(LOOPBACK)?;
    kernel.set_row(LOOPBACK, crate::slot::Addressing::of(slot).row(slot, 0, 0))
}

/// Runs `wall_in` or `wall_out` on a frame, `repeat` times, as if it came in on the loopback interface.
///
/// # Errors
///
/// There is no such program, or the kernel refused.
pub fn run(
    wall: &mut Wall,
    program: &'static str,
    frame: &[u8],
    mark: u32,
    repeat: u32,
) -> Result<Ran, WallError> {
    let (namespace, kernel) = wall.parts_mut();
    let kernel = &*kernel;
    namespace.run(|| {
        let mut context = [0; CONTEXT_BYTES];
        if let Some(cell) = context.get_mut(MARK_AT..).and_then(<[u8]>::first_chunk_mut) {
            *cell = mark.to_ne_bytes();
        }
        let mut after = [0; CONTEXT_BYTES];
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            ctx_out: Some(&mut after),
            repeat,
            ..TestRunOptions::default()
        };
        let result = kernel
            .classifier(program)?
            .test_run(options)
            .map_err(|source| WallError::Program {
                name: program,
                source: Box::new(source),
            })?;
        let mark = after
            .get(MARK_AT..)
            .and_then(<[u8]>::first_chunk)
            .copied()
            .map_or(0, u32::from_ne_bytes);
        Ok(Ran {
            verdict: result.return_value,
            mark,
            nanoseconds: result.duration.as_nanos(),
        })
    })
}

/// Whether the kernel still has a program.
#[must_use]
pub fn program_exists(id: u32) -> bool {
    loaded_programs().flatten().any(|program| program.id() == id)
}
