//! A response's bytes in whatever pieces they come.
//!
//! What may be the beginning of a form is held back until the next piece says; everything else goes on at once, without
//! being copied. A mask is as long as what it covers, so lengths and offsets stay what upstream said.
//!
//! A peer may wait for the very bytes that are held back (the end of a gRPC message that happens to end like a secret
//! begins). [`Stream::release`] lets go of at most [`MAX_RELEASED_BYTES`] and goes on matching as if it still had
//! them, so that at most that many bytes of a secret that comes drop by drop are seen.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::matcher::Patterns;

/// The most bytes of an undecided beginning that are given away when nothing follows for a while.
pub(super) const MAX_RELEASED_BYTES: usize = 2;

/// The state between two pieces.
pub(super) struct Stream {
    patterns: Arc<Patterns>,
    /// The beginning of something undecided, as it came.
    held: Bytes,
    /// How many bytes of it are gone already: covered by a form that began before, or released.
    released: usize,
    /// How many bytes of it are covered by a form that began before.
    covered: usize,
    found: u64,
}

impl Stream {
    pub(super) const fn new(patterns: Arc<Patterns>) -> Self {
        Self {
            patterns,
            held: Bytes::new(),
            released: 0,
            covered: 0,
            found: 0,
        }
    }

    /// Takes the next piece and returns what is decided.
    pub(super) fn push(&mut self, piece: Bytes) -> Bytes {
        if piece.is_empty() {
            return piece;
        }
        let bytes = if self.held.is_empty() {
            piece
        } else {
            let mut joined = BytesMut::with_capacity(self.held.len().saturating_add(piece.len()));
            joined.extend_from_slice(&self.held);
            joined.extend_from_slice(&piece);
            joined.freeze()
        };
        self.advance(&bytes, false)
    }

    /// Nothing follows.
    pub(super) fn finish(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        self.advance(&held, true)
    }

    /// How many bytes are held back.
    pub(super) const fn held(&self) -> usize {
        self.held.len().saturating_sub(self.released)
    }

    /// Whether [`Stream::release`] would let go of what is held.
    pub(super) const fn may_release(&self) -> bool {
        self.held() > 0 && self.held.len() <= MAX_RELEASED_BYTES
    }

    /// Lets go of a few undecided bytes, since nothing follows for now.
    pub(super) fn release(&mut self) -> Bytes {
        if !self.may_release() {
            return Bytes::new();
        }
        let bytes = self.held.slice(self.released..);
        self.released = self.held.len();
        bytes
    }

    /// How many forms were covered so far.
    pub(super) const fn found(&self) -> u64 {
        self.found
    }

    fn advance(&mut self, bytes: &Bytes, last: bool) -> Bytes {
        let found = self.patterns.scan(bytes, last);
        let decided = found.undecided.unwrap_or(bytes.len());
        // What begins later is found again with the next piece.
        let spans: Vec<_> = found
            .spans
            .into_iter()
            .filter(|(start, _)| *start < decided)
            .collect();
        // One that overlaps what was covered before is the same place, wherever the pieces were cut.
        let places = spans.iter().filter(|(start, _)| *start >= self.covered).count();
        self.found = self
            .found
            .saturating_add(u64::try_from(places).unwrap_or(u64::MAX));
        let covered = spans.last().map_or(0, |(_, end)| *end).max(self.covered);
        self.covered = covered.saturating_sub(decided);
        // What is covered can go at once, even where something else may begin in it.
        let end = decided.max(covered).max(self.released);
        let gone = std::mem::replace(&mut self.released, end.saturating_sub(decided));
        self.held = bytes.slice(decided..);
        let bytes = bytes.slice(..end);
        let mut bytes = if spans.is_empty() {
            bytes
        } else {
            self.cover(&bytes, &spans)
        };
        bytes.split_off(gone.min(bytes.len()))
    }

    fn cover(&self, bytes: &[u8], spans: &[(usize, usize)]) -> Bytes {
        let mut bytes = BytesMut::from(bytes);
        for (start, end) in spans {
            let end = (*end).min(bytes.len());
            if let Some(part) = bytes.get_mut(*start..end) {
                part.fill(self.patterns.mask());
            }
        }
        bytes.freeze()
    }
}
