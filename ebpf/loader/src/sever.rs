//! Ends the established connections of one sandbox, from the broker's side: `SOCK_DESTROY`.
//!
//! Every socket of a sandbox is bound to its interface, so the kernel picks them by interface (a one-instruction
//! filter of `sock_diag`), and the broker's reads and writes fail at once.
//!
//! ```text
//! inet_diag_req_v2: family(1) protocol(1) extensions(1) pad(1) states(4) id(48)      id: ports(4) addresses(32)
//! inet_diag_msg:    family(1) state(1) timer(1) retransmits(1) id(48) …                  ifindex(4) cookie(8)
//! ```

use std::io;

use crate::netlink::{Socket, acknowledged, attribute, encode, messages};

const DIAG_BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const NETLINK_DONE: u16 = 3;
const ID_BYTES: usize = 48;
const TCP: u8 = 6;
const FILTER: u16 = 1;
const BY_INTERFACE: u8 = 9;
const LISTEN: u32 = 1 << 10;
const CLOSE: u32 = 1 << 7;
/// Every state (`TCP_ESTABLISHED` to `TCP_NEW_SYN_RECV`) but listening and closed.
const CONNECTED: u32 = 0x1ffe & !LISTEN & !CLOSE;
/// `AF_INET6` holds the dual-stack sockets; `AF_INET` those that the broker never makes.
const FAMILIES: [u8; 2] = [10, 2];

type SocketId = [u8; ID_BYTES];

/// Destroys every TCP connection bound to interface `ifindex` in the calling thread's namespace, and says how many.
pub(crate) fn by_interface(ifindex: u32) -> io::Result<u32> {
    let socket = Socket::open(Some(rustix::net::netlink::INET_DIAG))?;
    let mut severed = 0;
    for family in FAMILIES {
        for id in connections(&socket, family, ifindex)? {
            socket.send(&request(DESTROY, REQUEST | ACK, family, CONNECTED, &id, &[]))?;
            match acknowledged(&socket.receive()?) {
                // It ended by itself meanwhile, or waits out its last minute and carries nothing.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {}
                other => {
                    other?;
                    severed += 1;
                }
            }
        }
    }
    Ok(severed)
}

fn connections(socket: &Socket, family: u8, ifindex: u32) -> io::Result<Vec<SocketId>> {
    // Operation (code, offset if true, offset if false), operand. Past the end by four means "no".
    let mut filter = vec![BY_INTERFACE, 8];
    filter.extend(12_u16.to_ne_bytes());
    filter.extend(ifindex.to_ne_bytes());
    socket.send(&request(
        DIAG_BY_FAMILY,
        REQUEST | DUMP,
        family,
        CONNECTED,
        &[0; ID_BYTES],
        &filter,
    ))?;
    let mut found = Vec::new();
    loop {
        let answer = socket.receive()?;
        acknowledged(&answer)?;
        for (kind, body) in messages(&answer) {
            match kind {
                NETLINK_DONE => return Ok(found),
                DIAG_BY_FAMILY => found.extend(body.get(4..).and_then(<[u8]>::first_chunk::<ID_BYTES>)),
                _ => {}
            }
        }
    }
}

fn request(kind: u16, flags: u16, family: u8, states: u32, id: &SocketId, filter: &[u8]) -> Vec<u8> {
    let mut body = vec![family, TCP, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    if !filter.is_empty() {
        body.extend(attribute(FILTER, filter));
    }
    encode(kind, flags, &body)
}
