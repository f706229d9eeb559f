//! Who is asking: the listener that accepted the connection, and the mark that proves that the filter ran (P2).

use std::sync::Arc;

use tokio::net::TcpStream;
use wallgate_types::address::{GuestAddr, OriginalDst};

use crate::shared::SandboxGate;

/// A connection of a sandbox that is known by the listener it came in on.
#[derive(Debug)]
pub struct Accepted {
    pub(crate) sandbox: Arc<SandboxGate>,
    pub(crate) original_dst: OriginalDst,
    pub(crate) guest: GuestAddr,
    pub(crate) stream: TcpStream,
}
