//! An armed request is made by `arm` alone.
use wallgate_proxy::arm::Armed;
use wallgate_proxy::parse::Parsed;

fn forge(parsed: Parsed) -> Armed {
    Armed { parsed }
}

fn main() {}
