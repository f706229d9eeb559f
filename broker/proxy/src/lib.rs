//! The data path: every request of a sandbox, from its first byte to its outcome.
//!
//! ```text
//!  accept      Accepted     whose listener was it, did the filter run
//!  terminate   Terminated   TLS ended with a leaf for exactly the name asked for, or plain HTTP, or refused
//!  parse       Parsed       one canonical request; whatever two parsers could read differently is refused
//!  decide      Decided      operation named, policy asked                     (made only by wallgate-policy)
//!  ledger      Recorded     durable before anything leaves                    (made only by wallgate-ledger)
//!  arm         Armed        credentials injected; takes Recorded<Allowed<Parsed>> and nothing else
//!  send        Sent         resolved, every address checked, the checked one dialled, the certificate verified
//!  scrub       Scrubbed     the response without any injected value
//!  outcome                  what became of it, also when everybody just went away
//! ```
//!
//! Start at [`connection`], which is the life of a connection, and at `request`, which is the life of a request. Each
//! other file is one stage: it consumes the previous stage's value and returns the next.
//!
//! What this crate never does: decide by itself that something may leave, follow a redirect, dial an address that its
//! own resolver did not check, downgrade a scheme, share an upstream connection between sandboxes, buffer a whole body
//! that policy did not ask to see, or tell a sandbox anything of an error but its code.
#![forbid(unsafe_code)]

pub mod accept;
pub mod arm;
pub mod attach;
pub mod client_hello;
pub mod client_stream;
mod connection;
mod decide;
mod deny;
pub mod dial;
pub mod dns;
pub mod edge_limits;
mod error;
mod internal;
pub mod limits;
mod lookup;
mod lru;
pub mod names;
mod outcome;
pub mod own_client;
pub mod parse;
mod pool;
mod rate;
mod refusals;
mod relay;
mod request;
pub mod resolve;
pub mod scrub;
mod send;
pub mod shared;
pub mod terminate;
pub mod tls;
mod usage;

#[cfg(test)]
mod tests;
