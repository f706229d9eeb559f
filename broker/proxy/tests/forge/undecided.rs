//! What was recorded but not allowed gets no credential.
use wallgate_ledger::Recorded;
use wallgate_policy::Denied;
use wallgate_proxy::arm::{Armoury, arm};
use wallgate_proxy::parse::Parsed;
use wallgate_types::clock::Timestamp;

async fn skip_policy(denied: Recorded<Denied<Parsed>>, armoury: &Armoury) {
    let _ = arm(denied, armoury, Timestamp(0)).await;
}

fn main() {}
