//! The journal's format: segments of frames.
//!
//! ```text
//!   journal/<base, 20 digits>.seg           a position counts bytes from the beginning of the first segment
//!
//!   segment header, 64 bytes                 frame
//!    0  "WGLEDGER"                            0  check: first 8 bytes of SHA-256(salt ‖ position, LE ‖ frame from 8 on)
//!    8  version, u32 LE (1)                   8  length of the payload, u32 LE (1 to 65535)
//!   12  0, u32                               12  kind: 1 record, 2 checkpoint (a signed note)
//!   16  ledger id, 16 bytes                  13  0, 3 bytes
//!   32  salt, 16 random bytes                16  index of the record / size of the tree, u64 LE
//!   48  base, u64 LE                         24  synced, u64 LE
//!   56  check: first 8 of SHA-256(0..56)     32  payload
//! ```
//!
//! After the last frame a segment holds zeros (it is enlarged ahead of need) or nothing.
//!
//! `synced` is the position before which everything was on disk when this frame was written. It tells a torn write from
//! damage: if a frame that does not check is followed, anywhere, by one that does and says `synced` beyond it, then the
//! broken one had been on disk, whole; no crash explains it. The salt keeps a sandbox, which chooses part of what is stored,
//! from planting bytes that check at a place of its choice.
//!
//! The check finds accidents and names the place. Against someone who can write the file it proves nothing; the tree and
//! the signatures do.

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::limits::MAX_PAYLOAD_BYTES;

pub(crate) const MAGIC: &[u8; 8] = b"WGLEDGER";
/// The version of the journal's format.
pub(crate) const FORMAT: u32 = 1;
pub(crate) const SEGMENT_HEADER: usize = 64;
pub(crate) const FRAME_HEADER: usize = 32;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Record,
    Checkpoint,
}

/// A frame that checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) position: u64,
    pub(crate) kind: FrameKind,
    pub(crate) index: u64,
    pub(crate) synced: u64,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    /// The position after it.
    pub(crate) fn end(&self) -> u64 {
        self.position
            .saturating_add(FRAME_HEADER as u64)
            .saturating_add(self.payload.len() as u64)
    }
}

/// Why bytes are no frame, or no segment.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum FrameError {
    #[error("the frame is cut off")]
    Short,
    #[error("the frame's length is impossible")]
    Length,
    #[error("the frame's kind is unknown")]
    Kind,
    #[error("the frame's check does not fit its content")]
    Check,
    #[error("this is not a segment of a wallgate journal")]
    Magic,
    #[error("the segment has format version {0}, this program reads {FORMAT}")]
    Version(u32),
    #[error("the segment's header does not fit its check")]
    HeaderCheck,
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) ledger: [u8; 16],
    pub(crate) salt: [u8; 16],
    pub(crate) base: u64,
}

/// `N` bytes at `at`, if there are that many.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

fn first8(digest: [u8; 32]) -> [u8; 8] {
    digest.first_chunk::<8>().copied().unwrap_or_default()
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.ledger);
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&self.base.to_le_bytes());
        let check = first8(Sha256::digest(&bytes).into());
        bytes.extend_from_slice(&check);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let head = bytes.get(..SEGMENT_HEADER).ok_or(FrameError::Short)?;
        let (content, check) = head.split_at(SEGMENT_HEADER - 8);
        if !content.starts_with(MAGIC) {
            return Err(FrameError::Magic);
        }
        let version = bytes_at(content, 8).map_or(0, u32::from_le_bytes);
        if first8(Sha256::digest(content).into()) != check {
            return Err(FrameError::HeaderCheck);
        }
        if version != FORMAT {
            return Err(FrameError::Version(version));
        }
        match (
            bytes_at(content, 12),
            bytes_at(content, 16),
            bytes_at(content, 32),
            u64_at(content, 48),
        ) {
            (Some([0, 0, 0, 0]), Some(ledger), Some(salt), Some(base)) => Ok(Self { ledger, salt, base }),
            _ => Err(FrameError::HeaderCheck),
        }
    }
}

fn check_of(salt: &[u8; 16], position: u64, content: &[u8]) -> [u8; 8] {
    first8(
        Sha256::new()
            .chain_update(salt)
            .chain_update(position.to_le_bytes())
            .chain_update(content)
            .finalize()
            .into(),
    )
}

