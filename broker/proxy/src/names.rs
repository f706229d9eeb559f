//! The addresses that stand for names, for one sandbox (DESIGN §5).
//!
//! Each name that a sandbox looks up gets an IPv4 address of 198.18.0.0/15 (RFC 2544) and an IPv6 address of
//! [`SYNTHETIC_V6`] that stand for it and for nothing else, so that the address of a later connection says which name
//! it was for. Nothing that a sandbox sends changes what an address stands for, and nothing is ever dialled there.
//!
//! - A table belongs to one sandbox. Two sandboxes' tables know nothing of each other, and addresses are given in a
//!   random order, so an address tells nothing about anybody.
//! - An address stands for its name for [`NAME_GRACE`] beyond the TTL of the last answer. Only then, and only when the
//!   table is full, may it be taken away. An IPv4 address is not given again before all others had their turn.
//! - A full table whose oldest entry is still within its grace refuses new names.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use thiserror::Error;
use wallgate_types::authority::Name;
use wallgate_types::clock::Clock;

use crate::edge_limits::{MAX_NAMES, NAME_GRACE, SYNTHETIC_TTL_SECS};
use crate::lru::Lru;

/// The first address of 198.18.0.0/15.
const SYNTHETIC_V4: u32 = 0xc612_0000;
/// How many bits of an IPv4 address a name gets.
const V4_BITS: u32 = 17;
/// The `/64` that synthetic IPv6 addresses are from: unique local (RFC 4193), "walln" and "na" in ASCII.
const SYNTHETIC_V6: [u16; 4] = [0xfd57, 0x616c, 0x6c6e, 0x6e61];

/// The table is full of names that may still be in some cache.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("this sandbox has {MAX_NAMES} names in use")]
pub struct NamesFull;

/// The two addresses that stand for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Synthetic {
    /// In 198.18.0.0/15.
    pub v4: Ipv4Addr,
    /// In [`SYNTHETIC_V6`].
    pub v6: Ipv6Addr,
}

#[derive(Debug)]
struct Entry {
    addresses: Synthetic,
    answered_at: Duration,
}

#[derive(Debug)]
struct Table {
    by_name: Lru<Name, Entry>,
    by_v4: HashMap<Ipv4Addr, Name>,
    by_v6: HashMap<Ipv6Addr, Name>,
    next: u32,
}

/// One sandbox's names.
#[derive(Debug)]
pub struct NameTable {
    order: Permutation,
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

impl NameTable {
    /// An empty table. `seed` is random and decides the order of addresses.
    #[must_use]
    pub fn new(seed: [u8; 16], clock: Arc<dyn Clock>) -> Self {
        Self::with_capacity(seed, clock, MAX_NAMES)
    }

    fn with_capacity(seed: [u8; 16], clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self {
            order: Permutation { seed },
            clock,
            table: Mutex::new(Table {
                by_name: Lru::new(capacity),
                by_v4: HashMap::new(),
                by_v6: HashMap::new(),
                next: 0,
            }),
        }
    }

    /// The addresses of `name`, which are about to be answered.
    ///
    /// # Errors
    /// [`NamesFull`] when there is no room and nothing may be forgotten yet.
    pub fn assign(&self, name: &Name) -> Result<Synthetic, NamesFull> {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        if let Some(entry) = table.by_name.get(name) {
            entry.answered_at = now;
            return Ok(entry.addresses);
        }
        if table.by_name.is_full() {
            table.forget_oldest(now)?;
        }
        let addresses = table.unused(&self.order)?;
        table.by_v4.insert(addresses.v4, name.clone());
        table.by_v6.insert(addresses.v6, name.clone());
        let entry = Entry {
            addresses,
            answered_at: now,
        };
        let nothing = table.by_name.insert(name.clone(), entry);
        debug_assert!(nothing.is_none(), "room was made before");
        Ok(addresses)
    }

    /// The name that `address` stands for.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<Name> {
        let table = self.lock();
        match address.to_canonical() {
            IpAddr::V4(v4) => table.by_v4.get(&v4).cloned(),
            IpAddr::V6(v6) => table.by_v6.get(&v6).cloned(),
        }
    }

    /// How many names have addresses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().by_name.len()
    }

    /// Whether no name has an address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an address is one that only ever stands for a name, in whichever sandbox.
#[must_use]
pub fn is_synthetic(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => u32::from(v4) >> V4_BITS == SYNTHETIC_V4 >> V4_BITS,
        IpAddr::V6(v6) => v6.segments().starts_with(&SYNTHETIC_V6),
    }
}

impl Table {
    /// Makes room, if the oldest entry is beyond what any cache may remember.
    fn forget_oldest(&mut self, now: Duration) -> Result<(), NamesFull> {
        let kept_for = NAME_GRACE.saturating_add(Duration::from_secs(SYNTHETIC_TTL_SECS.into()));
        let (_, oldest) = self.by_name.oldest().ok_or(NamesFull)?;
        if now < oldest.answered_at.saturating_add(kept_for) {
            return Err(NamesFull);
        }
        if let Some((_, forgotten)) = self.by_name.pop_oldest() {
            self.by_v4.remove(&forgotten.addresses.v4);
            self.by_v6.remove(&forgotten.addresses.v6);
        }
        Ok(())
    }

