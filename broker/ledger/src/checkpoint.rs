//! C2SP `tlog-checkpoint`: what a signed note says of a log.
//!
//! ```text
//!   origin                   a name that is the log's alone; here also the key's name
//!   size                     decimal, no leading zero
//!   BASE64(root hash)
//! ```
//!
//! Extension lines are not written, and refused when read: nothing of ours depends on them, and witnesses' newer
//! signatures do not cover them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use crate::note::{self, NoteError, SignerKey, VerifierKey};
use crate::tree::Hash;

/// A log's size and root under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's name.
    pub origin: String,
    /// The number of records.
    pub size: u64,
    /// The root of the tree of that many.
    pub root: Hash,
}

/// Why a note is no checkpoint of ours.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
pub enum CheckpointError {
    /// The note itself.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text is not three lines of origin, size and root.
    #[error("the note is not a checkpoint of origin, size and root hash")]
    Malformed,
    /// The origin is another log's.
    #[error("the checkpoint is of another log, {0}")]
    Origin(String),
}

impl Checkpoint {
    /// The note's text.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, STANDARD.encode(self.root))
    }

    /// The signed note.
    #[must_use]
    pub fn sign(&self, key: &SignerKey) -> String {
        key.sign(&self.text())
    }

    /// Reads the text of a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`].
    pub fn parse_text(text: &str) -> Result<Self, CheckpointError> {
        let mut lines = text
            .strip_suffix('\n')
            .ok_or(CheckpointError::Malformed)?
            .split('\n');
        let (Some(origin), Some(size), Some(root), None) =
            (lines.next(), lines.next(), lines.next(), lines.next())
        else {
            return Err(CheckpointError::Malformed);
        };
        let count: u64 = size.parse().or(Err(CheckpointError::Malformed))?;
        let hash = STANDARD.decode(root).or(Err(CheckpointError::Malformed))?;
        let parsed = Self {
            origin: origin.to_owned(),
            size: count,
            root: hash.try_into().or(Err(CheckpointError::Malformed))?,
        };
        if origin.is_empty() || parsed.text() != text {
            return Err(CheckpointError::Malformed);
        }
        Ok(parsed)
    }

    /// Opens a note that `key`, whose name is the log's origin, has signed.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn open(signed: &str, key: &VerifierKey) -> Result<Self, CheckpointError> {
        let parsed = Self::parse_text(note::open(signed, key)?.text)?;
        if parsed.origin == key.name() {
            Ok(parsed)
        } else {
            Err(CheckpointError::Origin(parsed.origin))
        }
    }

    /// What a note claims, without looking at its signatures.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn unverified(signed: &str) -> Result<Self, CheckpointError> {
        Self::parse_text(note::unverified_text(signed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_three_lines_and_reads_as_itself() {
        let checkpoint = Checkpoint {
            origin: "wallgate/test".into(),
            size: 7,
            root: [3; 32],
        };
        let golden = "wallgate/test\n7\nAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=\n";
        assert_eq!(checkpoint.text(), golden);
        assert_eq!(Checkpoint::parse_text(golden), Ok(checkpoint.clone()));
        let key = SignerKey::from_seed("wallgate/test", &[1; 32]).unwrap();
        assert_eq!(
            Checkpoint::open(&checkpoint.sign(&key), key.verifier()),
            Ok(checkpoint.clone())
        );
        let stranger = SignerKey::from_seed("stranger", &[1; 32]).unwrap();
        assert_eq!(
            Checkpoint::open(&checkpoint.sign(&stranger), stranger.verifier()),
            Err(CheckpointError::Origin("wallgate/test".into()))
        );
    }

    #[test]
    fn refuses_every_other_spelling() {
        let root = "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=";
        let rows = [
            format!("o\n07\n{root}\n"),
            format!("o\n+7\n{root}\n"),
            format!("o\n-7\n{root}\n"),
            format!("o\n7\n{root}"),
            format!("o\n7\n{root}\nextension\n"),
            format!("\n7\n{root}\n"),
            format!("o\n18446744073709551616\n{root}\n"),
            "o\n7\nAwM=\n".to_owned(),
            format!("o\n7\n{}\n", root.trim_end_matches('=')),
            String::new(),
        ];
        for text in rows {
            assert_eq!(
                Checkpoint::parse_text(&text),
                Err(CheckpointError::Malformed),
                "{text:?}"
            );
        }
    }
}
