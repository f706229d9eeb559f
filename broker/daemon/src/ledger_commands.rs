//! `wallgate ledger`: reading and checking the record. Works while a broker writes it, and without root.

use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use jiff::{Span, Timestamp as Moment, Zoned};
use serde_json::Value;
use wallgate_ledger::{
    Filter, Hit, Kind, LeafIndex, ReadError, Reader, Report, VerifyError, VerifyOptions, display, export,
    verify,
};
use wallgate_types::clock::Timestamp;

use crate::broker::told_whole;
use crate::config::{self, DEFAULT_CONFIG, DEFAULT_STATE_DIR};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::state::StatePaths;

/// How often a followed ledger is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);
/// How many records are read at a time.
const PAGE: usize = 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Show the records that match, oldest first.
    ///
    /// A decision is shown with its outcome. All conditions must hold. With --json each line is
    /// {"record":{"index":N,"json":"…"},"outcome":…} with the stored bytes as they are.
    Query(QueryArguments),
    /// Show the newest records, and with --follow those that come.
    Tail(TailArguments),
    /// Check that no record was changed, dropped, moved or cut off.
    ///
    /// Reads the stored bytes alone. Exit code 0 when everything holds, 1 when something does not; the first place is
    /// named. With --checkpoint and --vkey, kept outside, a rollback or a rewritten log shows as well.
    Verify(VerifyArguments),
    /// Write the records that match, or the whole log as tiles, for other tools.
    Export(ExportArguments),
}

