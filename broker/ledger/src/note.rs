//! C2SP `signed-note`: a text, and Ed25519 signatures of it.
//!
//! ```text
//!   text            ends with a newline; no control character but newline; valid UTF-8
//!   (empty line)
//!   — NAME BASE64(key id ‖ signature)        one line a signature, em dash U+2014
//!
//!   key id        = first 4 bytes of SHA-256(NAME ‖ "\n" ‖ 0x01 ‖ public key), big endian
//!   verifier key  = NAME+hex(key id)+BASE64(0x01 ‖ public key)
//!   signer key    = PRIVATE+KEY+NAME+hex(key id)+BASE64(0x01 ‖ seed)
//! ```
//!
//! These are the encodings of the checksum database of Go, whose package reads what is written here (a test runs it).
//! Signatures by keys that a reader does not know are ignored, as the specification asks.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::limits::{MAX_NOTE_BYTES, MAX_NOTE_SIGNATURES};

const ED25519: u8 = 1;
const DASH: &str = "\u{2014} ";

/// Why a note or a key is not one, or does not verify.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
pub enum NoteError {
    /// A key name is empty or has white space or a plus sign.
    #[error("a key name has no spaces and no plus sign")]
    Name,
    /// Not an encoded verifier key of type Ed25519 whose id fits.
    #[error("this is not an Ed25519 verifier key")]
    VerifierKey,
    /// Not an encoded signer key of type Ed25519 whose id fits.
    #[error("this is not an Ed25519 signer key")]
    SignerKey,
    /// Not a note, or a longer one than is read.
    #[error("this is not a signed note")]
    Malformed,
    /// No signature by the key.
    #[error("the note is not signed by {0}")]
    Unsigned(String),
    /// A signature by the key does not fit the text.
    #[error("the signature by {0} does not fit the text")]
    Invalid(String),
}

/// Whether `name` can name a key.
fn check_name(name: &str) -> Result<(), NoteError> {
    let good = !name.is_empty()
        && !name
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || c == '+');
    if good { Ok(()) } else { Err(NoteError::Name) }
}

fn key_id(name: &str, public: &[u8; 32]) -> u32 {
    let digest: [u8; 32] = Sha256::new()
        .chain_update(name)
        .chain_update([b'\n', ED25519])
        .chain_update(public)
        .finalize()
        .into();
    let [a, b, c, d, ..] = digest;
    u32::from_be_bytes([a, b, c, d])
}

/// What checks the signatures of one key.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    id: u32,
    key: VerifyingKey,
}

impl VerifierKey {
    /// The key's name: the log's origin.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads an encoded verifier key.
    ///
    /// # Errors
    /// [`NoteError::VerifierKey`], [`NoteError::Name`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(encoded)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::VerifierKey);
        };
        check_name(name)?;
        let id = parse_id(id).ok_or(NoteError::VerifierKey)?;
        let bytes = STANDARD.decode(encoded).or(Err(NoteError::VerifierKey))?;
        let Some((&ED25519, public)) = bytes.split_first() else {
            return Err(NoteError::VerifierKey);
        };
        let public: [u8; 32] = public.try_into().or(Err(NoteError::VerifierKey))?;
        let key = VerifyingKey::from_bytes(&public).or(Err(NoteError::VerifierKey))?;
        if key_id(name, &public) != id {
            return Err(NoteError::VerifierKey);
        }
        Ok(Self {
            name: name.to_owned(),
            id,
            key,
        })
    }

    /// Whether `signature` is this key's of `message`. Malleable and small-order forms are refused.
    #[must_use]
    pub fn accepts(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.key
            .verify_strict(message, &Signature::from_bytes(signature))
            .is_ok()
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = STANDARD.encode([&[ED25519], self.key.as_bytes().as_slice()].concat());
        write!(f, "{}+{:08x}+{encoded}", self.name, self.id)
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifierKey({self})")
    }
}

/// Eight lower-case hexadecimal digits, as Go writes and wants them.
fn parse_id(text: &str) -> Option<u32> {
    let id = u32::from_str_radix(text, 16).ok()?;
    (format!("{id:08x}") == text).then_some(id)
}

