//! wallgate-bench.
fn main() {}
