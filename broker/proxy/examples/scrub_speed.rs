//! How fast the scrubber passes bytes on: `cargo run --release -p wallgate-proxy --example scrub_speed`.
//!
//! Prints MB/s of processor time (so that a busy machine does not matter) for one core and one secret, over kinds of content that responses have, beside a plain copy of the same.

#![expect(clippy::cast_precision_loss, reason = "a rate is a ratio")]

use std::hint::black_box;

use bytes::Bytes;
use wallgate_proxy::scrub::Scrubber;
use wallgate_types::secret::Secret;

const PIECE: usize = 16 * 1024;
/// Small enough to stay in a cache, as what was just decrypted does.
const WHOLE: usize = 16 * PIECE;
const ROUNDS: usize = 4096;

fn main() {
    let secrets: Vec<_> = [
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "dXNlcjpwYXNzd29yZDEyMw==",
    ]
    .iter()
    .map(|secret| Secret::new(secret.as_bytes().to_vec()))
    .collect();
    let text =
        "The quick brown fox jumps over the lazy dog; the password is on page 12. <a href=\"/x\">next</a>\n";
    let json =
        r#"{"id":"chatcmpl-123","delta":{"content":"He said \"hi\"\n and left the \/tmp"},"n":0.125},"#;
    let html = "<p>Tom &amp; Jerry &lt;said&gt; &quot;hi&quot; &#39;there&#39; 100%25 of it</p>";
    let base64 = "R2hvc3RzIGFuZCBnb2JsaW5zIGFuZCB0aGluZ3MgdGhhdCBnbyBidW1wIGlu";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random: Vec<u8> = (0..WHOLE)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes().first().copied().unwrap_or(0)
        })
        .collect();
    let rows = [
        ("random bytes", random),
        ("text", repeated(text)),
        ("JSON with escapes", repeated(json)),
        ("HTML with entities", repeated(html)),
        ("base64", repeated(base64)),
    ];
    for one in [true, false] {
        let used = secrets.iter().take(if one { 1 } else { 2 });
        let Some(scrubber) = Scrubber::for_secrets(used) else {
            return;
        };
        println!("{} secret(s)", if one { 1 } else { 2 });
        for (name, content) in &rows {
            println!(
                "  {name:20} {:8.0} MB/s   (copy {:8.0} MB/s)",
                scrub(&scrubber, content),
                copy(content)
            );
        }
    }
}

fn repeated(text: &str) -> Vec<u8> {
    text.bytes().cycle().take(WHOLE).collect()
}

fn scrub(scrubber: &Scrubber, content: &[u8]) -> f64 {
    let pieces: Vec<Bytes> = content.chunks(PIECE).map(Bytes::copy_from_slice).collect();
    let mut stream = scrubber.stream();
    let started = processor_seconds();
    for _ in 0..ROUNDS {
        for piece in &pieces {
            black_box(stream.push(piece.clone()));
        }
    }
    black_box(stream.finish());
    rate(content, started)
}

fn copy(content: &[u8]) -> f64 {
    let started = processor_seconds();
    for _ in 0..ROUNDS {
        for piece in content.chunks(PIECE) {
            black_box(Bytes::copy_from_slice(piece));
        }
    }
    rate(content, started)
}

fn rate(content: &[u8], started: f64) -> f64 {
    (content.len() * ROUNDS) as f64 / (processor_seconds() - started) / 1e6
}

/// What this thread has used, as the scheduler counts it.
fn processor_seconds() -> f64 {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = counted
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    nanoseconds / 1e9
}
