//! Offline verification: everything derived again from the stored bytes, and compared.
//!
//! It shares with the writer only the formats (frames, records, notes, tree hashes), none of the code that derives or stores.
//! Nothing that it reads is trusted: not the index, not the checks of frames, not the checkpoint file.
//!
//! | what was done to the store | what finds it |
//! |---|---|
//! | a byte of a record, its frame or header | the frame's check; if that was made to fit, the tree against the next checkpoint, and the index names the record |
//! | a record dropped, moved, doubled | its sequence number; the tree |
//! | a checkpoint changed, or signed by a retired key | its signature against the key of that epoch |
//! | the tail cut off | the checkpoint file, the index |
//! | all of it cut back, or another history | a checkpoint that somebody else holds ([`VerifyOptions::checkpoint`]) |
//! | a row of the index | the row derived again |
//!
//! [`verify`] reads a ledger's directory, live or not; [`verify_tiles`] reads a C2SP `tlog-tiles` export.

mod index;
mod tiles;
mod walk;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

pub use tiles::verify_tiles;

use crate::frame::{Frame, FrameKind};
use crate::journal::{JournalError, Segment};
use crate::open::{self, Format, INDEX_FILE, JOURNAL_DIR};
use crate::storage::{Directory, Storage};
use index::Expected;
use walk::Walk;

/// What a verifier brings from elsewhere; the more, the more is proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// A checkpoint that was kept outside: a signed note. The ledger must contain its tree.
    pub checkpoint: Option<String>,
    /// The verifier key of the first epoch. Without it, the ledger's own first record is believed.
    pub vkey: Option<String>,
}

/// The first thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The record at which it shows, counted from 0.
    pub index: u64,
    /// A stable word.
    pub code: &'static str,
    /// What is wrong, for a person.
    pub what: String,
}

impl Place {
    pub(crate) fn new(index: u64, code: &'static str, what: impl Into<String>) -> Self {
        Self {
            index,
            code,
            what: what.into(),
        }
    }
}

/// What verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Records that hold.
    pub records: u64,
    /// Checkpoints that hold.
    pub checkpoints: u64,
    /// Records that a checkpoint covers.
    pub signed_records: u64,
    /// The root of the records that hold, in hexadecimal.
    pub root: String,
    /// The verifier key of the first epoch.
    pub vkey: String,
    /// Whether a process had the ledger open: its last second may not be signed yet.
    pub live: bool,
    /// Whether there was an index to compare.
    pub index_checked: bool,
    /// The first thing that is wrong.
    pub first_bad: Option<Place>,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.first_bad.is_none()
    }
}

/// Why there is nothing to verify. What is wrong with a ledger is in the [`Report`].
#[derive(Debug, Error)]
pub enum VerifyError {
    /// There is none.
    #[error("there is no ledger in {0}")]
    NoLedger(PathBuf),
    /// Something cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The external checkpoint or key is none.
    #[error("what was brought to verify against: {0}")]
    Options(String),
}

/// Verifies the ledger in `directory`.
///
/// # Errors
/// See [`VerifyError`]: only when it cannot be read at all.
pub fn verify(directory: &Path, options: &VerifyOptions) -> Result<Report, VerifyError> {
    let journal_path = directory.join(JOURNAL_DIR);
    if !journal_path.is_dir() {
        return Err(VerifyError::NoLedger(directory.to_owned()));
    }
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |source| VerifyError::Io { path, source }
    };
    let live = open::is_live(directory);
    // What is older is read first: all of it must be in what is read later.
    let published = open::read_checkpoint(directory).or_else(|error| match error.kind() {
        io::ErrorKind::InvalidData => Ok(Some(String::new())),
        _ => Err(io_error(&directory.join("checkpoint"))(error)),
    })?;
    let expected = index::load(&directory.join(INDEX_FILE));
    let mut walk = Walk::new(options)?;
    let mut index_checked = false;
    let result = match Format::read(directory) {
        Ok(Some(format)) => {
            walk.belongs_to(&format.ledger, &format.origin);
            walk.published(published, live).and_then(|()| match expected {
                Ok(expected) => {
                    index_checked = expected.is_some();
                    directory_walk(&journal_path, &mut walk, expected, live)
                }
                Err(place) => Err(place),
            })
        }
        Ok(None) => Err(Place::new(0, "format_missing", "format.json is missing")),
        Err(error) => Err(Place::new(0, "format_damaged", error.to_string())),
    };
    Ok(walk.report(result.err(), live, index_checked))
}

fn directory_walk(
    path: &Path,
    walk: &mut Walk,
    mut expected: Option<Expected>,
    live: bool,
) -> Result<(), Place> {
    let storage = Directory::new(path.to_owned());
    let bases = storage
        .list()
        .map_err(|error| Place::new(0, "journal_unreadable", error.to_string()))?;
    if bases.first() != Some(&0) {
        return Err(Place::new(
            0,
            "segment_missing",
            "the journal's first segment is missing",
        ));
    }
    let mut bases = bases.iter().peekable();
    while let Some(&base) = bases.next() {
        let at = walk.size();
        let segment =
            Segment::read(&storage, base, base, u64::MAX, None).map_err(|error| segment_place(at, &error))?;
        walk.segment(&segment.header)?;
        let (end, error) = segment.frames(|frame| {
            take_frame(walk, &frame)?;
            expected
                .as_mut()
                .map_or(Ok(()), |expected| expected.frame(walk, &frame))
        })?;
        let at = walk.size();
        match (bases.peek(), error) {
            (Some(&&next), None) if next == end => {}
            (Some(&&next), None) => {
                return Err(Place::new(
                    at,
                    "segment_missing",
                    format!("the next segment begins at byte {next} of the journal, this one ends at {end}"),
                ));
            }
            (Some(_), Some(error)) => return Err(Place::new(at, "frame_damaged", error.to_string())),
            (None, None) => {}
            (None, Some(error)) => {
                let rest = segment.rest(end);
                let unused = rest.iter().all(|byte| *byte == 0);
                // A live writer may be in the middle of a write, of which nothing was synced.
                let torn = live && !crate::frame::proves_synced(rest, &segment.header.salt, end);
                if !unused && !torn {
                    return Err(Place::new(
                        at,
                        "frame_damaged",
                        format!("byte {end} of the journal: {error}"),
                    ));
                }
            }
        }
    }
    walk.finish(live)?;
    match expected {
        Some(expected) => expected.finish(walk),
        None if live => Ok(()),
        None => Err(Place::new(
            0,
            "index_missing",
            "index.redb is missing; opening the ledger makes it anew",
        )),
    }
}

fn take_frame(walk: &mut Walk, frame: &Frame<'_>) -> Result<(), Place> {
    let at = walk.size();
    match frame.kind {
        FrameKind::Record => {
            if frame.index != at {
                return Err(Place::new(
                    at,
                    "record_order",
                    format!("record {} stands where record {at} belongs", frame.index),
                ));
            }
            walk.record(frame.payload)
        }
        FrameKind::Checkpoint => {
            if frame.index != at {
                return Err(Place::new(
                    at,
                    "checkpoint_order",
                    format!("a checkpoint of {} records stands after {at}", frame.index),
                ));
            }
            walk.note(frame.payload)
        }
    }
}

fn segment_place(at: u64, error: &JournalError) -> Place {
    let code = match error {
        JournalError::Version(_) => "other_version",
        JournalError::Io { .. } => "journal_unreadable",
        JournalError::Damaged { .. } | JournalError::Broken | JournalError::Length(_) => "segment_damaged",
    };
    Place::new(at, code, error.to_string())
}
