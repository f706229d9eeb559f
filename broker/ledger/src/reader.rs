//! Reading, also while another process writes.
//!
//! What the index has is looked up there; the second or so that it is behind is folded from the journal's tail in memory.
//! A reader takes no lock, and can neither delay nor harm the writer.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use wallgate_types::clock::Timestamp;

use crate::fold::{Fold, FoldError, LeafRow, NoteRow};
use crate::index::{IndexError, NONE, Snapshot, Subtrees};
use crate::journal::{JournalError, Segment, bases_from};
use crate::limits::{INDEX_RECORDS, MAX_FRAME_BYTES, MAX_HITS, QUERY_CHUNK};
use crate::open::{Format, INDEX_FILE, JOURNAL_DIR, OpenError};
use crate::proof::TlogProof;
use crate::record::{Envelope, Kind, parse_request_id};
use crate::recorded::LeafIndex;
use crate::storage::{Directory, Storage};
use crate::tree::{Hash, prove_inclusion};

/// Why a ledger cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// There is none.
    #[error("there is no ledger in {0}")]
    NoLedger(PathBuf),
    /// Its format file.
    #[error(transparent)]
    Open(#[from] Box<OpenError>),
    /// Something does not hang together.
    #[error("{place}: {what}")]
    Damaged {
        /// Where.
        place: String,
        /// What.
        what: String,
    },
    /// The system.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// What it said.
        source: io::Error,
    },
    /// Not 32 lower-case hexadecimal digits.
    #[error("{0:?} is not a request id: those have 32 hexadecimal digits")]
    RequestId(String),
    /// No such record, or none that a checkpoint covers yet.
    #[error("record {0} is in no signed checkpoint yet")]
    NotSigned(u64),
}

impl From<JournalError> for ReadError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io { doing, source } => Self::Io {
                doing: doing.to_owned(),
                source,
            },
            other => Self::Damaged {
                place: "journal".to_owned(),
                what: other.to_string(),
            },
        }
    }
}

impl From<FoldError> for ReadError {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::Journal(error) => error.into(),
            other @ (FoldError::Record { .. } | FoldError::Note { .. }) => Self::Damaged {
                place: "journal".to_owned(),
                what: other.to_string(),
            },
        }
    }
}

impl From<IndexError> for ReadError {
    fn from(error: IndexError) -> Self {
        Self::Damaged {
            place: INDEX_FILE.to_owned(),
            what: error.to_string(),
        }
    }
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Its place.
    pub index: LeafIndex,
    /// Its bytes, which are JSON. Show them through [`crate::display::inert`].
    pub json: String,
}

/// A record that was found, and for a decision what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// The record.
    pub record: Stored,
    /// Its outcome, when it is a decision that has one.
    pub outcome: Option<Stored>,
}

/// Which records are wanted. What is `None` does not matter; the rest must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Not before this time.
    pub from: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// The sandbox, exactly.
    pub sandbox: Option<String>,
    /// The host, exactly.
    pub host: Option<String>,
    /// `allow`, `deny` or `ask`.
    pub verdict: Option<String>,
    /// The rule, exactly.
    pub rule: Option<String>,
    /// A credential that was asked for or used.
    pub credential: Option<String>,
    /// Decisions, outcomes or control records only.
    pub kind: Option<Kind>,
    /// One request's records: looked up, not searched for.
    pub request_id: Option<String>,
    /// At most so many; [`MAX_HITS`] when `None`.
    pub limit: Option<usize>,
}

impl Filter {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(MAX_HITS)
    }

    fn row_matches(&self, row: &LeafRow) -> bool {
        self.kind.is_none_or(|kind| kind == row.kind)
            && self.from.is_none_or(|from| row.time_ms >= from.0)
            && self.until.is_none_or(|until| row.time_ms < until.0)
    }

    fn wants_body(&self) -> bool {
        [
            &self.sandbox,
            &self.host,
            &self.verdict,
            &self.rule,
            &self.credential,
            &self.request_id,
        ]
        .iter()
        .any(|wanted| wanted.is_some())
    }

    fn body_matches(&self, record: &Envelope) -> bool {
        let same = |wanted: &Option<String>, key: &str| {
            wanted
                .as_deref()
                .is_none_or(|wanted| record.text(key) == Some(wanted))
        };
        same(&self.sandbox, "sandbox")
            && same(&self.host, "host")
            && same(&self.verdict, "verdict")
            && same(&self.rule, "rule")
            && same(&self.request_id, "request_id")
            && self
                .credential
                .as_deref()
                .is_none_or(|name| names_credential(&record.body, name))
    }
}

