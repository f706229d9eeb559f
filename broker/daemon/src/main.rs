//! wallgate.
fn main() {}
