//! The Merkle tree of RFC 6962, section 2.1.
//!
//! ```text
//!   leaf = SHA-256(0x00 ‖ record)     node = SHA-256(0x01 ‖ left ‖ right)     empty tree = SHA-256("")
//!
//!   size 7          root                     frontier: the roots of the full subtrees, largest first:
//!              ┌─────┴─────┐                  [h(0..4), h(4..6), h(6)]
//!              k           l                  Appending a leaf merges equal sizes; folding from the right gives
//!           ┌──┴──┐     ┌──┴──┐               the root.
//!           g     h     i     6
//!          ┌┴┐   ┌┴┐   ┌┴┐
//!          0 1   2 3   4 5
//! ```
//!
//! Proofs are made from any source of the hashes of full subtrees ([`Hashes`]) and checked without one.

use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// The hash of a record.
#[must_use]
pub fn leaf_hash(record: &[u8]) -> Hash {
    Sha256::new()
        .chain_update([0])
        .chain_update(record)
        .finalize()
        .into()
}

/// The hash of an inner node.
#[must_use]
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Sha256::new()
        .chain_update([1])
        .chain_update(left)
        .chain_update(right)
        .finalize()
        .into()
}

/// The root of the tree without leaves.
#[must_use]
pub fn empty_root() -> Hash {
    Sha256::digest([]).into()
}

/// As much of a tree as appending needs: the roots of its full subtrees, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    roots: Vec<Hash>,
}

impl Frontier {
    /// The tree without leaves.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            size: 0,
            roots: Vec::new(),
        }
    }

    /// A tree that was taken apart by [`Frontier::roots`]; `None` when the number of roots does not fit the size.
    #[must_use]
    pub fn from_parts(size: u64, roots: Vec<Hash>) -> Option<Self> {
        (u32::try_from(roots.len()).ok()? == size.count_ones()).then_some(Self { size, roots })
    }

    /// The number of leaves.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The roots of the full subtrees, largest first.
    #[must_use]
    pub fn roots(&self) -> &[Hash] {
        &self.roots
    }

    /// Appends a leaf by its hash.
    pub fn append(&mut self, leaf: Hash) {
        self.append_with(leaf, |_, _, _| {});
    }

    /// Appends a leaf by its hash, and calls `full` with the level, index and root of each subtree that it fills.
    pub fn append_with(&mut self, leaf: Hash, mut full: impl FnMut(u32, u64, Hash)) {
        let mut hash = leaf;
        for height in 0..self.size.trailing_ones() {
            if let Some(left) = self.roots.pop() {
                hash = node_hash(&left, &hash);
                let level = height.saturating_add(1);
                full(level, self.size >> level, hash);
            }
        }
        self.roots.push(hash);
        self.size = self.size.saturating_add(1);
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut roots = self.roots.iter().rev();
        let Some(last) = roots.next() else {
            return empty_root();
        };
        roots.fold(*last, |right, left| node_hash(left, &right))
    }
}

/// Where the hashes of full subtrees come from.
pub trait Hashes {
    /// What goes wrong when a hash cannot be had.
    type Error;

    /// The root of the leaves `[index << level, (index + 1) << level)`, all of which exist.
    ///
    /// # Errors
    /// Whatever the source says.
    fn subtree(&self, level: u32, index: u64) -> Result<Hash, Self::Error>;
}

/// The root of the leaves `[start, end)`, where `start` is a multiple of the largest power of two below `end - start`.
///
/// # Errors
/// What the source of hashes says.
pub fn range_root<H: Hashes>(hashes: &H, start: u64, end: u64) -> Result<Hash, H::Error> {
    let mut parts = Vec::new();
    let mut at = start;
    while at < end {
        let level = (end - at).ilog2().min(at.trailing_zeros().min(63));
        parts.push(hashes.subtree(level, at >> level)?);
        at += 1 << level;
    }
    let mut parts = parts.into_iter().rev();
    Ok(parts.next().map_or_else(empty_root, |last| {
        parts.fold(last, |right, left| node_hash(&left, &right))
    }))
}

/// The largest power of two smaller than `n`, which is at least 2.
const fn split(n: u64) -> u64 {
    1 << (n - 1).ilog2()
}

/// The audit path of leaf `index` in the tree of `size` leaves (RFC 6962, section 2.1.1), lowest first.
///
/// # Errors
/// What the source of hashes says.
pub fn prove_inclusion<H: Hashes>(hashes: &H, index: u64, size: u64) -> Result<Vec<Hash>, H::Error> {
    let (mut start, mut end) = (0, size);
    let mut path = Vec::new();
    while end - start > 1 {
        let middle = start + split(end - start);
        if index < middle {
            path.push(range_root(hashes, middle, end)?);
            end = middle;
        } else {
            path.push(range_root(hashes, start, middle)?);
            start = middle;
        }
    }
    path.reverse();
    Ok(path)
}

