//! The index: what a query needs that the journal's order does not give, in redb.
//!
//! ```text
//!   leaves       index           → position u64 · length u32 · kind u8 · time u64 · latest time u64 · hash 32   (LE)
//!   nodes        (level, index)  → hash                      full subtrees of 256, 65536 … records
//!   requests     request id, BE  → (decision, outcome)       u64::MAX: none
//!   checkpoints  size            → (position, length)
//!   meta         "state"         → the state after the records that are in it, as JSON
//! ```
//!
//! All of it follows from the journal, and [`mod@crate::verify`] derives it again and compares. It is brought up to date behind
//! the writer, in one two-phase transaction a second at most, and never ahead of what is synced. redb's single-writer mode lets any
//! number of other processes read what is committed while the writer goes on.
//!
//! Why the records themselves are not in redb: a two-phase commit of one record, its hash and its request took 1.7 to 1.95
//! times a durable append (the gate is 2), and at 64 in flight it reached 0.2 to 0.4 of what appending does (the gate is 0.4),
//! before anything was hashed or signed. `examples/durable.rs` measures both again.

use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{
    Builder, ConcurrencyMode, Database, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction, ReadableDatabase,
    ReadableTable, StorageBackend, TableDefinition,
};
use thiserror::Error;

use crate::fold::{Delta, LeafRow, NoteRow, State, StoredState};
use crate::limits::INDEX_CACHE_BYTES;
use crate::record::Kind;
use crate::tree::{Hash, Hashes, node_hash};

const LEAVES: TableDefinition<u64, &[u8; LEAF_BYTES]> = TableDefinition::new("leaves");
const NODES: TableDefinition<(u8, u64), &[u8; 32]> = TableDefinition::new("nodes");
const REQUESTS: TableDefinition<&[u8; 16], (u64, u64)> = TableDefinition::new("requests");
const CHECKPOINTS: TableDefinition<u64, (u64, u32)> = TableDefinition::new("checkpoints");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const STATE: &str = "state";
const LEAF_BYTES: usize = 61;
/// No such record.
pub(crate) const NONE: u64 = u64::MAX;

/// Why the index cannot be used.
#[derive(Debug, Error)]
pub(crate) enum IndexError {
    #[error("the index: {0}")]
    Redb(Box<redb::Error>),
    #[error("the index is damaged: {0}")]
    Damaged(String),
    #[error("the index is damaged: the row of record {0}")]
    Row(u64),
}

