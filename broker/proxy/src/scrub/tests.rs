//! P6: whatever form a secret comes back in, in whatever pieces, it does not go through.

use std::convert::Infallible;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use http::header::{LOCATION, SET_COOKIE};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use proptest::prelude::*;

use super::decode::tests::encode as compress;
use super::*;
use crate::parse::BodyError;

const SECRET: &str = "sk-Ant/03+x_9\"Y&z";

fn scrubber(secrets: &[&str]) -> Scrubber {
    let secrets: Vec<_> = secrets
        .iter()
        .map(|secret| Secret::new(secret.as_bytes().to_vec()))
        .collect();
    Scrubber::for_secrets(&secrets).unwrap()
}

fn each(secret: &str, write: impl Fn(u8) -> String) -> String {
    secret.bytes().map(write).collect()
}

fn folded(text: &str, width: usize, fold: &str) -> String {
    let lines: Vec<&[u8]> = text.as_bytes().chunks(width).collect();
    let lines: Vec<_> = lines
        .iter()
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    lines.join(fold)
}

fn reserved(b: u8) -> bool {
    !(b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
}

fn json_of(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap()
        .to_owned()
}

#[expect(clippy::too_many_lines, reason = "one row a way of writing")]
/// Every way that this test knows to write a secret between two neighbours. The neighbours matter to base64 only.
fn written(secret: &str, before: &str, after: &str) -> Vec<(&'static str, Vec<u8>)> {
    let whole = format!("{before}{secret}{after}");
    let json = json_of(secret);
    let base64 = STANDARD.encode(&whole);
    let html = |b: u8| match b {
        b'&' => "&amp;".to_owned(),
        b'<' => "&lt;".to_owned(),
        b'>' => "&gt;".to_owned(),
        b'"' => "&quot;".to_owned(),
        b'\'' => "&#39;".to_owned(),
        other => char::from(other).to_string(),
    };
    let mixed: String = secret
        .bytes()
        .enumerate()
        .map(|(index, b)| match index % 4 {
            0 => char::from(b).to_string(),
            1 => format!("%{b:02x}"),
            2 => format!("\\u{:04x}", u32::from(b)),
            _ => format!("&#{b};"),
        })
        .collect();
    let rows: Vec<(&'static str, String)> = vec![
        ("raw", secret.to_owned()),
        ("bearer", format!("Bearer {secret}")),
        ("base64", base64.clone()),
        ("base64 without padding", STANDARD_NO_PAD.encode(&whole)),
        ("base64url", URL_SAFE.encode(&whole)),
        ("base64url without padding", URL_SAFE_NO_PAD.encode(&whole)),
        ("base64 in lines", folded(&base64, 76, "\r\n")),
        ("base64 in short lines", folded(&base64, 13, "\n")),
        ("base64 in lines, in JSON", folded(&base64, 13, "\\n")),
        (
            "base64, percent-encoded",
            each(&base64, |b| {
                if reserved(b) {
                    format!("%{b:02X}")
                } else {
                    char::from(b).to_string()
                }
            }),
        ),
        ("base64, slashes escaped", base64.replace('/', "\\/")),
        ("hexadecimal", each(secret, |b| format!("{b:02x}"))),
        ("HEXADECIMAL", each(secret, |b| format!("{b:02X}"))),
        ("percent-encoded whole", each(secret, |b| format!("%{b:02x}"))),
        ("PERCENT-ENCODED WHOLE", each(secret, |b| format!("%{b:02X}"))),
        (
            "percent-encoded",
            each(secret, |b| {
                if reserved(b) {
                    format!("%{b:02x}")
                } else {
                    char::from(b).to_string()
                }
            }),
        ),
        (
            "form-encoded",
            each(secret, |b| match b {
                b' ' => "+".to_owned(),
                b if reserved(b) => format!("%{b:02X}"),
                b => char::from(b).to_string(),
            }),
        ),
        (
            "percent-encoded twice",
            each(secret, |b| {
                if reserved(b) {
                    format!("%25{b:02X}")
                } else {
                    char::from(b).to_string()
                }
            }),
        ),
        ("JSON", json.clone()),
        ("JSON, slashes escaped", json.replace('/', "\\/")),
        ("JSON in JSON", json_of(&json)),
        (
            "JSON, all escaped",
            each(secret, |b| format!("\\u{:04x}", u32::from(b))),
        ),
        (
            "JSON, ALL ESCAPED",
            each(secret, |b| format!("\\u{:04X}", u32::from(b))),
        ),
        ("JavaScript", each(secret, |b| format!("\\x{b:02x}"))),
        ("HTML", each(secret, html)),
        ("HTML, decimal", each(secret, |b| format!("&#{b};"))),
        ("HTML, hexadecimal", each(secret, |b| format!("&#x{b:x};"))),
        ("every other character escaped", mixed),
    ];
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(name, text)| (name, text.into_bytes()))
        .collect();
    rows.push((
        "UTF-16LE",
        secret.encode_utf16().flat_map(u16::to_le_bytes).collect(),
    ));
    rows.push((
        "UTF-16BE",
        secret.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ));
    let points = || secret.chars().map(u32::from);
    rows.push(("UTF-32LE", points().flat_map(u32::to_le_bytes).collect()));
    rows.push(("UTF-32BE", points().flat_map(u32::to_be_bytes).collect()));
    rows
}

