//! `wallgate policy`: checking, testing and trying a bundle, without a sandbox and without root.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wallgate_policy::{Policy, PolicyLimits};
use wallgate_types::ruling::Ruling;

use crate::broker::{policy_limits, told_whole};
use crate::config::{self, DEFAULT_CONFIG};
use crate::exit::{Exit, Failure};
use crate::output;

/// The largest input to `policy eval`, in bytes.
const MAX_INPUT_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Compile a bundle and say what is wrong with it, by file and line.
    ///
    /// Also names data that no rule reads, domains that are wider than they look, and entries that allow everything or
    /// nothing. Exit code 0 when it can be used, also with warnings; 64 when it cannot or has errors.
    Check(CheckArguments),
    /// Run a bundle's tests: its `test_*` rules and its `*.cases.toml`.
    ///
    /// Exit code 0 when all of them pass and each rule has a case that raises it, 1 otherwise, 64 when the bundle cannot
    /// be used.
    Test(CheckArguments),
    /// Decide one input document, as it stands in DESIGN: {"version":1,"sandbox":…,"request":…,…}.
    ///
    /// Prints what would happen to the request. Exit code 0 whatever the verdict.
    Eval(EvalArguments),
}

#[derive(Debug, Args)]
struct Bundle {
    /// The bundle's directory; the configuration's unless given.
    #[arg(value_name = "BUNDLE")]
    path: Option<PathBuf>,
    /// A JSON file laid over the bundle's data; may be repeated.
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// The configuration that names the bundle.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    bundle: Bundle,
    /// The result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(flatten)]
    bundle: Bundle,
    /// The input document; standard input unless given.
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// Does it.
pub(crate) fn run(command: PolicyCommand) -> Result<ExitCode, Failure> {
    match command {
        PolicyCommand::Check(arguments) => check(&arguments),
        PolicyCommand::Test(arguments) => test(&arguments),
        PolicyCommand::Eval(arguments) => eval(&arguments),
    }
}

impl Bundle {
    /// The bundle, its data and its limits: what the command line says, else what the configuration says.
    fn resolve(&self) -> Result<(PathBuf, Vec<PathBuf>, PolicyLimits), Failure> {
        let configured = match (&self.config, &self.path) {
            (None, Some(bundle)) => return Ok((bundle.clone(), self.data.clone(), PolicyLimits::default())),
            (Some(path), _) => config::read(path),
            (None, None) => config::read(Path::new(DEFAULT_CONFIG)),
        };
        let config = configured.map_err(|error| Failure::new(Exit::Usage, error))?;
        let limits = policy_limits(&config);
        let bundle = self.path.clone().unwrap_or(config.policy.bundle);
        let data = if self.data.is_empty() {
            config.policy.data
        } else {
            self.data.clone()
        };
        Ok((bundle, data, limits))
    }

    fn load(&self) -> Result<Policy, Failure> {
        let (bundle, data, limits) = self.resolve()?;
        Policy::load_with_data(&bundle, &data, &limits)
            .map_err(|error| Failure::new(Exit::Usage, told_whole(&error)))
    }
}

fn unusable(error: &wallgate_policy::BundleError) -> Failure {
    Failure::new(Exit::Usage, told_whole(error))
}

fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let (bundle, data, limits) = arguments.bundle.resolve()?;
    let report = Policy::check(&bundle, &data, &limits).map_err(|error| unusable(&error))?;
    if arguments.json {
        let findings = report.findings.iter().map(|finding| {
            json!({
                "severity": finding.severity.as_str(),
                "code": finding.code,
                "place": finding.place.to_string(),
                "message": finding.message,
            })
        });
        output::json(&json!({
            "digest": report.digest.to_string(),
            "revision": report.revision,
            "findings": findings.collect::<Vec<_>>(),
        }))?;
    } else {
        for finding in &report.findings {
            let (severity, code) = (finding.severity.as_str(), finding.code);
            output::line(&format!(
                "{}: {severity}: {} [{code}]",
                finding.place, finding.message
            ))?;
        }
        let word = if report.has_errors() { "not good" } else { "good" };
        output::line(&format!("{word}: bundle {}", report.digest))?;
    }
    Ok(if report.has_errors() {
        Exit::Usage.code().into()
    } else {
        ExitCode::SUCCESS
    })
}

fn test(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let (bundle, data, limits) = arguments.bundle.resolve()?;
    let report = Policy::test(&bundle, &data, &limits).map_err(|error| unusable(&error))?;
    let failed = report.failed();
    if arguments.json {
        let results = report
            .results
            .iter()
            .map(|result| json!({ "file": result.file, "name": result.name, "failure": result.failure }));
        output::json(&json!({ "results": results.collect::<Vec<_>>(), "unraised": report.unraised }))?;
    } else {
        for result in &report.results {
            if let Some(failure) = &result.failure {
                output::line(&format!("{}: {}: {failure}", result.file, result.name))?;
            }
        }
        for rule in &report.unraised {
            output::line(&format!("no case raises the rule {rule}"))?;
        }
        let passed = report
            .results
            .iter()
            .filter(|result| result.failure.is_none())
            .count();
        output::line(&format!("{passed} passed, {failed} failed"))?;
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn eval(arguments: &EvalArguments) -> Result<ExitCode, Failure> {
    let policy = arguments.bundle.load()?;
    let input = read_input(arguments.input.as_deref())?;
    let evaluation = policy.eval_json(&input);
    output::json(&json!({
        "ruling": shown(&evaluation.ruling),
        "document": evaluation.document,
        "error": evaluation.error.map(|error| told_whole(&error)),
    }))?;
    Ok(ExitCode::SUCCESS)
}

fn shown(ruling: &Ruling) -> Value {
    json!({
        "verdict": ruling.verdict,
        "rule": ruling.rule,
        "reason": ruling.reason,
        "credentials": ruling.credentials,
        "add_taints": ruling.add_taints,
        "limits": ruling.limits,
        "canonicalise": ruling.canonicalise,
        "passthrough": ruling.passthrough,
    })
}

fn read_input(path: Option<&Path>) -> Result<Value, Failure> {
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, format!("{name}: {error}"));
    let mut text = String::new();
    let read = match path {
        Some(path) => {
            fs::File::open(path).and_then(|file| file.take(MAX_INPUT_BYTES).read_to_string(&mut text))
        }
        None => std::io::stdin()
            .lock()
            .take(MAX_INPUT_BYTES)
            .read_to_string(&mut text),
    };
    read.map_err(|error| refused(&error))?;
    serde_json::from_str(&text).map_err(|error| refused(&error))
}
