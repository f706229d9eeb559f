//! One record lets one request out.
use wallgate_ledger::Recorded;

fn send<T>(_cleared: Recorded<T>) {}

fn replay<T>(cleared: Recorded<T>) {
    let again = cleared.clone();
    send(cleared);
    send(again);
}

fn main() {}
