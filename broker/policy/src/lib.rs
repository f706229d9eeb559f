//! Rego → decision: the only place where a request becomes allowed (P4), and the grammar that says what it would do (P8).
//!
//! ```text
//!   bundle      a directory of Rego and data, its digest, its errors
//!   capability  what policy may call
//!   program     the compiled bundle: checked, limited, run
//!   policy      Policy: facts in, Decided<T> out           ◀── start here
//!   decided     the proof: Allowed<T> | Denied<T>
//!   refusal     what wallgate refuses by itself, by name
//!   classify    (profile, method, path, query, body) → named operation, or unknown, which counts as a write
//!   service     which host is which service, and which names it may be asked for
//! ```
//!
//! This crate is synchronous and knows no network. It reads a bundle's files when it is loaded and nothing afterwards.
#![forbid(unsafe_code)]

mod answer;
pub mod bundle;
mod capability;
pub mod classify;
pub mod decided;
mod input;
pub mod policy;
mod program;
pub mod refusal;
pub mod service;

pub use bundle::{BundleDigest, BundleError, Place};
pub use classify::canonical::{canonical_path, is_canonical};
pub use classify::{Profile, RequestShape, UnknownProfile, classify};
pub use decided::{Allowed, Decided, Denied};
pub use input::INPUT_VERSION;
pub use policy::{BodyWant, Evaluation, Policy, PolicyLimits, Situation, Usage};
pub use program::EvalError;
pub use service::{NameList, NameListError, Service, ServiceError, ServiceMap};
