//! How much a durable record costs, beside what the disk itself costs, in one run.
#![forbid(unsafe_code)]
fn main() {}
