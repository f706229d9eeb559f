//! Nothing is recorded by default.
use wallgate_ledger::Recorded;

fn main() {
    let _forged: Recorded<()> = Default::default();
}
