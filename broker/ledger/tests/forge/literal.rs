//! The fields are private.
use wallgate_ledger::{LeafIndex, Recorded};

fn main() {
    let _forged = Recorded {
        value: "allowed",
        index: LeafIndex(7),
    };
}
