//! Content codings, undone as the bytes come (RFC 9110, section 8.4.1).
//!
//! A response whose coding is unknown, or that has more than one, cannot be looked into, so it is refused. One that
//! swells beyond [`MAX_RATIO`] is cut: its decoded size is bounded by what upstream really sent.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use thiserror::Error;
use zstd::stream::raw::{self, Operation as _};

/// The codings that can be undone, as upstream is told (RFC 9110, section 12.5.3).
pub(super) const ACCEPTED: [&str; 6] = ["gzip", "x-gzip", "deflate", "br", "zstd", "identity"];
/// How many decoded bytes there may be for each encoded one, beyond [`FREE_BYTES`].
const MAX_RATIO: u64 = 200;
/// Decoded bytes that need no justification.
const FREE_BYTES: u64 = 1 << 20;
/// How much is decoded at a time, in encoded bytes: bounds what one step can produce.
const STEP_BYTES: usize = 4096;
/// The largest window of a zstd frame, as a power of two (RFC 9659: 8 MiB).
const ZSTD_WINDOW_LOG: u32 = 23;

/// A single content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// More than one coding, or one that nobody here knows.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the content coding is unknown or stacked")]
pub(super) struct UnknownCoding;

impl Coding {
    /// What a response is coded with, if with anything.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, UnknownCoding> {
        let mut coding = None;
        for value in headers.get_all(CONTENT_ENCODING) {
            let text = value.to_str().or(Err(UnknownCoding))?;
            for name in text.split(',').map(str::trim) {
                let this = match name.to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Self::Gzip,
                    "deflate" => Self::Deflate,
                    "br" => Self::Brotli,
                    "zstd" => Self::Zstd,
                    _ => return Err(UnknownCoding),
                };
                if coding.replace(this).is_some() {
                    return Err(UnknownCoding);
                }
            }
        }
        Ok(coding)
    }
}

/// Why a body cannot be decoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// It is not what its coding promises.
    #[error("the body is not coded as it says")]
    Malformed,
    /// It breaks off.
    #[error("the coded body breaks off")]
    Truncated,
    /// It swells too much.
    #[error("the coded body swells to more than {MAX_RATIO} times its size")]
    Ratio,
}

impl DecodeError {
    /// The stable word for the record.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "coding_malformed",
            Self::Truncated => "coding_truncated",
            Self::Ratio => "coding_ratio",
        }
    }
}

