//! Every phase for every subject, in turns, several times; then medians.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::origin::{BIG_BYTES, Origin};
use crate::pki;
use crate::subject::{Bench, LOAD_CPU, Measured, NEW_NAMES, Subject};
use crate::table::{Row, markdown, median};

/// Connections that are held to weigh one.
const HELD: usize = 500;
/// Whole downloads a phase.
const DOWNLOADS: usize = 5;
/// How often the durable append is timed.
const APPENDS: usize = 200;
/// What one appended record weighs, in bytes: about what ours do.
const APPEND_BYTES: usize = 900;

/// What `compare` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The `wallgate` binary, built with `--release`.
    #[arg(long)]
    wallgate: PathBuf,
    /// The policy bundle whose Rego decides.
    #[arg(long, default_value = "policies")]
    policies: PathBuf,
    /// How many times each phase is run for each subject.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// How long a timed phase lasts, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Where to write the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs everything and prints the table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let files = pki::create(folder.path())?;
    let origin = Origin::start(folder.path(), &files, LOAD_CPU)?;
    let wallgate = options.wallgate.canonicalize().context("the wallgate binary")?;
    let policies = options.policies.canonicalize().context("the policy bundle")?;
    let bench = Bench {
        folder: folder.path(),
        files: &files,
        origin: &origin,
        wallgate: &wallgate,
        policies: &policies,
    };

    let append_us = durable_append_us(folder.path())?;
    let rows = rows(&bench, options, append_us)?;
    println!("{}", markdown(&rows));
    println!("One durable append of {APPEND_BYTES} bytes (write + fdatasync), p50: {append_us:.0} µs.");
    if let Some(path) = &options.json {
        serde_json::to_writer_pretty(File::create(path)?, &rows)?;
    }
    Ok(())
}

fn rows(bench: &Bench<'_>, options: &Options, append_us: f64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let timed = |mode: &str, connections: usize| {
        arguments(
            mode,
            &[
                ("--connections", connections.to_string()),
                ("--seconds", options.seconds.to_string()),
            ],
        )
    };

    for connections in [1, 16, 64] {
        let phase = Phase::run(bench, options.repeats, &timed("requests", connections))?;
        if connections == 1 {
            rows.push(phase.row(
                "latency of a request, 1 connection: p50 µs",
                |m| m.seen.p50_us,
                Compared::Times {
                    of: append_us,
                    meaning: "× a durable append, added over bare",
                    target: "≤ 2 / ≤ 1.2",
                },
            ));
        }
        rows.push(phase.row(
            &format!("requests/s, {connections} connections"),
            rate,
            Compared::Ratio("–"),
        ));
        if connections == 16 {
            rows.push(phase.row(
                "CPU µs per request, 16 connections",
                cpu_per_request,
                Compared::Ratio("≤ 2.5 / ≤ 1.5"),
            ));
        }
    }
    let phase = Phase::run(bench, options.repeats, &timed("connect", 4))?;
    rows.push(phase.row("new connections/s, 4 in parallel", rate, Compared::Ratio("–")));
    rows.push(phase.row(
        "CPU µs per new connection",
        cpu_per_request,
        Compared::Ratio("≤ 1.4 / ≤ 1.15"),
    ));

    let names = arguments("new-names", &[("--count", NEW_NAMES.to_string())]);
    let phase = Phase::run(bench, options.repeats, &names)?;
    rows.push(phase.row(
        "first request to a new name less the second: p50 µs",
        |m| m.seen.p50_us,
        Compared::Added("≤ 200 / ≤ 50"),
    ));

    let downloads = arguments(
        "download",
        &[
            ("--count", DOWNLOADS.to_string()),
            ("--path", "/100m.bin".to_owned()),
        ],
    );
    let phase = Phase::run(bench, options.repeats, &downloads)?;
    rows.push(phase.row(
        "download, MB/s",
        |m| m.seen.bytes as f64 / m.seen.seconds / 1e6,
        Compared::Ratio("–"),
    ));
    rows.push(phase.row(
        "CPU s per GB downloaded",
        cpu_per_gb,
        Compared::Ratio("≤ 1.3 / ≤ 1.1"),
    ));

    rows.extend(memory(bench)?);
    Ok(rows)
}

