//! Rego → decision.
#![forbid(unsafe_code)]
pub mod bundle;
pub mod decided;
pub use decided::{Allowed, Decided, Denied};
