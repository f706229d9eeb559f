//! The workspace's own tasks.

mod ebpf;

use std::env;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((task, rest)) if task == "ebpf" => ebpf::run_with(rest),
        _ => bail!("usage: cargo xtask ebpf [--check]"),
    }
}
