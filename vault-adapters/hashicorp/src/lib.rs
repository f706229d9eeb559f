//! Secrets of HashiCorp Vault and OpenBao: `vault:MOUNT/data/PATH#KEY`, a string in the current version of a KV
//! version 2 secret.
//!
//! ```text
//!   vault:kv/data/ci#token
//!         ── GET {address}/v1/kv/data/ci ──▶  {"data": {"data": {"token": "…"}, "metadata": {"version": 3, …}}}
//! ```
//!
//! It logs in with a token (from `env:` or `file:`, read again at each fetch, so an agent's sink file works) or as an
//! `AppRole`, whose token it keeps within its lease and renews by logging in again. It speaks through the broker's
//! guarded client, in TLS, or in the clear to this host only.
//!
//! What it never does: follow a redirect (the token would go along), log a header, or keep what it read.
//!
//! API: <https://openbao.org/api-docs/secret/kv/kv-v2/> ("Read secret version"), auth/approle, and the status codes of
//! "HTTP status codes" in the same place.
#![forbid(unsafe_code)]

mod auth;
mod config;
mod kv;

pub use config::{HashicorpConfig, HashicorpConfigError, RawAppRole, RawHashicorp};
pub use kv::HashicorpBackend;