/// Appends a frame that will stand at `position` to `out`.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    salt: &[u8; 16],
    position: u64,
    kind: FrameKind,
    index: u64,
    synced: u64,
    payload: &[u8],
) -> Result<(), FrameError> {
    let length = u32::try_from(payload.len()).or(Err(FrameError::Length))?;
    if payload.is_empty() || payload.len() > MAX_PAYLOAD_BYTES {
        return Err(FrameError::Length);
    }
    let start = out.len();
    out.reserve(FRAME_HEADER.saturating_add(payload.len()));
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&length.to_le_bytes());
    out.push(match kind {
        FrameKind::Record => 1,
        FrameKind::Checkpoint => 2,
    });
    out.extend_from_slice(&[0; 3]);
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&synced.to_le_bytes());
    out.extend_from_slice(payload);
    if let Some((check, content)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<8>) {
        *check = check_of(salt, position, content);
    }
    Ok(())
}

/// The frame at the beginning of `bytes`, which stand at `position`.
pub(crate) fn decode<'a>(bytes: &'a [u8], salt: &[u8; 16], position: u64) -> Result<Frame<'a>, FrameError> {
    let length: [u8; 4] = bytes_at(bytes, 8).ok_or(FrameError::Short)?;
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 || length > MAX_PAYLOAD_BYTES {
        return Err(FrameError::Length);
    }
    let kind = match bytes_at(bytes, 12).ok_or(FrameError::Short)? {
        [1, 0, 0, 0] => FrameKind::Record,
        [2, 0, 0, 0] => FrameKind::Checkpoint,
        _ => return Err(FrameError::Kind),
    };
    let end = FRAME_HEADER.saturating_add(length);
    let content = bytes.get(8..end).ok_or(FrameError::Short)?;
    let payload = bytes.get(FRAME_HEADER..end).ok_or(FrameError::Short)?;
    if bytes_at(bytes, 0) != Some(check_of(salt, position, content)) {
        return Err(FrameError::Check);
    }
    Ok(Frame {
        position,
        kind,
        index: u64_at(bytes, 16).ok_or(FrameError::Short)?,
        synced: u64_at(bytes, 24).ok_or(FrameError::Short)?,
        payload,
    })
}

/// Whether anything after the first byte of `rest`, which stands at `position`, proves that what stands at `position` had
/// been on disk: a frame that checks and was written after a sync beyond it.
pub(crate) fn proves_synced(rest: &[u8], salt: &[u8; 16], position: u64) -> bool {
    (1..rest.len()).any(|offset| {
        let at = position.saturating_add(offset as u64);
        rest.get(offset..)
            .and_then(|bytes| decode(bytes, salt, at).ok())
            .is_some_and(|frame| frame.synced > position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SALT: [u8; 16] = [7; 16];

    #[test]
    fn a_segment_header_has_these_bytes() {
        let header = SegmentHeader {
            ledger: [1; 16],
            salt: [2; 16],
            base: 0x0102,
        };
        let bytes = header.encode();
        let golden = "57474c454447455201000000000000000101010101010101010101010101010102020202020202020202020202020202020100000000000020a1b0661c5c4f45";
        assert_eq!(hex::encode(&bytes).get(..112), golden.get(..112));
        assert_eq!(SegmentHeader::parse(&bytes), Ok(header));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(SegmentHeader::parse(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_frame_has_these_bytes_and_every_flip_shows() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &SALT, 64, FrameKind::Record, 5, 64, b"{}").unwrap();
        let golden = "0200000001000000050000000000000040000000000000007b7d";
        assert_eq!(hex::encode(&bytes[8..]), golden);
        let frame = decode(&bytes, &SALT, 64).unwrap();
        assert_eq!(
            (frame.index, frame.synced, frame.payload),
            (5, 64, b"{}".as_slice())
        );
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(decode(&changed, &SALT, 64).is_err(), "byte {at} bit {bit}");
            }
        }
        assert_eq!(decode(&bytes, &SALT, 65), Err(FrameError::Check));
        assert_eq!(decode(&bytes, &[8; 16], 64), Err(FrameError::Check));
    }

    /// A crash may tear the last unsynced write in any order; it never damages what a later frame calls synced.
    #[test]
    fn damage_is_told_from_a_torn_write() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &SALT, 64, FrameKind::Record, 0, 64, b"first").unwrap();
        let second = 64 + bytes.len() as u64;
        let mut torn = bytes.clone();
        encode(&mut torn, &SALT, second, FrameKind::Record, 1, 64, b"second").unwrap();
        torn[34] ^= 1;
        assert!(!proves_synced(&torn, &SALT, 64));
        let mut damaged = bytes;
        encode(
            &mut damaged,
            &SALT,
            second,
            FrameKind::Record,
            1,
            second,
            b"second",
        )
        .unwrap();
        damaged[34] ^= 1;
        assert!(proves_synced(&damaged, &SALT, 64));
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), position in any::<u64>()) {
            let _ignored = decode(&bytes, &SALT, position);
            let _ignored = SegmentHeader::parse(&bytes);
            prop_assert!(!proves_synced(&bytes, &SALT, position));
        }
    }
}
