//! An armed request is sent once.
use wallgate_proxy::arm::Armed;

fn twice(armed: Armed) -> (Armed, Armed) {
    (armed.clone(), armed)
}

fn main() {}
