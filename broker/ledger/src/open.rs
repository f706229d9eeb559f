//! Opening a ledger: whose it is, what a crash left, and whether anything is missing.
//!
//! 1. one process at a time, by a lock that ends with the process;
//! 2. `format.json` says which ledger this is and which version wrote it;
//! 3. the index says how far it has come; the journal is read from there, and every frame, record and checkpoint checked;
//! 4. the checkpoint file beside the store must describe a tree that these records have: else something was rolled back;
//! 5. decisions that a crash left without an outcome get `unknown_crash`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use wallgate_types::clock::Clock;
use wallgate_types::record::{OutcomeRecord, OutcomeResult};
use wallgate_types::request::RequestId;
use wallgate_types::sandbox::SandboxId;

use crate::canonical;
use crate::checkpoint::Checkpoint;
use crate::entropy;
use crate::fold::{CREATED, Delta, Fold, FoldError, LeafRow, STARTED, State, Unanswered, answer};
use crate::frame::FORMAT;
use crate::index::{Index, IndexError, Snapshot, Subtrees};
use crate::journal::{Cut, Journal, JournalError};
use crate::keys::{self, KeyError};
use crate::log::{Log, LogError};
use crate::note::SignerKey;
use crate::record::{Author, Envelope, Kind};
use crate::storage::{Directory, Storage, write_atomically};
use crate::tree::range_root;

pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const FORMAT_FILE: &str = "format.json";
pub(crate) const CHECKPOINT_FILE: &str = "checkpoint";
pub(crate) const INDEX_FILE: &str = "index.redb";
pub(crate) const JOURNAL_DIR: &str = "journal";
/// The name in `format.json`.
const FORMAT_NAME: &str = "wallgate-ledger";
/// The longest origin, in bytes.
const MAX_ORIGIN_BYTES: usize = 255;
/// A reader that looks whether a ledger is live holds the lock for a moment.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// How a ledger is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerOptions {
    /// The log's name in its checkpoints, and its keys' name; `wallgate/<ledger id>` when `None`. Fixed at creation.
    pub origin: Option<String>,
    /// A checkpoint is signed at least this often while there are new records.
    pub checkpoint_every: Duration,
    /// A checkpoint is signed after this many records.
    pub checkpoint_records: u64,
    /// What the start record says besides: the program's version, the configuration's digest … Never a secret.
    pub start: Value,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            origin: None,
            checkpoint_every: Duration::from_secs(1),
            checkpoint_records: 256,
            start: json!({}),
        }
    }
}

/// Why a ledger does not open. The text is for the operator; a sandbox never sees it.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the ledger in {path} is already in use by another wallgate")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// Another version wrote it.
    #[error(
        "the ledger in {path} was written by another version of wallgate (format {found}, this one reads {FORMAT})"
    )]
    OtherVersion {
        /// The directory.
        path: PathBuf,
        /// The format's version.
        found: u64,
    },
    /// `format.json` is not what was written.
    #[error("{path} is not a ledger's format file: {what}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The origin that was asked for is not the ledger's.
    #[error("this ledger's origin is {found:?}; it cannot be changed to {wanted:?}")]
    Origin {
        /// The ledger's.
        found: String,
        /// The configured one.
        wanted: String,
    },
    /// The signing key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A checkpoint says that there were records which are not there, or other ones.
    #[error(
        "the ledger was rolled back or altered: the checkpoint beside it is of {checkpoint} records, and the {records} records here do not have its root"
    )]
    Rollback {
        /// The checkpoint's size.
        checkpoint: u64,
        /// How many records there are.
        records: u64,
    },
    /// Something that no crash explains. Nothing was changed.
    #[error("the ledger is damaged ({place}): {what}. Nothing was changed; see `wallgate ledger verify`")]
    Damaged {
        /// Where.
        place: String,
        /// What.
        what: String,
    },
    /// The directory cannot be used.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// A stable word for what went wrong.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "ledger_in_use",
            Self::OtherVersion { .. } => "ledger_other_version",
            Self::Format { .. } => "ledger_format",
            Self::Origin { .. } => "ledger_origin",
            Self::Key(_) => "ledger_key",
            Self::Rollback { .. } => "ledger_rollback",
            Self::Damaged { .. } => "ledger_damaged",
            Self::Io { .. } => "ledger_io",
        }
    }
}

impl From<JournalError> for OpenError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io { doing, source } => Self::Io {
                doing: doing.to_owned(),
                source,
            },
            JournalError::Damaged { position, what } => Self::Damaged {
                place: format!("byte {position} of the journal"),
                what,
            },
            JournalError::Version(found) => Self::OtherVersion {
                path: PathBuf::from(JOURNAL_DIR),
                found: u64::from(found),
            },
            other @ (JournalError::Broken | JournalError::Length(_)) => Self::Damaged {
                place: "journal".to_owned(),
                what: other.to_string(),
            },
        }
    }
}

