//! C2SP `tlog-proof`: one file that proves a record's place to somebody who has nothing but the log's key.
//!
//! ```text
//!   c2sp.org/tlog-proof@v1
//!   index 73894
//!   BASE64(hash)              the audit path, lowest first, one line a hash
//!   (empty line)
//!   the checkpoint            a signed note, verbatim
//! ```
//!
//! The record itself is not in it: whoever checks brings the stored bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::note::VerifierKey;
use crate::tree::{self, Hash};

const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// The longest audit path: a tree of 2^64 leaves.
const MAX_PATH: usize = 64;

/// A record's place, the path to the root, and the root's signed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlogProof {
    /// The record's place.
    pub index: u64,
    /// The audit path, lowest first.
    pub path: Vec<Hash>,
    /// The signed note.
    pub checkpoint: String,
}

/// Why a proof proves nothing.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
pub enum ProofError {
    /// Not a `tlog-proof` file.
    #[error("this is not a tlog-proof")]
    Malformed,
    /// Its checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The path does not lead from the record to the root.
    #[error("the path does not lead from this record to the checkpoint's root")]
    Path,
}

impl TlogProof {
    /// The file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("{HEADER}\nindex {}\n", self.index);
        for hash in &self.path {
            text.push_str(&STANDARD.encode(hash));
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&self.checkpoint);
        text
    }

    /// Reads a file. An `extra` line is allowed, and ignored.
    ///
    /// # Errors
    /// [`ProofError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, ProofError> {
        let (head, checkpoint) = text.split_once("\n\n").ok_or(ProofError::Malformed)?;
        let mut lines = head.split('\n');
        if lines.next() != Some(HEADER) {
            return Err(ProofError::Malformed);
        }
        let mut line = lines.next().ok_or(ProofError::Malformed)?;
        if let Some(extra) = line.strip_prefix("extra ") {
            STANDARD.decode(extra).or(Err(ProofError::Malformed))?;
            line = lines.next().ok_or(ProofError::Malformed)?;
        }
        let digits = line.strip_prefix("index ").ok_or(ProofError::Malformed)?;
        let index: u64 = digits.parse().or(Err(ProofError::Malformed))?;
        if index.to_string() != digits {
            return Err(ProofError::Malformed);
        }
        let mut path = Vec::new();
        for line in lines {
            let hash = STANDARD.decode(line).or(Err(ProofError::Malformed))?;
            path.push(hash.try_into().or(Err(ProofError::Malformed))?);
            if path.len() > MAX_PATH {
                return Err(ProofError::Malformed);
            }
        }
        Ok(Self {
            index,
            path,
            checkpoint: checkpoint.to_owned(),
        })
    }

    /// Checks that `record`, byte for byte, stands at the index of the log whose key this is.
    ///
    /// # Errors
    /// See [`ProofError`].
    pub fn check(&self, record: &[u8], key: &VerifierKey) -> Result<Checkpoint, ProofError> {
        let checkpoint = Checkpoint::open(&self.checkpoint, key)?;
        let leaf = tree::leaf_hash(record);
        if tree::check_inclusion(&leaf, self.index, checkpoint.size, &self.path, &checkpoint.root) {
            Ok(checkpoint)
        } else {
            Err(ProofError::Path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::SignerKey;

    #[test]
    fn a_proof_reads_as_itself_and_holds_for_its_record_only() {
        let key = SignerKey::from_seed("log.test", &[9; 32]).unwrap();
        let (left, right) = (tree::leaf_hash(b"left"), tree::leaf_hash(b"right"));
        let checkpoint = Checkpoint {
            origin: "log.test".into(),
            size: 2,
            root: tree::node_hash(&left, &right),
        };
        let proof = TlogProof {
            index: 1,
            path: vec![left],
            checkpoint: checkpoint.sign(&key),
        };
        let text = proof.encode();
        assert!(text.starts_with("c2sp.org/tlog-proof@v1\nindex 1\n"));
        assert_eq!(TlogProof::parse(&text), Ok(proof.clone()));
        assert_eq!(
            TlogProof::parse(&text.replacen("index", "extra AAAA\nindex", 1)),
            Ok(proof.clone())
        );
        assert_eq!(proof.check(b"right", key.verifier()), Ok(checkpoint));
        assert_eq!(proof.check(b"Right", key.verifier()), Err(ProofError::Path));
        let stranger = SignerKey::from_seed("log.test", &[8; 32]).unwrap();
        assert!(proof.check(b"right", stranger.verifier()).is_err());
    }

    #[test]
    fn refuses_what_is_no_proof() {
        let rows = [
            "",
            "wrong\nindex 0\n\nc\n",
            "c2sp.org/tlog-proof@v1\n\nc\n",
            "c2sp.org/tlog-proof@v1\nindex 01\n\nc\n",
            "c2sp.org/tlog-proof@v1\nindex -1\n\nc\n",
            "c2sp.org/tlog-proof@v1\nindex 0\nAAAA\n\nc\n",
            "c2sp.org/tlog-proof@v1\nextra ?\nindex 0\n\nc\n",
        ];
        for text in rows {
            assert_eq!(TlogProof::parse(text), Err(ProofError::Malformed), "{text:?}");
        }
    }
}