#[derive(Debug, Args)]
struct Place {
    /// The configuration whose `state_dir` holds the ledger.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The state directory, instead of the configuration's.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Conditions {
    /// Not before: RFC 3339, or an age such as 15m, 2h or 7d.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Before: RFC 3339, or an age.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    /// Of this sandbox.
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// To this host.
    #[arg(long)]
    host: Option<String>,
    /// With this verdict.
    #[arg(long, value_parser = ["allow", "deny", "ask"])]
    verdict: Option<String>,
    /// By this rule.
    #[arg(long)]
    rule: Option<String>,
    /// With this credential.
    #[arg(long, value_name = "NAME")]
    credential: Option<String>,
    /// Of this kind.
    #[arg(long, value_parser = ["decision", "outcome", "control"])]
    kind: Option<String>,
    /// Of this request.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    conditions: Conditions,
    /// At most so many, the newest.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TailArguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    conditions: Conditions,
    /// How many to begin with.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Go on with what comes, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    #[command(flatten)]
    place: Place,
    /// A checkpoint that was kept outside (a signed note); the ledger must contain its tree.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// The verifier key of the ledger's first epoch, kept outside.
    #[arg(long, value_name = "KEY")]
    vkey: Option<String>,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormat {
    /// The stored records, one a line.
    Ndjson,
    /// C2SP tlog-tiles, as far as the last checkpoint, into --out.
    Tiles,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    conditions: Conditions,
    /// What to write.
    #[arg(long, value_enum, default_value_t = ExportFormat::Ndjson)]
    format: ExportFormat,
    /// Where to; standard output for ndjson unless given.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// At most so many.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Does it.
pub(crate) fn run(command: LedgerCommand) -> Result<ExitCode, Failure> {
    match command {
        LedgerCommand::Query(arguments) => query(arguments),
        LedgerCommand::Tail(arguments) => tail(arguments),
        LedgerCommand::Verify(arguments) => check(arguments),
        LedgerCommand::Export(arguments) => write_export(arguments),
    }
}

fn unreadable(error: &ReadError) -> Failure {
    let exit = match error {
        ReadError::RequestId(_) => Exit::Usage,
        _ => Exit::State,
    };
    Failure::new(exit, told_whole(error))
}

impl Place {
    /// `--state`, else the configuration's, else the default when there is no configuration either.
    fn ledger(&self) -> Result<PathBuf, Failure> {
        let usage = |error| Failure::new(Exit::Usage, error);
        let state = match (&self.state, &self.config) {
            (Some(state), _) => state.clone(),
            (None, Some(path)) => config::read(path).map_err(usage)?.state_dir,
            (None, None) if fs::exists(DEFAULT_CONFIG).unwrap_or(false) => {
                config::read(DEFAULT_CONFIG.as_ref()).map_err(usage)?.state_dir
            }
            (None, None) => PathBuf::from(DEFAULT_STATE_DIR),
        };
        Ok(StatePaths::new(&state).ledger())
    }

    fn open(&self) -> Result<Reader, Failure> {
        Reader::open(&self.ledger()?).map_err(|error| unreadable(&error))
    }
}

impl Conditions {
    fn filter(self, limit: Option<usize>) -> Result<Filter, Failure> {
        let kind = self.kind.map(|kind| kind.parse::<Kind>()).transpose();
        Ok(Filter {
            from: self.since,
            until: self.until,
            sandbox: self.sandbox,
            host: self.host,
            verdict: self.verdict,
            rule: self.rule,
            credential: self.credential,
            kind: kind.map_err(|error| Failure::new(Exit::Usage, error))?,
            request_id: self.request,
            limit,
        })
    }
}

/// RFC 3339, or how long ago.
fn moment(text: &str) -> Result<Timestamp, String> {
    let age = || -> Result<Moment, String> {
        let age: Span = text.parse().map_err(|_no_span| {
            "a time is RFC 3339, such as 2026-01-31T12:00:00Z, or an age such as 15m".to_owned()
        })?;
        let then = Zoned::now().checked_sub(age.abs());
        Ok(then.map_err(|error| error.to_string())?.timestamp())
    };
    let at = text.parse::<Moment>().or_else(|_not_rfc_3339| age())?;
    let millis =
        u64::try_from(at.as_millisecond()).map_err(|_negative| "the time is before 1970".to_owned())?;
    Ok(Timestamp(millis))
}

fn query(arguments: QueryArguments) -> Result<ExitCode, Failure> {
    let reader = arguments.place.open()?;
    let filter = arguments.conditions.filter(Some(arguments.limit))?;
    for hit in reader.query(&filter).map_err(|error| unreadable(&error))? {
        show(&hit, arguments.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tail(arguments: TailArguments) -> Result<ExitCode, Failure> {
    let mut reader = arguments.place.open()?;
    let mut filter = arguments.conditions.filter(Some(arguments.lines))?;
    let mut next = reader.size();
    for hit in reader.query(&filter).map_err(|error| unreadable(&error))? {
        show(&hit, arguments.json)?;
    }
    filter.limit = Some(PAGE);
    if !arguments.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        std::thread::sleep(FOLLOW_INTERVAL);
        let size = reader.refresh().map_err(|error| unreadable(&error))?;
        while next < size {
            let hits = reader
                .since(LeafIndex(next), &filter)
                .map_err(|error| unreadable(&error))?;
            for hit in &hits {
                show(hit, arguments.json)?;
            }
            next = match hits.last() {
                Some(last) if hits.len() == PAGE => last.record.index.0.saturating_add(1),
                _ => size,
            };
        }
    }
}

fn show(hit: &Hit, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(hit).map_err(Failure::internal)?;
        return output::line(&text);
    }
    output::line(&display::inert(&sentence(hit)))
}

/// One line for a person: index, time, kind, and what matters of it.
fn sentence(hit: &Hit) -> String {
    let record: Value = serde_json::from_str(&hit.record.json).unwrap_or_default();
    let text = |key: &str| {
        let value = record.pointer(&format!("/body/{key}"));
        value.and_then(Value::as_str).unwrap_or("-").to_owned()
    };
    let time = record
        .get("time_ms")
        .and_then(Value::as_i64)
        .and_then(|millis| Moment::from_millisecond(millis).ok())
        .map_or_else(|| "-".to_owned(), |moment| moment.to_string());
    let kind = record.get("kind").and_then(Value::as_str).unwrap_or("-");
    let rest = match kind {
        "decision" => format!(
            "{} {} {} {}://{}:{}{} [{}] {}{}",
            text("sandbox"),
            text("verdict"),
            text("method"),
            text("scheme"),
            text("host"),
            record.pointer("/body/port").unwrap_or(&Value::Null),
            text("path"),
            text("rule"),
            text("reason"),
            outcome(hit),
        ),
        "outcome" => format!("{} {} {}", text("sandbox"), text("request_id"), text("result")),
        _ => format!(
            "{} {} {}",
            text("sandbox"),
            text("event"),
            record.pointer("/body/detail").unwrap_or(&Value::Null)
        ),
    };
    format!("{} {time} {kind} {rest}", hit.record.index.0)
}

fn outcome(hit: &Hit) -> String {
    let Some(stored) = &hit.outcome else {
        return String::new();
    };
    let record: Value = serde_json::from_str(&stored.json).unwrap_or_default();
    let part = |key: &str| match record.pointer(&format!("/body/{key}")) {
        None => String::new(),
        Some(Value::String(text)) => format!(" {text}"),
        Some(other) => format!(" {other}"),
    };
    format!(" →{}{}{}", part("result"), part("status"), part("error"))
}

fn check(arguments: VerifyArguments) -> Result<ExitCode, Failure> {
    let checkpoint = match &arguments.checkpoint {
        None => None,
        Some(path) => Some(fs::read_to_string(path).map_err(|error| {
            Failure::new(Exit::Usage, format!("cannot read {}: {error}", path.display()))
        })?),
    };
    let options = VerifyOptions {
        checkpoint,
        vkey: arguments.vkey,
    };
    let report = verify(&arguments.place.ledger()?, &options).map_err(|error| {
        let exit = match error {
            VerifyError::Options(_) => Exit::Usage,
            VerifyError::NoLedger(_) | VerifyError::Io { .. } => Exit::State,
        };
        Failure::new(exit, told_whole(&error))
    })?;
    if arguments.json {
        output::json(&report)?;
    } else {
        report_lines(&report)?;
    }
    Ok(ExitCode::from(if report.is_good() {
        0
    } else {
        Exit::NotHeld.code()
    }))
}

fn report_lines(report: &Report) -> Result<(), Failure> {
    let Report {
        records,
        checkpoints,
        signed_records,
        root,
        vkey,
        live,
        ..
    } = report;
    if let Some(bad) = &report.first_bad {
        output::line(&format!(
            "NOT GOOD at record {} ({}): {}",
            bad.index,
            bad.code,
            display::inert(&bad.what)
        ))?;
    } else {
        output::line("good: no record was changed, dropped, moved or cut off")?;
    }
    output::line(&format!(
        "records that hold  {records}, of which signed {signed_records}"
    ))?;
    output::line(&format!("checkpoints        {checkpoints}"))?;
    output::line(&format!("root               {root}"))?;
    output::line(&format!("first key          {vkey}"))?;
    if *live {
        output::line("the ledger is open in another process: its last second may not be signed yet")?;
    }
    Ok(())
}

fn write_export(arguments: ExportArguments) -> Result<ExitCode, Failure> {
    let reader = arguments.place.open()?;
    let filter = arguments.conditions.filter(arguments.limit)?;
    match (arguments.format, &arguments.out) {
        (ExportFormat::Tiles, None) => {
            return Err(Failure::new(Exit::Usage, "--format tiles needs --out DIRECTORY"));
        }
        (ExportFormat::Tiles, Some(_)) if filter != Filter::default() => {
            return Err(Failure::new(
                Exit::Usage,
                "tiles are the whole log: conditions do not go with them",
            ));
        }
        (ExportFormat::Tiles, Some(out)) => {
            export::tiles(&reader, out).map_err(|error| unreadable(&error))?;
        }
        (ExportFormat::Ndjson, None) => {
            let mut out = BufWriter::new(io::stdout().lock());
            export::ndjson(&reader, &filter, &mut out).map_err(|error| unreadable(&error))?;
            finish(out.flush())?;
        }
        (ExportFormat::Ndjson, Some(path)) => {
            let file = fs::File::create(path).map_err(|error| {
                Failure::new(Exit::Usage, format!("cannot write {}: {error}", path.display()))
            })?;
            let mut out = BufWriter::new(file);
            export::ndjson(&reader, &filter, &mut out).map_err(|error| unreadable(&error))?;
            finish(out.flush())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn finish(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| Failure::internal(format!("the export is not whole: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment_or_an_age() {
        assert_eq!(moment("2026-01-31T12:00:00Z"), Ok(Timestamp(1_769_860_800_000)));
        assert!(moment("15m").unwrap() > moment("2h").unwrap());
        for wrong in ["", "yesterday", "12:00", "1960-01-01T00:00:00Z"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