/// Where decoded bytes are collected, no more than are allowed.
#[derive(Default)]
struct Sink {
    decoded: Vec<u8>,
    total: u64,
    allowed: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.total = self.total.saturating_add(length);
        if self.total > self.allowed {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.decoded.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Codec {
    Gzip(MultiGzDecoder<Sink>),
    Zlib(ZlibDecoder<Sink>),
    RawDeflate(DeflateDecoder<Sink>),
    Brotli(Box<brotli::DecompressorWriter<Sink>>),
    Zstd(ZstdDecoder),
}

/// Undoes one coding.
pub(super) struct Decoder {
    coding: Coding,
    codec: Option<Codec>,
    taken: u64,
}

impl Decoder {
    pub(super) const fn new(coding: Coding) -> Self {
        Self {
            coding,
            codec: None,
            taken: 0,
        }
    }

    /// Decodes some of `encoded`, and takes that away from it.
    pub(super) fn step(&mut self, encoded: &mut Bytes) -> Result<Bytes, DecodeError> {
        let piece = encoded.split_to(encoded.len().min(STEP_BYTES));
        if self.codec.is_none() {
            let Some(first) = piece.first() else {
                return Ok(Bytes::new());
            };
            self.codec = Some(Codec::new(self.coding, *first)?);
        }
        self.taken = self
            .taken
            .saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        let allowed = FREE_BYTES.saturating_add(self.taken.saturating_mul(MAX_RATIO));
        let Some(codec) = &mut self.codec else {
            return Ok(Bytes::new());
        };
        codec.sink().allowed = allowed;
        codec.write_all(&piece).map_err(|error| reason(&error))?;
        codec.flush().map_err(|error| reason(&error))?;
        Ok(codec.take())
    }

    /// Nothing follows: what is still inside, unless the body breaks off. An empty body is no body.
    pub(super) fn finish(&mut self) -> Result<Bytes, DecodeError> {
        match self.codec.take() {
            Some(codec) => codec.finish(),
            None => Ok(Bytes::new()),
        }
    }
}

/// zstd frames, of which the last must be whole (RFC 8878). The crate's own writer does not say whether it was.
struct ZstdDecoder {
    raw: raw::Decoder<'static>,
    sink: Sink,
    inside_frame: bool,
}

impl ZstdDecoder {
    fn new(sink: Sink) -> io::Result<Self> {
        let mut raw = raw::Decoder::new()?;
        raw.set_parameter(raw::DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
        Ok(Self {
            raw,
            sink,
            inside_frame: false,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut buffer = [0; STEP_BYTES];
        let mut input = raw::InBuffer::around(bytes);
        loop {
            let mut output = raw::OutBuffer::around(buffer.as_mut_slice());
            let missing = self.raw.run(&mut input, &mut output)?;
            let produced = output.as_slice();
            let full = produced.len() == STEP_BYTES;
            self.inside_frame = missing > 0;
            self.sink.write_all(produced)?;
            // A full buffer may hide more; otherwise all that could be decoded was.
            if input.pos() == bytes.len() && !full {
                return Ok(bytes.len());
            }
        }
    }

    fn finish(&self) -> io::Result<()> {
        if self.inside_frame {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

fn reason(error: &io::Error) -> DecodeError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => DecodeError::Ratio,
        io::ErrorKind::UnexpectedEof => DecodeError::Truncated,
        _ => DecodeError::Malformed,
    }
}

impl Codec {
    fn new(coding: Coding, first: u8) -> Result<Self, DecodeError> {
        let sink = Sink::default();
        Ok(match coding {
            Coding::Gzip => Self::Gzip(MultiGzDecoder::new(sink)),
            // `deflate` means zlib, but some send the raw stream. A zlib header's low nibble is 8 (RFC 1950, section
            // 2.2), and no raw stream that a compressor makes begins so with a small window.
            Coding::Deflate if first & 0x0f == 8 && first >> 4 <= 7 => Self::Zlib(ZlibDecoder::new(sink)),
            Coding::Deflate => Self::RawDeflate(DeflateDecoder::new(sink)),
            Coding::Brotli => Self::Brotli(Box::new(brotli::DecompressorWriter::new(sink, STEP_BYTES))),
            Coding::Zstd => Self::Zstd(ZstdDecoder::new(sink).or(Err(DecodeError::Malformed))?),
        })
    }

    fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Zlib(decoder) => decoder.get_mut(),
            Self::RawDeflate(decoder) => decoder.get_mut(),
            Self::Brotli(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => &mut decoder.sink,
        }
    }

    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.sink().decoded).into()
    }

    fn finish(mut self) -> Result<Bytes, DecodeError> {
        let result = match &mut self {
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Zlib(decoder) => decoder.try_finish(),
            Self::RawDeflate(decoder) => decoder.try_finish(),
            Self::Brotli(decoder) => decoder.close(),
            Self::Zstd(decoder) => decoder.finish(),
        };
        result.map_err(|error| reason(&error))?;
        Ok(self.take())
    }
}

impl Write for Codec {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.write(bytes),
            Self::Zlib(decoder) => decoder.write(bytes),
            Self::RawDeflate(decoder) => decoder.write(bytes),
            Self::Brotli(decoder) => decoder.write(bytes),
            Self::Zstd(decoder) => decoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(decoder) => decoder.flush(),
            Self::Zlib(decoder) => decoder.flush(),
            Self::RawDeflate(decoder) => decoder.flush(),
            Self::Brotli(decoder) => decoder.flush(),
            Self::Zstd(_) => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    pub(crate) fn encode(name: &str, plain: &[u8]) -> Vec<u8> {
        let level = Compression::default();
        match name {
            "gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "raw deflate" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "br" => {
                let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
                encoder.write_all(plain).unwrap();
                encoder.into_inner()
            }
            "zstd" => zstd::encode_all(plain, 3).unwrap(),
            other => panic!("no encoder for {other}"),
        }
    }

    fn coding(name: &str) -> Coding {
        match name {
            "gzip" => Coding::Gzip,
            "deflate" | "raw deflate" => Coding::Deflate,
            "br" => Coding::Brotli,
            _ => Coding::Zstd,
        }
    }

    fn decode(name: &str, encoded: &[u8], piece: usize) -> Result<Vec<u8>, DecodeError> {
        let mut decoder = Decoder::new(coding(name));
        let mut plain = Vec::new();
        for piece in encoded.chunks(piece) {
            let mut piece = Bytes::copy_from_slice(piece);
            while !piece.is_empty() {
                plain.extend_from_slice(&decoder.step(&mut piece)?);
            }
        }
        plain.extend_from_slice(&decoder.finish()?);
        Ok(plain)
    }

    const NAMES: [&str; 5] = ["gzip", "deflate", "raw deflate", "br", "zstd"];

    #[test]
    fn every_coding_comes_back_whole_in_whatever_pieces() {
        let plain: Vec<u8> = (0..200_000_u32).flat_map(|i| (i % 977).to_le_bytes()).collect();
        for name in NAMES {
            let encoded = encode(name, &plain);
            for piece in [1, 7, 4096, encoded.len()] {
                assert_eq!(
                    decode(name, &encoded, piece).as_deref(),
                    Ok(plain.as_slice()),
                    "{name} {piece}"
                );
            }
            assert_eq!(decode(name, &[], 1).as_deref(), Ok([].as_slice()), "{name}");
            assert_eq!(
                decode(name, &encode(name, b""), 1).as_deref(),
                Ok([].as_slice()),
                "{name}"
            );
        }
        let two_members = [encode("gzip", b"one "), encode("gzip", b"two")].concat();
        assert_eq!(
            decode("gzip", &two_members, 3).as_deref(),
            Ok(b"one two".as_slice())
        );
    }

    #[test]
    fn what_was_flushed_is_decoded_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut decoder = Decoder::new(Coding::Gzip);
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            encoder.write_all(event.as_bytes()).unwrap();
            encoder.flush().unwrap();
            let mut piece = Bytes::from(std::mem::take(encoder.get_mut()));
            assert_eq!(decoder.step(&mut piece).as_deref(), Ok(event.as_bytes()));
        }
    }

