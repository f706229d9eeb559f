//! Credentials: where a secret comes from, what it looks like on the wire, and what it may be used for.
//!
//! The proxy asks the [`store::CredentialStore`] for a [`material::Material`] and puts it on a request that its
//! [`binding::Binding`] permits. Nothing here opens a socket or a file: that is done by an adapter, one crate a kind
//! of secret store, behind [`source::SecretSource`].
//!
//! ```text
//!   [[credential]] ──config──▶ Credential {shape, binding} + SecretRef
//!                                                              │ Backends::open
//!   adapter (env, file, vault …) ◀── SecretSource ─────────────┘
//!        │ Fetched {value, version, lease}
//!        ▼
//!   CredentialStore ── get ──▶ Material: checked, shaped, zeroised   (cached within the lease, or an error)
//! ```
//!
//! What it never does: hand out a value that is past its lease, show a value in an error, a log line or a `Debug`
//! output, derive a record from a value, or treat a failure as "no credential needed" (P6, P12).
//!
//! Start at [`config`] for what an operator writes, at [`store`] for what happens then.
#![forbid(unsafe_code)]

pub mod binding;
pub mod config;
#[cfg(feature = "contract")]
pub mod contract;
pub mod field;
pub mod flight;
pub mod glob;
pub mod material;
pub mod placeholder;
pub mod reference;
pub mod source;
pub mod store;
