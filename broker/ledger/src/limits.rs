//! Every bound of the ledger, by name.

use std::time::Duration;

/// The longest record, in bytes: an entry of a C2SP `tlog-tiles` bundle has a 16-bit length.
pub const MAX_RECORD_BYTES: usize = 65_535;
/// What the envelope may add to a body, in bytes.
pub(crate) const MAX_ENVELOPE_BYTES: usize = 512;
/// The longest body, in bytes.
pub const MAX_BODY_BYTES: usize = MAX_RECORD_BYTES - MAX_ENVELOPE_BYTES;
/// Strings longer than this are committed by digest when a body is too long, in bytes; then shorter and shorter ones.
pub(crate) const CUT_STRING_BYTES: [usize; 3] = [4096, 512, 64];
/// The deepest nesting of a body.
pub(crate) const MAX_DEPTH: usize = 64;
/// Records that may wait for the writer at once. More wait for a place.
pub const MAX_WAITING: usize = 4096;
/// Records in one group commit.
pub(crate) const MAX_BATCH: usize = 1024;
/// When a segment of the journal is this long, the next begins, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// The journal grows by this much at a time, so that an `fdatasync` seldom has to write the file's length, in bytes.
/// Unit tests grow it often, so that growing is among the moments at which their disk fails.
pub(crate) const GROW_BYTES: u64 = if cfg!(test) { 4096 } else { 1 << 20 };
/// The longest frame payload, in bytes: a record, or a note.
pub(crate) const MAX_PAYLOAD_BYTES: usize = MAX_RECORD_BYTES;
/// The longest frame, in bytes.
pub(crate) const MAX_FRAME_BYTES: u64 = 32 + 65_535;
/// The index is brought up to date at least this often.
pub(crate) const INDEX_EVERY: Duration = Duration::from_secs(1);
/// The index is brought up to date when it is this many records behind.
pub(crate) const INDEX_RECORDS: usize = 8192;
/// redb's page cache, in bytes.
pub(crate) const INDEX_CACHE_BYTES: usize = 8 << 20;
/// The longest note, in bytes.
pub(crate) const MAX_NOTE_BYTES: usize = 16_384;
/// Signatures on one note.
pub(crate) const MAX_NOTE_SIGNATURES: usize = 64;
/// The most hits of one query that gives no limit.
pub const MAX_HITS: usize = 10_000;
/// Rows that a query reads at once.
pub(crate) const QUERY_CHUNK: u64 = 256;
/// Where several wait at once, the writer waits this long for as many as the last batch had before it syncs.
pub(crate) const GATHER: Duration = Duration::from_micros(150);
