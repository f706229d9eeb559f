//! The log: the journal, the tree over it and the key, in one thread's hands.
//!
//! ```text
//!   append ─▶ frame in the buffer      the tree grows
//!   checkpoint ─▶ frame in the buffer  the root is signed
//!   write ─▶ page cache                a dead process loses nothing of it
//!   sync  ─▶ disk                      now, and only now, may anything be acknowledged
//! ```
//!
//! An error leaves the log unusable: the tree in memory may be ahead of the disk, so nothing is ever appended after it.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use thiserror::Error;
use wallgate_types::clock::Clock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::Checkpoint;
use crate::fold::{Delta, Facts, Fold, ROTATED, STOPPED, State};
use crate::frame::FrameKind;
use crate::journal::{Journal, JournalError};
use crate::keys::{self, KeyError};
use crate::note::SignerKey;
use crate::record::{Author, ControlEvent, Kind, Moment, seal};

/// Steps back of the wall clock that are worth a record of their own, in milliseconds.
const CLOCK_BACK_MS: u64 = 1000;

/// Why the log takes nothing more.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("a control record cannot be encoded: {0}")]
    Encode(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) journal: Journal,
    pub(crate) fold: Fold,
    pub(crate) author: Author,
    pub(crate) signer: SignerKey,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) directory: PathBuf,
}

impl Log {
    pub(crate) const fn size(&self) -> u64 {
        self.fold.state.size()
    }

    /// Records that no checkpoint covers yet.
    pub(crate) const fn unsigned(&self) -> u64 {
        self.size().saturating_sub(self.fold.state.signed)
    }

    /// Appends a record; returns its place.
    pub(crate) fn append(&mut self, kind: Kind, body: &[u8], request: Option<u128>) -> Result<u64, LogError> {
        let now_ms = self.note_clock()?;
        self.append_at(now_ms, kind, body, request)
    }

    /// The time; if it went back, that is recorded first.
    fn note_clock(&mut self) -> Result<u64, LogError> {
        let now_ms = self.clock.now().0;
        if let Some(step) = self.step_back(now_ms) {
            self.control_at(
                now_ms,
                ControlEvent {
                    kind: "clock_back",
                    sandbox: None,
                    detail: step,
                },
            )?;
        }
        Ok(now_ms)
    }

    /// How far the clock went back since the last record, if it did.
    fn step_back(&self, now_ms: u64) -> Option<Value> {
        let last_ms = self.fold.state.last_ms;
        (now_ms.saturating_add(CLOCK_BACK_MS) <= last_ms)
            .then(|| json!({"from_ms": last_ms, "to_ms": now_ms}))
    }

    fn append_at(
        &mut self,
        time_ms: u64,
        kind: Kind,
        body: &[u8],
        request: Option<u128>,
    ) -> Result<u64, LogError> {
        let index = self.size();
        let moment = Moment {
            time_ms,
            mono_us: u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX),
        };
        let bytes = seal(&self.author, kind, index, moment, body);
        let position = self.journal.push(FrameKind::Record, index, &bytes)?;
        self.fold.leaf(
            position,
            &bytes,
            Facts {
                kind,
                time_ms,
                request,
            },
        );
        self.fold.state.position = self.journal.position();
        Ok(index)
    }

    fn control_at(&mut self, time_ms: u64, event: ControlEvent) -> Result<u64, LogError> {
        let body = event
            .into_body()
            .map_err(|error| LogError::Encode(error.to_string()))?;
        self.append_at(time_ms, Kind::Control, &body, None)
    }

    /// Appends a control record without a look at the clock's past: only the first records of a run are made so.
    pub(crate) fn first(&mut self, kind: &'static str, mut detail: Value) -> Result<u64, LogError> {
        let now_ms = self.clock.now().0;
        if let (Some(step), Some(members)) = (self.step_back(now_ms), detail.as_object_mut()) {
            members.insert("clock_back".to_owned(), step);
        }
        self.control_at(
            now_ms,
            ControlEvent {
                kind,
                sandbox: None,
                detail,
            },
        )
    }

    /// Signs the root, and appends the note.
    pub(crate) fn checkpoint(&mut self) -> Result<String, LogError> {
        let size = self.size();
        let checkpoint = Checkpoint {
            origin: self.signer.verifier().name().to_owned(),
            size,
            root: self.fold.state.frontier.root(),
        };
        let note = checkpoint.sign(&self.signer);
        let position = self.journal.push(FrameKind::Checkpoint, size, note.as_bytes())?;
        self.fold.note(position, note.len());
        self.fold.state.position = self.journal.position();
        Ok(note)
    }

    /// The tree as it is, for start and stop records.
    pub(crate) fn head(&self) -> Value {
        json!({"root": hex::encode(self.fold.state.frontier.root()), "size": self.size()})
    }

    pub(crate) fn write(&mut self) -> Result<(), LogError> {
        Ok(self.journal.write()?)
    }

    /// Makes everything durable; returns the rows of what has become so since the last time, and the state after it.
    pub(crate) fn sync(&mut self) -> Result<(Delta, State), LogError> {
        self.journal.write()?;
        self.journal.sync()?;
        let delta = std::mem::take(&mut self.fold.delta);
        Ok((delta, self.fold.state.clone()))
    }

    /// Changes the signing key: the old one signs the record that names the new one, then is destroyed.
    pub(crate) fn rotate(&mut self) -> Result<u64, LogError> {
        let next = keys::prepare_next(&self.directory, self.signer.verifier().name())?;
        let (old_vkey, new_vkey) = (self.signer.verifier().to_string(), next.verifier().to_string());
        let now_ms = self.note_clock()?;
        let index = self.size();
        let message = rotation_message(&self.author.ledger, index, &old_vkey, &new_vkey);
        let signature = STANDARD.encode(self.signer.sign_bytes(message.as_bytes()));
        let detail =
            json!({"index": index, "new_vkey": new_vkey, "old_vkey": old_vkey, "signature": signature});
        let at = self.control_at(
            now_ms,
            ControlEvent {
                kind: ROTATED,
                sandbox: None,
                detail,
            },
        )?;
        self.journal.write()?;
        self.journal.sync()?;
        keys::install_next(&self.directory)?;
        self.signer = next;
        self.author.epoch = self.author.epoch.saturating_add(1);
        self.fold.state.epoch = self.author.epoch;
        self.fold.state.vkey = Some(new_vkey);
        Ok(at)
    }

    /// The last record, the last checkpoint, and the file cut to what it holds.
    pub(crate) fn stop(&mut self) -> Result<(String, Delta, State), LogError> {
        let now_ms = self.note_clock()?;
        let previous = self.head();
        self.control_at(
            now_ms,
            ControlEvent {
                kind: STOPPED,
                sandbox: None,
                detail: json!({ "previous": previous }),
            },
        )?;
        let note = self.checkpoint()?;
        let (delta, state) = self.sync()?;
        self.journal.trim()?;
        Ok((note, delta, state))
    }
}

/// What the old key signs at a rotation: it binds the new key to this ledger and this place.
pub(crate) fn rotation_message(ledger: &str, index: u64, old_vkey: &str, new_vkey: &str) -> String {
    format!("wallgate key rotation v1\n{ledger}\n{index}\n{old_vkey}\n{new_vkey}\n")
}
