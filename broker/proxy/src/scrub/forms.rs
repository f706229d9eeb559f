//! The forms in which a secret can come back: as it is, in base64 at each of the three alignments, in hexadecimal.
//!
//! Each form is a sequence of character classes; how a character of it may be escaped is the matcher's business, so a
//! percent-encoded base64 form is found as well as a plain one.
//!
//! ```text
//!   base64 of  ?? SECRET ??   at alignment 1:
//!
//!     byte      ?        S        E        C …
//!     bits   ????????|01010011|01000101|01000011
//!     char   ??????|??0101|001101|000101|010000|11…
//!                    ^^^^^^ partly known: left out in front, a class of its possible characters at the end
//! ```
//!
//! So the one character in front that also holds bits of its neighbour stays, and with it at most four bits of the
//! secret's first byte (its high bit is zero, so three that say anything).

use zeroize::{Zeroize, Zeroizing};

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A set of ASCII characters.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Class(u128);

impl Class {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn one(byte: u8) -> Self {
        Self(if byte.is_ascii() { 1 << byte } else { 0 })
    }

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn has(self, byte: u8) -> bool {
        byte < 128 && (self.0 >> byte) & 1 == 1
    }

    pub(super) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn members(self) -> impl Iterator<Item = u8> {
        (0..128).filter(move |byte| self.has(*byte))
    }

    /// A character and what is written in its place elsewhere.
    fn literal(byte: u8) -> Self {
        match byte {
            // Forms write a space as a plus (URL standard, application/x-www-form-urlencoded).
            b' ' => Self::one(b' ').with(Self::one(b'+')),
            other => Self::one(other),
        }
    }
}

impl Zeroize for Class {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

/// One form of one secret. Overwritten when dropped.
pub(super) struct Form {
    /// A class a character.
    pub(super) units: Zeroizing<Vec<Class>>,
    /// What may stand between two characters: line breaks in base64, zero bytes in UTF-16.
    pub(super) between: Class,
    /// How many of its first characters a line break may tear apart without hiding the form.
    pub(super) breakable: bool,
}

/// Every form of a secret.
pub(super) fn of(secret: &[u8]) -> Vec<Form> {
    let mut forms = vec![raw(secret), hexadecimal(secret)];
    forms.extend((0..3).map(|alignment| base64(secret, alignment)));
    forms
}

fn raw(secret: &[u8]) -> Form {
    Form {
        units: Zeroizing::new(secret.iter().map(|b| Class::literal(*b)).collect()),
        between: Class::one(0),
        breakable: false,
    }
}

fn hexadecimal(secret: &[u8]) -> Form {
    let digit = |nibble: u8| {
        let digit = char::from_digit(u32::from(nibble & 0xf), 16).map_or(b'0', |c| c as u8);
        Class::one(digit).with(Class::one(digit.to_ascii_uppercase()))
    };
    let units = secret.iter().flat_map(|b| [digit(b >> 4), digit(*b)]);
    Form {
        units: Zeroizing::new(units.collect()),
        between: Class::NONE,
        breakable: false,
    }
}

/// The base64 characters that depend on the secret when `alignment` bytes (modulo 3) stand before it.
fn base64(secret: &[u8], alignment: usize) -> Form {
    let first_bit = alignment.saturating_mul(8);
    let end_bit = first_bit.saturating_add(secret.len().saturating_mul(8));
    let known = |bit: usize| {
        let index = bit.checked_sub(first_bit)?;
        let byte = secret.get(index / 8)?;
        Some((byte >> (7_usize.saturating_sub(index % 8))) & 1)
    };
    let characters = first_bit.div_ceil(6)..end_bit.div_ceil(6);
    let units = characters.map(|character| {
        let bits = (0..6).map(|bit| known(character.saturating_mul(6).saturating_add(bit)));
        let (value, mask) = bits.fold((0_u8, 0_u8), |(value, mask), bit| {
            (value << 1 | bit.unwrap_or(0), mask << 1 | u8::from(bit.is_some()))
        });
        (0..64_u8)
            .filter(|candidate| candidate & mask == value)
            .fold(Class::NONE, |class, candidate| class.with(alphabet(candidate)))
    });
    Form {
        units: Zeroizing::new(units.collect()),
        between: [b'\r', b'\n', b' ', b'\t']
            .into_iter()
            .fold(Class::NONE, |class, b| class.with(Class::one(b))),
        breakable: true,
    }
}

/// A six-bit value in the standard and the URL-safe alphabet (RFC 4648, sections 4 and 5).
fn alphabet(value: u8) -> Class {
    match value {
        62 => Class::one(b'+').with(Class::one(b'-')),
        63 => Class::one(b'/').with(Class::one(b'_')),
        other => STANDARD
            .get(usize::from(other))
            .map_or(Class::NONE, |b| Class::one(*b)),
    }
}

#[cfg(test)]
mod tests {
    use ::base64::Engine as _;
    use ::base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::*;

    fn stands_in(form: &Form, text: &[u8]) -> bool {
        text.windows(form.units.len()).any(|window| {
            window
                .iter()
                .zip(form.units.iter())
                .all(|(b, class)| class.has(*b))
        })
    }

    proptest! {
        #[test]
        fn one_of_the_alignments_is_in_every_base64_text(
            before in proptest::collection::vec(any::<u8>(), 0..7),
            secret in "[ -~]{8,40}",
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let whole = [before.as_slice(), secret.as_bytes(), after.as_slice()].concat();
            let form = base64(secret.as_bytes(), before.len() % 3);
            prop_assert!(stands_in(&form, STANDARD.encode(&whole).as_bytes()));
            prop_assert!(stands_in(&form, URL_SAFE_NO_PAD.encode(&whole).as_bytes()));
        }

        #[test]
        fn hexadecimal_is_found_in_both_cases(secret in "[ -~]{8,40}") {
            let text = hex(secret.as_bytes());
            prop_assert!(stands_in(&hexadecimal(secret.as_bytes()), text.as_bytes()));
            prop_assert!(stands_in(&hexadecimal(secret.as_bytes()), text.to_uppercase().as_bytes()));
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes
            .iter()
            .flat_map(|b| [b >> 4, b & 15])
            .map(|nibble| char::from_digit(nibble.into(), 16).unwrap())
            .collect()
    }

    /// RFC 4648, section 10: `foobar` is `Zm9vYmFy`.
    #[test]
    fn the_vector_of_the_specification_is_a_form() {
        let form = base64(b"foobar", 0);
        let text: Vec<u8> = form
            .units
            .iter()
            .filter_map(|class| class.members().next())
            .collect();
        assert_eq!(text, b"Zm9vYmFy");
    }
}
