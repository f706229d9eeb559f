//! The journal: what was appended and synced is the ledger. Everything else is derived from it.
//!
//! ```text
//!   push ─▶ buffer ─write─▶ page cache ─sync─▶ disk        one sync makes a whole batch durable
//! ```
//!
//! A failed write or sync breaks the journal for good: after an `fsync` error nobody knows what is on disk, and asking again
//! may report success for pages that are gone. Only opening anew, which reads what is really there, mends it.
//!
//! Opening cuts off a torn tail, and nothing else. A tail is torn when it lies at the end of the last segment, no frame
//! beyond it proves that it had been synced ([`frame::proves_synced`]), and nobody outside (the index, the checkpoint file:
//! see [`crate::log`]) knows of more. What was cut is counted, digested and put into the start record.

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::entropy;
use crate::frame::{self, Frame, FrameError, FrameKind, SEGMENT_HEADER, SegmentHeader};
use crate::limits::{GROW_BYTES, MAX_FRAME_BYTES, SEGMENT_BYTES};
use crate::storage::Storage;

/// Why the journal cannot be read or written.
#[derive(Debug, Error)]
pub(crate) enum JournalError {
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: std::io::Error,
    },
    #[error("at byte {position} of the journal: {what}")]
    Damaged { position: u64, what: String },
    #[error("the journal was written by another version: format {0}, this program reads {format}", format = frame::FORMAT)]
    Version(u32),
    #[error("a write or sync failed before")]
    Broken,
    #[error("a record of {0} bytes does not fit a frame")]
    Length(usize),
}

fn io_error(doing: &'static str) -> impl FnOnce(std::io::Error) -> JournalError {
    move |source| JournalError::Io { doing, source }
}

fn damaged(position: u64, what: impl Into<String>) -> JournalError {
    JournalError::Damaged {
        position,
        what: what.into(),
    }
}

/// What opening cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// The open journal: the only thing that appends.
#[derive(Debug)]
pub(crate) struct Journal {
    storage: Box<dyn Storage>,
    ledger: [u8; 16],
    salt: [u8; 16],
    base: u64,
    /// Where the next frame goes.
    end: u64,
    /// Before this, everything is on disk.
    synced: u64,
    /// The last segment's file reaches to here.
    allocated: u64,
    buffer: Vec<u8>,
    torn: Option<Cut>,
    broken: bool,
    segment_bytes: u64,
}

