//! The operation classifier never panics, and what it calls a read is a method that reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_policy::{Profile, RequestShape, classify};
use wallgate_types::operation::Action;

const PROFILES: [Profile; 5] = [Profile::Npm, Profile::Pypi, Profile::Cargo, Profile::Git, Profile::None];

fuzz_target!(|input: (u8, &str, &str, Vec<(String, String)>, Option<&str>, Option<&[u8]>)| {
    let (profile, method, path, query, content_type, body) = input;
    let Some(profile) = PROFILES.get(usize::from(profile) % PROFILES.len()) else { return };
    let segments: Vec<String> = path.split('/').skip(1).map(str::to_owned).collect();
    let shape = RequestShape { method, path, segments: &segments, query: &query, content_type, body };
    let operation = classify(*profile, &shape);
    if operation.action == Action::Read {
        assert!(["GET", "HEAD", "POST"].contains(&method), "{method} {path} is {operation:?}");
    }
});