/// Decisions list names, outcomes list uses.
fn names_credential(body: &Value, name: &str) -> bool {
    let listed = body.get("credentials").and_then(Value::as_array);
    listed.is_some_and(|listed| {
        listed.iter().any(|entry| {
            entry
                .as_str()
                .or_else(|| entry.get("name").and_then(Value::as_str))
                == Some(name)
        })
    })
}

/// A ledger, open for reading.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    format: Format,
    journal: Directory,
    snapshot: Option<Snapshot>,
    /// What follows the snapshot.
    fold: Fold,
    /// Requests of the tail: their decision and outcome.
    requests: HashMap<u128, (u64, u64)>,
}

impl Reader {
    /// Opens the ledger in `directory` as it is now.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn open(directory: &Path) -> Result<Self, ReadError> {
        let format = Format::read(directory)
            .map_err(Box::new)?
            .ok_or_else(|| ReadError::NoLedger(directory.to_owned()))?;
        let mut reader = Self {
            directory: directory.to_owned(),
            format,
            journal: Directory::new(directory.join(JOURNAL_DIR)),
            snapshot: None,
            fold: Fold::default(),
            requests: HashMap::new(),
        };
        reader.reopen()?;
        Ok(reader)
    }

    /// Takes the index as it is now, and reads the tail anew.
    fn reopen(&mut self) -> Result<(), ReadError> {
        let path = self.directory.join(INDEX_FILE);
        self.snapshot = None;
        self.snapshot = if path.exists() {
            Snapshot::open(&path)?
        } else {
            None
        };
        let state = self
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.state().clone())
            .unwrap_or_default();
        self.fold = Fold::from_state(state);
        self.requests.clear();
        self.read_tail()
    }

    fn read_tail(&mut self) -> Result<(), ReadError> {
        let seen = self.fold.delta.leaves.len();
        let bases = self.journal.list().map_err(|source| ReadError::Io {
            doing: "listing the journal".to_owned(),
            source,
        })?;
        let ledger = self.format.ledger_id();
        for base in bases_from(&bases, self.fold.state.position) {
            let start = self.fold.state.position;
            let segment = Segment::read(&self.journal, *base, start, u64::MAX, ledger.as_ref())?;
            // What is no frame is being written just now, or is the verifier's business.
            let (_end, _why): (u64, _) = segment
                .frames(|frame| self.fold.frame(&self.format.ledger, &frame))
                .map_err(ReadError::from)?;
        }
        for row in self.fold.delta.leaves.iter().skip(seen) {
            let Some(request) = row.request else { continue };
            match row.kind {
                Kind::Decision => {
                    self.requests.insert(request, (row.index, NONE));
                }
                Kind::Outcome => {
                    let known = match self.requests.get(&request) {
                        Some(places) => Some(*places),
                        None => match &self.snapshot {
                            Some(snapshot) => snapshot.request(request)?,
                            None => None,
                        },
                    };
                    if let Some((decision, NONE)) = known {
                        self.requests.insert(request, (decision, row.index));
                    }
                }
                Kind::Control => {}
            }
        }
        Ok(())
    }

    /// Looks for new records; returns the new size. For following a ledger that is being written.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn refresh(&mut self) -> Result<u64, ReadError> {
        if self.fold.delta.leaves.len() > INDEX_RECORDS {
            self.reopen()?;
        } else {
            self.read_tail()?;
        }
        Ok(self.size())
    }

    /// The number of records.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.fold.state.size()
    }

    /// The log's name in its checkpoints.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.format.origin
    }

    /// The record at `index`.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn get(&self, index: LeafIndex) -> Result<Option<Stored>, ReadError> {
        let Some(row) = self.subtrees().leaf(index.0)? else {
            return Ok(None);
        };
        Ok(self.load(&[row])?.pop())
    }

    /// A request's decision, with its outcome. This is a lookup, however long the ledger is.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn by_request(&self, request_id: &str) -> Result<Option<Hit>, ReadError> {
        let Some((decision, _)) = self.places(request_id)? else {
            return Ok(None);
        };
        let Some(record) = self.get(LeafIndex(decision))? else {
            return Ok(None);
        };
        self.hit(record).map(Some)
    }

    fn places(&self, request_id: &str) -> Result<Option<(u64, u64)>, ReadError> {
        let request =
            parse_request_id(request_id).ok_or_else(|| ReadError::RequestId(request_id.to_owned()))?;
        self.places_of(request)
    }

    fn places_of(&self, request: u128) -> Result<Option<(u64, u64)>, ReadError> {
        if let Some(places) = self.requests.get(&request) {
            return Ok(Some(*places));
        }
        match &self.snapshot {
            Some(snapshot) => Ok(snapshot.request(request)?),
            None => Ok(None),
        }
    }

    /// The newest records that match, oldest first.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn query(&self, filter: &Filter) -> Result<Vec<Hit>, ReadError> {
        let mut hits = Vec::new();
        if let Some(request_id) = &filter.request_id {
            let Some((decision, outcome)) = self.places(request_id)? else {
                return Ok(hits);
            };
            for index in [decision, outcome] {
                if let Some(row) = self.subtrees().leaf(index)? {
                    self.keep(&[row], filter, &mut hits)?;
                }
            }
            hits.truncate(filter.limit());
            return Ok(hits);
        }
        let lowest = self.first_at(filter.from)?;
        let mut end = self.size();
        while end > lowest && hits.len() < filter.limit() {
            let start = end.saturating_sub(QUERY_CHUNK).max(lowest);
            let mut found = Vec::new();
            self.scan(start, end, filter, &mut found)?;
            hits.extend(found.into_iter().rev());
            end = start;
        }
        hits.truncate(filter.limit());
        hits.reverse();
        Ok(hits)
    }

    /// The first records from `from` on that match, oldest first: for reading on where one stopped.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn since(&self, from: LeafIndex, filter: &Filter) -> Result<Vec<Hit>, ReadError> {
        let mut hits = Vec::new();
        let mut start = from.0.max(self.first_at(filter.from)?);
        while start < self.size() && hits.len() < filter.limit() {
            let end = start.saturating_add(QUERY_CHUNK).min(self.size());
            self.scan(start, end, filter, &mut hits)?;
            start = end;
        }
        hits.truncate(filter.limit());
        Ok(hits)
    }

    fn scan(&self, start: u64, end: u64, filter: &Filter, hits: &mut Vec<Hit>) -> Result<(), ReadError> {
        let subtrees = self.subtrees();
        let mut rows = Vec::new();
        for index in start..end {
            if let Some(row) = subtrees.leaf(index)?
                && filter.row_matches(&row)
            {
                rows.push(row);
            }
        }
        self.keep(&rows, filter, hits)
    }

    /// Adds the records of these rows that match.
    fn keep(&self, rows: &[LeafRow], filter: &Filter, hits: &mut Vec<Hit>) -> Result<(), ReadError> {
        for stored in self.load(rows)? {
            let matches = !filter.wants_body() || filter.body_matches(&parse(&stored)?);
            if matches {
                hits.push(self.hit(stored)?);
            }
        }
        Ok(())
    }

    fn hit(&self, record: Stored) -> Result<Hit, ReadError> {
        let parsed = parse(&record)?;
        let outcome = match (parsed.kind, parsed.request_id()) {
            (Kind::Decision, Some(request)) => match self.places_of(request)? {
                Some((decision, outcome)) if decision == record.index.0 && outcome != NONE => {
                    self.get(LeafIndex(outcome))?
                }
                Some(_) | None => None,
            },
            (Kind::Decision | Kind::Outcome | Kind::Control, _) => None,
        };
        Ok(Hit { record, outcome })
    }

    /// The first record before which all are older than `from`, by halving.
    fn first_at(&self, from: Option<Timestamp>) -> Result<u64, ReadError> {
        let Some(from) = from else { return Ok(0) };
        let subtrees = self.subtrees();
        let (mut low, mut high) = (0, self.size());
        while low < high {
            let middle = low.midpoint(high);
            let latest = subtrees.leaf(middle)?.map_or(u64::MAX, |row| row.latest_ms);
            if latest < from.0 {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The records of these rows, in their order.
    fn load(&self, rows: &[LeafRow]) -> Result<Vec<Stored>, ReadError> {
        let bases = self.journal.list().map_err(|source| ReadError::Io {
            doing: "listing the journal".to_owned(),
            source,
        })?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        let mut stored = Vec::new();
        let mut segment: Option<Segment> = None;
        for row in rows {
            let base = bases_from(&bases, row.position).first().copied().unwrap_or(0);
            let current = match segment.take() {
                Some(current) if current.header.base == base => current,
                _ => {
                    let start = row.position.min(first.position.max(base));
                    let span = last
                        .position
                        .saturating_sub(start)
                        .saturating_add(MAX_FRAME_BYTES);
                    Segment::read(&self.journal, base, start, span, None)?
                }
            };
            let rest = current.rest(row.position);
            let bad = |what: String| ReadError::Damaged {
                place: format!("record {}", row.index),
                what,
            };
            let frame = crate::frame::decode(rest, &current.header.salt, row.position)
                .map_err(|error| bad(error.to_string()))?;
            if frame.index != row.index {
                return Err(bad(format!("record {} stands in its place", frame.index)));
            }
            let json = String::from_utf8(frame.payload.to_vec()).map_err(|error| bad(error.to_string()))?;
            stored.push(Stored {
                index: LeafIndex(row.index),
                json,
            });
            segment = Some(current);
        }
        Ok(stored)
    }

    const fn subtrees(&self) -> Subtrees<'_> {
        Subtrees {
            snapshot: self.snapshot.as_ref(),
            tail: self.fold.delta.leaves.as_slice(),
        }
    }

    fn last_note(&self) -> Result<Option<(NoteRow, String)>, ReadError> {
        let row = match (self.fold.delta.notes.last(), &self.snapshot) {
            (Some(row), _) => Some(*row),
            (None, Some(snapshot)) => snapshot.last_note()?,
            (None, None) => None,
        };
        let Some(row) = row else { return Ok(None) };
        let bases = self.journal.list().map_err(|source| ReadError::Io {
            doing: "listing the journal".to_owned(),
            source,
        })?;
        let base = bases_from(&bases, row.position).first().copied().unwrap_or(0);
        let segment = Segment::read(&self.journal, base, row.position, MAX_FRAME_BYTES, None)?;
        let bad = |what: String| ReadError::Damaged {
            place: format!("checkpoint of {} records", row.size),
            what,
        };
        let frame = crate::frame::decode(segment.rest(row.position), &segment.header.salt, row.position)
            .map_err(|error| bad(error.to_string()))?;
        let note = String::from_utf8(frame.payload.to_vec()).map_err(|error| bad(error.to_string()))?;
        Ok(Some((row, note)))
    }

    /// The last checkpoint: a signed note.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn checkpoint(&self) -> Result<Option<String>, ReadError> {
        Ok(self.last_note()?.map(|(_, note)| note))
    }

    /// The size that the last checkpoint covers.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn signed_size(&self) -> Result<u64, ReadError> {
        Ok(self.last_note()?.map_or(0, |(row, _)| row.size))
    }

    /// The verifier key of the ledger's first epoch: what an auditor should have from elsewhere.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn vkey(&self) -> Result<String, ReadError> {
        let missing = || ReadError::Damaged {
            place: "record 0".to_owned(),
            what: "it names no verifier key".to_owned(),
        };
        let first = self.get(LeafIndex(0))?.ok_or_else(missing)?;
        let vkey = parse(&first)?
            .body
            .get("detail")
            .and_then(|detail| detail.get("vkey"))
            .and_then(Value::as_str)
            .map(str::to_owned);
        vkey.ok_or_else(missing)
    }

    /// The proof, as a C2SP `tlog-proof` file, that the record stands at `index` of the last checkpoint's tree.
    ///
    /// # Errors
    /// [`ReadError::NotSigned`] when no checkpoint covers it yet.
    pub fn prove(&self, index: LeafIndex) -> Result<String, ReadError> {
        let (row, checkpoint) = self.last_note()?.ok_or(ReadError::NotSigned(index.0))?;
        if index.0 >= row.size {
            return Err(ReadError::NotSigned(index.0));
        }
        let proof = TlogProof {
            index: index.0,
            path: prove_inclusion(&self.subtrees(), index.0, row.size)?,
            checkpoint,
        };
        Ok(proof.encode())
    }

    /// The hash of the record at `index`.
    pub(crate) fn leaf_hash(&self, index: u64) -> Result<Hash, ReadError> {
        let row = self.subtrees().leaf(index)?;
        row.map(|row| row.hash).ok_or_else(|| ReadError::Damaged {
            place: format!("record {index}"),
            what: "the index has no row of it".to_owned(),
        })
    }
}

fn parse(stored: &Stored) -> Result<Envelope, ReadError> {
    Envelope::parse(stored.json.as_bytes()).map_err(|error| ReadError::Damaged {
        place: format!("record {}", stored.index.0),
        what: error.to_string(),
    })
}
