//! What was allowed but not recorded gets no credential.
use wallgate_policy::Allowed;
use wallgate_proxy::arm::{Armoury, arm};
use wallgate_proxy::parse::Parsed;
use wallgate_types::clock::Timestamp;

async fn skip_the_ledger(allowed: Allowed<Parsed>, armoury: &Armoury) {
    let _ = arm(allowed, armoury, Timestamp(0)).await;
}

fn main() {}