#[track_caller]
fn check(secret: &str, name: &str, text: &[u8], core: &[u8]) {
    let scrubber = scrubber(&[secret]);
    let padded = [b"<<<< ".as_slice(), text, b" >>>>"].concat();
    let (masked, count) = scrubber.scrub_whole(&padded);
    assert!(count >= 1, "{name}: nothing found in {}", text.escape_ascii());
    assert_eq!(masked.len(), padded.len(), "{name}");
    assert!(
        masked.starts_with(b"<<<< ") && masked.ends_with(b" >>>>"),
        "{name}"
    );
    assert!(
        !masked.windows(core.len()).any(|window| window == core),
        "{name}: {}",
        masked.escape_ascii()
    );
    for cut in 0..=padded.len() {
        let (left, right) = padded.split_at(cut);
        assert_eq!(
            scrubber.scrub_pieces(&[left, right]).0,
            masked,
            "{name} cut at {cut}"
        );
    }
    let drops: Vec<&[u8]> = padded.chunks(1).collect();
    assert_eq!(scrubber.scrub_pieces(&drops).0, masked, "{name} byte by byte");
}

#[test]
fn no_way_of_writing_a_secret_goes_through() {
    for secret in [
        SECRET,
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "open sesame%41\\u",
    ] {
        for (before, after) in [("", ""), ("u:", ""), ("user:", "!"), ("x", "yz")] {
            for (name, text) in written(secret, before, after) {
                check(secret, name, &text, &text);
            }
        }
    }
}

/// What stays of a base64 form is at most the one character in front that also holds bits of a neighbour.
#[test]
fn base64_is_masked_to_its_edges() {
    for before in ["", "a", "ab", "abc"] {
        let text = STANDARD.encode(format!("{before}{SECRET}"));
        let (masked, _) = scrubber(&[SECRET]).scrub_whole(text.as_bytes());
        let kept = masked.iter().take_while(|b| **b != b'*').count();
        assert_eq!(kept, (before.len() * 8).div_ceil(6), "{before}");
        assert!(
            masked[kept..].iter().all(|b| matches!(b, b'*' | b'=')),
            "{}",
            masked.escape_ascii()
        );
    }
}

#[test]
fn overlapping_secrets_are_both_masked_whole() {
    let scrubber = scrubber(&["abcdefgh-12345", "12345-ijklmnop", "abcdefgh"]);
    let (masked, _) = scrubber.scrub_whole(b"<abcdefgh-12345-ijklmnop>");
    assert_eq!(masked, b"<***********************>");
    let drops: Vec<&[u8]> = b"<abcdefgh-12345-ijklmnop>".chunks(1).collect();
    assert_eq!(scrubber.scrub_pieces(&drops).0, masked);
}

