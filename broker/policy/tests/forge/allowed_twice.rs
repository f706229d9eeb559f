//! One decision lets out one request: an allowance is no copy, and has no default.
use wallgate_policy::Allowed;

fn copy(allowed: &Allowed<u8>) -> Allowed<u8> {
    allowed.clone()
}

fn default() -> Allowed<u8> {
    Allowed::default()
}

fn main() {}
