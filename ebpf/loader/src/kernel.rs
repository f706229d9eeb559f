//! The committed object in the kernel: its programs, and its maps with their types.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use aya::maps::{HashMap, Map, MapData, PerCpuHashMap, PerCpuValues, RingBuf, SockHash};
use aya::programs::sk_lookup::SkLookupLink;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, SkLookup, TcAttachType};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader, Pod};
use wallgate_wall_shared::{CounterRow, Listener, SandboxRow, SocketKey};

use crate::error::WallError;
use crate::object;

const INGRESS: &str = "wall_in";
const EGRESS: &str = "wall_out";
const STEER: &str = "wall_steer";
const SANDBOXES: &str = "sandboxes";
const COUNTERS: &str = "counters";
const SOCKETS: &str = "sockets";
const EVENTS: &str = "events";

/// The key of the counters of interfaces that have none.
pub(crate) const UNKNOWN_INTERFACE: u32 = 0;

#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct SandboxPod(SandboxRow);
// SAFETY: `repr(C)` without padding (asserted where it is declared), and every bit pattern is a value.
unsafe impl Pod for SandboxPod {}

#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct CounterPod(CounterRow);
// SAFETY: as above.
unsafe impl Pod for CounterPod {}

#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct SocketPod(SocketKey);
// SAFETY: as above.
unsafe impl Pod for SocketPod {}

/// The programs' numbers in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramIds {
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
    pub(crate) steer: u32,
}

/// The programs on one interface. Dropping them detaches.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "test-support"),
    expect(dead_code, reason = "held for their drop")
)]
pub(crate) struct InterfaceLinks {
    /// Taken out only by the tests that show what happens without it.
    pub(crate) ingress: Option<SchedClassifierLink>,
    pub(crate) egress: Option<SchedClassifierLink>,
}

/// The loaded object.
pub(crate) struct Kernel {
    programs: Ebpf,
    sandboxes: HashMap<MapData, u32, SandboxPod>,
    counters: PerCpuHashMap<MapData, u32, CounterPod>,
    sockets: SockHash<MapData, SocketPod>,
    pub(crate) events: RingBuf<MapData>,
    pub(crate) ids: ProgramIds,
    /// Held while the wall stands.
    steer: Option<SkLookupLink>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Loads the object with room for `max_sandboxes`, and attaches the steering program to `namespace`.
    pub(crate) fn load(max_sandboxes: u32, namespace: BorrowedFd<'_>) -> Result<Self, WallError> {
        let mut programs = EbpfLoader::new()
            .map_max_entries(SANDBOXES, max_sandboxes)
            .map_max_entries(COUNTERS, max_sandboxes.saturating_add(1))
            .map_max_entries(SOCKETS, max_sandboxes.saturating_mul(3))
            .load(&object::bytes())
            .map_err(Box::new)?;
        let ingress = load_classifier(&mut programs, INGRESS)?;
        let egress = load_classifier(&mut programs, EGRESS)?;
        let (steer, link) = load_steering(&mut programs, namespace)?;
        let mut kernel = Self {
            sandboxes: typed(&mut programs, SANDBOXES)?,
            counters: typed(&mut programs, COUNTERS)?,
            sockets: typed(&mut programs, SOCKETS)?,
            events: typed(&mut programs, EVENTS)?,
            ids: ProgramIds {
                ingress,
                egress,
                steer,
            },
            steer: Some(link),
            programs,
        };
        kernel.open_counters(UNKNOWN_INTERFACE)?;
        Ok(kernel)
    }

    /// Attaches both programs to an interface of the calling thread's namespace.
    pub(crate) fn attach(&mut self, interface: &str) -> Result<InterfaceLinks, WallError> {
        Ok(InterfaceLinks {
            ingress: Some(attach(
                &mut self.programs,
                INGRESS,
                interface,
                TcAttachType::Ingress,
            )?),
            egress: Some(attach(
                &mut self.programs,
                EGRESS,
                interface,
                TcAttachType::Egress,
            )?),
        })
    }

    /// Asks the kernel which programs an interface of the calling thread's namespace has, and whether ours are the only ones.
    pub(crate) fn confirm(&self, interface: &str) -> Result<(), WallError> {
        for (name, kind, id) in [
            (INGRESS, TcAttachType::Ingress, self.ids.ingress),
            (EGRESS, TcAttachType::Egress, self.ids.egress),
        ] {
            let (_, found) = SchedClassifier::query_tcx(interface, kind).map_err(program_error(name))?;
            if !found.iter().map(aya::programs::ProgramInfo::id).eq([id]) {
                return Err(WallError::Unproven(
                    "the interface does not have exactly the wall's programs",
                ));
            }
        }
        if self.steer.is_none() {
            return Err(WallError::Unproven("the steering program is not attached"));
        }
        Ok(())
    }

    pub(crate) fn row(&self, ifindex: u32) -> Result<SandboxRow, WallError> {
        self.sandboxes
            .get(&ifindex, 0)
            .map(|pod| pod.0)
            .map_err(map_error(SANDBOXES))
    }