impl From<FoldError> for OpenError {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::Journal(error) => error.into(),
            FoldError::Record { index, what } => Self::Damaged {
                place: format!("record {index}"),
                what,
            },
            FoldError::Note { size, what } => Self::Damaged {
                place: format!("checkpoint of {size} records"),
                what,
            },
        }
    }
}

impl From<IndexError> for OpenError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Redb(error) => match *error {
                redb::Error::DatabaseAlreadyOpen => Self::InUse {
                    path: PathBuf::from(INDEX_FILE),
                },
                other => Self::Damaged {
                    place: INDEX_FILE.to_owned(),
                    what: format!("{other}; it can be deleted, and is then made anew from the journal"),
                },
            },
            other @ (IndexError::Damaged(_) | IndexError::Row(_)) => Self::Damaged {
                place: INDEX_FILE.to_owned(),
                what: format!("{other}; it can be deleted, and is then made anew from the journal"),
            },
        }
    }
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Journal(error) => error.into(),
            LogError::Key(error) => Self::Key(error),
            LogError::Encode(what) => Self::Damaged {
                place: "start record".to_owned(),
                what,
            },
        }
    }
}

fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let doing = doing.into();
    move |source| OpenError::Io { doing, source }
}

/// What opening found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How many records there were.
    pub records: u64,
    /// Decisions that got the outcome `unknown_crash`.
    pub orphans: u64,
    /// Bytes of a torn write, never acknowledged, that were cut off.
    pub cut_bytes: u64,
}

/// `format.json`: the one file to read before anything else is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Format {
    #[serde(rename = "format")]
    name: String,
    pub(crate) ledger: String,
    pub(crate) origin: String,
    version: u64,
}

impl Format {
    fn new(origin: Option<&str>) -> Self {
        let ledger = hex::encode(entropy::bytes::<16>());
        Self {
            name: FORMAT_NAME.to_owned(),
            origin: origin.map_or_else(|| format!("wallgate/{ledger}"), str::to_owned),
            ledger,
            version: u64::from(FORMAT),
        }
    }

    fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json_canonicalizer::to_vec(self)
    }

    /// Reads the file; `None` when there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, OpenError> {
        let path = directory.join(FORMAT_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io_error(format!("reading {}", path.display()))(source)),
        };
        let bad = |what: String| OpenError::Format {
            path: path.clone(),
            what,
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        let version = value.get("version").and_then(Value::as_u64);
        if let (Some(FORMAT_NAME), Some(found)) = (value.get("format").and_then(Value::as_str), version)
            && found != u64::from(FORMAT)
        {
            return Err(OpenError::OtherVersion {
                path: directory.to_owned(),
                found,
            });
        }
        let format: Self = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
        let canonical = format.encode().map_err(|error| bad(error.to_string()))?;
        if format.name != FORMAT_NAME || canonical != bytes || format.ledger_id().is_none() {
            return Err(bad("it does not hold what wallgate writes".to_owned()));
        }
        Ok(Some(format))
    }

    pub(crate) fn ledger_id(&self) -> Option<[u8; 16]> {
        let mut id = [0; 16];
        hex::decode_to_slice(&self.ledger, &mut id).ok()?;
        Some(id)
    }
}

/// Takes the ledger's lock, which ends with the returned file.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(io_error(format!("opening {}", path.display())))?;
    for attempt in 1.. {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: directory.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => {
                return Err(io_error(format!("locking {}", path.display()))(source));
            }
        }
    }
    Ok(file)
}

