//! Whatever a sandbox sends, the grammars do not panic, and what they call a read can be spelled and reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode_str;
use wallgate_policy::{Profile, RequestShape, canonical_path, classify, is_canonical};

type Input<'a> = (u8, &'a str, &'a str, Vec<(String, String)>, Option<&'a str>, Option<&'a [u8]>);

fuzz_target!(|input: Input<'_>| {
    let (profile, method, path, query, content_type, body) = input;
    let profiles = [Profile::Npm, Profile::Pypi, Profile::Cargo, Profile::Git, Profile::None];
    let profile = profiles[usize::from(profile) % profiles.len()];
    let segments = |path: &str| -> Vec<String> {
        let raw = path.split('/').skip(1);
        raw.map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect()
    };
    let told = segments(path);
    let shape = RequestShape { method, path, segments: &told, query: &query, content_type, body };
    let operation = classify(profile, &shape);
    if let Some(canonical) = canonical_path(&operation) {
        assert!(is_canonical(&operation, &canonical, None));
        let told = segments(&canonical);
        let shape = RequestShape { method: "GET", path: &canonical, segments: &told, query: &[], content_type: None, body: None };
        assert_eq!(classify(profile, &shape), operation);
    }
});
