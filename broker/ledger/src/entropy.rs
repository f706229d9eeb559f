//! The one place that draws random bytes: ids, salts and key seeds.

/// Bytes from the thread's generator, which is seeded by the operating system and cryptographically strong.
pub(crate) fn bytes<const N: usize>() -> [u8; N]
where
    rand::distr::StandardUniform: rand::distr::Distribution<[u8; N]>,
{
    rand::random()
}
