//! Why a frame passed, was refused or was dropped. The names are the counters' names: stable, `snake_case`.

/// The width of a [`CounterRow`](crate::CounterRow): the next power of two above the number of reasons, so that an index can be masked.
pub const REASON_SLOTS: usize = 64;

/// What a [`Reason`] means for the frame or flow that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It went on.
    Passed,
    /// The sender was told no: a reset, or an ICMP unreachable.
    Refused,
    /// It ended silently.
    Dropped,
    /// Not about a frame: the wall's own bookkeeping.
    Noted,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $effect:ident;)*) => {
        /// Every way that a frame can end.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])+ $name),* }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The counter's name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// What it means for the frame.
            #[must_use]
            pub const fn effect(self) -> Effect {
                match self { $(Self::$name => Effect::$effect),* }
            }
        }

        const _: () = assert!(Reason::ALL.len() <= REASON_SLOTS);
    };
}

reasons! {
    /// TCP over IPv4 from the sandbox.
    PassTcp4 = "pass_tcp4", Passed;
    /// TCP over IPv6 from the sandbox.
    PassTcp6 = "pass_tcp6", Passed;
    /// UDP to the DNS port over IPv4.
    PassDns4 = "pass_dns4", Passed;
    /// UDP to the DNS port over IPv6.
    PassDns6 = "pass_dns6", Passed;
    /// UDP to another port: it goes as far as the steering program, which refuses it, so that the sender knows at once.
    RefuseUdp = "refuse_udp", Refused;
    /// UDP to port 443, which is QUIC: refused like other UDP, counted apart.
    RefuseQuic = "refuse_quic", Refused;
    /// ARP for the gateway.
    PassArp = "pass_arp", Passed;
    /// A neighbour solicitation for the gateway.
    PassNd = "pass_nd", Passed;
    /// A bounded echo request to the gateway, which the wall's namespace answers itself.
    PassEcho = "pass_echo", Passed;

    /// The interface has no row: it is being attached or detached, or nobody attached it.
    UnknownInterface = "unknown_interface", Dropped;
    /// The sandbox is quarantined (from it).
    Quarantined = "quarantined", Dropped;
    /// Shorter than its own headers.
    Truncated = "truncated", Dropped;
    /// A length field that disagrees with the frame or with another length field.
    LengthLie = "length_lie", Dropped;
    /// An 802.1Q or 802.1ad tag, in the bytes or in the kernel's metadata.
    Vlan = "vlan", Dropped;
    /// An 802.3 length in place of the `EtherType`: LLC or SNAP.
    Llc = "llc", Dropped;
    /// An `EtherType` other than IPv4, IPv6 and ARP, or IPv6 where it is off.
    Ethertype = "ethertype", Dropped;
    /// The source MAC address is not the sandbox's.
    SpoofMac = "spoof_mac", Dropped;
    /// The source address is not the sandbox's (IPv4).
    SpoofIp4 = "spoof_ip4", Dropped;
    /// The source address is not the sandbox's (IPv6).
    SpoofIp6 = "spoof_ip6", Dropped;
    /// The destination MAC address is not the gateway's.
    ForeignMac = "foreign_mac", Dropped;

    /// The version is not that of the `EtherType`, or an IPv4 header length other than 20: options.
    IpHeader = "ip_header", Dropped;
    /// A fragment of either family, or the reserved IPv4 flag.
    Fragment = "fragment", Dropped;
    /// An IPv6 extension header.
    ExtensionHeader = "extension_header", Dropped;
    /// An IP protocol other than TCP, UDP and ICMP.
    Protocol = "protocol", Dropped;
    /// ICMP other than a bounded echo request to the gateway.
    Icmp = "icmp", Dropped;
    /// A multicast listener report, which every IPv6 host sends and nobody here needs.
    Mld = "mld", Dropped;

    /// ARP whose sender is not the sandbox: poisoning.
    ArpSpoof = "arp_spoof", Dropped;
    /// ARP for an address other than the gateway's, probes and gratuitous announcements included.
    ArpTarget = "arp_target", Dropped;
    /// ARP that is not a well-formed request or reply for IPv4 over Ethernet.
    ArpMalformed = "arp_malformed", Dropped;
    /// A neighbour solicitation whose sender is not the sandbox.
    NdSpoof = "nd_spoof", Dropped;
    /// A neighbour solicitation for an address other than the gateway's, duplicate address detection included.
    NdTarget = "nd_target", Dropped;
    /// A neighbour solicitation that is not well-formed (RFC 4861, section 7.1.1), or carries anything more.
    NdMalformed = "nd_malformed", Dropped;
    /// A neighbour advertisement: the wall never asks.
    NdAdvertisement = "nd_advertisement", Dropped;
    /// A router solicitation, router advertisement or redirect.
    NdRouter = "nd_router", Dropped;

    /// A DHCP client's call: addresses are set by whoever attached the sandbox.
    Dhcp = "dhcp", Dropped;
    /// To a multicast address.
    ToMulticast = "to_multicast", Dropped;
    /// To an IPv4 broadcast address, or the former class E.
    ToBroadcast = "to_broadcast", Dropped;
    /// To a loopback address.
    ToLoopback = "to_loopback", Dropped;
    /// To the unspecified address, or 0.0.0.0/8.
    ToUnspecified = "to_unspecified", Dropped;
    /// To a link-local or site-local address.
    ToLinkLocal = "to_link_local", Dropped;
    /// To an instance metadata service.
    ToMetadata = "to_metadata", Dropped;
    /// To an IPv4 address written as an IPv6 one (mapped or compatible), which would be taken for another family.
    ToEmbedded = "to_embedded", Dropped;
    /// To an address of the sandboxes' own networks other than the sandbox's gateway.
    ToSandbox = "to_sandbox", Dropped;

    /// A new flow given to the sandbox's TCP listener.
    SteerTcp = "steer_tcp", Passed;
    /// A datagram given to the sandbox's DNS socket.
    SteerDnsUdp = "steer_dns_udp", Passed;
    /// A new flow given to the sandbox's DNS listener.
    SteerDnsTcp = "steer_dns_tcp", Passed;
    /// Refused by the steering program: UDP that is not DNS.
    SteerRefused = "steer_refused", Refused;
    /// The sandbox has no such listener: the broker is away.
    SteerNoListener = "steer_no_listener", Refused;

    /// A frame from the broker to the sandbox.
    EgressPass = "egress_pass", Passed;
    /// The wall's own ARP or neighbour advertisement.
    EgressNeighbour = "egress_neighbour", Passed;
    /// Towards the sandbox: it came in on another interface and was forwarded.
    EgressForwarded = "egress_forwarded", Dropped;
    /// Towards the sandbox: it bears another mark, or none, so no socket of this sandbox sent it.
    EgressUnmarked = "egress_unmarked", Dropped;
    /// Towards the sandbox: addressed to something else.
    EgressForeign = "egress_foreign", Dropped;
    /// Towards the sandbox: multicast that the wall's own kernel sends when a link comes up; nobody needs it.
    EgressMulticast = "egress_multicast", Dropped;
    /// Towards the sandbox: it is quarantined.
    EgressQuarantined = "egress_quarantined", Dropped;
    /// Towards an interface without a row.
    EgressUnknownInterface = "egress_unknown_interface", Dropped;

    /// The ring buffer was full: an event was not told. The counters are exact all the same.
    EventLost = "event_lost", Noted;
}

impl Reason {
    /// The reason with this number.
    #[must_use]
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(index).ok()?).copied()
    }

    /// Its number, which is its place in a [`CounterRow`](crate::CounterRow).
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}
