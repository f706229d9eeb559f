//! `wallgate`: everything is in the library; see its documentation for where to start.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    wallgate_daemon::main()
}
