//! A C2SP `tlog-tiles` export, verified like a ledger: entries first, then every hash tile, then the checkpoint.

use std::path::Path;

use super::walk::Walk;
use super::{Place, Report, VerifyError, VerifyOptions};
use crate::export::{ENTRIES, TILE_WIDTH, tile_path};
use crate::tree::{Hash, node_hash};

/// Verifies an export made by [`crate::export::tiles`], or by any log of these records.
///
/// # Errors
/// See [`VerifyError`].
pub fn verify_tiles(directory: &Path, options: &VerifyOptions) -> Result<Report, VerifyError> {
    let path = directory.join("checkpoint");
    let note = match std::fs::read(&path) {
        Ok(note) => note,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(VerifyError::NoLedger(directory.to_owned()));
        }
        Err(source) => return Err(VerifyError::Io { path, source }),
    };
    let mut walk = Walk::new(options)?;
    let result = tiles_walk(directory, &note, &mut walk);
    Ok(walk.report(result.err(), false, false))
}

fn tiles_walk(directory: &Path, note: &[u8], walk: &mut Walk) -> Result<(), Place> {
    let damaged = |what: String| Place::new(0, "checkpoint_damaged", what);
    let text = std::str::from_utf8(note).map_err(|error| damaged(error.to_string()))?;
    let size = crate::checkpoint::Checkpoint::unverified(text)
        .map_err(|error| damaged(error.to_string()))?
        .size;
    let mut hashes = Vec::new();
    while walk.size() < size {
        let start = walk.size();
        let width = size.saturating_sub(start).min(TILE_WIDTH);
        let file = tile_path(directory, ENTRIES, start / TILE_WIDTH, width);
        let bytes = std::fs::read(&file)
            .map_err(|error| Place::new(start, "tile_missing", format!("{}: {error}", file.display())))?;
        let mut rest = bytes.as_slice();
        for _ in 0..width {
            let at = walk.size();
            let cut = || Place::new(at, "tile_damaged", format!("{} is cut off", file.display()));
            let (length, more) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
            let (entry, more) = more
                .split_at_checked(usize::from(u16::from_be_bytes(*length)))
                .ok_or_else(cut)?;
            walk.record(entry)?;
            hashes.extend(walk.last.as_ref().map(|(_, hash)| *hash));
            rest = more;
        }
        if !rest.is_empty() {
            return Err(Place::new(
                walk.size(),
                "tile_damaged",
                format!("{} has bytes that belong to no entry", file.display()),
            ));
        }
    }
    hash_tiles(directory, hashes)?;
    walk.note(note)?;
    walk.finish(false)
}

/// Every hash tile, level by level.
fn hash_tiles(directory: &Path, mut hashes: Vec<Hash>) -> Result<(), Place> {
    let mut records_below: u64 = 1;
    for level in 0..8_u8 {
        let mut above = Vec::new();
        for (number, tile) in hashes.chunks(256).enumerate() {
            let number = number as u64;
            let at = number.saturating_mul(TILE_WIDTH).saturating_mul(records_below);
            let file = tile_path(directory, &level.to_string(), number, tile.len() as u64);
            let bytes = std::fs::read(&file)
                .map_err(|error| Place::new(at, "tile_missing", format!("{}: {error}", file.display())))?;
            if bytes != tile.concat() {
                return Err(Place::new(
                    at,
                    "tile_damaged",
                    format!("{} does not hold the hashes of its entries", file.display()),
                ));
            }
            if tile.len() == 256 {
                above.push(full_root(tile));
            }
        }
        if above.is_empty() {
            return Ok(());
        }
        records_below = records_below.saturating_mul(TILE_WIDTH);
        hashes = above;
    }
    Ok(())
}

/// The root of a full tile.
fn full_root(tile: &[Hash]) -> Hash {
    let mut layer = tile.to_vec();
    while layer.len() > 1 {
        layer = layer
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => node_hash(left, right),
                [single] => *single,
                _ => [0; 32],
            })
            .collect();
    }
    layer.first().copied().unwrap_or_default()
}
