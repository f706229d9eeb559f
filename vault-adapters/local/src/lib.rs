//! Secrets of this host: environment variables (`env:NAME`) and files (`file:PATH`, `file:PATH#key` for a string in
//! a JSON object).
//!
//! The environment is read once, by whoever starts the broker, and given to [`EnvBackend`] by name: a broker that was
//! started with an empty environment still works, and nothing of it is left in the process's own. A file is opened
//! anew at each fetch, so replacing it rotates the secret.
//!
//! ```text
//!   env:GITHUB_TOKEN            the variable, trimmed
//!   file:/run/secrets/token     the file's whole content, trimmed
//!   file:/run/secrets.json#ci   the string under "ci" in the file's one JSON object
//! ```
//!
//! What it never does: wait on a pipe, device or socket, read more than [`MAX_SECRET_BYTES`], or say what it read.
#![forbid(unsafe_code)]

mod env;
mod file;

pub use env::EnvBackend;
pub use file::FileBackend;
#[cfg(doc)]
use wallgate_vault::source::MAX_SECRET_BYTES;
