//! The index against what the journal says it must be.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::Place;
use super::walk::Walk;
use crate::fold::{LeafRow, NoteRow, State};
use crate::frame::{Frame, FrameKind};
use crate::index::{IndexError, Rows, Snapshot};

/// The index's rows, and how many of them the journal has borne out.
#[derive(Debug)]
pub(super) struct Expected {
    rows: Rows,
    state: State,
    leaves: usize,
    nodes: usize,
    notes: usize,
    latest_ms: u64,
    last_ms: u64,
    state_met: bool,
}

/// Reads all of the index; `None` when there is none yet.
pub(super) fn load(path: &Path) -> Result<Option<Expected>, Place> {
    if !path.exists() {
        return Ok(None);
    }
    // redb returns errors for what it checks, and may panic on pages that were altered to pass its checks.
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        let Some(snapshot) = Snapshot::open(path)? else {
            return Ok(None);
        };
        let rows = snapshot.rows()?;
        Ok(Some(Expected {
            rows,
            state: snapshot.state().clone(),
            leaves: 0,
            nodes: 0,
            notes: 0,
            latest_ms: 0,
            last_ms: 0,
            state_met: false,
        }))
    }));
    match loaded {
        Ok(Ok(expected)) => Ok(expected),
        Ok(Err(error)) => {
            let index = match error {
                IndexError::Row(index) => index,
                IndexError::Redb(_) | IndexError::Damaged(_) => 0,
            };
            Err(Place::new(index, "index_damaged", error.to_string()))
        }
        Err(_panic) => Err(Place::new(0, "index_damaged", "the index cannot be read")),
    }
}

impl Expected {
    /// Compares the rows that follow from one frame, which `walk` has taken in.
    pub(super) fn frame(&mut self, walk: &Walk, frame: &Frame<'_>) -> Result<(), Place> {
        if frame.end() > self.state.position {
            return Ok(());
        }
        match frame.kind {
            FrameKind::Record => self.record(walk, frame)?,
            FrameKind::Checkpoint => {
                let expected = NoteRow {
                    size: walk.size(),
                    position: frame.position,
                    length: u32::try_from(frame.payload.len()).unwrap_or(u32::MAX),
                };
                self.note(expected)?;
            }
        }
        if frame.end() == self.state.position {
            self.meet_state(walk)?;
        }
        Ok(())
    }

    fn record(&mut self, walk: &Walk, frame: &Frame<'_>) -> Result<(), Place> {
        let at = frame.index;
        let Some((record, hash)) = &walk.last else {
            return Ok(());
        };
        self.last_ms = record.time_ms;
        self.latest_ms = self.latest_ms.max(record.time_ms);
        let expected = LeafRow {
            index: at,
            position: frame.position,
            length: u32::try_from(frame.payload.len()).unwrap_or(u32::MAX),
            kind: record.kind,
            time_ms: record.time_ms,
            latest_ms: self.latest_ms,
            hash: *hash,
            request: None,
        };
        match self.rows.leaves.get(self.leaves) {
            Some(row) if *row == expected => {}
            Some(row) if row.index == at && row.hash != *hash => {
                return Err(Place::new(
                    at,
                    "record_hash",
                    "the record's bytes do not have the hash that the index keeps of it",
                ));
            }
            Some(_) => {
                return Err(Place::new(
                    at,
                    "index_row",
                    "the index has another row of this record",
                ));
            }
            None => return Err(Place::new(at, "index_row", "the index has no row of this record")),
        }
        self.leaves = self.leaves.saturating_add(1);
        for node in &walk.filled {
            let found = self
                .rows
                .nodes
                .binary_search_by(|row| (row.0, row.1).cmp(&(node.0, node.1)));
            let same = found
                .ok()
                .and_then(|found| self.rows.nodes.get(found))
                .is_some_and(|row| row == node);
            if !same {
                return Err(Place::new(
                    at,
                    "index_node",
                    format!("the index has another hash of level {} number {}", node.0, node.1),
                ));
            }
            self.nodes = self.nodes.saturating_add(1);
        }
        Ok(())
    }

    fn note(&mut self, expected: NoteRow) -> Result<(), Place> {
        // Of two checkpoints of one size, the index keeps the later.
        let found = self
            .rows
            .notes
            .binary_search_by(|row| row.size.cmp(&expected.size));
        match found.ok().and_then(|found| self.rows.notes.get(found)) {
            Some(row) if *row == expected => {
                self.notes = self.notes.saturating_add(1);
                Ok(())
            }
            Some(row) if row.position > expected.position => Ok(()),
            Some(_) | None => Err(Place::new(
                expected.size,
                "index_checkpoint",
                "the index has another row of this checkpoint",
            )),
        }
    }

    fn meet_state(&mut self, walk: &Walk) -> Result<(), Place> {
        let unanswered = walk
            .requests
            .iter()
            .filter(|(_, places)| places.1 == u64::MAX)
            .map(|(request, places)| (*request, places.0))
            .collect();
        let derived = State {
            frontier: walk.frontier().clone(),
            position: self.state.position,
            latest_ms: self.latest_ms,
            last_ms: self.last_ms,
            vkey: walk.vkey(),
            epoch: walk.epoch(),
            signed: walk.signed(),
            unanswered,
        };
        if derived != self.state {
            return Err(Place::new(
                walk.size(),
                "index_state",
                "the index says another state than the records have",
            ));
        }
        // Requests as of this moment: what comes later is not in the index.
        let same = self.rows.requests.len() == walk.requests.len()
            && self
                .rows
                .requests
                .iter()
                .all(|(request, places)| walk.requests.get(request) == Some(places));
        if !same {
            let wrong = self
                .rows
                .requests
                .iter()
                .find(|(request, places)| walk.requests.get(request) != Some(places));
            return Err(Place::new(
                wrong.map_or(0, |(_, (decision, _))| (*decision).min(walk.size())),
                "index_request",
                "the index has another row of a request",
            ));
        }
        self.state_met = true;
        Ok(())
    }

    /// The end of the journal.
    pub(super) fn finish(self, walk: &Walk) -> Result<(), Place> {
        let at = walk.size();
        if !self.state_met {
            return Err(Place::new(
                at.min(self.state.size()),
                "truncated",
                format!("the index knows of {} records", self.state.size()),
            ));
        }
        if self.leaves != self.rows.leaves.len()
            || self.nodes != self.rows.nodes.len()
            || self.notes != self.rows.notes.len()
        {
            return Err(Place::new(
                at,
                "index_row",
                "the index has rows that follow from no record",
            ));
        }
        Ok(())
    }
}
