//! The policy library that operators start from (P8, P9): what each of its rules says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use wallgate_policy::{Policy, PolicyLimits};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    expect: String,
    #[serde(default)]
    credentials: Vec<String>,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    input: Value,
}

fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies")
}

fn cases() -> Result<Vec<Case>> {
    let text = fs::read_to_string(library().join("library.cases.toml"))?;
    Ok(toml::from_str::<Cases>(&text)?.case)
}

fn lay_over(base: &mut Value, over: &Value) {
    match (base, over) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

fn plain_get() -> Value {
    json!({
        "version": 1,
        "sandbox": {"id": "agent-7", "labels": {}, "taints": [], "source": "tap"},
        "request": {
            "id": "0", "protocol": "http", "method": "GET", "scheme": "https", "host": "api.example.test", "port": 443,
            "path": "/things", "segments": ["things"], "query": {}, "headers": {}, "body": {}
        },
        "destination": {},
        "operation": {"ecosystem": "none", "action": "unknown", "name": "unknown"},
        "usage": {"requests": {}, "bytes_out": {}, "denied": {}, "distinct_names": {}, "not_found": {}},
        "time": 1
    })
}

#[test]
fn each_case_is_decided_as_it_says() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for case in cases()? {
        let data = folder.path().join("data.json");
        let laid_over = if case.data.is_null() { json!({}) } else { case.data };
        fs::write(&data, laid_over.to_string())?;
        let policy = Policy::load_with_data(&library(), &[data], &PolicyLimits::default())?;
        let mut input = plain_get();
        lay_over(&mut input, &case.input);
        let evaluation = policy.eval_json(&input);
        let ruling = evaluation.ruling;
        let got = format!("{} {}", ruling.verdict.as_str(), ruling.rule);
        ensure!(
            got == case.expect,
            "{}: {got} ({}), {:?}",
            case.name,
            ruling.reason,
            evaluation.error
        );
        ensure!(
            ruling.credentials == case.credentials,
            "{}: {:?}",
            case.name,
            ruling.credentials
        );
        ensure!(
            ruling.reason.ends_with('.') && ruling.reason.len() > 20,
            "{}: {:?}",
            case.name,
            ruling.reason
        );
    }
    Ok(())
}

#[test]
fn each_rule_has_a_case_that_raises_it() -> Result<()> {
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(library())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rego") {
            let text = fs::read_to_string(&path)?;
            for call in ["deny(", "allow("] {
                let rules = text
                    .split(call)
                    .skip(1)
                    .filter_map(|rest| rest.trim_start().strip_prefix('"'));
                named.extend(rules.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }
    ensure!(named.len() > 10, "{named:?}");
    let raised: BTreeSet<String> = cases()?
        .iter()
        .map(|case| {
            case.expect
                .split_once(' ')
                .map(|(_, rule)| rule.to_owned())
                .context("no rule")
        })
        .collect::<Result<_>>()?;
    ensure!(
        named == raised,
        "without a case: {:?}",
        named.difference(&raised).collect::<Vec<_>>()
    );
    Ok(())
}
