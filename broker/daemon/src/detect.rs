//! stub
use std::process::ExitCode;
use crate::exit::Failure;
/// stub
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ServiceCommand { /// x
Detect }
pub(crate) fn run(_c: &ServiceCommand) -> Result<ExitCode, Failure> { Ok(ExitCode::SUCCESS) }
