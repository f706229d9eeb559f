//! What follows from the journal: every derived row has its one origin here.
//!
//! The writer folds what it appends, opening folds what the index has not seen yet, and a reader folds the journal's tail
//! in memory. [`mod@crate::verify`] does not use this: it derives everything again, by itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checkpoint::Checkpoint;
use crate::frame::{Frame, FrameKind};
use crate::journal::JournalError;
use crate::note::VerifierKey;
use crate::record::{Envelope, Kind};
use crate::tree::{self, Frontier, Hash};

/// A record's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafRow {
    pub(crate) index: u64,
    pub(crate) position: u64,
    pub(crate) length: u32,
    pub(crate) kind: Kind,
    pub(crate) time_ms: u64,
    /// The latest time of any record up to this one: it never goes back, so it can be searched by halving.
    pub(crate) latest_ms: u64,
    pub(crate) hash: Hash,
    pub(crate) request: Option<u128>,
}

/// Where a checkpoint's note stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoteRow {
    pub(crate) size: u64,
    pub(crate) position: u64,
    pub(crate) length: u32,
}

/// Rows that are not in the index yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) leaves: Vec<LeafRow>,
    /// (level, index, hash) of full subtrees whose level is a multiple of 8: the hashes of full tiles.
    pub(crate) nodes: Vec<(u8, u64, Hash)>,
    pub(crate) notes: Vec<NoteRow>,
}

impl Delta {
    pub(crate) const fn is_empty(&self) -> bool {
        self.leaves.is_empty() && self.notes.is_empty()
    }

    pub(crate) fn append(&mut self, mut later: Self) {
        self.leaves.append(&mut later.leaves);
        self.nodes.append(&mut later.nodes);
        self.notes.append(&mut later.notes);
    }
}

/// Decisions without an outcome: request → place. Kept by whoever brings the index up to date, not by every fold.
pub(crate) type Unanswered = BTreeMap<u128, u64>;

/// Takes a record into the decisions without an outcome.
pub(crate) fn answer(unanswered: &mut Unanswered, row: &LeafRow) {
    match (row.kind, row.request) {
        (Kind::Decision, Some(request)) => {
            unanswered.insert(request, row.index);
        }
        (Kind::Outcome, Some(request)) => {
            unanswered.remove(&request);
        }
        (Kind::Control, _) | (_, None) => {}
    }
}

/// What is known after some prefix of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) frontier: Frontier,
    /// The position after the prefix.
    pub(crate) position: u64,
    pub(crate) latest_ms: u64,
    /// The time of the last record.
    pub(crate) last_ms: u64,
    /// The verifier key in force, once the first record said it.
    pub(crate) vkey: Option<String>,
    pub(crate) epoch: u64,
    /// The size that the last checkpoint covers.
    pub(crate) signed: u64,
    pub(crate) unanswered: Unanswered,
}

/// [`State`] as the index stores it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredState {
    size: u64,
    frontier: Vec<String>,
    position: u64,
    latest_ms: u64,
    last_ms: u64,
    vkey: Option<String>,
    epoch: u64,
    signed: u64,
    unanswered: Vec<(String, u64)>,
}

impl State {
    pub(crate) fn store(&self) -> StoredState {
        StoredState {
            size: self.frontier.size(),
            frontier: self.frontier.roots().iter().map(hex::encode).collect(),
            position: self.position,
            latest_ms: self.latest_ms,
            last_ms: self.last_ms,
            vkey: self.vkey.clone(),
            epoch: self.epoch,
            signed: self.signed,
            unanswered: self
                .unanswered
                .iter()
                .map(|(request, index)| (format!("{request:032x}"), *index))
                .collect(),
        }
    }

    pub(crate) fn load(stored: StoredState) -> Option<Self> {
        let mut roots = Vec::new();
        for text in &stored.frontier {
            let mut hash = [0; 32];
            hex::decode_to_slice(text, &mut hash).ok()?;
            roots.push(hash);
        }
        let mut unanswered = Unanswered::new();
        for (text, index) in stored.unanswered {
            unanswered.insert(crate::record::parse_request_id(&text)?, index);
        }
        Some(Self {
            frontier: Frontier::from_parts(stored.size, roots)?,
            position: stored.position,
            latest_ms: stored.latest_ms,
            last_ms: stored.last_ms,
            vkey: stored.vkey,
            epoch: stored.epoch,
            signed: stored.signed,
            unanswered,
        })
    }

    pub(crate) const fn size(&self) -> u64 {
        self.frontier.size()
    }
}

