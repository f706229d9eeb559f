//! What outlives a request: the broker's parts, and one gate a sandbox.

use std::sync::Arc;

use wallgate_types::sandbox::SandboxFacts;

/// Everything that a request needs and no sandbox owns. Immutable but for what it points to.
#[derive(Debug)]
pub struct Shared {}

/// One sandbox as the broker knows it: nothing in it is shared with another sandbox.
#[derive(Debug)]
pub struct SandboxGate {
    pub(crate) facts: Arc<SandboxFacts>,
    pub(crate) mark: u32,
}
