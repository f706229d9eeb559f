//! A namespace without an exit.

use std::net::IpAddr;

use wallgate_wall_shared::MARK;

use crate::error::WallError;
use crate::namespace::Namespace;
use crate::netlink::{Route, Table, When};
use crate::nftables;
use crate::slot::Addressing;

/// What drops forwarded frames, should there ever be any: for the record of the wall's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backstop {
    /// Policy rules that leave a sandbox's frame no route but to us, and an nftables chain with policy drop.
    RulesAndNftables,
    /// The rules alone; the kernel refused the chain.
    RulesOnly {
        /// The kernel's answer.
        why: String,
    },
}

/// Closes the namespace of the calling thread: no forwarding, no route for a frame but to us, nothing learned from anybody.
pub(crate) fn close() -> Result<Backstop, WallError> {
    Namespace::set(&[
        ("ipv4/ip_forward", "0"),
        ("ipv6/conf/all/forwarding", "0"),
        // What the kernel answers, and what is accepted, bears the mark of the frame that it answers.
        ("ipv4/tcp_fwmark_accept", "1"),
        ("ipv4/fwmark_reflect", "1"),
        ("ipv6/fwmark_reflect", "1"),
        // The filter has checked the source, and without its mark there is no route; clones share an address, which this
        // check would take for a mistake.
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/default/accept_redirects", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
        ("ipv6/conf/all/accept_redirects", "0"),
        ("ipv6/conf/default/accept_redirects", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/autoconf", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/dad_transmits", "0"),
        ("ipv6/conf/default/addr_gen_mode", "1"),
        // UDP is refused at once, each time: a client that waits for the limit thinks that QUIC is slow, not shut.
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv4/icmp_ratemask", "0"),
        ("ipv6/icmp/ratelimit", "0"),
        ("ipv6/icmp/ratemask", "\n"),
        ("ipv4/ip_unprivileged_port_start", "0"),
    ])?;
    let route = Route::open()?;
    let loopback = route.index_of("lo")?;
    route.set_up(loopback, true)?;
    let marked = When::Marked {
        mark: MARK,
        mask: 0xffff_0000,
    };
    for (v6, original) in [
        (false, [0, 32766, 32767].as_slice()),
        (true, [0, 32766].as_slice()),
    ] {
        // What is made here finds the sandboxes' routes; what the filter passed is for us, whatever its address; for a
        // frame that the filter did not pass there is no route at all.
        route.add_rule(v6, 10, When::MadeHere, Table::Sandboxes)?;
        route.add_rule(v6, 20, marked, Table::Local)?;
        for &priority in original {
            route.delete_rule(v6, priority)?;
        }
        route.add_local_default(loopback, v6)?;
    }
    let nftables = nftables::drop_forwarded();
    Ok(match nftables {
        Ok(()) => Backstop::RulesAndNftables,
        Err(error) => Backstop::RulesOnly {
            why: error.to_string(),
        },
    })
}

/// Routes and neighbours towards one sandbox, and the gateway's IPv6 address, which neighbour discovery wants to see.
pub(crate) fn reach(route: &Route, ifindex: u32, addressing: &Addressing, v6: bool) -> Result<(), WallError> {
    let mut guests = vec![IpAddr::V4(addressing.v4)];
    if v6 {
        route.add_address(ifindex, IpAddr::V6(addressing.gateway_v6))?;
        guests.push(IpAddr::V6(addressing.v6));
    }
    for guest in guests {
        route.add_host_route(Table::Sandboxes, ifindex, guest, ifindex)?;
        route.add_neighbour(ifindex, guest, addressing.mac)?;
    }
    Ok(())
}
