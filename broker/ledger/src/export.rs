//! The ledger in other people's formats.
//!
//! [`ndjson`] writes stored records, one a line. [`tiles`] writes the layout of C2SP `tlog-tiles`, which third-party programs
//! verify:
//!
//! ```text
//!   checkpoint                             the signed note
//!   tile/entries/<N>[.p/<W>]               256 entries, or W: u16 BE length, then the record's bytes
//!   tile/<L>/<N>[.p/<W>]                   256 hashes of level 8·L, or W
//!
//!   N in groups of three digits, all but the last with an x: 1234067 is x001/x234/067
//! ```

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::reader::{Filter, ReadError, Reader};
use crate::recorded::LeafIndex;
use crate::tree::{Hash, node_hash};

/// Entries or hashes in a full tile.
pub(crate) const TILE_WIDTH: u64 = 256;
/// The folder of entry bundles.
pub(crate) const ENTRIES: &str = "entries";

/// Where a tile of `width` entries stands.
pub(crate) fn tile_path(directory: &Path, level: &str, number: u64, width: u64) -> PathBuf {
    let mut groups = vec![format!("{:03}", number % 1000)];
    let mut rest = number / 1000;
    while rest > 0 {
        groups.push(format!("x{:03}", rest % 1000));
        rest /= 1000;
    }
    groups.reverse();
    let mut path = groups.join("/");
    if width < TILE_WIDTH {
        // Writing to a String cannot fail.
        let _infallible = write!(path, ".p/{width}");
    }
    directory.join("tile").join(level).join(path)
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> ReadError {
    let doing = format!("writing {}", path.display());
    move |source| ReadError::Io { doing, source }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ReadError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io_error(parent))?;
    }
    std::fs::write(path, bytes).map_err(io_error(path))
}

/// Writes the stored records that match, oldest first, one a line, byte for byte; returns how many. A limit in the filter
/// is the number of lines; without one, all are written.
///
/// # Errors
/// See [`ReadError`].
pub fn ndjson(reader: &Reader, filter: &Filter, out: &mut dyn Write) -> Result<u64, ReadError> {
    let failed = |source| ReadError::Io {
        doing: "writing the export".to_owned(),
        source,
    };
    let wanted = filter.limit.map_or(u64::MAX, |limit| limit as u64);
    let mut written = 0_u64;
    let mut from = 0;
    let page = Filter {
        limit: Some(1024),
        ..filter.clone()
    };
    while written < wanted {
        let hits = reader.since(LeafIndex(from), &page)?;
        let Some(last) = hits.last() else { break };
        from = last.record.index.0.saturating_add(1);
        for hit in &hits {
            if written == wanted {
                break;
            }
            out.write_all(hit.record.json.as_bytes()).map_err(failed)?;
            out.write_all(b"\n").map_err(failed)?;
            written = written.saturating_add(1);
        }
    }
    Ok(written)
}

/// Writes the log, as far as its last checkpoint, as C2SP tiles into `out`.
///
/// # Errors
/// See [`ReadError`].
pub fn tiles(reader: &Reader, out: &Path) -> Result<(), ReadError> {
    let size = reader.signed_size()?;
    let note = reader.checkpoint()?.ok_or(ReadError::NotSigned(0))?;
    let mut hashes = Vec::new();
    let mut start = 0;
    while start < size {
        let width = size.saturating_sub(start).min(TILE_WIDTH);
        let mut bundle = Vec::new();
        let page = Filter {
            limit: usize::try_from(width).ok(),
            ..Filter::default()
        };
        for hit in reader.since(LeafIndex(start), &page)? {
            let record = hit.record.json.as_bytes();
            let length = u16::try_from(record.len()).map_err(|_too_long| ReadError::Damaged {
                place: format!("record {}", hit.record.index.0),
                what: "it is too long for a bundle".to_owned(),
            })?;
            bundle.extend_from_slice(&length.to_be_bytes());
            bundle.extend_from_slice(record);
            hashes.push(reader.leaf_hash(hit.record.index.0)?);
        }
        write_file(&tile_path(out, ENTRIES, start / TILE_WIDTH, width), &bundle)?;
        start = start.saturating_add(width);
    }
    hash_tiles(out, hashes)?;
    write_file(&out.join("checkpoint"), note.as_bytes())
}

fn hash_tiles(out: &Path, mut hashes: Vec<Hash>) -> Result<(), ReadError> {
    for level in 0..8_u8 {
        let mut above = Vec::new();
        for (number, tile) in hashes.chunks(256).enumerate() {
            let path = tile_path(out, &level.to_string(), number as u64, tile.len() as u64);
            write_file(&path, &tile.concat())?;
            if tile.len() == 256 {
                above.extend(full_root(tile.to_vec()));
            }
        }
        if above.is_empty() {
            break;
        }
        hashes = above;
    }
    Ok(())
}

/// The root of a full tile, by halving eight times.
fn full_root(mut layer: Vec<Hash>) -> Option<Hash> {
    while layer.len() > 1 {
        let (pairs, _) = layer.as_chunks::<2>();
        layer = pairs.iter().map(|[left, right]| node_hash(left, right)).collect();
    }
    layer.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_stand_where_the_specification_says() {
        let rows = [
            ("0", 0, 256, "r/tile/0/000"),
            ("0", 5, 3, "r/tile/0/005.p/3"),
            ("entries", 1_234_067, 256, "r/tile/entries/x001/x234/067"),
            ("1", 1000, 1, "r/tile/1/x001/000.p/1"),
        ];
        for (level, number, width, expected) in rows {
            assert_eq!(
                tile_path(Path::new("r"), level, number, width),
                Path::new(expected)
            );
        }
    }
}
