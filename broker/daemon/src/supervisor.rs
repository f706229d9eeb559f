//! `wallgate run`: the privileged process. It makes the wall, starts the broker and the command, and parses nothing
//! that a sandbox sent.
//!
//! The order is what keeps the door shut: the configuration is validated before anything is opened; the broker has its
//! policy, secrets and ledger before there is a wall; the proof that the wall holds is in the ledger before the command
//! starts. On the way out it is the reverse. Whatever dies on the way, the kernel takes the rest along: the broker and
//! bubblewrap die with this process, the wall is held by descriptors of this process, and the sandbox dies with
//! bubblewrap.

mod broker_process;
mod command;
mod life;
mod prepare;

use std::process::ExitCode;

use crate::cli::RunArguments;
use crate::exit::Failure;

/// Runs a command in a sandbox and returns its exit code.
///
/// # Errors
/// What kept it from running or ended it, in one sentence. Nothing is left behind but the ledger.
pub fn run(arguments: RunArguments) -> Result<ExitCode, Failure> {
    // Whatever descriptors we were started with stay here: one of them in the sandbox would be a way round the wall.
    close_fds::set_fds_cloexec_threadsafe(3, &[]);
    let prepared = prepare::prepare(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::internal)?;
    runtime.block_on(life::live(prepared))
}
