//! The wall itself: the namespace, the programs, and the sandboxes that are attached to it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use tracing::warn;
use wallgate_wall_shared::{Listener, SandboxRow};

use crate::attachment::{AttachProof, Attachment, Interface};
use crate::closed::{Backstop, close, reach};
use crate::error::WallError;
use crate::kernel::{InterfaceLinks, Kernel, UNKNOWN_INTERFACE};
use crate::leftovers::{Named, WallName};
use crate::namespace::Namespace;
use crate::netlink::{Peer, Route};
use crate::report::{Counter, Event, counters_of, parse};
use crate::sandbox::{PEER_NAME, SandboxNetns};
use crate::sever;
use crate::slot::{Addressing, MAX_SLOT, SandboxSlot};
use crate::sockets::Sockets;

/// How many events one call of [`Wall::events`] returns at most.
pub const MAX_EVENTS_PER_CALL: usize = 1024;

/// What a wall is created with.
#[derive(Clone, Debug)]
pub struct WallOptions {
    /// How many sandboxes it holds.
    pub max_sandboxes: u32,
    /// Whether sandboxes have IPv6.
    pub ipv6: bool,
    /// A name keeps the namespace findable (`ip netns`-like tools) and its litter sweepable; without one, nothing of
    /// the wall outlives its process.
    pub name: Option<WallName>,
}

impl Default for WallOptions {
    fn default() -> Self {
        Self {
            max_sandboxes: 1024,
            ipv6: true,
            name: None,
        }
    }
}

/// How many established connections a quarantine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Severed(pub u32);

/// Where a tap goes back to.
#[derive(Debug)]
struct Origin {
    namespace: Namespace,
    name: String,
}

#[derive(Debug)]
struct Sandbox {
    ifindex: u32,
    row: SandboxRow,
    /// `None` for a veth pair, which is deleted.
    origin: Option<Origin>,
    /// Dropped last: the interface is down or gone by then.
    links: Option<InterfaceLinks>,
}

/// The wall of this process. Dropping it removes everything.
#[derive(Debug)]
pub struct Wall {
    namespace: Namespace,
    kernel: Kernel,
    sandboxes: BTreeMap<SandboxSlot, Sandbox>,
    slots: BTreeMap<u32, SandboxSlot>,
    generation: u32,
    max_sandboxes: u32,
    row_flags: u32,
    backstop: Backstop,
    object_sha256: String,
    _named: Option<Named>,
}

impl Wall {
    /// Makes the namespace, closes it, and loads the programs.
    ///
    /// # Errors
    ///
    /// A missing right or kernel feature: see [`support::check`](crate::support::check). Nothing is left behind.
    pub fn create(options: &WallOptions) -> Result<Self, WallError> {
        let namespace = Namespace::create()?;
        let backstop = namespace.run(close)?;
        let kernel = Kernel::load(options.max_sandboxes, namespace.as_fd())?;
        let named = options
            .name
            .as_ref()
            .map(|name| Named::claim(name, &namespace))
            .transpose()?;
        Ok(Self {
            namespace,
            kernel,
            sandboxes: BTreeMap::new(),
            slots: BTreeMap::new(),
            generation: 0,
            max_sandboxes: options.max_sandboxes,
            row_flags: if options.ipv6 { 0 } else { SandboxRow::NO_IPV6 },
            backstop,
            object_sha256: crate::object::sha256(),
            _named: named,
        })
    }

    /// What drops forwarded frames.
    #[must_use]
    pub const fn backstop(&self) -> &Backstop {
        &self.backstop
    }

    /// The lowest slot without a sandbox.
    #[must_use]
    pub fn free_slot(&self) -> Option<SandboxSlot> {
        let slots = (1..=MAX_SLOT).filter_map(SandboxSlot::new);
        slots.into_iter().find(|slot| !self.sandboxes.contains_key(slot))
    }

    /// Puts an interface behind the wall, with the slot's own addresses.
    ///
    /// # Errors
    ///
    /// The slot is taken, the wall is full, there is no such interface, or the kernel refused a step; the interface is then down or gone.
    pub fn attach(&mut self, interface: &Interface<'_>, slot: SandboxSlot) -> Result<Attachment, WallError> {
        self.attach_as(interface, slot, Addressing::of(slot))
    }

