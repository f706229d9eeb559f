//! What was allowed is what goes on: another subject does not take its place.
use wallgate_policy::Allowed;

fn swap(allowed: &mut Allowed<u8>) {
    allowed.subject = 7;
}

fn main() {}
