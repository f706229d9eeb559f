//! A bundle's own tests: `test_*` rules of `*_test.rego`, and the cases of `*.cases.toml`.
//!
//! A case is what is different about one request, laid over a plain one, and what is to become of it:
//!
//! ```toml
//! data = { budgets = { requests = { "1m" = 10 } } }   # laid over the bundle's data, for this file
//!
//! [[case]]
//! name = "a publish to the npm mirror"
//! profile = "npm"                                     # names the operation by this grammar; else `input.operation` is taken
//! input = { request = { method = "PUT", path = "/a" }, destination = { service = "npm" } }
//! verdict = "deny"
//! rule = "mirror.write"
//! credentials = []                                    # optional, as are add_taints and canonicalise
//! ```
//!
//! Every name of a rule that the Rego can raise (the first argument of `allow`, `deny` or `ask`, and the value of a `rule`
//! key) must be raised by some case, when there are cases.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use regorus::Value as Rego;
use serde::Deserialize;
use serde_json::{Value, json};
use wallgate_types::operation::Operation;
use wallgate_types::ruling::Verdict;

use crate::bundle::{Bundle, BundleError, BundleFile, Place, lay_over};
use crate::classify::{Profile, RequestShape, classify};
use crate::input::INPUT_VERSION;
use crate::policy::{Policy, PolicyLimits};
use crate::program::{engine_of, rego_error};

/// One test and how it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// The file, relative to the bundle.
    pub file: String,
    /// The test's name.
    pub name: String,
    /// What went wrong; nothing when it passed.
    pub failure: Option<String>,
}

/// All of a bundle's tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestReport {
    /// In the order of the files.
    pub results: Vec<TestResult>,
    /// The names of rules that no case raises; empty when there are no cases at all.
    pub unraised: Vec<String>,
}

impl TestReport {
    /// How many tests failed, counting rules that no case raises.
    #[must_use]
    pub fn failed(&self) -> usize {
        let failed = self.results.iter().filter(|result| result.failure.is_some());
        failed.count().saturating_add(self.unraised.len())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    input: Option<Value>,
    #[serde(default)]
    profile: Option<String>,
    #[serde(default)]
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    profile: Option<String>,
    #[serde(default)]
    input: Option<Value>,
    verdict: Verdict,
    rule: String,
    #[serde(default)]
    credentials: Option<Vec<String>>,
    #[serde(default)]
    add_taints: Option<Vec<String>>,
    #[serde(default)]
    canonicalise: Option<bool>,
}

impl Policy {
    /// Runs a bundle's tests, with the operator's data.
    ///
    /// # Errors
    /// When the bundle or a file of tests does not load. A test that fails is no error.
    pub fn test(path: &Path, data: &[PathBuf], limits: &PolicyLimits) -> Result<TestReport, BundleError> {
        let bundle = Bundle::read(path, data, limits)?;
        let mut report = TestReport::default();
        run_rego(&bundle, &mut report)?;
        let mut raised = BTreeSet::new();
        for file in &bundle.cases {
            run_cases(&bundle, file, limits, &mut report, &mut raised)?;
        }
        if !bundle.cases.is_empty() {
            let names: BTreeSet<String> = bundle
                .policies
                .iter()
                .flat_map(|file| rule_names(&file.text))
                .collect();
            report.unraised = names.difference(&raised).cloned().collect();
        }
        Ok(report)
    }
}

fn run_rego(bundle: &Bundle, report: &mut TestReport) -> Result<(), BundleError> {
    if bundle.tests.is_empty() {
        return Ok(());
    }
    let files: Vec<&BundleFile> = bundle.policies.iter().chain(&bundle.tests).collect();
    let (mut engine, outline) = engine_of(&files, &bundle.data)?;
    for path in &outline.rules {
        let Some((_, name)) = path
            .rsplit_once('.')
            .filter(|(_, name)| name.starts_with("test_"))
        else {
            continue;
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| engine.eval_rule(path.clone())));
        let failure = match outcome {
            Ok(Ok(Rego::Bool(true))) => None,
            Ok(Ok(Rego::Undefined)) => Some("it is undefined".to_owned()),
            Ok(Ok(value)) => Some(format!("it is {value}")),
            Ok(Err(error)) => Some(rego_error("", &error).to_string()),
            Err(_panic) => Some("the policy engine panicked".to_owned()),
        };
        let declares = |file: &&BundleFile| file.text.contains(name);
        let file = bundle
            .tests
            .iter()
            .find(declares)
            .map_or("", |file| file.path.as_str());
        report.results.push(TestResult {
            file: file.to_owned(),
            name: name.to_owned(),
            failure,
        });
    }
    Ok(())
}