/// What signs. It has no `Clone`, and its `Debug` shows the public half only.
pub struct SignerKey {
    public: VerifierKey,
    secret: SigningKey,
}

impl SignerKey {
    /// The key that this seed makes.
    ///
    /// # Errors
    /// [`NoteError::Name`].
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, NoteError> {
        check_name(name)?;
        let secret = SigningKey::from_bytes(seed);
        let key = secret.verifying_key();
        let public = VerifierKey {
            name: name.to_owned(),
            id: key_id(name, key.as_bytes()),
            key,
        };
        Ok(Self { public, secret })
    }

    /// The public half.
    #[must_use]
    pub const fn verifier(&self) -> &VerifierKey {
        &self.public
    }

    /// Reads an encoded signer key.
    ///
    /// # Errors
    /// [`NoteError::SignerKey`], [`NoteError::Name`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let rest = text
            .trim_end()
            .strip_prefix("PRIVATE+KEY+")
            .ok_or(NoteError::SignerKey)?;
        let mut parts = rest.splitn(3, '+');
        let (Some(name), Some(id), Some(encoded)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::SignerKey);
        };
        let bytes = Zeroizing::new(STANDARD.decode(encoded).or(Err(NoteError::SignerKey))?);
        let Some((&ED25519, seed)) = bytes.split_first() else {
            return Err(NoteError::SignerKey);
        };
        let seed: Zeroizing<[u8; 32]> = Zeroizing::new(seed.try_into().or(Err(NoteError::SignerKey))?);
        let key = Self::from_seed(name, &seed)?;
        if parse_id(id) == Some(key.public.id) {
            Ok(key)
        } else {
            Err(NoteError::SignerKey)
        }
    }

    /// The encoded signer key, for the key file.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new([&[ED25519], self.secret.as_bytes().as_slice()].concat());
        let encoded = Zeroizing::new(STANDARD.encode(bytes.as_slice()));
        Zeroizing::new(format!(
            "PRIVATE+KEY+{}+{:08x}+{}",
            self.public.name,
            self.public.id,
            encoded.as_str()
        ))
    }

    /// Signs bytes that are no note.
    #[must_use]
    pub fn sign_bytes(&self, message: &[u8]) -> [u8; 64] {
        self.secret.sign(message).to_bytes()
    }

    /// The note of `text`, which ends with a newline, signed.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        let signature = self.sign_bytes(text.as_bytes());
        let encoded = STANDARD.encode([self.public.id.to_be_bytes().as_slice(), &signature].concat());
        format!("{text}\n{DASH}{} {encoded}\n", self.public.name)
    }
}

impl fmt::Debug for SignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignerKey({}, ..)", self.public)
    }
}

/// A note whose signature by one key was checked: its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The signed text, with its last newline.
    pub text: &'a str,
}

/// Splits a note into its text and its signature lines.
fn split_note(note: &str) -> Result<(&str, &str), NoteError> {
    if note.len() > MAX_NOTE_BYTES || note.chars().any(|c| c.is_control() && c != '\n') {
        return Err(NoteError::Malformed);
    }
    let at = note.rfind("\n\n").ok_or(NoteError::Malformed)?;
    let (text, rest) = note.split_at(at.saturating_add(1));
    let signatures = rest.strip_prefix('\n').ok_or(NoteError::Malformed)?;
    if signatures.is_empty() || !signatures.ends_with('\n') {
        return Err(NoteError::Malformed);
    }
    Ok((text, signatures))
}

/// The text of a note, without looking at its signatures.
///
/// # Errors
/// [`NoteError::Malformed`].
pub fn unverified_text(note: &str) -> Result<&str, NoteError> {
    split_note(note).map(|(text, _)| text)
}

