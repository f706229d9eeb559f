//! The library in `policies/`: each of its rules is raised by a case, and its data is clean.

use std::path::{Path, PathBuf};
use std::time::Duration;

use wallgate_policy::{Policy, PolicyLimits};

fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies")
}

fn limits() -> PolicyLimits {
    PolicyLimits {
        eval_timeout: Duration::from_secs(10),
        ..PolicyLimits::default()
    }
}

#[test]
fn every_rule_of_the_library_is_raised_by_a_case() {
    let report = Policy::test(&library(), &[], &limits()).unwrap();
    let failed: Vec<String> = report
        .results
        .iter()
        .filter_map(|result| {
            Some(format!(
                "{}: {}: {}",
                result.file,
                result.name,
                result.failure.as_ref()?
            ))
        })
        .collect();
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!(report.unraised, Vec::<String>::new(), "rules that no case raises");
    assert!(report.results.len() > 50, "{}", report.results.len());
    assert_eq!(report.failed(), 0);
}

#[test]
fn the_library_has_no_findings() {
    let report = Policy::check(&library(), &[], &limits()).unwrap();
    assert_eq!(report.findings, []);
}

/// The interpreter is several times slower; the library is written so that it is not needed.
#[test]
fn the_library_needs_no_confirmation() {
    let policy = Policy::load(&library(), &limits()).unwrap();
    assert!(format!("{policy:?}").contains("confirmed: false"), "{policy:?}");
}
