//! A map that never grows beyond its capacity: the entry that was used longest ago makes room.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A bounded map in order of last use.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    entries: HashMap<K, (u64, V)>,
    /// Use ticks in order; a tick is never given twice.
    order: BTreeMap<u64, K>,
    next_tick: u64,
    capacity: usize,
}

impl<K: Clone + Eq + Hash, V> Lru<K, V> {
    /// An empty map for at most `capacity` entries, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            next_tick: 0,
            capacity: capacity.max(1),
        }
    }

    /// The value of `key`, which has now been used.
    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V> {
        let tick = self.tick();
        let (used, value) = self.entries.get_mut(key)?;
        self.order.remove(used);
        self.order.insert(tick, key.clone());
        *used = tick;
        Some(value)
    }

    /// Stores `value`; returns the entry that had to go, if one had to.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let tick = self.tick();
        if let Some((used, old)) = self.entries.insert(key.clone(), (tick, value)) {
            self.order.remove(&used);
            self.order.insert(tick, key.clone());
            return Some((key, old));
        }
        self.order.insert(tick, key);
        if self.entries.len() > self.capacity {
            self.pop_oldest()
        } else {
            None
        }
    }

    /// The entry that was used longest ago.
    pub(crate) fn oldest(&self) -> Option<(&K, &V)> {
        let key = self.order.values().next()?;
        let (_, value) = self.entries.get(key)?;
        Some((key, value))
    }

    /// Removes the entry that was used longest ago.
    pub(crate) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (_, key) = self.order.pop_first()?;
        let (_, value) = self.entries.remove(&key)?;
        Some((key, value))
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no room without removing an entry.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    fn tick(&mut self) -> u64 {
        self.next_tick = self.next_tick.wrapping_add(1);
        self.next_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_used_longest_ago_makes_room() {
        let mut lru = Lru::new(2);
        assert_eq!(lru.insert("a", 1), None);
        assert_eq!(lru.insert("b", 2), None);
        assert_eq!(lru.get(&"a"), Some(&mut 1));
        assert_eq!(lru.insert("c", 3), Some(("b", 2)));
        assert_eq!(lru.len(), 2);
        assert!(lru.is_full());
        assert_eq!(lru.oldest(), Some((&"a", &1)));
        assert_eq!(lru.pop_oldest(), Some(("a", 1)));
    }

    #[test]
    fn a_replaced_value_leaves_no_second_entry() {
        let mut lru = Lru::new(2);
        assert_eq!(lru.insert("a", 1), None);
        assert_eq!(lru.insert("a", 2), Some(("a", 1)));
        assert_eq!(lru.pop_oldest(), Some(("a", 2)));
        assert_eq!(lru.pop_oldest(), None);
    }
}