    /// The next pair in random order that is not in use.
    fn unused(&mut self, order: &Permutation) -> Result<Synthetic, NamesFull> {
        for _ in 0..1_u32 << V4_BITS {
            let turn = self.next;
            self.next = self.next.wrapping_add(1);
            let offset = order.of(turn & ((1 << V4_BITS) - 1));
            let v4 = Ipv4Addr::from(SYNTHETIC_V4 | offset);
            let [.., last] = v4.octets();
            // Some clients take these for a network's own and its broadcast address.
            if last == 0 || last == 255 || self.by_v4.contains_key(&v4) {
                continue;
            }
            let v6 = order.v6(turn);
            if self.by_v6.contains_key(&v6) {
                continue;
            }
            return Ok(Synthetic { v4, v6 });
        }
        Err(NamesFull)
    }
}

/// A random order of the 2^17 numbers: a Feistel network of 8 rounds over two halves of 9 and 8 bits, keyed by the seed.
#[derive(Debug)]
struct Permutation {
    seed: [u8; 16],
}

impl Permutation {
    fn of(&self, index: u32) -> u32 {
        const LOW_BITS: u32 = 8;
        let (mut high, mut low) = (index >> LOW_BITS, index & 0xff);
        for round in 0..4_u8 {
            high ^= self.word(round, low) & 0x1ff;
            low ^= self.word(round | 0x80, high) & 0xff;
        }
        (high << LOW_BITS) | low
    }

    fn v6(&self, turn: u32) -> Ipv6Addr {
        let digest = Sha256::new()
            .chain_update(self.seed)
            .chain_update(b"v6")
            .chain_update(turn.to_be_bytes())
            .finalize();
        let mut segments = [0_u16; 8];
        let (prefix, interface) = segments.split_at_mut(SYNTHETIC_V6.len());
        prefix.copy_from_slice(&SYNTHETIC_V6);
        for (segment, bytes) in interface.iter_mut().zip(digest.as_chunks::<2>().0) {
            *segment = u16::from_be_bytes(*bytes);
        }
        Ipv6Addr::from(segments)
    }

    fn word(&self, round: u8, half: u32) -> u32 {
        let digest = Sha256::new()
            .chain_update(self.seed)
            .chain_update([round])
            .chain_update(half.to_be_bytes())
            .finalize();
        digest.first_chunk().copied().map_or(0, u32::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use wallgate_types::clock::ManualClock;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn table(capacity: usize) -> (NameTable, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(0));
        let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        (NameTable::with_capacity([7; 16], shared, capacity), clock)
    }

    #[test]
    fn an_address_stands_for_one_name_in_both_families() {
        let (table, _) = table(16);
        let a = table.assign(&name("a.test")).unwrap();
        let b = table.assign(&name("b.test")).unwrap();
        assert_ne!(a, b);
        assert_eq!(table.assign(&name("A.test.")), Ok(a));
        assert_eq!(table.lookup(a.v4.into()), Some(name("a.test")));
        assert_eq!(table.lookup(a.v6.into()), Some(name("a.test")));
        assert_eq!(table.lookup(a.v4.to_ipv6_mapped().into()), Some(name("a.test")));
        assert_eq!(table.lookup(b.v6.into()), Some(name("b.test")));
        assert_eq!(table.lookup("198.18.0.0".parse().unwrap()), None);
        assert!(is_synthetic(a.v4.into()) && is_synthetic(a.v6.into()));
        assert!(!is_synthetic("198.20.0.1".parse().unwrap()));
        assert!(!is_synthetic("fd57:616c:6c67:1::1".parse().unwrap()));
    }

    #[test]
    fn a_full_table_refuses_until_its_oldest_name_is_beyond_every_cache() {
        let (table, clock) = table(2);
        let a = table.assign(&name("a.test")).unwrap();
        let b = table.assign(&name("b.test")).unwrap();
        assert_eq!(table.assign(&name("c.test")), Err(NamesFull));
        clock.advance(NAME_GRACE);
        assert_eq!(
            table.assign(&name("a.test")),
            Ok(a),
            "asked again: its grace begins anew"
        );
        assert_eq!(
            table.assign(&name("c.test")),
            Err(NamesFull),
            "the TTL counts as well"
        );
        clock.advance(Duration::from_secs(SYNTHETIC_TTL_SECS.into()));
        let c = table.assign(&name("c.test")).unwrap();
        assert_eq!(table.lookup(b.v4.into()), None);
        assert_eq!(table.lookup(a.v4.into()), Some(name("a.test")));
        assert_eq!(table.lookup(c.v4.into()), Some(name("c.test")));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn an_address_is_not_given_again_before_all_others_had_their_turn() {
        let (table, clock) = table(1);
        let mut seen = HashSet::new();
        for turn in 0..5000 {
            let addresses = table.assign(&name(&format!("n{turn}.test"))).unwrap();
            assert!(seen.insert(addresses.v4), "{addresses:?} was given twice");
            clock.advance(NAME_GRACE * 2);
        }
    }

    #[test]
    fn the_order_is_a_permutation_and_depends_on_the_seed() {
        let order = Permutation { seed: [1; 16] };
        let all: HashSet<u32> = (0..1 << V4_BITS).map(|index| order.of(index)).collect();
        assert_eq!(all.len(), 1 << V4_BITS);
        let other = Permutation { seed: [2; 16] };
        assert_ne!(
            (0..8).map(|i| order.of(i)).collect::<Vec<_>>(),
            (0..8).map(|i| other.of(i)).collect::<Vec<_>>()
        );
    }
}