    pub(crate) fn set_row(&mut self, ifindex: u32, row: SandboxRow) -> Result<(), WallError> {
        self.sandboxes
            .insert(ifindex, SandboxPod(row), 0)
            .map_err(map_error(SANDBOXES))
    }

    pub(crate) fn remove_row(&mut self, ifindex: u32) -> Result<(), WallError> {
        self.sandboxes.remove(&ifindex).map_err(map_error(SANDBOXES))
    }

    pub(crate) fn set_socket(
        &mut self,
        ifindex: u32,
        listener: Listener,
        socket: &impl AsFd,
    ) -> Result<(), WallError> {
        let fd: RawFd = socket.as_fd().as_raw_fd();
        self.sockets
            .insert(socket_key(ifindex, listener), fd, 0)
            .map_err(map_error(SOCKETS))
    }

    pub(crate) fn remove_socket(&mut self, ifindex: u32, listener: Listener) -> Result<(), WallError> {
        self.sockets
            .remove(&socket_key(ifindex, listener))
            .map_err(map_error(SOCKETS))
    }

    /// Starts an interface's counters at zero. Without them its frames would count as an unknown interface's.
    pub(crate) fn open_counters(&mut self, ifindex: u32) -> Result<(), WallError> {
        let cpus = nr_cpus().map_err(|(_, source)| WallError::Directory {
            step: "count CPUs",
            source,
        })?;
        let zeros =
            PerCpuValues::try_from(vec![CounterPod(CounterRow::default()); cpus]).map_err(|source| {
                WallError::Directory {
                    step: "count CPUs",
                    source,
                }
            })?;
        self.counters
            .insert(ifindex, zeros, 0)
            .map_err(map_error(COUNTERS))
    }

    pub(crate) fn close_counters(&mut self, ifindex: u32) -> Result<(), WallError> {
        self.counters.remove(&ifindex).map_err(map_error(COUNTERS))
    }

    /// An interface's counters, summed over the CPUs.
    pub(crate) fn counters(&self, ifindex: u32) -> Result<CounterRow, WallError> {
        let mut sum = CounterRow::default();
        let per_cpu = self.counters.get(&ifindex, 0).map_err(map_error(COUNTERS))?;
        for pod in per_cpu.iter() {
            for (total, frames) in sum.frames.iter_mut().zip(pod.0.frames) {
                *total = total.saturating_add(frames);
            }
        }
        Ok(sum)
    }

    /// A program, for tests that run it on frames.
    #[cfg(feature = "test-support")]
    pub(crate) fn classifier(&self, name: &'static str) -> Result<&SchedClassifier, WallError> {
        let program = self
            .programs
            .program(name)
            .ok_or(WallError::Incomplete { name })?;
        program.try_into().map_err(program_error(name))
    }

    /// Takes the steering program away.
    #[cfg(feature = "test-support")]
    pub(crate) fn unsteer(&mut self) {
        self.steer = None;
    }
}

const fn socket_key(ifindex: u32, listener: Listener) -> SocketPod {
    SocketPod(SocketKey {
        ifindex,
        listener: listener as u32,
    })
}

fn program_error(name: &'static str) -> impl Fn(aya::programs::ProgramError) -> WallError {
    move |source| WallError::Program {
        name,
        source: Box::new(source),
    }
}

fn map_error(name: &'static str) -> impl Fn(aya::maps::MapError) -> WallError {
    move |source| WallError::Map { name, source }
}

fn typed<T>(programs: &mut Ebpf, name: &'static str) -> Result<T, WallError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let map = programs.take_map(name).ok_or(WallError::Incomplete { name })?;
    T::try_from(map).map_err(map_error(name))
}

fn classifier<'a>(programs: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, WallError> {
    let program = programs.program_mut(name).ok_or(WallError::Incomplete { name })?;
    program.try_into().map_err(program_error(name))
}

fn load_classifier(programs: &mut Ebpf, name: &'static str) -> Result<u32, WallError> {
    let program = classifier(programs, name)?;
    program.load().map_err(program_error(name))?;
    Ok(program.info().map_err(program_error(name))?.id())
}

fn load_steering(programs: &mut Ebpf, namespace: BorrowedFd<'_>) -> Result<(u32, SkLookupLink), WallError> {
    let failed = program_error(STEER);
    let program = programs
        .program_mut(STEER)
        .ok_or(WallError::Incomplete { name: STEER })?;
    let program: &mut SkLookup = program.try_into().map_err(&failed)?;
    program.load().map_err(&failed)?;
    let id = program.info().map_err(&failed)?.id();
    let link = program.attach(namespace).map_err(&failed)?;
    Ok((id, program.take_link(link).map_err(&failed)?))
}

fn attach(
    programs: &mut Ebpf,
    name: &'static str,
    interface: &str,
    kind: TcAttachType,
) -> Result<SchedClassifierLink, WallError> {
    let failed = program_error(name);
    let program = classifier(programs, name)?;
    // First of all: nothing that somebody attaches later may see a frame, or let one pass, before this.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program
        .attach_with_options(interface, kind, options)
        .map_err(&failed)?;
    program.take_link(link).map_err(&failed)
}