    #[test]
    fn a_body_that_breaks_off_or_lies_is_an_error() {
        for name in NAMES {
            let encoded = encode(name, &vec![b'a'; 10_000]);
            assert!(
                decode(name, &encoded[..encoded.len() - 1], 64).is_err(),
                "{name} cut"
            );
            assert!(
                decode(name, b"no such thing at all, but long enough", 64).is_err(),
                "{name} lie"
            );
            let trailing = [encoded.as_slice(), b"trailing bytes"].concat();
            assert!(decode(name, &trailing, 64).is_err(), "{name} trailing");
        }
    }

    #[test]
    fn a_bomb_is_cut() {
        let zeros = vec![0; 64 << 20];
        for name in NAMES {
            let encoded = encode(name, &zeros);
            assert_eq!(decode(name, &encoded, 16_384), Err(DecodeError::Ratio), "{name}");
        }
    }

    #[test]
    fn codings_that_are_unknown_or_stacked_are_refused() {
        let rows = [
            ("gzip", Ok(Some(Coding::Gzip))),
            ("X-GZip", Ok(Some(Coding::Gzip))),
            ("identity", Ok(None)),
            ("identity, br", Ok(Some(Coding::Brotli))),
            ("gzip, gzip", Err(UnknownCoding)),
            ("gzip, br", Err(UnknownCoding)),
            ("compress", Err(UnknownCoding)),
            ("dcb", Err(UnknownCoding)),
        ];
        for (text, expected) in rows {
            let headers = [(CONTENT_ENCODING, text.parse().unwrap())].into_iter().collect();
            assert_eq!(Coding::of(&headers), expected, "{text}");
        }
    }
}
