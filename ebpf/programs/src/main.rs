//! The eBPF programs of the wall: thin shells that fetch a row and a header, ask `wallgate-wall-shared`, and count.
//!
//! `cargo xtask ebpf` builds this for `bpfel-unknown-none` and commits the object. For every other target it is an
//! empty program, so that building, testing and linting the workspace need no BPF toolchain.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[allow(unsafe_code, reason = "the kernel's context and map values are raw pointers")]
mod wall;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
