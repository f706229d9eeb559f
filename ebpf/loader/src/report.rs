//! What the wall tells about frames: exact counters, and sampled events.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use wallgate_wall_shared::{CounterRow, Effect, Reason};

use crate::slot::SandboxSlot;

/// The size of an event in the ring buffer.
const EVENT_BYTES: usize = 56;

/// How many frames of one sandbox ended for one reason. Exact, and counted since the sandbox was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The sandbox, or `None` for frames on an interface that has no row (any more, or yet).
    pub slot: Option<SandboxSlot>,
    /// The reason; [`Reason::as_str`] is its stable name.
    pub reason: Reason,
    /// How many.
    pub frames: u64,
}

impl Counter {
    /// What became of them.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        self.reason.effect()
    }
}

pub(crate) fn counters_of(slot: Option<SandboxSlot>, row: &CounterRow) -> Vec<Counter> {
    let named = Reason::ALL.iter().zip(row.frames);
    named
        .filter(|(_, frames)| *frames > 0)
        .map(|(&reason, frames)| Counter { slot, reason, frames })
        .collect()
}

/// One frame that did not pass. Told for the 1st, 2nd, 4th, 8th … of each sandbox, reason and CPU, so that no flood can
/// fill anything; [`Counter`]s have the exact numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The sandbox, or `None` when the interface has none.
    pub slot: Option<SandboxSlot>,
    /// Why.
    pub reason: Reason,
    /// How many this CPU had counted for this sandbox and reason.
    pub count: u64,
    /// The frame's length.
    pub frame_bytes: u32,
    /// The `EtherType`, or an 802.3 length.
    pub ethertype: u16,
    /// The IP protocol or next header, else 0.
    pub protocol: u16,
    /// The destination port of TCP and UDP, else 0.
    pub destination_port: u16,
    /// The claimed source MAC address.
    pub source_mac: [u8; 6],
    /// The claimed source address, IPv4 as `::ffff:a.b.c.d`, `::` when there is none.
    pub source: Ipv6Addr,
    /// The mark that it had when it came: 0 from a sandbox; of the socket that sent it, towards one.
    pub mark: u32,
}

/// Reads an [`EventRow`](wallgate_wall_shared::EventRow) as the programs write it: in this machine's byte order.
pub(crate) fn parse(bytes: &[u8], slots: &BTreeMap<u32, SandboxSlot>) -> Option<Event> {
    let bytes: &[u8; EVENT_BYTES] = bytes.first_chunk()?;
    let mut reader = Reader(bytes);
    let count = u64::from_ne_bytes(reader.take()?);
    let ifindex = u32::from_ne_bytes(reader.take()?);
    let reason = Reason::from_index(u32::from_ne_bytes(reader.take()?))?;
    let frame_bytes = u32::from_ne_bytes(reader.take()?);
    let ethertype = u16::from_ne_bytes(reader.take()?);
    let destination_port = u16::from_ne_bytes(reader.take()?);
    let protocol = u16::from_ne_bytes(reader.take()?);
    let source_mac = reader.take()?;
    let source = Ipv6Addr::from(reader.take::<16>()?);
    let mark = u32::from_ne_bytes(reader.take()?);
    let slot = slots.get(&ifindex).copied();
    Some(Event {
        slot,
        reason,
        count,
        frame_bytes,
        ethertype,
        protocol,
        destination_port,
        source_mac,
        source,
        mark,
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}