/// Found by fuzzing: a secret that overlaps itself was counted once for each cut through a run of it.
#[test]
fn a_place_is_counted_once_however_it_is_cut() {
    let scrubber = scrubber(&["AAAAAAAAAAAA"]);
    let text = [b'A'; 50];
    let whole = scrubber.scrub_whole(&text);
    assert_eq!(whole.1, 1);
    for size in 1..50 {
        let pieces: Vec<&[u8]> = text.chunks(size).collect();
        assert_eq!(scrubber.scrub_pieces(&pieces), whole, "{size}");
    }
}

#[test]
fn a_mask_is_never_a_character_of_the_secret() {
    let (masked, _) = scrubber(&["********#"]).scrub_whole(b"x********#x");
    assert_eq!(masked, b"x~~~~~~~~~x");
}

#[test]
fn text_that_only_looks_like_it_is_left_alone() {
    let text = format!(
        "{} {} %{} \\u00 &#; {}",
        SECRET.trim_end_matches('z'),
        SECRET.to_lowercase(),
        "73",
        "sk-"
    );
    let (masked, count) = scrubber(&[SECRET]).scrub_whole(text.as_bytes());
    assert_eq!((masked.as_slice(), count), (text.as_bytes(), 0));
}

fn body(pieces: Vec<Vec<u8>>, trailers: Option<HeaderMap>) -> ResponseBody {
    let mut frames: Vec<Result<Frame<Bytes>, Infallible>> = pieces
        .into_iter()
        .map(|piece| Ok(Frame::data(piece.into())))
        .collect();
    frames.extend(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
    StreamBody::new(futures_util::stream::iter(frames))
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn response(encoding: &str, pieces: Vec<Vec<u8>>) -> Response<ResponseBody> {
    let mut builder = Response::builder()
        .header("content-length", "100")
        .header(ETAG, "\"x\"");
    if !encoding.is_empty() {
        builder = builder.header(CONTENT_ENCODING, encoding);
    }
    builder.body(body(pieces, None)).unwrap()
}

#[tokio::test]
async fn compressed_bodies_are_looked_into_and_sent_plain() {
    let plain = format!("before {SECRET} after").repeat(300);
    for name in ["gzip", "deflate", "br", "zstd"] {
        for size in [1, 17, 100_000] {
            let pieces = compress(name, plain.as_bytes())
                .chunks(size)
                .map(<[u8]>::to_vec)
                .collect();
            let count = Arc::new(AtomicU64::new(0));
            let masked = scrubber(&[SECRET])
                .response(response(name, pieces), &Method::GET, &count)
                .unwrap();
            assert_eq!(masked.headers().get(CONTENT_ENCODING), None);
            assert_eq!(masked.headers().get(CONTENT_LENGTH), None);
            assert_eq!(masked.headers().get(ETAG).unwrap(), "W/\"x\"");
            let text = masked.into_body().collect().await.unwrap().to_bytes();
            let expected = plain.replace(SECRET, &"*".repeat(SECRET.len()));
            assert_eq!(text, expected.as_bytes(), "{name} {size}");
            assert_eq!(count.load(Ordering::Relaxed), 300);
        }
    }
}

#[tokio::test]
async fn a_plain_body_keeps_its_length() {
    let count = Arc::new(AtomicU64::new(0));
    let whole = format!("{}{SECRET}", "x".repeat(100 - SECRET.len()));
    let inner = Full::new(Bytes::from(whole))
        .map_err(|never| match never {})
        .boxed_unsync();
    let given = Response::builder()
        .header("content-length", "100")
        .body(inner)
        .unwrap();
    let masked = scrubber(&[SECRET]).response(given, &Method::GET, &count).unwrap();
    assert_eq!(masked.headers().get(CONTENT_LENGTH).unwrap(), "100");
    assert_eq!(http_body::Body::size_hint(masked.body()).exact(), Some(100));
    assert_eq!(masked.into_body().collect().await.unwrap().to_bytes().len(), 100);
}

#[test]
fn what_cannot_be_looked_into_is_refused() {
    let count = Arc::new(AtomicU64::new(0));
    let scrubber = scrubber(&[SECRET]);
    for encoding in ["gzip, gzip", "br, gzip", "compress", "dcz", "aes128gcm"] {
        let result = scrubber.response(response(encoding, vec![]), &Method::GET, &count);
        assert_eq!(result.map(drop).unwrap_err(), ScrubError::Coding, "{encoding}");
    }
    for (name, value, refused) in [
        ("grpc-encoding", "gzip", true),
        ("grpc-encoding", "identity", false),
        ("connect-content-encoding", "br", true),
        ("im", "vcdiff", true),
    ] {
        let mut given = response("", vec![]);
        given.headers_mut().insert(name, value.parse().unwrap());
        let result = scrubber.response(given, &Method::POST, &count);
        assert_eq!(result.is_err(), refused, "{name}: {value}");
    }
    for (status, error) in [(206, ScrubError::Partial), (101, ScrubError::Upgrade)] {
        let mut given = response("", vec![]);
        *given.status_mut() = StatusCode::from_u16(status).unwrap();
        let result = scrubber.response(given, &Method::GET, &count);
        assert_eq!(result.map(drop).unwrap_err(), error);
    }
}

#[tokio::test]
async fn a_lying_or_swelling_body_is_cut() {
    let bomb = compress("gzip", &vec![0; 64 << 20]);
    for (encoding, bytes) in [
        ("gzip", b"not gzip at all".to_vec()),
        ("br", vec![0xff; 64]),
        ("gzip", bomb),
    ] {
        let count = Arc::new(AtomicU64::new(0));
        let given = response(encoding, vec![bytes]);
        let masked = scrubber(&[SECRET]).response(given, &Method::GET, &count).unwrap();
        let error = masked.into_body().collect().await.unwrap_err();
        assert!(matches!(error, BodyError::Scrub(_)), "{error}");
    }
}

#[tokio::test]
async fn fields_trailers_and_the_reason_are_scrubbed_too() {
    let scrubber = scrubber(&[SECRET, "ghp_CaseInNames"]);
    let trailers = [(
        "x-sum".parse::<HeaderName>().unwrap(),
        SECRET.parse::<HeaderValue>().unwrap(),
    )];
    let mut given = response("", vec![b"ok".to_vec()])
        .map(|_| body(vec![b"ok".to_vec()], Some(trailers.into_iter().collect())));
    let percent = each(SECRET, |b| format!("%{b:02X}"));
    let fields = given.headers_mut();
    fields.insert(LOCATION, format!("https://a.test/?t={percent}").parse().unwrap());
    fields.append(
        SET_COOKIE,
        format!("t={}", STANDARD.encode(SECRET)).parse().unwrap(),
    );
    fields.append(SET_COOKIE, "other=1".parse().unwrap());
    fields.insert("x-ghp_caseinnames", "1".parse().unwrap());
    given
        .extensions_mut()
        .insert(ReasonPhrase::from_static(b"OK sk-Ant/03+x_9"));
    let count = Arc::new(AtomicU64::new(0));
    let masked = scrubber.response(given, &Method::GET, &count).unwrap();
    let stars = "*".repeat(percent.len());
    assert_eq!(
        masked.headers().get(LOCATION).unwrap(),
        &format!("https://a.test/?t={stars}")
    );
    assert!(masked.headers().get("x-ghp_caseinnames").is_none());
    assert!(masked.extensions().get::<ReasonPhrase>().is_none());
    let cookies: Vec<_> = masked.headers().get_all(SET_COOKIE).iter().collect();
    assert!(cookies[0].to_str().unwrap().starts_with("t=***") && cookies[1] == "other=1");
    let collected = masked.into_body().collect().await.unwrap();
    assert_eq!(
        collected.trailers().unwrap().get("x-sum").unwrap(),
        &"*".repeat(SECRET.len())
    );
    assert_eq!(count.load(Ordering::Relaxed), 4);
}

#[test]
fn a_head_response_is_scrubbed_without_a_body() {
    let count = Arc::new(AtomicU64::new(0));
    let given = response("gzip", vec![]);
    let masked = scrubber(&[SECRET])
        .response(given, &Method::HEAD, &count)
        .unwrap();
    assert!(masked.headers().get(CONTENT_ENCODING).is_none());
}

/// A gRPC message may end like a secret begins, and the peer sends nothing more until it is answered.
#[tokio::test(start_paused = true)]
async fn a_few_held_bytes_are_let_go_when_nothing_follows_and_the_rest_never() {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(piece))), receiver))
    });
    let inner = StreamBody::new(Box::pin(frames))
        .map_err(|never| match never {})
        .boxed_unsync();
    let count = Arc::new(AtomicU64::new(0));
    let given = Response::new(inner);
    let mut masked = scrubber(&[SECRET])
        .response(given, &Method::GET, &count)
        .unwrap()
        .into_body();
    let mut next = async |piece: &str| {
        sender.send(piece.as_bytes().to_vec()).unwrap();
        let mut seen = Vec::new();
        let wait = std::time::Duration::from_secs(1);
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(wait, masked.frame()).await {
            seen.extend_from_slice(&frame.into_data().unwrap());
        }
        String::from_utf8(seen).unwrap()
    };
    assert_eq!(next("message ends in s").await, "message ends in s");
    assert_eq!(next("ome").await, "ome");
    assert_eq!(next("drop by drop: sk").await, "drop by drop: sk");
    assert_eq!(next("-Ant/").await, "");
    assert_eq!(
        next(SECRET.trim_start_matches("sk-Ant/")).await,
        "*".repeat(SECRET.len() - 2)
    );
    assert_eq!(next(" end").await, " end");
}