/// Whether some process has the ledger open for writing.
pub(crate) fn is_live(directory: &Path) -> bool {
    File::open(directory.join(LOCK_FILE))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The checkpoint file, if there is one.
pub(crate) fn read_checkpoint(directory: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(directory.join(CHECKPOINT_FILE)) {
        Ok(note) => Ok(Some(note)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts the latest checkpoint beside the store, whole or not at all.
pub(crate) fn publish_checkpoint(directory: &Path, note: &str) -> io::Result<()> {
    write_atomically(&directory.join(CHECKPOINT_FILE), note.as_bytes(), 0o644)
}

/// An open ledger, before its threads start.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) lock: File,
    pub(crate) recovered: Recovered,
    /// Decisions without an outcome, as far as the index has come.
    pub(crate) unanswered: Unanswered,
    /// Durable records that the index has not seen.
    pub(crate) delta: Delta,
    pub(crate) state: State,
    pub(crate) note: String,
}

/// Opens the ledger in `directory`, or makes one.
pub(crate) fn open(
    directory: &Path,
    options: &LedgerOptions,
    clock: Arc<dyn Clock>,
) -> Result<Opened, OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory.join(JOURNAL_DIR))
        .map_err(io_error(format!("making {}", directory.display())))?;
    let lock = lock(directory)?;
    let format = identify(directory, options.origin.as_deref())?;
    let (index, state) = Index::open(&directory.join(INDEX_FILE))?;
    let storage = Box::new(Directory::new(directory.join(JOURNAL_DIR)));
    let published = read_checkpoint(directory).map_err(io_error("reading the checkpoint file"))?;
    let unanswered = state.unanswered.clone();
    let snapshot = index.snapshot()?;
    let read = replay(storage, &format, snapshot.as_ref(), state, published.as_deref())?;
    drop(snapshot);
    let opened = begin(directory, options, clock, &format, read)?;
    publish_checkpoint(directory, &opened.note).map_err(io_error("writing the checkpoint file"))?;
    Ok(Opened {
        log: opened.log,
        index,
        lock,
        recovered: opened.recovered,
        unanswered,
        delta: opened.delta,
        state: opened.state,
        note: opened.note,
    })
}

/// Which ledger this is; a new one gets its name now.
fn identify(directory: &Path, origin: Option<&str>) -> Result<Format, OpenError> {
    if let Some(format) = Format::read(directory)? {
        return match origin {
            Some(wanted) if wanted != format.origin => Err(OpenError::Origin {
                found: format.origin,
                wanted: wanted.to_owned(),
            }),
            Some(_) | None => Ok(format),
        };
    }
    let path = directory.join(FORMAT_FILE);
    let bad = |what: &str| OpenError::Format {
        path: path.clone(),
        what: what.to_owned(),
    };
    let journal = Directory::new(directory.join(JOURNAL_DIR));
    let segments = journal.list().map_err(io_error("listing the journal"))?;
    if !segments.is_empty() {
        return Err(bad("it is missing, and there are records"));
    }
    if origin.is_some_and(|origin| origin.is_empty() || origin.len() > MAX_ORIGIN_BYTES) {
        return Err(bad("an origin has 1 to 255 bytes"));
    }
    let format = Format::new(origin);
    let bytes = format.encode().map_err(|error| bad(&error.to_string()))?;
    write_atomically(&path, &bytes, 0o644).map_err(io_error(format!("writing {}", path.display())))?;
    Ok(format)
}

/// The journal, read to its end.
#[derive(Debug)]
pub(crate) struct Replayed {
    journal: Journal,
    fold: Fold,
    cut: Option<Cut>,
    orphans: Vec<Orphan>,
}

/// A decision whose outcome nobody knows.
#[derive(Debug)]
struct Orphan {
    request: u128,
    sandbox: SandboxId,
}

/// Reads what the index has not seen, and checks it against everything that knows better.
pub(crate) fn replay(
    storage: Box<dyn Storage>,
    format: &Format,
    snapshot: Option<&Snapshot>,
    state: State,
    published: Option<&str>,
) -> Result<Replayed, OpenError> {
    let damaged_checkpoint = |what: String| OpenError::Damaged {
        place: "checkpoint file".to_owned(),
        what,
    };
    let published = published
        .map(Checkpoint::unverified)
        .transpose()
        .map_err(|error| damaged_checkpoint(error.to_string()))?;
    if let Some(checkpoint) = &published
        && checkpoint.origin != format.origin
    {
        return Err(damaged_checkpoint(format!("it is of {}", checkpoint.origin)));
    }
    let ledger = format.ledger_id().unwrap_or_default();
    let start = state.position;
    let mut fold = Fold::from_state(state);
    let began = !storage
        .list()
        .map_err(io_error("listing the journal"))?
        .is_empty();
    if let (Some(checkpoint), false) = (&published, began) {
        return Err(OpenError::Rollback {
            checkpoint: checkpoint.size,
            records: 0,
        });
    }
    let mut journal = Journal::open(storage, ledger, start, |frame| fold.frame(&format.ledger, &frame))?;
    let subtrees = Subtrees {
        snapshot,
        tail: &fold.delta.leaves,
    };
    let records = fold.state.size();
    if range_root(&subtrees, 0, records)? != fold.state.frontier.root() {
        return Err(OpenError::Damaged {
            place: INDEX_FILE.to_owned(),
            what: "its hashes do not fit its state; it can be deleted, and is then made anew".to_owned(),
        });
    }
    if let Some(checkpoint) = published
        && (checkpoint.size > records || range_root(&subtrees, 0, checkpoint.size)? != checkpoint.root)
    {
        return Err(OpenError::Rollback {
            checkpoint: checkpoint.size,
            records,
        });
    }
    let cut = journal.mend()?;
    let mut unanswered = std::mem::take(&mut fold.state.unanswered);
    for row in &fold.delta.leaves {
        answer(&mut unanswered, row);
    }
    let mut orphans = Vec::new();
    for (request, index) in unanswered {
        let row = subtrees.leaf(index)?.ok_or_else(|| OpenError::Damaged {
            place: format!("record {index}"),
            what: "the index has no row of it".to_owned(),
        })?;
        orphans.push(orphan(&mut journal, request, &row)?);
    }
    Ok(Replayed {
        journal,
        fold,
        cut,
        orphans,
    })
}

fn orphan(journal: &mut Journal, request: u128, row: &LeafRow) -> Result<Orphan, OpenError> {
    let bad = |what: String| OpenError::Damaged {
        place: format!("record {}", row.index),
        what,
    };
    let stored = journal.read(row.position)?;
    let record = Envelope::parse(&stored).map_err(|error| bad(error.to_string()))?;
    let sandbox = record
        .text("sandbox")
        .and_then(|sandbox| sandbox.parse().ok())
        .filter(|_| record.request_id() == Some(request))
        .ok_or_else(|| bad("it is not the decision that the index says it is".to_owned()))?;
    Ok(Orphan { request, sandbox })
}

/// A log that has its start record.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) log: Log,
    pub(crate) recovered: Recovered,
    pub(crate) delta: Delta,
    pub(crate) state: State,
    pub(crate) note: String,
}