fn memory(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let load = |connections: usize| arguments("hold", &[("--connections", connections.to_string())]);
    let idle = Phase::run(bench, 1, &load(1))?;
    let held = Phase::run(bench, 1, &load(HELD + 1))?;
    let mib = |m: &Measured| m.pss_kib as f64 / 1024.0;
    let each = |subject| (held.median(subject, mib) - idle.median(subject, mib)) * 1024.0 / HELD as f64;
    Ok(vec![
        Row {
            measure: "memory of the idle process, MiB".to_owned(),
            direct: None,
            bare: idle.median(Subject::Bare, mib),
            wallgate: idle.median(Subject::Wallgate, mib),
            value: idle.median(Subject::Wallgate, mib),
            meaning: "MiB",
            target: "≤ 25 / ≤ 12",
        },
        Row {
            measure: "memory per idle connection, KiB".to_owned(),
            direct: None,
            bare: each(Subject::Bare),
            wallgate: each(Subject::Wallgate),
            value: each(Subject::Wallgate),
            meaning: "KiB",
            target: "≤ 56 / ≤ 35",
        },
    ])
}

fn arguments(mode: &str, options: &[(&str, String)]) -> Vec<String> {
    let host = [mode.to_owned(), "--host".to_owned(), pki::DOMAIN.to_owned()];
    host.into_iter()
        .chain(
            options
                .iter()
                .flat_map(|(name, value)| [(*name).to_owned(), value.clone()]),
        )
        .collect()
}

fn rate(measured: &Measured) -> f64 {
    measured.seen.requests as f64 / measured.seen.seconds
}

fn cpu_per_request(measured: &Measured) -> f64 {
    measured.cpu.as_secs_f64() * 1e6 / measured.seen.requests as f64
}

fn cpu_per_gb(measured: &Measured) -> f64 {
    measured.cpu.as_secs_f64() * 1e9 / (DOWNLOADS as u64 * BIG_BYTES) as f64
}

/// What a row's last figure says.
#[derive(Clone, Copy)]
enum Compared {
    /// wallgate ÷ bare.
    Ratio(&'static str),
    /// wallgate − bare.
    Added(&'static str),
    /// (wallgate − bare) ÷ something measured in the same run.
    Times {
        of: f64,
        meaning: &'static str,
        target: &'static str,
    },
}

/// All repeats of one phase, in the order of [`Subject::ALL`].
struct Phase {
    repeats: Vec<[Measured; 3]>,
}

impl Phase {
    fn run(bench: &Bench<'_>, repeats: usize, load: &[String]) -> Result<Self> {
        eprintln!("… {}", load.join(" "));
        let mut all = Vec::new();
        for repeat in 0..repeats {
            let mut measured: [Measured; 3] = Default::default();
            let mut order = [0, 1, 2];
            if repeat % 2 == 1 {
                order.reverse();
            }
            for index in order {
                if let (Some(subject), Some(place)) = (Subject::ALL.get(index), measured.get_mut(index)) {
                    *place = bench.measure(*subject, load)?;
                }
            }
            all.push(measured);
        }
        Ok(Self { repeats: all })
    }

    fn median(&self, subject: Subject, figure: impl Fn(&Measured) -> f64) -> f64 {
        let index = Subject::ALL
            .iter()
            .position(|other| *other == subject)
            .unwrap_or_default();
        median(
            &self
                .repeats
                .iter()
                .filter_map(|repeat| repeat.get(index))
                .map(figure)
                .collect::<Vec<_>>(),
        )
    }

    fn row(&self, measure: &str, figure: impl Fn(&Measured) -> f64 + Copy, compared: Compared) -> Row {
        let [direct, bare, wallgate] = Subject::ALL.map(|subject| self.median(subject, figure));
        let (value, meaning, target) = match compared {
            Compared::Ratio(target) => (wallgate / bare, "× bare", target),
            Compared::Added(target) => (wallgate - bare, "added over bare", target),
            Compared::Times { of, meaning, target } => ((wallgate - bare) / of, meaning, target),
        };
        let has_direct = !measure.starts_with("CPU");
        Row {
            measure: measure.to_owned(),
            direct: has_direct.then_some(direct),
            bare,
            wallgate,
            value,
            meaning,
            target,
        }
    }
}

/// The median time of appending one record to a file and waiting until it is on disk.
fn durable_append_us(folder: &Path) -> Result<f64> {
    let mut file = File::create(folder.join("append"))?;
    let record = [b'x'; APPEND_BYTES];
    let mut times = Vec::new();
    for _ in 0..APPENDS {
        let before = Instant::now();
        file.write_all(&record)?;
        file.sync_data()?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&times))
}