/// Why the journal's content does not hang together.
#[derive(Debug, Error)]
pub(crate) enum FoldError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("record {index}: {what}")]
    Record { index: u64, what: String },
    #[error("the checkpoint of {size} records: {what}")]
    Note { size: u64, what: String },
}

/// What is asked of a record that is folded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) time_ms: u64,
    pub(crate) request: Option<u128>,
}

/// The state, and the rows since the index was last brought up to date.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    pub(crate) state: State,
    pub(crate) delta: Delta,
}

impl Fold {
    pub(crate) fn from_state(state: State) -> Self {
        Self {
            state,
            delta: Delta::default(),
        }
    }

    /// Takes in a frame that was read.
    pub(crate) fn frame(&mut self, ledger: &str, frame: &Frame<'_>) -> Result<(), FoldError> {
        let size = self.state.size();
        match frame.kind {
            FrameKind::Record => {
                let bad = |what: String| FoldError::Record { index: size, what };
                if frame.index != size {
                    return Err(bad(format!("record {} stands here", frame.index)));
                }
                let record = Envelope::parse(frame.payload).map_err(|error| bad(error.to_string()))?;
                if record.seq != size {
                    return Err(bad(format!("its sequence number is {}", record.seq)));
                }
                if record.ledger != ledger {
                    return Err(bad(format!("it belongs to ledger {}", record.ledger)));
                }
                self.key_change(&record);
                let facts = Facts {
                    kind: record.kind,
                    time_ms: record.time_ms,
                    request: record.request_id(),
                };
                self.leaf(frame.position, frame.payload, facts);
            }
            FrameKind::Checkpoint => {
                let bad = |what: String| FoldError::Note { size, what };
                if frame.index != size {
                    return Err(bad(format!(
                        "a checkpoint of {} records stands here",
                        frame.index
                    )));
                }
                let note = std::str::from_utf8(frame.payload).map_err(|error| bad(error.to_string()))?;
                let vkey = self.state.vkey.as_deref().unwrap_or_default();
                let key = VerifierKey::parse(vkey).map_err(|error| bad(error.to_string()))?;
                let checkpoint = Checkpoint::open(note, &key).map_err(|error| bad(error.to_string()))?;
                if checkpoint.size != size || checkpoint.root != self.state.frontier.root() {
                    return Err(bad("it does not fit the records before it".to_owned()));
                }
                self.note(frame.position, frame.payload.len());
            }
        }
        self.state.position = frame.end();
        Ok(())
    }

    /// Follows the verifier key: the first record names it, a rotation names the next.
    pub(crate) fn key_change(&mut self, record: &Envelope) {
        let vkey = |key: &str| {
            record
                .body
                .get("detail")
                .and_then(|detail| detail.get(key))
                .and_then(|vkey| vkey.as_str())
        };
        match record.event() {
            Some(CREATED) if record.seq == 0 => self.state.vkey = vkey("vkey").map(str::to_owned),
            Some(ROTATED) => {
                self.state.vkey = vkey("new_vkey").map(str::to_owned);
                self.state.epoch = self.state.epoch.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Takes in a record.
    pub(crate) fn leaf(&mut self, position: u64, bytes: &[u8], facts: Facts) {
        let index = self.state.size();
        let hash = tree::leaf_hash(bytes);
        let nodes = &mut self.delta.nodes;
        self.state.frontier.append_with(hash, |level, at, hash| {
            if let (true, Ok(level)) = (level.is_multiple_of(8), u8::try_from(level)) {
                nodes.push((level, at, hash));
            }
        });
        self.state.last_ms = facts.time_ms;
        self.state.latest_ms = self.state.latest_ms.max(facts.time_ms);
        self.delta.leaves.push(LeafRow {
            index,
            position,
            length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            kind: facts.kind,
            time_ms: facts.time_ms,
            latest_ms: self.state.latest_ms,
            hash,
            request: facts.request,
        });
    }

    /// Takes in a checkpoint's note.
    pub(crate) fn note(&mut self, position: u64, length: usize) {
        let size = self.state.size();
        self.state.signed = size;
        self.delta.notes.push(NoteRow {
            size,
            position,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        });
    }
}

/// The event of the first record.
pub(crate) const CREATED: &str = "ledger_created";
/// The event of a key rotation.
pub(crate) const ROTATED: &str = "key_rotate";
/// The event of a run's first record.
pub(crate) const STARTED: &str = "start";
/// The event of a run's last record.
pub(crate) const STOPPED: &str = "stop";
