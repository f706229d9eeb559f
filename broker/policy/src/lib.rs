//! Rego → decision: the only place where a request becomes allowed (P4), and the grammar that says what it would do (P8).
//!
//! ```text
//!   bundle      a directory of Rego and data, its digest, its errors
//!   capability  what policy may call
//!   assignment  what the engine's program would not do as the language says
//!   program     the compiled bundle: checked, limited, run
//!   policy      Policy: facts in, Decided<T> out           ◀── start here
//!   decided     the proof: Allowed<T> | Denied<T>
//!   refusal     what wallgate refuses by itself, by name
//!   classify    (profile, method, path, query, body) → named operation, or unknown, which counts as a write
//!   lint        what a bundle's data says that its writer hardly meant
//!   testing     a bundle's own tests: *_test.rego and *.cases.toml
//!   service     which host is which service, and which names it may be asked for
//! ```
//!
//! This crate is synchronous and knows no network. It reads a bundle's files when it is loaded and nothing afterwards.
#![forbid(unsafe_code)]

mod answer;
mod assignment;
pub mod bundle;
mod capability;
pub mod classify;
pub mod decided;
mod input;
pub mod lint;
pub mod policy;
mod program;
pub mod refusal;
pub mod service;
pub mod testing;

pub use bundle::{BundleDigest, BundleError, Place};
pub use classify::canonical::{canonical_path, is_canonical};
pub use classify::{Profile, RequestShape, UnknownProfile, classify};
pub use decided::{Allowed, Decided, Denied};
pub use input::INPUT_VERSION;
pub use lint::{CheckReport, Finding, Severity};
pub use policy::{BodyWant, Evaluation, Policy, PolicyLimits, Situation, Usage};
pub use program::EvalError;
pub use service::{NameList, NameListError, Service, ServiceError, ServiceMap};
pub use testing::{TestReport, TestResult};
