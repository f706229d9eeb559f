//! stub
use std::process::ExitCode;
use crate::exit::Failure;
/// stub
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArguments { }
pub(crate) fn run(_c: &DoctorArguments) -> Result<ExitCode, Failure> { Ok(ExitCode::SUCCESS) }
