//! An allowance cannot be put together from its parts.
use std::sync::Arc;

use wallgate_policy::{Allowed, BundleDigest};
use wallgate_types::ruling::Ruling;

fn forge(subject: u8, ruling: Ruling, bundle: Arc<BundleDigest>) -> Allowed<u8> {
    Allowed { subject, ruling, bundle }
}

fn main() {}
