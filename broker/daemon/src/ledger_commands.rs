//! stub
use std::process::ExitCode;
use crate::exit::Failure;
/// stub
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LedgerCommand { /// x
Verify }
pub(crate) fn run(_c: LedgerCommand) -> Result<ExitCode, Failure> { Ok(ExitCode::SUCCESS) }
