//! stub
use std::process::ExitCode;
use crate::exit::Failure;
/// stub
#[derive(Debug, clap::Args)]
pub(crate) struct TrustKitArguments { }
pub(crate) fn run(_c: &TrustKitArguments) -> Result<ExitCode, Failure> { Ok(ExitCode::SUCCESS) }
