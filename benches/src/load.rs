//! The load generator: one thread, HTTP/1.1 over TLS, bounded in count and time.
//!
//! It speaks to whatever answers at `--address` (or at the name's own address, behind the wall) and prints two lines:
//! `begin` once it is warm, so that whoever measures takes the first reading then, and one JSON object at the end.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pki;

/// The longest response head that an origin of ours sends.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How much is read at once.
const READ_BYTES: usize = 256 * 1024;
/// No phase lasts longer, whatever goes wrong.
const MAX_PHASE: Duration = Duration::from_mins(2);

/// What the generator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// `--connections` keep-alive connections, one request after the other on each, for `--seconds`.
    Requests,
    /// A new connection with a full handshake for every request, `--connections` in parallel, for `--seconds`.
    Connect,
    /// `--count` names never asked for before, two new connections to each: the first minus the second.
    NewNames,
    /// `--count` whole downloads of `--path`, one after the other.
    Download,
    /// `--connections` connections with one request each, then held until standard input ends.
    Hold,
}

/// What `load` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to do.
    #[arg(value_enum)]
    mode: Mode,
    /// Where to connect; without it, where the name resolves to.
    #[arg(long)]
    address: Option<SocketAddr>,
    /// The port, when there is no `--address`.
    #[arg(long, default_value_t = 443)]
    port: u16,
    /// The host to ask for.
    #[arg(long)]
    host: String,
    /// The path to ask for.
    #[arg(long, default_value = "/1k.json")]
    path: String,
    /// Who may sign the certificate, PEM.
    #[arg(long)]
    authority: PathBuf,
    /// Connections at once.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// How long to go on, after the warm-up.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many names or downloads.
    #[arg(long, default_value_t = 20)]
    count: usize,
}

/// What was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Requests answered.
    pub(crate) requests: u64,
    /// Body bytes received.
    pub(crate) bytes: u64,
    /// Seconds between `begin` and the end.
    pub(crate) seconds: f64,
    /// Latency of one request (or of one connection with its request), in microseconds.
    pub(crate) p50_us: f64,
    /// The same, at the 99th percentile.
    pub(crate) p99_us: f64,
}

#[derive(Clone)]
struct Target {
    address: Option<SocketAddr>,
    port: u16,
    path: Arc<str>,
    tls: TlsConnector,
}

/// Runs one phase and prints what was seen.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let resumption = false;
    let tls = pki::client(&options.authority, &["http/1.1"], resumption)?;
    let target = Target {
        address: options.address,
        port: options.port,
        path: options.path.as_str().into(),
        tls: TlsConnector::from(Arc::new(tls)),
    };
    let seen = tokio::time::timeout(MAX_PHASE, phase(options, &target))
        .await
        .context("the phase hangs")??;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

async fn phase(options: &Options, target: &Target) -> Result<Seen> {
    match options.mode {
        Mode::Requests => requests(options, target).await,
        Mode::Connect => connect(options, target).await,
        Mode::NewNames => new_names(options, target).await,
        Mode::Download => download(options, target).await,
        Mode::Hold => hold(options, target).await,
    }
}

fn begin() -> Result<Instant> {
    println!("begin");
    std::io::stdout().flush()?;
    Ok(Instant::now())
}

async fn requests(options: &Options, target: &Target) -> Result<Seen> {
    let mut connections = Vec::new();
    for _ in 0..options.connections {
        let mut connection = Connection::open(target, &options.host).await?;
        for _ in 0..20 {
            connection.get().await?;
        }
        connections.push(connection);
    }
    let start = begin()?;
    let end = start + Duration::from_secs_f64(options.seconds);
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        tasks.spawn(async move {
            let mut samples = Samples::default();
            while Instant::now() < end {
                let before = Instant::now();
                samples.bytes += connection.get().await?;
                samples.push(before.elapsed());
            }
            anyhow::Ok(samples)
        });
    }
    gather(tasks, start).await
}