fn run_cases(
    bundle: &Bundle,
    file: &BundleFile,
    limits: &PolicyLimits,
    report: &mut TestReport,
    raised: &mut BTreeSet<String>,
) -> Result<(), BundleError> {
    let malformed = |message: String| BundleError::Data {
        place: Place::file(&file.path),
        message,
    };
    let cases: CaseFile = toml::from_str(&file.text).map_err(|error| malformed(error.to_string()))?;
    let mut with_data = bundle.clone();
    if let Some(data) = cases.data {
        lay_over(&mut with_data.data, data);
    }
    let policy = Policy::of(&with_data, limits)?;
    for case in cases.case {
        let mut input = plain_input();
        for fragment in [cases.input.as_ref(), case.input.as_ref()].into_iter().flatten() {
            lay_over(&mut input, fragment.clone());
        }
        let profile = match case.profile.as_ref().or(cases.profile.as_ref()) {
            None => None,
            Some(name) => Some(
                name.parse::<Profile>()
                    .map_err(|error| malformed(error.to_string()))?,
            ),
        };
        complete(&mut input, profile);
        let evaluation = policy.eval_json(&input);
        let ruling = &evaluation.ruling;
        raised.insert(ruling.rule.clone());
        let mut wrong = Vec::new();
        if (ruling.verdict, &ruling.rule) != (case.verdict, &case.rule) {
            wrong.push(format!(
                "it is {} by {}, not {} by {}",
                ruling.verdict.as_str(),
                ruling.rule,
                case.verdict.as_str(),
                case.rule
            ));
        }
        if let Some(error) = &evaluation.error {
            wrong.push(error.to_string());
        }
        if case
            .credentials
            .as_ref()
            .is_some_and(|expected| *expected != ruling.credentials)
        {
            wrong.push(format!("its credentials are {:?}", ruling.credentials));
        }
        if case
            .add_taints
            .as_ref()
            .is_some_and(|expected| *expected != ruling.add_taints)
        {
            wrong.push(format!("it adds the taints {:?}", ruling.add_taints));
        }
        if case
            .canonicalise
            .is_some_and(|expected| expected != ruling.canonicalise)
        {
            wrong.push(format!("canonicalise is {}", ruling.canonicalise));
        }
        report.results.push(TestResult {
            file: file.path.clone(),
            name: case.name,
            failure: (!wrong.is_empty()).then(|| wrong.join("; ")),
        });
    }
    Ok(())
}

/// A request that nothing is special about.
fn plain_input() -> Value {
    json!({
        "version": INPUT_VERSION,
        "sandbox": {"id": "agent-1", "labels": {}, "taints": [], "source": "tap"},
        "request": {
            "id": "00000000000000000000000000000001", "protocol": "http", "method": "GET", "scheme": "https",
            "host": "host.example.test", "port": 443, "path": "/", "query": {}, "headers": {},
            "body": {"size": 0, "truncated": false},
        },
        "destination": {},
        "operation": {"ecosystem": "none", "action": "unknown", "name": "unknown"},
        "usage": {"requests": {}, "bytes_out": {}, "denied": {}, "distinct_names": {}, "not_found": {}},
        "time": 1_700_000_000_000_000_000_u64,
    })
}

/// Fills in what follows from the rest: the segments of the path, and the operation.
fn complete(input: &mut Value, profile: Option<Profile>) {
    let text = |pointer: &str| {
        input
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let path = text("/request/path");
    let segments: Vec<String> = path
        .split('/')
        .skip(1)
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect();
    let operation = profile.map(|profile| {
        let query: Vec<(String, String)> = input
            .pointer("/request/query")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .flat_map(|(key, values)| {
                let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
                values.map(|value| (key.clone(), value.to_owned()))
            })
            .collect();
        let body = text("/request/body/text");
        let content_type = text("/request/body/type");
        classify(
            profile,
            &RequestShape {
                method: &text("/request/method"),
                path: &path,
                segments: &segments,
                query: &query,
                content_type: Some(content_type.as_str()).filter(|text| !text.is_empty()),
                body: Some(body.as_bytes()).filter(|body| !body.is_empty()),
            },
        )
    });
    if let Some(request) = input.get_mut("request").and_then(Value::as_object_mut) {
        request.entry("segments").or_insert_with(|| json!(segments));
    }
    if let (Some(operation), Some(whole)) = (operation, input.as_object_mut()) {
        whole.insert("operation".to_owned(), told(&operation));
    }
}

/// As policy sees an operation.
fn told(operation: &Operation) -> Value {
    let mut told = json!({
        "ecosystem": operation.ecosystem,
        "action": operation.action.as_str(),
        "name": operation.name,
    });
    if let Some(fields) = told.as_object_mut() {
        let parts = [("package", &operation.package), ("version", &operation.version)];
        for (key, value) in parts {
            if let Some(value) = value {
                fields.insert(key.to_owned(), json!(value));
            }
        }
    }
    told
}

/// The names that a module's rules can raise, as far as they are written out.
fn rule_names(rego: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let lines = rego.lines().filter(|line| !line.trim_start().starts_with('#'));
    let text: String = lines.flat_map(|line| [line.trim(), " "]).collect();
    for opening in ["deny(", "allow(", "ask(", "\"rule\":"] {
        for (at, _) in text.match_indices(opening) {
            let rest = text.get(at.saturating_add(opening.len())..).unwrap_or_default();
            let name = rest
                .trim_start()
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}
