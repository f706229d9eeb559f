//! The one maker is the writer's.
use wallgate_ledger::{LeafIndex, Recorded};

fn main() {
    let _forged = Recorded::new("allowed", LeafIndex(7));
}