async fn connect(options: &Options, target: &Target) -> Result<Seen> {
    for _ in 0..20 {
        Connection::open(target, &options.host).await?.get().await?;
    }
    let start = begin()?;
    let end = start + Duration::from_secs_f64(options.seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..options.connections {
        let (target, host) = (target.clone(), options.host.clone());
        tasks.spawn(async move {
            let mut samples = Samples::default();
            while Instant::now() < end {
                let before = Instant::now();
                samples.bytes += Connection::open(&target, &host).await?.get().await?;
                samples.push(before.elapsed());
            }
            anyhow::Ok(samples)
        });
    }
    gather(tasks, start).await
}

/// The names that [`Mode::NewNames`] asks for: never-seen ones, since every phase has a fresh subject.
pub(crate) fn new_name(number: usize) -> String {
    format!("n{number}.{}", pki::DOMAIN)
}

/// The extra time of the first connection to a name, so what is done once a name: minting, and dialling upstream.
async fn new_names(options: &Options, target: &Target) -> Result<Seen> {
    Connection::open(target, &options.host).await?.get().await?;
    let start = begin()?;
    let mut samples = Samples::default();
    for number in 0..options.count {
        let host = new_name(number);
        let before = Instant::now();
        samples.bytes += Connection::open(target, &host).await?.get().await?;
        let first = before.elapsed();
        let before = Instant::now();
        samples.bytes += Connection::open(target, &host).await?.get().await?;
        samples.push(first.saturating_sub(before.elapsed()));
    }
    Ok(samples.seen(start))
}

async fn download(options: &Options, target: &Target) -> Result<Seen> {
    let mut connection = Connection::open(target, &options.host).await?;
    connection.get().await?;
    let start = begin()?;
    let mut samples = Samples::default();
    for _ in 0..options.count {
        let before = Instant::now();
        samples.bytes += connection.get().await?;
        samples.push(before.elapsed());
    }
    Ok(samples.seen(start))
}

async fn hold(options: &Options, target: &Target) -> Result<Seen> {
    let mut connections = Vec::new();
    let mut samples = Samples::default();
    let start = Instant::now();
    for _ in 0..options.connections {
        let mut connection = Connection::open(target, &options.host).await?;
        samples.bytes += connection.get().await?;
        samples.push(start.elapsed());
        connections.push(connection);
    }
    begin()?;
    // Nothing else is to be done meanwhile, so blocking the only thread is what is wanted.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(samples.seen(start))
}

#[derive(Default)]
struct Samples {
    latencies: Vec<Duration>,
    bytes: u64,
}

impl Samples {
    fn push(&mut self, latency: Duration) {
        self.latencies.push(latency);
    }

    fn seen(mut self, start: Instant) -> Seen {
        self.latencies.sort_unstable();
        let quantile = |per_mille: usize| {
            let index = self.latencies.len().saturating_sub(1) * per_mille / 1000;
            self.latencies
                .get(index)
                .map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        Seen {
            requests: self.latencies.len() as u64,
            bytes: self.bytes,
            seconds: start.elapsed().as_secs_f64(),
            p50_us: quantile(500),
            p99_us: quantile(990),
        }
    }
}

async fn gather(mut tasks: JoinSet<Result<Samples>>, start: Instant) -> Result<Seen> {
    let mut all = Samples::default();
    while let Some(samples) = tasks.join_next().await {
        let samples = samples??;
        all.latencies.extend(samples.latencies);
        all.bytes += samples.bytes;
    }
    Ok(all.seen(start))
}

/// One keep-alive connection.
struct Connection {
    stream: TlsStream<TcpStream>,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(target: &Target, host: &str) -> Result<Self> {
        let stream = match target.address {
            Some(address) => TcpStream::connect(address).await?,
            None => TcpStream::connect((host, target.port)).await?,
        };
        stream.set_nodelay(true)?;
        let stream = target
            .tls
            .connect(ServerName::try_from(host.to_owned())?, stream)
            .await?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n",
            target.path
        );
        Ok(Self {
            stream,
            request: request.into_bytes(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// One request; the length of its body.
    async fn get(&mut self) -> Result<u64> {
        self.stream.write_all(&self.request).await?;
        self.stream.flush().await?;
        let mut filled = 0;
        let head_end = loop {
            let Some(space) = self.buffer.get_mut(filled..) else {
                bail!("the head does not fit")
            };
            let read = self.stream.read(space).await?;
            ensure!(read > 0, "closed within the head");
            filled += read;
            let bytes = self.buffer.get(..filled).unwrap_or_default();
            if let Some(at) = memchr::memmem::find(bytes, b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(filled < MAX_HEAD_BYTES, "the head is too long");
        };
        let head = std::str::from_utf8(self.buffer.get(..head_end).unwrap_or_default())?.to_ascii_lowercase();
        ensure!(
            head.starts_with("http/1.1 200"),
            "{}",
            head.lines().next().unwrap_or_default()
        );
        let mut received = (filled - head_end) as u64;
        if let Some(length) = content_length(&head) {
            while received < length {
                let read = self.stream.read(&mut self.buffer).await?;
                ensure!(read > 0, "closed within the body");
                received += read as u64;
            }
            return Ok(received);
        }
        ensure!(
            head.contains("transfer-encoding: chunked"),
            "the response has no length"
        );
        let mut tail = self.buffer.get(head_end..filled).unwrap_or_default().to_vec();
        while !tail.ends_with(b"0\r\n\r\n") {
            let read = self.stream.read(&mut self.buffer).await?;
            ensure!(read > 0, "closed within the body");
            received += read as u64;
            tail.extend_from_slice(self.buffer.get(..read).unwrap_or_default());
            tail.drain(..tail.len().saturating_sub(8));
        }
        Ok(received)
    }
}

fn content_length(head: &str) -> Option<u64> {
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|value| value.trim().parse().ok())
}