    /// Puts an interface behind the wall whose guest has addresses of its own.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn attach_as(
        &mut self,
        interface: &Interface<'_>,
        slot: SandboxSlot,
        addressing: Addressing,
    ) -> Result<Attachment, WallError> {
        self.check_room(slot)?;
        let (name, from, is_tap) = match interface {
            Interface::Tap { name, from } => (*name, from, true),
            Interface::Veth { name, from } => (*name, from, false),
        };
        let home = from.map_or_else(Namespace::current, Namespace::from_fd)?;
        let target = self.namespace.as_fd();
        let inside = slot.interface_name();
        home.run(|| {
            let route = Route::open()?;
            route.move_to(route.index_of(name)?, target, &inside)
        })?;
        let origin = is_tap.then(|| Origin {
            namespace: home,
            name: name.to_owned(),
        });
        self.admit(slot, addressing, origin)
    }

    /// Makes a sandbox's own namespace and a veth pair into it, with this end behind the wall and the other configured.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn veth_sandbox(&mut self, slot: SandboxSlot) -> Result<(Attachment, SandboxNetns), WallError> {
        self.check_room(slot)?;
        let addressing = Addressing::of(slot);
        let sandbox = SandboxNetns::create()?;
        self.namespace.run(|| {
            let peer = Peer {
                name: PEER_NAME,
                mac: addressing.mac,
                namespace: sandbox.as_fd(),
            };
            Route::open()?.add_veth(
                &slot.interface_name(),
                addressing.gateway_mac,
                addressing.mtu,
                &peer,
            )
        })?;
        let attachment = self.admit(slot, addressing, None)?;
        match sandbox.configure(&addressing, self.row_flags & SandboxRow::NO_IPV6 == 0) {
            Ok(()) => Ok((attachment, sandbox)),
            Err(error) => {
                self.detach(slot)?;
                Err(error)
            }
        }
    }

    fn check_room(&self, slot: SandboxSlot) -> Result<(), WallError> {
        if self.sandboxes.contains_key(&slot) {
            return Err(WallError::SlotTaken(slot.get()));
        }
        match u32::try_from(self.sandboxes.len()) {
            Ok(count) if count < self.max_sandboxes => Ok(()),
            _ => Err(WallError::Full(self.max_sandboxes)),
        }
    }

    /// The interface is inside, down, and has its inside name.
    fn admit(
        &mut self,
        slot: SandboxSlot,
        addressing: Addressing,
        origin: Option<Origin>,
    ) -> Result<Attachment, WallError> {
        let ifindex = self
            .namespace
            .run(|| Route::open()?.index_of(&slot.interface_name()))?;
        self.generation = self.generation.wrapping_add(1);
        let row = addressing.row(slot, self.row_flags, self.generation);
        self.sandboxes.insert(
            slot,
            Sandbox {
                ifindex,
                row,
                origin,
                links: None,
            },
        );
        self.slots.insert(ifindex, slot);
        let admitted = self.connect(slot, ifindex, addressing, row);
        if admitted.is_err()
            && let Err(error) = self.detach(slot)
        {
            warn!(%slot, reason = error.reason(), "an interface that could not be attached could not be removed");
        }
        admitted
    }

    /// Programs first, while the link is down; then sockets; then up; the row, without which nothing passes, last.
    fn connect(
        &mut self,
        slot: SandboxSlot,
        ifindex: u32,
        addressing: Addressing,
        row: SandboxRow,
    ) -> Result<Attachment, WallError> {
        let name = slot.interface_name();
        let v6 = row.flags & SandboxRow::NO_IPV6 == 0;
        let kernel = &mut self.kernel;
        let (links, sockets) = self.namespace.run(|| {
            let route = Route::open()?;
            route.set_up(ifindex, false)?;
            route.set_mac(ifindex, addressing.gateway_mac, addressing.mtu)?;
            let links = kernel.attach(&name)?;
            let sockets = Sockets::open(ifindex, slot.mark())?;
            kernel.open_counters(ifindex)?;
            kernel.set_socket(ifindex, Listener::Tcp, &sockets.tcp)?;
            kernel.set_socket(ifindex, Listener::DnsTcp, &sockets.dns_tcp)?;
            kernel.set_socket(ifindex, Listener::DnsUdp, &sockets.dns_udp)?;
            route.set_up(ifindex, true)?;
            reach(&route, ifindex, &addressing, v6)?;
            kernel.set_row(ifindex, row)?;
            Ok((links, sockets))
        })?;
        if let Some(sandbox) = self.sandboxes.get_mut(&slot) {
            sandbox.links = Some(links);
        }
        let Sockets {
            tcp,
            dns_tcp,
            dns_udp,
        } = sockets;
        let proof = self.verify(slot)?;
        Ok(Attachment {
            slot,
            ifindex,
            mark: slot.mark(),
            addressing,
            tcp,
            dns_tcp,
            dns_udp,
            proof,
        })
    }

    /// Asks the kernel whether a sandbox's programs and row are there.
    ///
    /// # Errors
    ///
    /// [`WallError::Unproven`] when they are not, or are not alone.
    pub fn verify(&self, slot: SandboxSlot) -> Result<AttachProof, WallError> {
        let sandbox = self
            .sandboxes
            .get(&slot)
            .ok_or(WallError::SlotEmpty(slot.get()))?;
        self.namespace
            .run(|| self.kernel.confirm(&slot.interface_name()))?;
        let row = self.kernel.row(sandbox.ifindex)?;
        if row != sandbox.row {
            return Err(WallError::Unproven(
                "the row in the kernel is not the one that was written",
            ));
        }
        let ids = self.kernel.ids;
        Ok(AttachProof {
            ifindex: sandbox.ifindex,
            ingress_program: ids.ingress,
            egress_program: ids.egress,
            steer_program: ids.steer,
            map_generation: row.generation,
            object_sha256: self.object_sha256.clone(),
        })
    }

    /// Cuts a sandbox off, or lets it on again. When this returns, no frame passes and no connection is established.
    ///
    /// # Errors
    ///
    /// The slot is empty, or the kernel refused.
    pub fn quarantine(&mut self, slot: SandboxSlot, cut: bool) -> Result<Severed, WallError> {
        let sandbox = self
            .sandboxes
            .get_mut(&slot)
            .ok_or(WallError::SlotEmpty(slot.get()))?;
        self.generation = self.generation.wrapping_add(1);
        let mut row = sandbox.row;
        row.generation = self.generation;
        row.flags = if cut {
            row.flags | SandboxRow::QUARANTINED
        } else {
            row.flags & !SandboxRow::QUARANTINED
        };
        self.kernel.set_row(sandbox.ifindex, row)?;
        sandbox.row = row;
        if cut { self.sever(slot) } else { Ok(Severed(0)) }
    }

    fn sever(&self, slot: SandboxSlot) -> Result<Severed, WallError> {
        let sandbox = self
            .sandboxes
            .get(&slot)
            .ok_or(WallError::SlotEmpty(slot.get()))?;
        let ifindex = sandbox.ifindex;
        self.namespace.run(|| {
            sever::by_interface(ifindex)
                .map(Severed)
                .map_err(|source| WallError::Netlink {
                    step: "end connections",
                    source,
                })
        })
    }

    /// Takes a sandbox off the wall and returns its last counters. A tap goes back to where it came from, down; a veth pair is deleted.
    ///
    /// # Errors
    ///
    /// The slot is empty, or the kernel refused a step; the remaining steps are taken all the same.
    pub fn detach(&mut self, slot: SandboxSlot) -> Result<Vec<Counter>, WallError> {
        let severed = self.sever(slot);
        let mut sandbox = self
            .sandboxes
            .remove(&slot)
            .ok_or(WallError::SlotEmpty(slot.get()))?;
        let ifindex = sandbox.ifindex;
        self.slots.remove(&ifindex);
        // Best effort from here: each of these may be missing when attaching failed half-way. The row goes first, and
        // nothing passes without one.
        let _absent = self.kernel.remove_row(ifindex);
        for listener in Listener::ALL {
            let _absent = self.kernel.remove_socket(ifindex, listener);
        }
        let origin = sandbox.origin.take();
        let gone = self.namespace.run(|| {
            let route = Route::open()?;
            route.set_up(ifindex, false)?;
            match &origin {
                Some(origin) => route.move_to(ifindex, origin.namespace.as_fd(), &origin.name),
                None => route.delete_link(ifindex),
            }
        });
        let counters = self
            .kernel
            .counters(ifindex)
            .map(|row| counters_of(Some(slot), &row));
        let _absent = self.kernel.close_counters(ifindex);
        drop(sandbox.links.take());
        match gone {
            // The VMM died and its tap with it, or the sandbox's namespace did and took the pair.
            Err(WallError::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
            other => other?,
        }
        severed?;
        Ok(counters.unwrap_or_default())
    }

    /// Every counter that is not zero.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn counters(&self) -> Result<Vec<Counter>, WallError> {
        let mut all = counters_of(None, &self.kernel.counters(UNKNOWN_INTERFACE)?);
        for (&slot, sandbox) in &self.sandboxes {
            all.extend(counters_of(Some(slot), &self.kernel.counters(sandbox.ifindex)?));
        }
        Ok(all)
    }

    /// Takes what the ring buffer holds, at most [`MAX_EVENTS_PER_CALL`]; never waits.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < MAX_EVENTS_PER_CALL
            && let Some(item) = self.kernel.events.next()
        {
            events.extend(parse(&item, &self.slots));
        }
        events
    }

    /// Readable while [`events`](Self::events) has something.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.kernel.events.as_fd()
    }

    /// The wall's namespace: for tests and tools that look inside.
    #[must_use]
    pub fn namespace_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    #[cfg(feature = "test-support")]
    pub(crate) fn links_mut(&mut self, slot: SandboxSlot) -> Option<&mut InterfaceLinks> {
        self.sandboxes.get_mut(&slot)?.links.as_mut()
    }

    #[cfg(feature = "test-support")]
    pub(crate) const fn parts_mut(&mut self) -> (&Namespace, &mut Kernel) {
        (&self.namespace, &mut self.kernel)
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        let slots: Vec<SandboxSlot> = self.sandboxes.keys().copied().collect();
        for slot in slots {
            if let Err(error) = self.detach(slot) {
                warn!(%slot, reason = error.reason(), %error, "a sandbox could not be taken off the wall cleanly");
            }
        }
    }
}
