//! The other direction: only what this sandbox's own sockets send it reaches it.

use crate::header::{ARP, ETHERNET, HEADER_BYTES, Header, IP4, IP6, be16, byte, bytes};
use crate::{MARK, Reason, SandboxRow, Verdict};

/// What the kernel says about a frame that is about to leave through a sandbox's interface.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The mark of the socket that sent it, or of the frame that the kernel answers; 0 for ARP and neighbour discovery.
    pub mark: u32,
    /// The interface that it came in on, when it is forwarded; 0 for what was made here.
    pub ingress_ifindex: u32,
    /// The whole frame's length.
    pub frame_bytes: u32,
}

/// Judges a frame that is about to reach the sandbox of `row`.
///
/// A frame passes when it was made in this namespace, bears this sandbox's mark (which its sockets have, and which the
/// kernel's own resets and ICMP errors inherit from the frame that they answer) and is addressed to this sandbox. Only
/// ARP and neighbour discovery of the wall itself have no mark.
#[inline(always)]
#[must_use]
pub fn guard(header: &Header, outgoing: &Outgoing, row: &SandboxRow) -> Verdict {
    if row.is_quarantined() {
        return Verdict::Drop(Reason::EgressQuarantined);
    }
    if outgoing.ingress_ifindex != 0 {
        return Verdict::Drop(Reason::EgressForwarded);
    }
    let to = bytes::<0, 6>(header);
    if outgoing.frame_bytes < ETHERNET || to != row.mac {
        let [first, ..] = to;
        // Not of a socket of ours. (The kernel keeps a length where the mark is while it builds a listener report.)
        let multicast = first & 1 == 1 && outgoing.mark & MARK != MARK;
        return Verdict::Drop(if multicast {
            Reason::EgressMulticast
        } else {
            Reason::EgressForeign
        });
    }
    let marked = outgoing.mark == (MARK | row.slot);
    match be16::<12>(header) {
        ARP if bytes::<38, 4>(header) == row.ip4 => Verdict::Pass(Reason::EgressNeighbour),
        IP4 if bytes::<30, 4>(header) == row.ip4 => ours(marked),
        IP6 if bytes::<38, 16>(header) == row.ip6 && marked => ours(marked),
        IP6 if is_advertisement(header, row) => Verdict::Pass(Reason::EgressNeighbour),
        IP6 if bytes::<38, 16>(header) == row.ip6 => ours(marked),
        _ => Verdict::Drop(Reason::EgressForeign),
    }
}

#[inline(always)]
fn ours(marked: bool) -> Verdict {
    if marked {
        Verdict::Pass(Reason::EgressPass)
    } else {
        Verdict::Drop(Reason::EgressUnmarked)
    }
}

/// A neighbour advertisement of the gateway's own address to one of the sandbox's (RFC 4861, section 4.4).
#[inline(always)]
fn is_advertisement(header: &Header, row: &SandboxRow) -> bool {
    const ICMP6: u8 = 58;
    const ADVERTISEMENT: u8 = 136;
    let to = bytes::<38, 16>(header);
    byte::<20>(header) == ICMP6
        && byte::<54>(header) == ADVERTISEMENT
        && bytes::<62, 16>(header) == row.gateway6
        && (to == row.ip6 || to == row.link_local6)
}

const _: () = assert!(HEADER_BYTES >= 62 + 16);
