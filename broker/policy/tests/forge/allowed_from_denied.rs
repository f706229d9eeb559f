//! A refusal does not become an allowance.
use wallgate_policy::{Allowed, Decided, Denied};

fn flip(subject: u8) -> Decided<u8> {
    Decided::Allowed(Denied::refused(subject, "wallgate.test", "No."))
}

fn turn(denied: Denied<u8>) -> Allowed<u8> {
    denied.into()
}

fn main() {}