/// Writes the first record of a new ledger, the start record, and an outcome for each orphan; signs and syncs.
pub(crate) fn begin(
    directory: &Path,
    options: &LedgerOptions,
    clock: Arc<dyn Clock>,
    format: &Format,
    read: Replayed,
) -> Result<Begun, OpenError> {
    let Replayed {
        journal,
        fold,
        cut,
        orphans,
    } = read;
    let state = &fold.state;
    let recovered = Recovered {
        records: state.size(),
        orphans: orphans.len() as u64,
        cut_bytes: cut.as_ref().map_or(0, |cut| cut.bytes),
    };
    let signer: SignerKey = match &state.vkey {
        Some(vkey) => keys::named(directory, vkey)?,
        None if state.size() == 0 => keys::first(directory, &format.origin)?,
        None => {
            return Err(OpenError::Damaged {
                place: "record 0".to_owned(),
                what: "it names no verifier key".to_owned(),
            });
        }
    };
    let author = Author {
        ledger: format.ledger.clone(),
        boot: hex::encode(entropy::bytes::<8>()),
        epoch: state.epoch,
    };
    let mut log = Log {
        journal,
        fold,
        author,
        signer,
        clock,
        directory: directory.to_owned(),
    };
    if log.size() == 0 {
        let vkey = log.signer.verifier().to_string();
        log.first(CREATED, json!({"origin": format.origin, "vkey": vkey.clone()}))?;
        log.fold.state.vkey = Some(vkey);
    }
    let cut = cut.map(|cut| json!({"bytes": cut.bytes, "position": cut.position, "sha256": cut.sha256}));
    let detail = json!({
        "previous": log.head(),
        "recovered": {"cut": cut, "orphans": recovered.orphans},
        "with": options.start,
    });
    log.first(STARTED, detail)?;
    for orphan in orphans {
        let body = unknown_crash(&orphan)?;
        log.append(Kind::Outcome, &body, Some(orphan.request))?;
    }
    let note = log.checkpoint()?;
    let (delta, state) = log.sync()?;
    Ok(Begun {
        log,
        recovered,
        delta,
        state,
        note,
    })
}

fn unknown_crash(orphan: &Orphan) -> Result<Vec<u8>, OpenError> {
    let outcome = OutcomeRecord {
        request_id: RequestId(orphan.request),
        sandbox: orphan.sandbox.clone(),
        result: OutcomeResult::UnknownCrash,
        error: Some("broker_crashed".to_owned()),
        status: None,
        dialled: None,
        request_bytes: 0,
        response_bytes: 0,
        duration_us: 0,
        credentials: Vec::new(),
        scrubbed: 0,
    };
    let bad = |what: String| OpenError::Damaged {
        place: "recovery".to_owned(),
        what,
    };
    let value = serde_json::to_value(&outcome).map_err(|error| bad(error.to_string()))?;
    canonical::body(value).map_err(|error| bad(error.to_string()))
}
