use wallgate_types::address::{GuestAddr, OriginalDst};

fn dialled(_: OriginalDst) {}

fn main() {
    dialled(GuestAddr("192.0.2.1:1".parse().unwrap()));
}
