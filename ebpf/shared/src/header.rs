//! The first bytes of a frame, and where things are in them.
//!
//! ```text
//!  0      6      12     14                                    34 (IPv4)          54 (IPv6)
//! ┌──────┬──────┬──────┬─────────────────────────────────────┬──────────────────┬───────────────┐
//! │ dst  │ src  │ type │ IPv4: 14 version, 16 length,        │ TCP/UDP/ICMP     │               │
//! │ MAC  │ MAC  │      │  20 flags, 23 protocol, 26/30 addr. │                  │ TCP/UDP/ICMP6 │
//! │      │      │      │ IPv6: 14 version, 18 length,        │                  │               │
//! │      │      │      │  20 next header, 22/38 addresses    │                  │               │
//! └──────┴──────┴──────┴─────────────────────────────────────┴──────────────────┴───────────────┘
//! ```
//! Nothing of variable length is ever skipped: IPv4 options and IPv6 extension headers are refused, so every offset
//! is a constant.

/// As much of a frame as any check needs: Ethernet, IPv6, and a neighbour solicitation with its option.
pub const HEADER_BYTES: usize = 96;

/// The first bytes of a frame, with zeros after its end.
pub type Header = [u8; HEADER_BYTES];

pub(crate) const ETHERNET: u32 = 14;
pub(crate) const IP4: u16 = 0x0800;
pub(crate) const IP6: u16 = 0x86dd;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// `N` bytes at `AT`.
#[inline(always)]
pub(crate) fn bytes<const AT: usize, const N: usize>(header: &Header) -> [u8; N] {
    const { assert!(AT + N <= HEADER_BYTES) }
    // The bounds are proven above; `None` folds away.
    match header.get(AT..).and_then(<[u8]>::first_chunk) {
        Some(field) => *field,
        None => [0; N],
    }
}

/// The byte at `AT`.
#[inline(always)]
pub(crate) fn byte<const AT: usize>(header: &Header) -> u8 {
    let [byte] = bytes::<AT, 1>(header);
    byte
}

/// The big-endian number at `AT`.
#[inline(always)]
pub(crate) fn be16<const AT: usize>(header: &Header) -> u16 {
    u16::from_be_bytes(bytes::<AT, 2>(header))
}

/// What an event tells about a frame, as far as the frame goes; nothing here has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The `EtherType`, or an 802.3 length.
    pub ethertype: u16,
    /// The IP protocol or next header, else 0.
    pub protocol: u8,
    /// The destination port of TCP and UDP, else 0.
    pub destination_port: u16,
    /// The claimed source MAC address.
    pub source_mac: [u8; 6],
    /// The claimed source address, IPv4 as `::ffff:a.b.c.d`.
    pub source: [u8; 16],
}

/// Describes a frame for an event.
#[inline(always)]
#[must_use]
pub fn describe(header: &Header) -> Described {
    let ethertype = be16::<12>(header);
    let source_mac = bytes::<6, 6>(header);
    let none = Described {
        ethertype,
        source_mac,
        ..Described::default()
    };
    match ethertype {
        IP4 => {
            let [a, b, c, d] = bytes::<26, 4>(header);
            let protocol = byte::<23>(header);
            let destination_port = if protocol == TCP || protocol == UDP {
                be16::<36>(header)
            } else {
                0
            };
            let source = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d];
            Described {
                protocol,
                destination_port,
                source,
                ..none
            }
        }
        IP6 => {
            let protocol = byte::<20>(header);
            let destination_port = if protocol == TCP || protocol == UDP {
                be16::<56>(header)
            } else {
                0
            };
            Described {
                protocol,
                destination_port,
                source: bytes::<22, 16>(header),
                ..none
            }
        }
        _ => none,
    }
}
