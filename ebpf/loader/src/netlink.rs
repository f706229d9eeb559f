//! A netlink socket, and the rtnetlink requests that the wall is built of. Each acts in the calling thread's namespace.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily as SocketFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netdevice,
    recv, send, socket_with,
};

use crate::error::WallError;

/// The kernel answers in pieces of at most this size (`NLMSG_GOODSIZE` times the pages that a dump fills).
const RECEIVE_BYTES: usize = 64 * 1024;

/// A netlink socket of one protocol, in the namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Opens it; `None` is rtnetlink, whose number is zero.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = socket_with(
            SocketFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(fd))
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = send(&self.0, bytes, SendFlags::empty())?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    pub(crate) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        let (_, bytes) = recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty())?;
        buffer.truncate(bytes);
        Ok(buffer)
    }
}

const HEADER_BYTES: usize = 16;
const ERROR: u16 = 2;

/// One message: `length(4) type(2) flags(2) sequence(4) port(4) body`.
pub(crate) fn encode(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// One attribute: `length(2) type(2) value`, padded to four.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The messages of one answer, as type and body.
pub(crate) fn messages(mut answer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [l0, l1, l2, l3, k0, k1, ..] = *answer.first_chunk::<HEADER_BYTES>()?;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let body = answer.get(HEADER_BYTES..length)?;
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]), body))
    })
}

/// Counts the acknowledgements in one answer, or returns the first error in it.
pub(crate) fn acknowledged(answer: &[u8]) -> io::Result<usize> {
    let mut count = 0;
    for (_, body) in messages(answer).filter(|(kind, _)| *kind == ERROR) {
        match body.first_chunk().copied().map(i32::from_ne_bytes) {
            Some(0) => count += 1,
            Some(code) => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(count)
}

/// Where a route or rule looks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// The routes to the sandboxes. Not the main table: whoever gives the namespace an uplink by mistake puts its routes
    /// there, and no rule looks there.
    Sandboxes,
    /// Where a sandbox's own namespace has its routes.
    Main,
    Local,
}

impl Table {
    const fn number(self) -> u8 {
        match self {
            Self::Sandboxes => 87,
            Self::Main => 254,
            Self::Local => 255,
        }
    }
}

/// The other end of a veth pair that is about to be made.
#[derive(Debug)]
pub(crate) struct Peer<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: [u8; 6],
    pub(crate) namespace: BorrowedFd<'a>,
}

/// Requests to rtnetlink.
#[derive(Debug)]
pub(crate) struct Route(Socket);

impl Route {
    pub(crate) fn open() -> Result<Self, WallError> {
        Socket::open(None).map(Self).map_err(|source| WallError::Netlink {
            step: "open a netlink socket",
            source,
        })
    }

    fn request(&self, step: &'static str, message: RouteNetlinkMessage, flags: u16) -> Result<(), WallError> {
        self.exchange(message, flags)
            .map_err(|source| WallError::Netlink { step, source })
    }

