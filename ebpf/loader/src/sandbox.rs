//! A sandbox's own network namespace, for commands that are not virtual machines.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::WallError;
use crate::namespace::Namespace;
use crate::netlink::{Route, Table};
use crate::slot::Addressing;

/// The interface's name as the sandbox sees it.
pub(crate) const PEER_NAME: &str = "eth0";

/// A namespace with `lo` and `eth0`, which leads to the wall and nowhere else. Enter it with `setns`; it lives as long as
/// this or a process inside it, and its end of the wall goes with it.
#[derive(Debug)]
pub struct SandboxNetns(Namespace);

impl SandboxNetns {
    pub(crate) fn create() -> Result<Self, WallError> {
        let namespace = Namespace::create()?;
        namespace.run(|| {
            // Addresses are given, never found: so no duplicate detection, no waiting for it, and no questions to routers.
            Namespace::set(&[
                ("ipv6/conf/default/accept_ra", "0"),
                ("ipv6/conf/default/autoconf", "0"),
                ("ipv6/conf/default/accept_dad", "0"),
                ("ipv6/conf/default/dad_transmits", "0"),
                ("ipv6/conf/default/addr_gen_mode", "1"),
                ("ipv4/ip_unprivileged_port_start", "0"),
                ("ipv4/ping_group_range", "0 2147483647"),
            ])?;
            let route = Route::open()?;
            route.set_up(route.index_of("lo")?, true)
        })?;
        Ok(Self(namespace))
    }

    /// Gives `eth0` its addresses, routes and neighbours.
    pub(crate) fn configure(&self, addressing: &Addressing, v6: bool) -> Result<(), WallError> {
        self.0.run(|| {
            let route = Route::open()?;
            let link = route.index_of(PEER_NAME)?;
            let mut families = vec![(IpAddr::V4(addressing.v4), IpAddr::V4(addressing.gateway_v4))];
            if v6 {
                families.push((IpAddr::V6(addressing.v6), IpAddr::V6(addressing.gateway_v6)));
            }
            for (own, _) in &families {
                route.add_address(link, *own)?;
            }
            route.set_up(link, true)?;
            for (_, gateway) in families {
                route.add_neighbour(link, gateway, addressing.gateway_mac)?;
                route.add_host_route(Table::Main, link, gateway, 1)?;
                route.add_default_route(link, gateway)?;
            }
            Ok(())
        })
    }
}

impl AsFd for SandboxNetns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
