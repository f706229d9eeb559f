//! What the promises are tested with: real programs, in a room of their own, in front of a wall.
//!
//! ```text
//!  room: own pid, mount and network namespaces; nothing but lo; dies with the test
//!  ┌───────────────────────────────────────────────────────────────────────────────┐
//!  │  wallgate run --config … -- CMD   ──▶   upstreams on free loopback ports,      │
//!  │        (the real binary)                TLS by a certificate authority of the  │
//!  │                                         room, each keeping what it received    │
//!  └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A test says [`room::room`] and gets a [`room::Room`]; from it come servers ([`upstream`]) and a configured wallgate
//! ([`wallgate::Wallgate`]). It asserts three things each time: what the client inside saw, what the server received, and
//! what the ledger holds ([`records`]). After each run the room is searched for litter: a process, link, mount or named
//! namespace that was not there before fails the test.
//!
//! No test sleeps, uses a fixed port, or can reach a network: the room has none.
#![forbid(unsafe_code)]

pub mod bundle;
pub mod frames;
pub mod hostile;
pub mod inside;
pub mod journal;
pub mod litter;
pub mod pattern;
pub mod pki;
pub mod process;
pub mod records;
pub mod room;
pub mod rss;
pub mod tools;
pub mod upstream;
pub mod wallgate;