/// Opens a note that `key` has signed. Lines of other keys are ignored; every line must have the form of one.
///
/// # Errors
/// [`NoteError::Malformed`], [`NoteError::Unsigned`], [`NoteError::Invalid`].
pub fn open<'a>(note: &'a str, key: &VerifierKey) -> Result<Opened<'a>, NoteError> {
    let (text, signatures) = split_note(note)?;
    let mut found = false;
    let mut count = 0_usize;
    for line in signatures.split_terminator('\n') {
        count = count.saturating_add(1);
        if count > MAX_NOTE_SIGNATURES {
            return Err(NoteError::Malformed);
        }
        let rest = line.strip_prefix(DASH).ok_or(NoteError::Malformed)?;
        let (name, encoded) = rest.split_once(' ').ok_or(NoteError::Malformed)?;
        check_name(name).or(Err(NoteError::Malformed))?;
        let bytes = STANDARD.decode(encoded).or(Err(NoteError::Malformed))?;
        let (id, signature) = bytes.split_first_chunk::<4>().ok_or(NoteError::Malformed)?;
        if name != key.name || u32::from_be_bytes(*id) != key.id {
            continue;
        }
        let signature: &[u8; 64] = signature
            .try_into()
            .map_err(|_length| NoteError::Invalid(key.name.clone()))?;
        if !key.accepts(text.as_bytes(), signature) {
            return Err(NoteError::Invalid(key.name.clone()));
        }
        found = true;
    }
    if found {
        Ok(Opened { text })
    } else {
        Err(NoteError::Unsigned(key.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of Go's package documentation: keys and a note that somebody else made.
    const GO_VKEY: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const GO_SKEY: &str = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";
    const GO_NOTE: &str = "If you think cryptography is the answer to your problem,\n\
        then you don't know what your problem is.\n\n\
        \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

    #[test]
    fn reads_keys_and_notes_that_go_made_and_makes_the_same() {
        let signer = SignerKey::parse(GO_SKEY).unwrap();
        assert_eq!(signer.verifier().to_string(), GO_VKEY);
        assert_eq!(signer.encode().as_str(), GO_SKEY);
        let verifier = VerifierKey::parse(GO_VKEY).unwrap();
        let text = open(GO_NOTE, &verifier).unwrap().text;
        assert_eq!(signer.sign(text), GO_NOTE);
    }

    #[test]
    fn a_key_never_shows_in_debug() {
        let signer = SignerKey::parse(GO_SKEY).unwrap();
        let shown = format!("{signer:?}");
        assert!(!shown.contains("AYEKFALVFGyNhPJEMzD1QIDr"), "{shown}");
        assert!(
            !shown
                .to_lowercase()
                .contains(&hex::encode(signer.secret.as_bytes()))
        );
    }

    #[test]
    fn refuses_what_is_no_note_or_was_changed() {
        let key = VerifierKey::parse(GO_VKEY).unwrap();
        let changed = GO_NOTE.replace("answer", "Answer");
        let other = GO_NOTE.replace("PeterNeumann x", "Somebody x");
        let rows: [(&str, NoteError); 8] = [
            ("", NoteError::Malformed),
            ("text\n", NoteError::Malformed),
            ("text\n\n", NoteError::Malformed),
            ("text\n\n- a b\n", NoteError::Malformed),
            ("te\rxt\n\n\u{2014} a AAAA\n", NoteError::Malformed),
            (GO_NOTE.trim_end(), NoteError::Malformed),
            (&changed, NoteError::Invalid("PeterNeumann".into())),
            (&other, NoteError::Unsigned("PeterNeumann".into())),
        ];
        for (note, expected) in rows {
            assert_eq!(open(note, &key), Err(expected), "{note:?}");
        }
    }

    #[test]
    fn refuses_keys_whose_parts_do_not_fit() {
        let rows = [
            "",
            "name",
            "PeterNeumann+c74f20a3+",
            "PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
            "PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
            "Peter Neumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
            "PeterNeumann+c74f20a3+AhpC2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        ];
        for text in rows {
            assert!(VerifierKey::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_never_panics(text in ".{0,200}") {
            let key = VerifierKey::parse(GO_VKEY).unwrap();
            prop_assert!(open(&text, &key).is_err());
            let _ignored = VerifierKey::parse(&text);
            let _ignored = SignerKey::parse(&text);
        }
    }
}
