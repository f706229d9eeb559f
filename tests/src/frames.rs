//! Frames as a sandbox sends them, well-formed unless a test says otherwise, and a guest that sends them from a tap.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use wallgate_wall::{
    Addressing, Attachment, Interface, Reason, SandboxSlot, Tap, Wall, WallError, WallOptions, make_tap,
};

/// TCP flags.
pub const SYN: u8 = 0x02;
/// An acknowledgement.
pub const ACK: u8 = 0x10;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const ETHERNET_BYTES: usize = 14;

/// A wall, or a line that says why this test cannot run here: `SKIPPED-PRIVILEGED name: why`.
///
/// # Panics
///
/// When the wall fails for any reason but a missing right.
#[must_use]
pub fn wall_or_skip(test: &str) -> Option<Wall> {
    wall_with(
        test,
        &WallOptions {
            max_sandboxes: 16,
            ..WallOptions::default()
        },
    )
}

/// As [`wall_or_skip`], with other options.
///
/// # Panics
///
/// As [`wall_or_skip`].
#[must_use]
pub fn wall_with(test: &str, options: &WallOptions) -> Option<Wall> {
    let lacking = wallgate_wall::support::prerequisites()
        .into_iter()
        .find(|needed| needed.met.is_err());
    if let Some(needed) = lacking {
        eprintln!("SKIPPED-PRIVILEGED {test}: {} is missing", needed.name);
        return None;
    }
    match Wall::create(options) {
        Ok(wall) => Some(wall),
        Err(error) if is_permission(&error) => {
            eprintln!("SKIPPED-PRIVILEGED {test}: {error}");
            None
        }
        #[expect(clippy::panic, reason = "a broken wall is a failed test, never a skipped one")]
        Err(error) => panic!(
            "the wall does not stand: {error}: {:?}",
            std::error::Error::source(&error)
        ),
    }
}

fn is_permission(error: &WallError) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::PermissionDenied
        {
            return true;
        }
        source = inner.source();
    }
    false
}

/// A guest on a tap: root, raw, and without manners.
#[derive(Debug)]
pub struct Guest {
    /// What it holds of its interface.
    pub tap: Tap,
    /// What the wall holds.
    pub attachment: Attachment,
}

impl Guest {
    /// Makes a tap and puts it behind the wall.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn attach(wall: &mut Wall, slot: u16) -> Result<Self> {
        let slot = SandboxSlot::new(slot).context("a slot")?;
        Self::attach_as(wall, slot, Addressing::of(slot))
    }

    /// As [`attach`](Self::attach), with the addresses of another: a clone.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn attach_as(wall: &mut Wall, slot: SandboxSlot, addressing: Addressing) -> Result<Self> {
        let name = tap_name();
        let tap = make_tap(&name)?;
        let attachment = wall.attach_as(
            &Interface::Tap {
                name: &name,
                from: None,
            },
            slot,
            addressing,
        )?;
        Ok(Self { tap, attachment })
    }

    /// Its addresses.
    #[must_use]
    pub const fn addressing(&self) -> &Addressing {
        &self.attachment.addressing
    }

    /// The frames that have reached it.
    #[must_use]
    pub fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 65_600];
        while let Ok(length) = self.tap.receive(&mut buffer) {
            frames.push(buffer.get(..length).unwrap_or_default().to_vec());
        }
        frames
    }

    /// Opens a TCP connection by hand, and leaves it to the wall's listener.
    ///
    /// # Errors
    ///
    /// No SYN-ACK came back.
    pub fn dial(&self, source_port: u16, to: SocketAddr) -> Result<()> {
        let own = self.addressing();
        let segment = |flags, acknowledged| {
            tcp(
                own,
                source_port,
                to,
                flags,
                1 + u32::from(flags == ACK),
                acknowledged,
            )
        };
        self.tap.send(&segment(SYN, 0))?;
        let answer = self
            .received()
            .into_iter()
            .find(|frame| tcp_flags(frame, to.is_ipv6()) == Some(SYN | ACK))
            .context("no SYN-ACK")?;
        let at = ETHERNET_BYTES + if to.is_ipv6() { 40 } else { 20 } + 4;
        let sequence = answer
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .copied()
            .map_or(0, u32::from_be_bytes);
        self.tap.send(&segment(ACK, sequence.wrapping_add(1)))?;
        Ok(())
    }
}