/// The proof that the tree of `old` leaves is a prefix of the tree of `size` leaves (RFC 6962, section 2.1.2).
///
/// # Errors
/// What the source of hashes says.
pub fn prove_consistency<H: Hashes>(hashes: &H, old: u64, size: u64) -> Result<Vec<Hash>, H::Error> {
    let mut path = Vec::new();
    if old == 0 || old >= size {
        return Ok(path);
    }
    let (mut start, mut end) = (0, size);
    let mut whole = true;
    while old != end {
        let middle = start + split(end - start);
        if old <= middle {
            path.push(range_root(hashes, middle, end)?);
            end = middle;
        } else {
            path.push(range_root(hashes, start, middle)?);
            start = middle;
            whole = false;
        }
    }
    if !whole {
        path.push(range_root(hashes, start, end)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether `path` proves that the leaf with this hash stands at `index` of the tree with `size` leaves and this root
/// (RFC 9162, section 2.1.3.2).
#[must_use]
pub fn check_inclusion(leaf: &Hash, index: u64, size: u64, path: &[Hash], root: &Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in path {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// Whether `path` proves that the tree of `old` leaves with root `old_root` is a prefix of the tree of `size` leaves
/// with root `root` (RFC 9162, section 2.1.4.2).
#[must_use]
pub fn check_consistency(old: u64, old_root: &Hash, size: u64, root: &Hash, path: &[Hash]) -> bool {
    if old > size {
        return false;
    }
    if old == size {
        return path.is_empty() && old_root == root;
    }
    if old == 0 {
        return path.is_empty() && *old_root == empty_root();
    }
    let mut path = path.iter();
    let seed = if old.is_power_of_two() {
        Some(old_root)
    } else {
        path.next()
    };
    let Some(seed) = seed else { return false };
    let (mut node, mut last) = (old - 1, size - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let (mut from_old, mut from_new) = (*seed, *seed);
    for hash in path {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            from_old = node_hash(hash, &from_old);
            from_new = node_hash(hash, &from_new);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            from_new = node_hash(&from_new, hash);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && from_old == *old_root && from_new == *root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// The definition of RFC 6962, word for word.
    struct Leaves(Vec<Hash>);

    impl Hashes for Leaves {
        type Error = Infallible;
        fn subtree(&self, level: u32, index: u64) -> Result<Hash, Infallible> {
            let start = usize::try_from(index << level).unwrap();
            Ok(definition(&self.0[start..start + (1 << level)]))
        }
    }

    fn definition(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => empty_root(),
            [leaf] => *leaf,
            more => {
                let k = usize::try_from(split(more.len() as u64)).unwrap();
                node_hash(&definition(&more[..k]), &definition(&more[k..]))
            }
        }
    }

    /// The test inputs that Certificate Transparency implementations share, with their published roots.
    #[test]
    fn roots_are_those_of_the_reference_vectors() {
        let inputs = [
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        assert_eq!(
            hex::encode(empty_root()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        let mut frontier = Frontier::new();
        for (input, root) in inputs.iter().zip(roots) {
            frontier.append(leaf_hash(&hex::decode(input).unwrap()));
            assert_eq!(hex::encode(frontier.root()), root, "size {}", frontier.size());
        }
    }

    fn leaves(count: u64) -> Leaves {
        Leaves((0..count).map(|n| leaf_hash(&n.to_be_bytes())).collect())
    }

    #[test]
    fn every_small_proof_holds_and_holds_for_nothing_else() {
        let all = leaves(17);
        for size in 1..=17_u64 {
            let root = range_root(&all, 0, size).unwrap();
            assert_eq!(root, definition(&all.0[..usize::try_from(size).unwrap()]));
            for index in 0..size {
                let path = prove_inclusion(&all, index, size).unwrap();
                for claimed in 0..size {
                    let leaf = &all.0[usize::try_from(index).unwrap()];
                    assert_eq!(
                        check_inclusion(leaf, claimed, size, &path, &root),
                        claimed == index
                    );
                }
            }
            for old in 0..=size {
                let path = prove_consistency(&all, old, size).unwrap();
                for claimed in 0..=size {
                    let old_root = range_root(&all, 0, claimed).unwrap();
                    let holds = check_consistency(claimed, &old_root, size, &root, &path);
                    assert_eq!(
                        holds,
                        claimed == old || (path.is_empty() && (claimed == 0 || claimed == size)),
                        "{old} {claimed} {size}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_frontier_is_the_whole_tree(count in 0_u64..300) {
            let all = leaves(count);
            let mut frontier = Frontier::new();
            for leaf in &all.0 {
                frontier.append(*leaf);
            }
            prop_assert_eq!(frontier.root(), definition(&all.0));
            let parts = Frontier::from_parts(frontier.size(), frontier.roots().to_vec());
            prop_assert_eq!(parts, Some(frontier));
        }

        #[test]
        fn a_changed_path_proves_nothing(size in 2_u64..200, index in 0_u64..200, at in 0_usize..8, bit in 0_u32..256) {
            let all = leaves(size);
            let index = index % size;
            let root = range_root(&all, 0, size).unwrap();
            let mut path = prove_inclusion(&all, index, size).unwrap();
            let at = at % path.len();
            path[at][(bit / 8) as usize] ^= 1 << (bit % 8);
            prop_assert!(!check_inclusion(&all.0[usize::try_from(index).unwrap()], index, size, &path, &root));
        }
    }
}
