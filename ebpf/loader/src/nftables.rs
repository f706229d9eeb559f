//! The backstop: one nftables chain that drops whatever the namespace would forward.
//!
//! Forwarding is off and there is no uplink, so this chain sees nothing; it is there for the day on which somebody
//! changes both. It is four messages, spoken directly, so that no `nft` has to be installed:
//!
//! ```text
//! nlmsghdr(16) nfgenmsg(4: family, version, resource id BE) attributes(4: length, type | value, padded to 4)*
//! batch-begin · table inet wallgate · chain forward {type filter hook forward priority 0; policy drop} · batch-end
//! ```

use std::io;

use crate::netlink::{Socket, acknowledged, attribute, encode};

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const FAMILY_INET: u8 = 1;
const NESTED: u16 = 0x8000;

/// Puts the chain into the namespace of the calling thread.
pub(crate) fn drop_forwarded() -> io::Result<()> {
    let table = attribute(1, b"wallgate\0");
    let hook = [
        attribute(1, &2_u32.to_be_bytes()),
        attribute(2, &0_u32.to_be_bytes()),
    ]
    .concat();
    let chain = [
        attribute(1, b"wallgate\0"),
        attribute(3, b"forward\0"),
        attribute(4 | NESTED, &hook),
        attribute(5, &0_u32.to_be_bytes()),
        attribute(7, b"filter\0"),
    ]
    .concat();
    let batch = [
        message(BATCH_BEGIN, REQUEST, 0, &[]),
        message(NEW_TABLE, REQUEST | ACK | CREATE, FAMILY_INET, &table),
        message(NEW_CHAIN, REQUEST | ACK | CREATE, FAMILY_INET, &chain),
        message(BATCH_END, REQUEST, 0, &[]),
    ]
    .concat();
    let socket = Socket::open(Some(rustix::net::netlink::NETFILTER))?;
    socket.send(&batch)?;
    let mut done = 0;
    while done < 2 {
        done += acknowledged(&socket.receive()?)?;
    }
    Ok(())
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let resource = if kind == BATCH_BEGIN || kind == BATCH_END {
        SUBSYSTEM
    } else {
        0
    };
    let [high, low] = resource.to_be_bytes();
    let mut body = vec![family, 0, high, low];
    body.extend(attributes);
    encode(kind, flags, &body)
}