/// One segment, read from somewhere in it to its end.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// Where `bytes` begin.
    pub(crate) position: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Segment {
    /// Reads the segment at `base` from `start` (or its first frame) on, at most `limit` bytes of it.
    pub(crate) fn read(
        storage: &dyn Storage,
        base: u64,
        start: u64,
        limit: u64,
        ledger: Option<&[u8; 16]>,
    ) -> Result<Self, JournalError> {
        let head = storage
            .read(base, 0, SEGMENT_HEADER as u64)
            .map_err(io_error("reading the journal"))?;
        let header = SegmentHeader::parse(&head).map_err(|error| match error {
            FrameError::Version(version) => JournalError::Version(version),
            other => damaged(base, other.to_string()),
        })?;
        if header.base != base {
            return Err(damaged(
                base,
                format!("the segment says that it begins at byte {}", header.base),
            ));
        }
        if ledger.is_some_and(|ledger| *ledger != header.ledger) {
            return Err(damaged(base, "the segment belongs to another ledger"));
        }
        let position = start.max(base.saturating_add(SEGMENT_HEADER as u64));
        let bytes = storage
            .read(base, position.saturating_sub(base), limit)
            .map_err(io_error("reading the journal"))?;
        Ok(Self {
            header,
            position,
            bytes,
        })
    }

    /// Calls `visit` with each frame, and returns where the first thing stands that is none, and why it is none.
    pub(crate) fn frames<E>(
        &self,
        mut visit: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(u64, Option<FrameError>), E> {
        let mut at = self.position;
        loop {
            let rest = self.rest(at);
            if rest.is_empty() {
                return Ok((at, None));
            }
            match frame::decode(rest, &self.header.salt, at) {
                Ok(frame) => {
                    at = frame.end();
                    visit(frame)?;
                }
                Err(error) => return Ok((at, Some(error))),
            }
        }
    }

    /// What stands at `position` and after it.
    pub(crate) fn rest(&self, position: u64) -> &[u8] {
        usize::try_from(position.saturating_sub(self.position))
            .ok()
            .and_then(|offset| self.bytes.get(offset..))
            .unwrap_or_default()
    }

    /// The position after the file's last byte.
    pub(crate) fn file_end(&self) -> u64 {
        self.position.saturating_add(self.bytes.len() as u64)
    }
}

/// The segments to read for what stands at `start` and after it; each must begin where the one before it ends.
pub(crate) fn bases_from(bases: &[u64], start: u64) -> &[u64] {
    let first = bases.iter().rposition(|base| *base <= start).unwrap_or_default();
    bases.get(first..).unwrap_or_default()
}

impl Journal {
    /// Opens the journal, or begins it, and calls `visit` with each frame from position `start` on.
    pub(crate) fn open<E: From<JournalError>>(
        mut storage: Box<dyn Storage>,
        ledger: [u8; 16],
        start: u64,
        mut visit: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bases = storage.list().map_err(io_error("listing the journal"))?;
        match bases.first() {
            Some(0) => {}
            Some(first) => {
                return Err(damaged(0, format!("the journal's first segment begins at byte {first}")).into());
            }
            None if start > 0 => return Err(damaged(0, "the journal is gone").into()),
            None => {
                let header = new_header(ledger, 0);
                storage
                    .create(0, &header.encode())
                    .map_err(io_error("beginning the journal"))?;
                return Ok(Self::at(storage, header, SEGMENT_HEADER as u64));
            }
        }
        let mut bases = bases_from(&bases, start).iter().peekable();
        let mut opened = None;
        while let Some(&base) = bases.next() {
            let segment = Segment::read(storage.as_ref(), base, start, u64::MAX, Some(&ledger))?;
            if segment.file_end() < start {
                return Err(damaged(start, "the journal ends before this byte").into());
            }
            let (end, error) = segment.frames(&mut visit)?;
            match (bases.peek(), error) {
                (Some(&&next), None) if next == end => {}
                (Some(&&next), None) => {
                    return Err(
                        damaged(end, format!("the next segment begins at byte {next}, not here")).into(),
                    );
                }
                (Some(_), Some(error)) => return Err(damaged(end, error.to_string()).into()),
                (None, error) => {
                    let torn = error.map_or(Ok(None), |error| torn(&segment, end, error))?;
                    opened = Some((segment.header, end, segment.file_end(), torn));
                }
            }
        }
        let Some((header, end, file_end, torn)) = opened else {
            return Err(damaged(start, "the journal ends before this byte").into());
        };
        let mut journal = Self::at(storage, header, end);
        journal.allocated = file_end;
        journal.torn = torn;
        Ok(journal)
    }

    /// Cuts off a torn tail, and makes sure of what a dead process wrote and may never have synced. To be called once
    /// everybody who might know of more records was asked, and before anything is appended.
    pub(crate) fn mend(&mut self) -> Result<Option<Cut>, JournalError> {
        self.guarded(|journal| {
            let torn = journal.torn.take();
            if torn.is_some() {
                let length = journal.end.saturating_sub(journal.base);
                journal.storage.set_len(journal.base, length)?;
                journal.allocated = journal.end;
            }
            journal.storage.sync(journal.base)?;
            journal.synced = journal.end;
            Ok(torn)
        })
    }

    fn at(storage: Box<dyn Storage>, header: SegmentHeader, end: u64) -> Self {
        Self {
            storage,
            ledger: header.ledger,
            salt: header.salt,
            base: header.base,
            end,
            synced: end,
            allocated: end,
            buffer: Vec::new(),
            torn: None,
            broken: false,
            segment_bytes: SEGMENT_BYTES,
        }
    }

    /// The payload of the frame at `position`.
    pub(crate) fn read(&self, position: u64) -> Result<Vec<u8>, JournalError> {
        let bases = self.storage.list().map_err(io_error("listing the journal"))?;
        let base = bases_from(&bases, position).first().copied().unwrap_or(0);
        let segment = Segment::read(
            self.storage.as_ref(),
            base,
            position,
            MAX_FRAME_BYTES,
            Some(&self.ledger),
        )?;
        frame::decode(segment.rest(position), &segment.header.salt, position)
            .map(|frame| frame.payload.to_vec())
            .map_err(|error| damaged(position, error.to_string()))
    }

    /// Where the next frame goes, buffered ones counted.
    pub(crate) fn position(&self) -> u64 {
        self.end.saturating_add(self.buffer.len() as u64)
    }

    /// Adds a frame to the buffer; returns its position.
    pub(crate) fn push(&mut self, kind: FrameKind, index: u64, payload: &[u8]) -> Result<u64, JournalError> {
        if self.buffer.is_empty() && self.end.saturating_sub(self.base) >= self.segment_bytes {
            self.guarded(Self::roll)?;
        }
        let position = self.position();
        frame::encode(
            &mut self.buffer,
            &self.salt,
            position,
            kind,
            index,
            self.synced,
            payload,
        )
        .or(Err(JournalError::Length(payload.len())))?;
        Ok(position)
    }

    /// Hands the buffer to the operating system: it outlives this process, not yet the power.
    pub(crate) fn write(&mut self) -> Result<(), JournalError> {
        self.guarded(|journal| {
            if journal.buffer.is_empty() {
                return Ok(());
            }
            let end = journal.position();
            let length = journal.buffer.len();
            if end > journal.allocated {
                let grown = end.saturating_add(GROW_BYTES);
                let more = usize::try_from(grown.saturating_sub(journal.end)).unwrap_or(length);
                journal.buffer.resize(more, 0);
            }
            let offset = journal.end.saturating_sub(journal.base);
            journal.storage.write(journal.base, offset, &journal.buffer)?;
            journal.allocated = journal
                .allocated
                .max(journal.end.saturating_add(journal.buffer.len() as u64));
            journal.end = end;
            journal.buffer.clear();
            Ok(())
        })
    }

    /// Makes all that was written durable.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        self.guarded(|journal| {
            if journal.synced < journal.end {
                journal.storage.sync(journal.base)?;
                journal.synced = journal.end;
            }
            Ok(())
        })
    }

    /// Cuts off the unused rest of the last segment.
    pub(crate) fn trim(&mut self) -> Result<(), JournalError> {
        self.guarded(|journal| {
            let length = journal.end.saturating_sub(journal.base);
            journal.storage.set_len(journal.base, length)?;
            journal.allocated = journal.end;
            journal.storage.sync(journal.base)
        })
    }

    fn roll(&mut self) -> std::io::Result<()> {
        let length = self.end.saturating_sub(self.base);
        self.storage.set_len(self.base, length)?;
        self.storage.sync(self.base)?;
        let header = new_header(self.ledger, self.end);
        self.storage.create(header.base, &header.encode())?;
        self.base = header.base;
        self.salt = header.salt;
        self.end = self.base.saturating_add(SEGMENT_HEADER as u64);
        self.synced = self.end;
        self.allocated = self.end;
        Ok(())
    }

    /// Runs one step; if it fails, every later one does.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> std::io::Result<T>) -> Result<T, JournalError> {
        if self.broken {
            return Err(JournalError::Broken);
        }
        step(self).map_err(|source| {
            self.broken = true;
            JournalError::Io {
                doing: "writing the journal",
                source,
            }
        })
    }

    #[cfg(test)]
    pub(crate) const fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes;
    }
}

fn new_header(ledger: [u8; 16], base: u64) -> SegmentHeader {
    SegmentHeader {
        ledger,
        salt: entropy::bytes(),
        base,
    }
}

/// What stands at `end` of the last segment and is no frame: nothing, a torn write, or damage.
fn torn(segment: &Segment, end: u64, error: FrameError) -> Result<Option<Cut>, JournalError> {
    let rest = segment.rest(end);
    let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
        return Ok(None);
    };
    if frame::proves_synced(rest, &segment.header.salt, end) {
        return Err(damaged(end, format!("{error}, and what follows it is whole")));
    }
    let bytes = rest.get(..=last).unwrap_or(rest);
    Ok(Some(Cut {
        position: end,
        bytes: bytes.len() as u64,
        sha256: hex::encode(Sha256::digest(bytes)),
    }))
}