impl<E: Into<redb::Error>> From<E> for IndexError {
    fn from(error: E) -> Self {
        Self::Redb(Box::new(error.into()))
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .set_concurrency_mode(ConcurrencyMode::SingleWriter)
        .set_cache_size(INDEX_CACHE_BYTES);
    builder
}

fn encode_leaf(row: &LeafRow) -> [u8; LEAF_BYTES] {
    let mut bytes = [0; LEAF_BYTES];
    let kind = match row.kind {
        Kind::Decision => 1,
        Kind::Outcome => 2,
        Kind::Control => 3,
    };
    let parts = row
        .position
        .to_le_bytes()
        .into_iter()
        .chain(row.length.to_le_bytes())
        .chain([kind])
        .chain(row.time_ms.to_le_bytes())
        .chain(row.latest_ms.to_le_bytes())
        .chain(row.hash);
    for (to, from) in bytes.iter_mut().zip(parts) {
        *to = from;
    }
    bytes
}

fn decode_leaf(index: u64, bytes: &[u8; LEAF_BYTES]) -> Result<LeafRow, IndexError> {
    let damaged = || IndexError::Row(index);
    let (position, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let (kind, rest) = rest.split_first_chunk::<1>().ok_or_else(damaged)?;
    let (time_ms, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (latest_ms, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    Ok(LeafRow {
        index,
        position: u64::from_le_bytes(*position),
        length: u32::from_le_bytes(*length),
        kind: match kind {
            [1] => Kind::Decision,
            [2] => Kind::Outcome,
            [3] => Kind::Control,
            _ => return Err(damaged()),
        },
        time_ms: u64::from_le_bytes(*time_ms),
        latest_ms: u64::from_le_bytes(*latest_ms),
        hash: rest.try_into().map_err(|_other_length| damaged())?,
        request: None,
    })
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct Index {
    database: Database,
}

impl Index {
    /// Opens the index, or makes an empty one; says what state it has reached.
    pub(crate) fn open(path: &Path) -> Result<(Self, State), IndexError> {
        let database = builder().create(path)?;
        let index = Self { database };
        let transaction = index.database.begin_read()?;
        let state = match transaction.open_table(META) {
            Ok(table) => read_state(&table)?,
            Err(redb::TableError::TableDoesNotExist(_)) => State::default(),
            Err(error) => return Err(error.into()),
        };
        Ok((index, state))
    }

    /// Adds rows, all or none, durably.
    pub(crate) fn commit(&self, delta: &Delta, state: &State) -> Result<(), IndexError> {
        let mut transaction = self.database.begin_write()?;
        // One-phase commits trust a checksum that is no match for somebody who chooses what is stored, and crashes.
        transaction.set_two_phase_commit(true);
        transaction.set_quick_repair(true);
        {
            let mut leaves = transaction.open_table(LEAVES)?;
            for row in &delta.leaves {
                leaves.insert(row.index, &encode_leaf(row))?;
            }
            let mut nodes = transaction.open_table(NODES)?;
            for (level, index, hash) in &delta.nodes {
                nodes.insert((*level, *index), hash)?;
            }
            let mut requests = transaction.open_table(REQUESTS)?;
            for row in &delta.leaves {
                let Some(request) = row.request else { continue };
                let key = request.to_be_bytes();
                match row.kind {
                    Kind::Decision => {
                        requests.insert(&key, (row.index, NONE))?;
                    }
                    Kind::Outcome => {
                        let decided = requests.get(&key)?.map(|entry| entry.value());
                        if let Some((decision, NONE)) = decided {
                            requests.insert(&key, (decision, row.index))?;
                        }
                    }
                    Kind::Control => {}
                }
            }
            let mut checkpoints = transaction.open_table(CHECKPOINTS)?;
            for note in &delta.notes {
                checkpoints.insert(note.size, (note.position, note.length))?;
            }
            let stored = serde_json_canonicalizer::to_vec(&state.store())
                .map_err(|error| IndexError::Damaged(error.to_string()))?;
            transaction.open_table(META)?.insert(STATE, stored.as_slice())?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// What is committed now.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>, IndexError> {
        Snapshot::from_transaction(&self.database.begin_read()?, Kept::ByTheWriter)
    }
}

fn read_state(table: &ReadOnlyTable<&'static str, &'static [u8]>) -> Result<State, IndexError> {
    let Some(bytes) = table.get(STATE)? else {
        return Ok(State::default());
    };
    let damaged = || IndexError::Damaged("its state".to_owned());
    let stored: StoredState = serde_json::from_slice(bytes.value()).map_err(|_json| damaged())?;
    State::load(stored).ok_or_else(damaged)
}

/// What keeps a snapshot's pages readable.
enum Kept {
    ByTheWriter,
    ReadOnly(#[expect(dead_code, reason = "held, not read")] ReadOnlyDatabase),
    Mended(#[expect(dead_code, reason = "held, not read")] Database),
}

/// What was committed at one moment; later commits do not change it.
pub(crate) struct Snapshot {
    leaves: ReadOnlyTable<u64, &'static [u8; LEAF_BYTES]>,
    nodes: ReadOnlyTable<(u8, u64), &'static [u8; 32]>,
    requests: ReadOnlyTable<&'static [u8; 16], (u64, u64)>,
    checkpoints: ReadOnlyTable<u64, (u64, u32)>,
    state: State,
    _database: Kept,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("size", &self.state.size())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Opens the index of a ledger that may be in use; `None` when nothing was committed yet.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, IndexError> {
        let database = match builder().open_read_only(path) {
            Ok(database) => database,
            // Whoever wrote it was killed. The next writer mends the file; a reader mends a copy of its own.
            Err(redb::DatabaseError::RepairAborted) => return Self::open_mended(path),
            Err(error) => return Err(error.into()),
        };
        let transaction = database.begin_read()?;
        Self::from_transaction(&transaction, Kept::ReadOnly(database))
    }

    /// Opens a copy, in memory, of an index whose writer was killed. What it then holds is checked against the journal
    /// like any other index.
    fn open_mended(path: &Path) -> Result<Option<Self>, IndexError> {
        let unread = |error: std::io::Error| IndexError::from(redb::Error::Io(error));
        let bytes = std::fs::read(path).map_err(unread)?;
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64).map_err(unread)?;
        copy.write(0, &bytes).map_err(unread)?;
        let mended = Builder::new().create_with_backend(copy)?;
        let transaction = mended.begin_read()?;
        Self::from_transaction(&transaction, Kept::Mended(mended))
    }

    fn from_transaction(transaction: &ReadTransaction, database: Kept) -> Result<Option<Self>, IndexError> {
        let meta = match transaction.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Self {
            leaves: transaction.open_table(LEAVES)?,
            nodes: transaction.open_table(NODES)?,
            requests: transaction.open_table(REQUESTS)?,
            checkpoints: transaction.open_table(CHECKPOINTS)?,
            state: read_state(&meta)?,
            _database: database,
        }))
    }

    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn leaf(&self, index: u64) -> Result<Option<LeafRow>, IndexError> {
        self.leaves
            .get(index)?
            .map(|row| decode_leaf(index, row.value()))
            .transpose()
    }

    pub(crate) fn node(&self, level: u8, index: u64) -> Result<Option<Hash>, IndexError> {
        Ok(self.nodes.get((level, index))?.map(|row| *row.value()))
    }

    pub(crate) fn request(&self, request: u128) -> Result<Option<(u64, u64)>, IndexError> {
        Ok(self.requests.get(&request.to_be_bytes())?.map(|row| row.value()))
    }

    /// The last checkpoint.
    pub(crate) fn last_note(&self) -> Result<Option<NoteRow>, IndexError> {
        Ok(self.checkpoints.last()?.map(|(size, at)| {
            let (position, length) = at.value();
            NoteRow {
                size: size.value(),
                position,
                length,
            }
        }))
    }

    /// Every row of every table, for the verifier.
    pub(crate) fn rows(&self) -> Result<Rows, IndexError> {
        let mut rows = Rows::default();
        for row in self.leaves.iter()? {
            let (index, bytes) = row?;
            rows.leaves.push(decode_leaf(index.value(), bytes.value())?);
        }
        for row in self.nodes.iter()? {
            let (key, hash) = row?;
            let (level, index) = key.value();
            rows.nodes.push((level, index, *hash.value()));
        }
        for row in self.requests.iter()? {
            let (key, places) = row?;
            rows.requests
                .push((u128::from_be_bytes(*key.value()), places.value()));
        }
        for row in self.checkpoints.iter()? {
            let (size, at) = row?;
            let (position, length) = at.value();
            rows.notes.push(NoteRow {
                size: size.value(),
                position,
                length,
            });
        }
        Ok(rows)
    }
}

/// The hashes of full subtrees: from the index, and from records that are not in it yet.
#[derive(Debug)]
pub(crate) struct Subtrees<'a> {
    pub(crate) snapshot: Option<&'a Snapshot>,
    /// What follows the snapshot.
    pub(crate) tail: &'a [LeafRow],
}

impl Subtrees<'_> {
    pub(crate) fn leaf(&self, index: u64) -> Result<Option<LeafRow>, IndexError> {
        let known = self.snapshot.map_or(0, |snapshot| snapshot.state().size());
        match (index.checked_sub(known), self.snapshot) {
            (Some(offset), _) => Ok(usize::try_from(offset)
                .ok()
                .and_then(|offset| self.tail.get(offset))
                .copied()),
            (None, Some(snapshot)) => snapshot.leaf(index),
            (None, None) => Ok(None),
        }
    }
}

impl Hashes for Subtrees<'_> {
    type Error = IndexError;

    fn subtree(&self, level: u32, index: u64) -> Result<Hash, IndexError> {
        if level == 0 {
            let row = self.leaf(index)?;
            return row
                .map(|row| row.hash)
                .ok_or_else(|| IndexError::Damaged(format!("no row of record {index}")));
        }
        if let (true, Ok(tile_level), Some(snapshot)) =
            (level.is_multiple_of(8), u8::try_from(level), self.snapshot)
            && let Some(hash) = snapshot.node(tile_level, index)?
        {
            return Ok(hash);
        }
        let below = level - 1;
        let left = self.subtree(below, index << 1)?;
        let right = self.subtree(below, (index << 1) | 1)?;
        Ok(node_hash(&left, &right))
    }
}

/// The content of the index, each table in its own order.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) leaves: Vec<LeafRow>,
    pub(crate) nodes: Vec<(u8, u64, Hash)>,
    pub(crate) requests: Vec<(u128, (u64, u64))>,
    pub(crate) notes: Vec<NoteRow>,
}
