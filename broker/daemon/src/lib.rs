//! The `wallgate` program: its command line, its configuration and its processes.
//!
//! ```text
//!  wallgate run (supervisor: privileged, small, parses nothing that a sandbox sent)
//!    │  wall (crate wallgate-wall): namespace, interface, BPF programs
//!    ├── SOCK_SEQPACKET, typed messages + descriptors ──▶ wallgate broker (hostile bytes, policy, ledger, secrets;
//!    │                                                    no capabilities, seccomp, Landlock, may exec nothing)
//!    └── bubblewrap, in the sandbox's network namespace ─▶ CMD (root inside, nobody outside)
//! ```
//!
//! Nothing here decides or proxies anything: this crate reads the configuration ([`config`]), puts the pieces together
//! ([`broker`]), starts and ends processes in the right order ([`supervisor`]) and says in one sentence what went wrong
//! ([`exit`]). Start at [`supervisor::run`], which is the life of one `wallgate run` from top to bottom.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

pub mod broker;
pub mod channel;
pub mod cli;
pub mod config;
mod detect;
mod doctor;
pub mod exit;
mod ledger_commands;
mod output;
mod policy_commands;
pub mod sandbox;
pub mod state;
pub mod supervisor;
mod trust_kit;

/// Reads the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match cli::Cli::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = if error.use_stderr() {
                exit::Exit::Usage.code()
            } else {
                0
            };
            // Standard output or error may be closed; there is nobody left to tell.
            let _nobody_reads = error.print();
            return ExitCode::from(code);
        }
    };
    match cli::dispatch(arguments) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("wallgate: {failure}");
            ExitCode::from(&failure)
        }
    }
}