#[test]
fn a_request_asks_for_whole_responses_in_codings_that_can_be_undone() {
    let rows = [
        (None, "identity"),
        (Some("gzip, deflate, br, zstd"), "gzip, deflate, br, zstd"),
        (Some("gzip;q=0.5, dcb, *"), "gzip;q=0.5"),
        (Some("*"), "identity"),
        (Some("dcz"), "identity"),
    ];
    for (given, expected) in rows {
        let mut fields = HeaderMap::new();
        fields.insert(RANGE, "bytes=0-1".parse().unwrap());
        if let Some(given) = given {
            fields.insert(ACCEPT_ENCODING, given.parse().unwrap());
        }
        fields.insert("grpc-accept-encoding", "gzip".parse().unwrap());
        assert_eq!(prepare_request(&mut fields), ["range", "grpc-accept-encoding"]);
        assert_eq!(fields.get(ACCEPT_ENCODING).unwrap(), expected);
        assert_eq!(fields.len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_secret_in_any_form_in_any_pieces_is_masked(
        secret in "[!-~][ -~]{6,30}[!-~]",
        before in "[a-z]{0,4}",
        after in "[a-z]{0,4}",
        noise in proptest::collection::vec(any::<u8>(), 0..60),
        form in 0..32_usize,
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let forms = written(&secret, &before, &after);
        let (name, text) = &forms[form % forms.len()];
        let whole = [noise.as_slice(), b"\n", text, b"\n", &noise].concat();
        let scrubber = scrubber(&[&secret]);
        let (masked, count) = scrubber.scrub_whole(&whole);
        prop_assert!(count >= 1, "{}", name);
        prop_assert_eq!(masked.len(), whole.len());
        prop_assert!(!masked.windows(text.len()).any(|window| window == text.as_slice()), "{}", name);
        // Masking again finds nothing.
        prop_assert_eq!(scrubber.scrub_whole(&masked).1, 0);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        cuts.push(0);
        cuts.push(whole.len());
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect();
        prop_assert_eq!(&scrubber.scrub_pieces(&pieces).0, &masked);
    }

    #[test]
    fn bytes_without_a_secret_are_unchanged(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in any::<proptest::sample::Index>(),
    ) {
        let scrubber = scrubber(&[SECRET]);
        let (left, right) = bytes.split_at(cut.index(bytes.len() + 1));
        let (masked, count) = scrubber.scrub_pieces(&[left, right]);
        prop_assert_eq!(masked, bytes);
        prop_assert_eq!(count, 0);
    }
}