/// An address and port that a test spells out.
///
/// # Panics
///
/// On a misspelt one.
#[must_use]
#[expect(clippy::unwrap_used, reason = "a misspelt test has failed")]
pub fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An address that a test spells out.
///
/// # Panics
///
/// On a misspelt one.
#[must_use]
#[expect(clippy::unwrap_used, reason = "a misspelt test has failed")]
pub fn host(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A name for a tap that no other test has.
#[must_use]
pub fn tap_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "wg{}x{}",
        std::process::id() % 100_000,
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Every counter of a wall, by slot (0: none) and reason.
///
/// # Errors
///
/// The wall cannot be read.
pub fn counters(wall: &Wall) -> Result<BTreeMap<(u16, Reason), u64>> {
    let counters = wall.counters()?.into_iter();
    Ok(counters
        .map(|counter| {
            (
                (counter.slot.map_or(0, SandboxSlot::get), counter.reason),
                counter.frames,
            )
        })
        .collect())
}

/// What a step added to the counters. The kernel's own multicast, sent some time after a link came up, is left out.
#[must_use]
pub fn difference(
    before: &BTreeMap<(u16, Reason), u64>,
    after: &BTreeMap<(u16, Reason), u64>,
) -> BTreeMap<(u16, Reason), u64> {
    let grown = after
        .iter()
        .map(|(key, count)| (*key, count - before.get(key).copied().unwrap_or(0)));
    grown
        .filter(|((_, reason), count)| *count > 0 && *reason != Reason::EgressMulticast)
        .collect()
}

fn checksum(chunks: &[&[u8]]) -> [u8; 2] {
    let all: Vec<u8> = chunks.concat();
    let mut sum: u32 = 0;
    for pair in all.chunks(2) {
        let high = pair.first().copied().unwrap_or(0);
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([high, low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

/// An Ethernet frame from the guest to its gateway.
#[must_use]
pub fn ethernet(own: &Addressing, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&own.gateway_mac[..], &own.mac, &kind.to_be_bytes(), payload].concat()
}

/// An IP packet in a frame, of the destination's family.
#[must_use]
pub fn ip(own: &Addressing, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    match to {
        IpAddr::V4(to) => {
            let mut header = vec![0x45, 0];
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
            header.extend(own.v4.octets());
            header.extend(to.octets());
            let sum = checksum(&[&header]);
            header.splice(10..12, sum);
            ethernet(own, 0x0800, &[header.as_slice(), payload].concat())
        }
        IpAddr::V6(to) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([protocol, 64]);
            header.extend(own.v6.octets());
            header.extend(to.octets());
            ethernet(own, 0x86dd, &[header.as_slice(), payload].concat())
        }
    }
}

fn pseudo(own: &Addressing, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    match to {
        IpAddr::V4(to) => [&own.v4.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol]].concat(),
        IpAddr::V6(to) => [&own.v6.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol]].concat(),
    }
}

fn with_checksum(own: &Addressing, to: IpAddr, protocol: u8, at: usize, mut payload: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&[&pseudo(own, to, protocol, payload.len()), &payload]);
    payload.splice(at..at + 2, sum);
    payload
}

/// A TCP segment without data.
#[must_use]
pub fn tcp(
    own: &Addressing,
    source_port: u16,
    to: SocketAddr,
    flags: u8,
    sequence: u32,
    acknowledged: u32,
) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(source_port.to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    ip(own, to.ip(), TCP, &with_checksum(own, to.ip(), TCP, 16, segment))
}

/// A connection's first segment.
#[must_use]
pub fn syn(own: &Addressing, to: SocketAddr) -> Vec<u8> {
    tcp(own, 40_000, to, SYN, 1, 0)
}

/// A UDP datagram.
#[must_use]
pub fn udp(own: &Addressing, source_port: u16, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(source_port.to_be_bytes());
    datagram.extend(to.port().to_be_bytes());
    datagram.extend(u16::try_from(8 + payload.len()).unwrap_or(u16::MAX).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    ip(own, to.ip(), UDP, &with_checksum(own, to.ip(), UDP, 6, datagram))
}

/// An `ICMPv6` message.
#[must_use]
pub fn icmp6(own: &Addressing, to: IpAddr, body: &[u8]) -> Vec<u8> {
    ip(own, to, ICMP6, &with_checksum(own, to, ICMP6, 2, body.to_vec()))
}

/// An ARP message of the guest.
#[must_use]
pub fn arp(own: &Addressing, operation: u16, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let [high, low] = operation.to_be_bytes();
    let body = [
        &[0, 1, 8, 0, 6, 4, high, low][..],
        &own.mac,
        &sender,
        &[0; 6],
        &target,
    ]
    .concat();
    with(ethernet(own, 0x0806, &body), &[(0, &[0xff; 6])])
}

/// A neighbour solicitation of the guest for its gateway.
#[must_use]
pub fn solicitation(own: &Addressing) -> Vec<u8> {
    let [.., x, y, z] = own.gateway_v6.octets();
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z];
    let body = [
        &[135, 0, 0, 0, 0, 0, 0, 0][..],
        &own.gateway_v6.octets(),
        &[1, 1],
        &own.mac,
    ]
    .concat();
    let frame = icmp6(own, IpAddr::from(group), &body);
    with(frame, &[(0, &[0x33, 0x33, 0xff, x, y, z]), (21, &[255])])
}

/// A frame with some bytes replaced.
#[must_use]
pub fn with(mut frame: Vec<u8>, changes: &[(usize, &[u8])]) -> Vec<u8> {
    for (at, bytes) in changes {
        frame.splice(*at..*at + bytes.len(), bytes.iter().copied());
    }
    frame
}

/// The TCP flags of a frame, when it is TCP of that family.
#[must_use]
pub fn tcp_flags(frame: &[u8], v6: bool) -> Option<u8> {
    let (kind, protocol_at, flags_at) = if v6 {
        ([0x86, 0xdd], 20, ETHERNET_BYTES + 40 + 13)
    } else {
        ([8, 0], 23, ETHERNET_BYTES + 20 + 13)
    };
    if frame.get(12..14)? != kind || *frame.get(protocol_at)? != TCP {
        return None;
    }
    frame.get(flags_at).copied()
}
