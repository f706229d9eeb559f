//! What nobody may see.

use std::fmt;

use zeroize::Zeroize;

/// A value that is never shown, copied or serialised, and is overwritten when it is dropped.
///
/// It has no `Clone`, `Serialize` or `Display`, and its `Debug` is redacted. [`Secret::expose`] is banned by lint
/// outside the one module of a crate that injects it or learns what to scrub.
pub struct Secret<T: Zeroize>(T);

impl<T: Zeroize> Secret<T> {
    /// Takes custody of `value`. The caller keeps no copy.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Every call is argued where it stands.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_value() {
        let secret = Secret::new(String::from("hunter2"));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