    fn exchange(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes)?;
        let answer = self.0.receive()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            other => Err(io::Error::other(format!(
                "unexpected answer of type {}",
                other.message_type()
            ))),
        }
    }

    /// The ifindex of an interface here.
    pub(crate) fn index_of(&self, name: &str) -> Result<u32, WallError> {
        netdevice::name_to_index(&self.0.0, name).map_err(|_errno| WallError::NoInterface {
            name: name.to_owned(),
        })
    }

    fn set_link(
        &self,
        step: &'static str,
        index: u32,
        adjust: impl FnOnce(&mut LinkMessage),
    ) -> Result<(), WallError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        adjust(&mut message);
        self.request(step, RouteNetlinkMessage::SetLink(message), 0)
    }

    pub(crate) fn set_up(&self, index: u32, up: bool) -> Result<(), WallError> {
        self.set_link(
            if up { "set link up" } else { "set link down" },
            index,
            |message| {
                message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
                message.header.change_mask = LinkFlags::Up;
            },
        )
    }

    pub(crate) fn set_mac(&self, index: u32, mac: [u8; 6], mtu: u32) -> Result<(), WallError> {
        self.set_link("set MAC address", index, |message| {
            message.attributes = vec![LinkAttribute::Address(mac.to_vec()), LinkAttribute::Mtu(mtu)];
        })
    }

    /// Moves an interface into `namespace` under a new name. The kernel takes it down on the way.
    pub(crate) fn move_to(&self, index: u32, namespace: BorrowedFd<'_>, name: &str) -> Result<(), WallError> {
        self.set_link("move interface", index, |message| {
            message.attributes = vec![
                LinkAttribute::NetNsFd(namespace.as_raw_fd()),
                LinkAttribute::IfName(name.to_owned()),
            ];
        })
    }

    pub(crate) fn delete_link(&self, index: u32) -> Result<(), WallError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.request("delete interface", RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Makes a veth pair: `name` here, `peer` in its own namespace. Both ends are down.
    pub(crate) fn add_veth(
        &self,
        name: &str,
        mac: [u8; 6],
        mtu: u32,
        peer: &Peer<'_>,
    ) -> Result<(), WallError> {
        let mut other = LinkMessage::default();
        other.attributes = vec![
            LinkAttribute::IfName(peer.name.to_owned()),
            LinkAttribute::Address(peer.mac.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(peer.namespace.as_raw_fd()),
        ];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
            ]),
        ];
        self.request(
            "make veth pair",
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(crate) fn add_address(&self, index: u32, address: IpAddr) -> Result<(), WallError> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix(address);
        message.header.index = index;
        message.header.scope = AddressScope::Universe;
        message.attributes = vec![
            AddressAttribute::Address(address),
            AddressAttribute::Local(address),
        ];
        if address.is_ipv6() {
            message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.request(
            "add address",
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// A neighbour that is never asked for and never learned.
    pub(crate) fn add_neighbour(&self, index: u32, address: IpAddr, mac: [u8; 6]) -> Result<(), WallError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(match address {
                IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
                IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
            }),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.request(
            "add neighbour",
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// A route to one address on the link. Clones have equal addresses, so their routes differ in `metric`.
    pub(crate) fn add_host_route(
        &self,
        table: Table,
        index: u32,
        to: IpAddr,
        metric: u32,
    ) -> Result<(), WallError> {
        let mut message = route(family(to), table, RouteType::Unicast);
        message.header.destination_prefix_length = prefix(to);
        if to.is_ipv4() {
            message.header.scope = RouteScope::Link;
        }
        message.attributes = vec![
            RouteAttribute::Destination(to.into()),
            RouteAttribute::Oif(index),
            RouteAttribute::Priority(metric),
        ];
        self.request(
            "add route",
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(crate) fn add_default_route(&self, index: u32, gateway: IpAddr) -> Result<(), WallError> {
        let mut message = route(family(gateway), Table::Main, RouteType::Unicast);
        message.attributes = vec![
            RouteAttribute::Gateway(gateway.into()),
            RouteAttribute::Oif(index),
        ];
        self.request(
            "add default route",
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// A default route to the link itself, which needs no gateway.
    #[cfg(feature = "test-support")]
    pub(crate) fn add_default_link(&self, index: u32, v6: bool) -> Result<(), WallError> {
        let mut message = route(family_of(v6), Table::Main, RouteType::Unicast);
        message.header.scope = if v6 {
            RouteScope::Universe
        } else {
            RouteScope::Link
        };
        message.attributes = vec![RouteAttribute::Oif(index)];
        self.request(
            "add default route",
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// `AnyIP`: every address of the family is ours.
    pub(crate) fn add_local_default(&self, loopback: u32, v6: bool) -> Result<(), WallError> {
        let mut message = route(family_of(v6), Table::Local, RouteType::Local);
        message.header.scope = RouteScope::Host;
        message.attributes = vec![RouteAttribute::Oif(loopback)];
        self.request(
            "make every address local",
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE,
        )
    }

    /// A policy rule: look in `table` when the frame was made here, or bears a mark.
    pub(crate) fn add_rule(
        &self,
        v6: bool,
        priority: u32,
        when: When,
        table: Table,
    ) -> Result<(), WallError> {
        let mut message = RuleMessage::default();
        message.header.family = family_of(v6);
        message.header.action = RuleAction::ToTable;
        message.header.table = table.number();
        message.attributes = vec![RuleAttribute::Priority(priority)];
        match when {
            When::MadeHere => message.attributes.push(RuleAttribute::Iifname("lo".to_owned())),
            When::Marked { mark, mask } => {
                message
                    .attributes
                    .extend([RuleAttribute::FwMark(mark), RuleAttribute::FwMask(mask)]);
            }
        }
        self.request(
            "add rule",
            RouteNetlinkMessage::NewRule(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(crate) fn delete_rule(&self, v6: bool, priority: u32) -> Result<(), WallError> {
        let mut message = RuleMessage::default();
        message.header.family = family_of(v6);
        message.attributes = vec![RuleAttribute::Priority(priority)];
        self.request("delete rule", RouteNetlinkMessage::DelRule(message), 0)
    }
}

/// When a policy rule applies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    MadeHere,
    Marked { mark: u32, mask: u32 },
}

fn route(family: AddressFamily, table: Table, kind: RouteType) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.table = table.number();
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = kind;
    message
}

const fn family_of(v6: bool) -> AddressFamily {
    if v6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}

const fn family(address: IpAddr) -> AddressFamily {
    family_of(address.is_ipv6())
}

const fn prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}
