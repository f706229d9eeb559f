//! The decision about a frame that a sandbox sent.

use crate::header::{ARP, ETHERNET, Header, IP4, IP6, TCP, UDP, be16, byte, bytes};
use crate::{DNS_PORT, Reason, SANDBOX_NET4, SANDBOX_NET6, SandboxRow, Verdict};

/// The longest ICMP message that the gateway answers: a customary `ping` has 64 bytes.
const MAX_ECHO_BYTES: u32 = 128;
/// Ethernet pads what is shorter than this; nothing else has a reason to carry bytes after its packet.
const MIN_ETHERNET_BYTES: u32 = 60;
const TCP_HEADER_BYTES: u32 = 20;
const UDP_HEADER_BYTES: u32 = 8;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
const QUIC_PORT: u16 = 443;

/// Judges one frame by its first bytes, its whole length, and the row of the interface that it came in on.
///
/// `header` holds the first `min(frame_bytes, 96)` bytes and zeros after them. What passes has the sandbox's own MAC
/// and IP source address, goes to the gateway's MAC address, and is TCP or UDP over plain IP, an echo request to the
/// gateway, or a question for the gateway's MAC address.
#[inline(always)]
#[must_use]
pub fn classify(header: &Header, frame_bytes: u32, row: &SandboxRow) -> Verdict {
    if row.is_quarantined() {
        return Verdict::Drop(Reason::Quarantined);
    }
    if frame_bytes < ETHERNET {
        return Verdict::Drop(Reason::Truncated);
    }
    if bytes::<6, 6>(header) != row.mac {
        return Verdict::Drop(Reason::SpoofMac);
    }
    let judged = match be16::<12>(header) {
        IP4 => ip4(header, frame_bytes, row),
        IP6 if row.flags & SandboxRow::NO_IPV6 == 0 => ip6(header, frame_bytes, row),
        ARP => arp(header, frame_bytes, row),
        0x8100 | 0x88a8 | 0x9100 => Err(Reason::Vlan),
        0..=0x05ff => Err(Reason::Llc),
        _ => Err(Reason::Ethertype),
    };
    match judged {
        Ok(reason) => Verdict::Pass(reason),
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn ip4(header: &Header, frame_bytes: u32, row: &SandboxRow) -> Result<Reason, Reason> {
    const HEADER: u32 = 20;
    if frame_bytes < ETHERNET + HEADER {
        return Err(Reason::Truncated);
    }
    // Version 4 and no options, in one byte.
    if byte::<14>(header) != 0x45 {
        return Err(Reason::IpHeader);
    }
    let destination = bytes::<30, 4>(header);
    let source = bytes::<26, 4>(header);
    if source != row.ip4 {
        let dhcp = source == [0; 4] && destination == [0xff; 4];
        return Err(if dhcp { Reason::Dhcp } else { Reason::SpoofIp4 });
    }
    destination4(destination, row)?;
    if bytes::<0, 6>(header) != row.gateway_mac {
        return Err(Reason::ForeignMac);
    }
    // Everything but "don't fragment": the reserved flag (RFC 3514 is a joke, but the bit is not ours), more fragments, offset.
    if be16::<20>(header) & 0xbfff != 0 {
        return Err(Reason::Fragment);
    }
    // A super-frame that a guest's segmentation offload built states its whole length here, up to 65,535; a guest that
    // asks for more (BIG TCP states 0) is refused.
    let total = u32::from(be16::<16>(header));
    let payload = payload_bytes(total.checked_sub(HEADER), ETHERNET + HEADER, frame_bytes)?;
    match byte::<23>(header) {
        TCP => tcp(payload, byte::<46>(header), Reason::PassTcp4),
        UDP => udp(payload, be16::<38>(header), be16::<36>(header), Reason::PassDns4),
        ICMP => echo(
            payload,
            bytes::<34, 2>(header) == [8, 0] && destination == row.gateway4,
        ),
        _ => Err(Reason::Protocol),
    }
}

#[inline(always)]
fn ip6(header: &Header, frame_bytes: u32, row: &SandboxRow) -> Result<Reason, Reason> {
    const HEADER: u32 = 40;
    if frame_bytes < ETHERNET + HEADER {
        return Err(Reason::Truncated);
    }
    if byte::<14>(header) >> 4 != 6 {
        return Err(Reason::IpHeader);
    }
    let next_header = byte::<20>(header);
    if next_header == ICMP6 {
        return icmp6(header, frame_bytes, row);
    }
    if let Some(reason) = extension(header, next_header) {
        return Err(reason);
    }
    if bytes::<22, 16>(header) != row.ip6 {
        return Err(Reason::SpoofIp6);
    }
    destination6(&bytes::<38, 16>(header), row)?;
    if bytes::<0, 6>(header) != row.gateway_mac {
        return Err(Reason::ForeignMac);
    }
    // A jumbogram states 0 here (RFC 2675), and then its payload has to be 0.
    let stated = u32::from(be16::<18>(header));
    let payload = payload_bytes(Some(stated), ETHERNET + HEADER, frame_bytes)?;
    match next_header {
        TCP => tcp(payload, byte::<66>(header), Reason::PassTcp6),
        UDP => udp(payload, be16::<58>(header), be16::<56>(header), Reason::PassDns6),
        _ => Err(Reason::Protocol),
    }
}

/// Extension headers (IANA, and 59: no next header), with the one that well-behaved hosts do send told apart.
#[inline(always)]
fn extension(header: &Header, next_header: u8) -> Option<Reason> {
    const HOP_BY_HOP: u8 = 0;
    const FRAGMENT: u8 = 44;
    match next_header {
        // Router alert, then a version 1 or 2 report (RFC 2710, RFC 3810).
        HOP_BY_HOP if byte::<54>(header) == ICMP6 && matches!(byte::<62>(header), 131 | 132 | 143) => {
            Some(Reason::Mld)
        }
        FRAGMENT => Some(Reason::Fragment),
        HOP_BY_HOP | 43 | 50 | 51 | 59 | 60 | 135 | 139 | 140 | 253 | 254 => Some(Reason::ExtensionHeader),
        _ => None,
    }
}

/// The payload's length, when the header's statement and the frame agree: exactly, or with Ethernet's own padding.
#[inline(always)]
fn payload_bytes(stated: Option<u32>, headers: u32, frame_bytes: u32) -> Result<u32, Reason> {
    let Some(payload) = stated else {
        return Err(Reason::LengthLie);
    };
    let packet = payload + headers;
    if packet == frame_bytes || (packet < frame_bytes && frame_bytes <= MIN_ETHERNET_BYTES) {
        Ok(payload)
    } else {
        Err(Reason::LengthLie)
    }
}

#[inline(always)]
fn tcp(payload: u32, offset_byte: u8, pass: Reason) -> Result<Reason, Reason> {
    let own_header = u32::from(offset_byte >> 4) * 4;
    if own_header < TCP_HEADER_BYTES || own_header > payload {
        return Err(Reason::LengthLie);
    }
    Ok(pass)
}

#[inline(always)]
fn udp(payload: u32, stated: u16, port: u16, pass: Reason) -> Result<Reason, Reason> {
    if payload < UDP_HEADER_BYTES || u32::from(stated) != payload {
        return Err(Reason::LengthLie);
    }
    match port {
        DNS_PORT => Ok(pass),
        QUIC_PORT => Ok(Reason::RefuseQuic),
        _ => Ok(Reason::RefuseUdp),
    }
}

#[inline(always)]
fn echo(payload: u32, is_request_to_gateway: bool) -> Result<Reason, Reason> {
    if is_request_to_gateway && (8..=MAX_ECHO_BYTES).contains(&payload) {
        Ok(Reason::PassEcho)
    } else {
        Err(Reason::Icmp)
    }
}

/// Where IPv4 may go. The synthetic names' 198.18.0.0/15 and every literal address are the broker's business.
#[inline(always)]
fn destination4(destination: [u8; 4], row: &SandboxRow) -> Result<(), Reason> {
    let [a, b, c, d] = destination;
    match (a, b, c, d) {
        (169, 254, 169, 254)
        | (169, 254, 170, 2 | 23)
        | (168, 63, 129, 16)
        | (100, 100, 100, 200)
        | (192, 0, 0, 192) => Err(Reason::ToMetadata),
        (0, ..) => Err(Reason::ToUnspecified),
        (127, ..) => Err(Reason::ToLoopback),
        (169, 254, ..) => Err(Reason::ToLinkLocal),
        (224..=239, ..) => Err(Reason::ToMulticast),
        (240..=255, ..) => Err(Reason::ToBroadcast),
        _ if [a, b] == SANDBOX_NET4 && destination != row.gateway4 => Err(Reason::ToSandbox),
        _ => Ok(()),
    }
}

/// Where IPv6 may go. NAT64, 6to4, Teredo and ISATAP addresses are unwrapped and judged by the broker, never by a router;
/// `::/32` holds the forms that a dual-stack socket would take for IPv4.
#[inline(always)]
fn destination6(destination: &[u8; 16], row: &SandboxRow) -> Result<(), Reason> {
    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    if destination.first_chunk() == Some(&SANDBOX_NET6) {
        return if *destination == row.gateway6 {
            Ok(())
        } else {
            Err(Reason::ToSandbox)
        };
    }
    match destination {
        [0, 0, 0, 0, ..] if *destination == [0; 16] => Err(Reason::ToUnspecified),
        [0, 0, 0, 0, ..] if *destination == LOOPBACK => Err(Reason::ToLoopback),
        [0, 0, 0, 0, ..] => Err(Reason::ToEmbedded),
        [0xfe, 0x80..=0xff, ..] => Err(Reason::ToLinkLocal),
        [0xff, ..] => Err(Reason::ToMulticast),
        _ if is_metadata6(destination) => Err(Reason::ToMetadata),
        _ => Ok(()),
    }
}

/// `fd00:ec2::254`, `fd00:ec2::23`, `fd20:ce::254`.
#[inline(always)]
fn is_metadata6(destination: &[u8; 16]) -> bool {
    *destination == [0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54]
        || *destination == [0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x23]
        || *destination == [0xfd, 0x20, 0, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54]
}

/// RFC 826, for the gateway only, from the sandbox only.
#[inline(always)]
fn arp(header: &Header, frame_bytes: u32, row: &SandboxRow) -> Result<Reason, Reason> {
    const PACKET: u32 = 28;
    const BROADCAST: [u8; 6] = [0xff; 6];
    if frame_bytes < ETHERNET + PACKET {
        return Err(Reason::Truncated);
    }
    let operation = be16::<20>(header);
    let form = bytes::<14, 6>(header) == [0, 1, 8, 0, 6, 4] && (operation == 1 || operation == 2);
    if !form || frame_bytes > MIN_ETHERNET_BYTES {
        return Err(Reason::ArpMalformed);
    }
    let sender4 = bytes::<28, 4>(header);
    // A probe (RFC 5227) has no sender address yet; it asks for an address that is not the gateway's.
    if bytes::<22, 6>(header) != row.mac || (sender4 != row.ip4 && sender4 != [0; 4]) {
        return Err(Reason::ArpSpoof);
    }
    if bytes::<38, 4>(header) != row.gateway4 || sender4 != row.ip4 {
        return Err(Reason::ArpTarget);
    }
    let to = bytes::<0, 6>(header);
    if to != row.gateway_mac && to != BROADCAST {
        return Err(Reason::ForeignMac);
    }
    Ok(Reason::PassArp)
}

#[inline(always)]
fn icmp6(header: &Header, frame_bytes: u32, row: &SandboxRow) -> Result<Reason, Reason> {
    const HEADERS: u32 = ETHERNET + 40;
    let payload = payload_bytes(Some(u32::from(be16::<18>(header))), HEADERS, frame_bytes)?;
    match byte::<54>(header) {
        128 => {
            if bytes::<22, 16>(header) != row.ip6 {
                return Err(Reason::SpoofIp6);
            }
            let to_gateway =
                bytes::<38, 16>(header) == row.gateway6 && bytes::<0, 6>(header) == row.gateway_mac;
            echo(payload, to_gateway && byte::<55>(header) == 0)
        }
        131 | 132 | 143 => Err(Reason::Mld),
        133 | 134 | 137 => Err(Reason::NdRouter),
        135 => solicitation(header, payload, row),
        136 => Err(Reason::NdAdvertisement),
        _ => Err(Reason::Icmp),
    }
}

/// RFC 4861, sections 4.3 and 7.1.1: the fixed part, and nothing but the sender's own link-layer address after it.
#[inline(always)]
fn solicitation(header: &Header, payload: u32, row: &SandboxRow) -> Result<Reason, Reason> {
    const FIXED: u32 = 24;
    const WITH_OPTION: u32 = 32;
    let source = bytes::<22, 16>(header);
    let from_nobody = source == [0; 16];
    if source != row.ip6 && source != row.link_local6 && !from_nobody {
        return Err(Reason::NdSpoof);
    }
    let with_option = payload == WITH_OPTION;
    if byte::<21>(header) != 255 || byte::<55>(header) != 0 || !(with_option || payload == FIXED) {
        return Err(Reason::NdMalformed);
    }
    if with_option && bytes::<78, 2>(header) != [1, 1] {
        return Err(Reason::NdMalformed);
    }
    if with_option && bytes::<80, 6>(header) != row.mac {
        return Err(Reason::NdSpoof);
    }
    if bytes::<62, 16>(header) != row.gateway6 || from_nobody {
        return Err(Reason::NdTarget);
    }
    let [.., x, y, z] = row.gateway6;
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z];
    let (to, to_mac) = (bytes::<38, 16>(header), bytes::<0, 6>(header));
    let unicast = to == row.gateway6 && to_mac == row.gateway_mac;
    let multicast = to == group && to_mac == [0x33, 0x33, 0xff, x, y, z];
    if unicast || multicast {
        Ok(Reason::PassNd)
    } else {
        Err(Reason::ForeignMac)
    }
}
