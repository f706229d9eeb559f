//! `wallgate-bench`: what wallgate costs beside the bare limit of its own design, in one run on one machine.
//!
//! ```text
//!   load ──TLS──▶ subject ──TLS──▶ origin (nginx)        subject = direct | bare | wallgate
//!   CPU 1         CPU 0            CPU 1
//! ```
//!
//! *bare* is hyper + rustls with a static leaf and a pooled upstream: no policy, no record, no wall. *wallgate* is the
//! real binary with everything on: the wall, Rego over 200 hosts, an injected credential, a scrubbed response and a
//! durable record of every request. The subjects take turns, each phase is repeated, and medians are compared, because
//! only ratios within one run mean anything on a shared machine. CPU is the subject's own, from `schedstat`.
//!
//! Start at [`compare`], which runs the phases; [`load`] is the generator, [`bare`] the limit.
#![forbid(unsafe_code)]
#![expect(
    clippy::cast_precision_loss,
    reason = "figures for people: 52 bits are plenty"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

mod bare;
mod compare;
mod load;
mod origin;
mod pki;
mod process;
mod subject;
mod table;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures wallgate beside the bare limit of its design")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every phase for every subject and prints the table.
    Compare(compare::Options),
    /// The load generator: what `compare` runs, inside the sandbox for wallgate.
    Load(load::Options),
    /// The bare limit: what `compare` measures against.
    Bare(bare::Options),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match arguments.command {
        Command::Compare(options) => compare::run(&options),
        Command::Load(options) => runtime.block_on(load::run(&options)),
        Command::Bare(options) => runtime.block_on(bare::run(&options)),
    }
}
