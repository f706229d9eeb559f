//! What can go wrong with the wall. Every one of these leaves the sandbox without a network, never without the wall.

use std::io;

use thiserror::Error;

/// Why an operation on the wall failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WallError {
    /// A namespace could not be made or entered.
    #[error("network namespace: {step}: {source}")]
    Namespace {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A setting of the namespace could not be written.
    #[error("cannot set {name} in the wall's namespace: {source}")]
    Setting {
        /// The sysctl's path below `/proc/sys/net`.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Links, addresses, routes, rules or neighbours.
    #[error("{step}: {source}")]
    Netlink {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The object did not load: the verifier's last line, or what the kernel lacks.
    #[error("the wall's programs did not load")]
    Object(#[from] Box<aya::EbpfError>),
    /// A program could not be loaded, attached or asked about.
    #[error("program {name}")]
    Program {
        /// The program's name.
        name: &'static str,
        /// aya's reason.
        source: Box<aya::programs::ProgramError>,
    },
    /// A map could not be read or written.
    #[error("map {name}")]
    Map {
        /// The map's name.
        name: &'static str,
        /// aya's reason.
        source: aya::maps::MapError,
    },
    /// The committed object lacks something that this loader was built for.
    #[error("the committed object has no {name}; rebuild it with `cargo xtask ebpf`")]
    Incomplete {
        /// The program or map.
        name: &'static str,
    },
    /// A listener or the DNS socket.
    #[error("socket: {step}: {source}")]
    Socket {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no such interface where it was said to be.
    #[error("there is no interface {name}")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// The slot has a sandbox.
    #[error("slot {0} has a sandbox already")]
    SlotTaken(u16),
    /// The slot has none.
    #[error("slot {0} has no sandbox")]
    SlotEmpty(u16),
    /// The wall has as many sandboxes as it was created for.
    #[error("the wall is full: it was created for {0} sandboxes")]
    Full(u32),
    /// After attaching, the kernel does not confirm that the programs are there.
    #[error("the kernel does not confirm the attachment: {0}")]
    Unproven(&'static str),
    /// A named wall is owned by a living process.
    #[error("a wall named {0} exists and its owner is alive")]
    NameTaken(String),
    /// The directory of named walls.
    #[error("{step}: {source}")]
    Directory {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl WallError {
    /// A stable code for records and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Namespace { .. } => "wall_namespace",
            Self::Setting { .. } => "wall_setting",
            Self::Netlink { .. } => "wall_netlink",
            Self::Object(_) => "wall_object",
            Self::Program { .. } => "wall_program",
            Self::Map { .. } => "wall_map",
            Self::Incomplete { .. } => "wall_object_incomplete",
            Self::Socket { .. } => "wall_socket",
            Self::NoInterface { .. } => "wall_no_interface",
            Self::SlotTaken(_) => "wall_slot_taken",
            Self::SlotEmpty(_) => "wall_slot_empty",
            Self::Full(_) => "wall_full",
            Self::Unproven(_) => "wall_unproven",
            Self::NameTaken(_) => "wall_name_taken",
            Self::Directory { .. } => "wall_directory",
        }
    }
}
