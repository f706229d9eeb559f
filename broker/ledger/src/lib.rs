//! The ledger.
#![forbid(unsafe_code)]
pub mod recorded;
pub use recorded::{LeafIndex, Recorded};
