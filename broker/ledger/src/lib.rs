//! The ledger: what happened, in an order that nobody can change without being found out (P5, P10).
//!
//! A decision is durable here before its first byte goes upstream; what became of it follows. The log is a Merkle tree with
//! signed checkpoints in the formats of the C2SP, so that programs which we did not write can check it.
//!
//! ```text
//!   record   what is stored: JCS in an envelope       tree        RFC 6962 hashes and proofs
//!   writer   the handle; group commit                 note        C2SP signed-note, Ed25519
//!   log      journal + tree + key, one thread         checkpoint  C2SP tlog-checkpoint
//!   journal  frames in segments; the truth            proof       C2SP tlog-proof
//!   frame    their format                             verify      everything again, from the stored bytes alone
//!   index    redb behind it, for queries              export      NDJSON, C2SP tlog-tiles
//!   keeper   keeps the index up                       display     stored text on a terminal
//!   reader   queries, also while it is in use         open        locks, versions, recovery
//! ```
//!
//! It never acknowledges what is not on disk, never goes on after a store error, never repairs what a crash does not
//! explain, and never holds a secret.
//!
//! What the signatures do not say: whoever is root on this host can rewrite what was written since a checkpoint last left
//! it, and can put a whole older copy in place. A checkpoint that somebody else holds shows both
//! ([`VerifyOptions::checkpoint`]).
//!
//! Start at [`Ledger`], then [`mod@verify`].
#![forbid(unsafe_code)]

pub mod canonical;
pub mod checkpoint;
pub mod display;
mod entropy;
pub mod export;
#[cfg(test)]
mod faults;
mod fold;
mod frame;
mod index;
mod journal;
mod keeper;
mod keys;
pub mod limits;
mod log;
pub mod note;
mod open;
pub mod proof;
pub mod reader;
pub mod record;
pub mod recorded;
mod storage;
pub mod tree;
pub mod verify;
mod writer;

pub use keys::KeyError;
pub use open::{LedgerOptions, OpenError, Recovered};
pub use reader::{Filter, Hit, ReadError, Reader, Stored};
pub use record::{ControlEvent, Kind};
pub use recorded::{LeafIndex, Recorded};
pub use verify::{Place, Report, VerifyError, VerifyOptions, verify, verify_tiles};
pub use writer::{Ledger, LedgerError};
