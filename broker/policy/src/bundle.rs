//! Bundles: what policy is made of.

use std::fmt;

/// SHA-256 over a bundle's files: the name of exactly this policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleDigest(pub(crate) [u8; 32]);

impl fmt::Display for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}
