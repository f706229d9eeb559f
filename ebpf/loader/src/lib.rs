//! The wall: the network namespace without an exit, the eBPF programs on every interface in it, and the sockets that a
//! sandbox's traffic ends in.
//!
//! ```text
//!  sandbox           the wall's namespace: no uplink, no forwarding, no route but to us
//! ┌───────┐  frame  ┌──────────────────────────────────────────────────────────────┐
//! │ guest ├──tap───▶│ wall_in: filter, mark ─▶ wall_steer: by interface ─▶ sockets ─┼─▶ broker (anywhere)
//! │       │◀────────┤ wall_out: only what those sockets sent                       │
//! └───────┘         └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! What it never does: read what a sandbox sent, decide by an address, or let a frame pass for which a row, a program, a
//! mark or a socket is missing. Every absence is a closed door:
//!
//! | gone | then |
//! |---|---|
//! | the row | both programs drop |
//! | the ingress program | no mark, so no route inwards, and `wall_out` drops the answers |
//! | the steering program | sockets are bound to their interface; other ports are reset |
//! | the broker | reset, or ICMP port unreachable |
//! | the owner of this crate's [`Wall`] | the namespace goes, or has no route for what is unmarked |
//!
//! Start with [`Wall`]; the decision about a frame is in `wallgate-wall-shared`. This crate and the programs are the only
//! places with unsafe code on the network side: system calls that have no safe wrapper, each on its own.
#![allow(
    unsafe_code,
    reason = "socket options, ancillary data, taps and map values have no safe wrapper; each block says why it holds"
)]

mod attachment;
mod closed;
pub mod dns;
mod error;
#[cfg(feature = "test-support")]
pub mod fault;
mod kernel;
pub mod leftovers;
mod namespace;
mod netlink;
mod nftables;
pub mod object;
mod report;
mod sandbox;
mod sever;
mod slot;
mod sockets;
pub mod support;
mod tap;
mod wall;

pub use attachment::{AttachProof, Attachment, Interface};
pub use closed::Backstop;
pub use error::WallError;
pub use leftovers::WallName;
pub use report::{Counter, Event};
pub use sandbox::SandboxNetns;
pub use slot::{Addressing, MAX_SLOT, SandboxSlot};
pub use sockets::accepted_mark;
pub use tap::{Tap, make_tap};
pub use wall::{MAX_EVENTS_PER_CALL, Severed, Wall, WallOptions};
pub use wallgate_wall_shared::{Effect, Reason};
