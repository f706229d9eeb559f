//! The proof that a decision is durable (P5).

/// A value whose decision is in the ledger, on disk.
///
/// It has private fields, no `Clone` and no public maker: the only way to one is [`crate::Ledger::record`], which
/// returns after the commit. Nothing goes upstream without it.
#[must_use = "what was recorded goes on, or its outcome is recorded"]
#[derive(Debug)]
pub struct Recorded<T> {
    value: T,
    index: LeafIndex,
}

/// A record's place in the log, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct LeafIndex(pub u64);

impl<T> Recorded<T> {
    pub(crate) const fn new(value: T, index: LeafIndex) -> Self {
        Self { value, index }
    }

    /// Where the decision stands in the log.
    pub const fn index(&self) -> LeafIndex {
        self.index
    }

    /// What was recorded.
    pub const fn value(&self) -> &T {
        &self.value
    }

    /// What was recorded: the proof is spent.
    pub fn into_value(self) -> T {
        self.value
    }
}
