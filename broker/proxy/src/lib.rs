//! The data path.
#![forbid(unsafe_code)]

// DIAL
// DNS
pub mod client_hello;
pub mod edge_limits;
mod lru;
pub mod names;
mod rate;
pub mod resolve;
pub mod terminate;
pub mod tls;
