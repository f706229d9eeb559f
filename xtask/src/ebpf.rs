//! Rebuilding the eBPF object.

use anyhow::{Result, bail};
use clap::Args;

/// What `cargo xtask ebpf` takes.
#[derive(Debug, Default, Args)]
pub(crate) struct EbpfArguments {}

/// Rebuilds the object and compares it with the committed one.
pub(crate) fn run(_arguments: &EbpfArguments) -> Result<()> {
    bail!("the eBPF programs are not in this tree yet")
}
