//! The data path.
#![forbid(unsafe_code)]

pub mod client_hello;
pub mod client_stream;
pub mod dial;
pub mod dns;
pub mod edge_limits;
mod lru;
pub mod names;
mod rate;
pub mod resolve;
pub mod terminate;
pub mod tls;
