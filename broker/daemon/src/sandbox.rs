//! What `wallgate run` puts a command into: bubblewrap, told what to show and what not.
//!
//! The command is root inside and nobody outside: bubblewrap itself runs as uid 65534 and maps it to 0. It gets its own
//! user, pid, mount, ipc and uts namespaces. Its network namespace is made by the wall and belongs to the host's user
//! namespace, so that no root in the sandbox can change it.
//!
//! - [`view`] decides what of the file system is seen, and what is masked;
//! - [`environment`] decides what of the environment is seen;
//! - [`filter`] decides which system calls answer;
//! - [`etc`] writes the few files that are the sandbox's own;
//! - [`bubblewrap`] turns all of it into arguments and starts it.

pub mod bubblewrap;
pub mod environment;
pub mod etc;
pub mod filter;
pub mod view;

/// The user and group that a sandbox is outside: nobody.
pub const NOBODY: u32 = 65534;

/// The home directory inside: empty and gone afterwards.
pub const HOME: &str = "/root";
