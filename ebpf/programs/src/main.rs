//! wallgate-wall-programs.
fn main() {}
