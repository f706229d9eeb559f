//! The data path as a whole: real stages, real policy, a real ledger, real TLS on both sides, on loopback.

mod http1;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use wallgate_ledger::{Filter, Ledger, LedgerOptions, Reader};
use wallgate_policy::{Policy, PolicyLimits, ServiceMap};
use wallgate_types::authority::{Host, Name};
use wallgate_types::clock::{Clock, SystemClock};
use wallgate_types::sandbox::{IdentitySource, SandboxFacts};

use crate::arm::Armoury;
use crate::attach::{Attached, Broker, Sockets};
use crate::limits::Limits;
use crate::resolve::{Answer, Exception, Exceptions, Lookup, LookupError, Resolver};
use crate::shared::Shared;
use crate::tls::ca::Root;
use crate::tls::upstream::UpstreamTrust;

/// Allows `api.test` below `/ok`, wants to see bodies below `/ok/inspect`, asks below `/ok/ask`.
pub(super) const REGO: &str = r#"
package wallgate

default decision := {"verdict": "deny", "rule": "default", "reason": "No rule allows this."}

decision := {"verdict": "allow", "rule": "test.dns", "reason": "Names may be looked up."} if {
	input.request.protocol == "dns"
}

decision := {"verdict": "ask", "rule": "test.ask", "reason": "A person decides."} if {
	here
	startswith(input.request.path, "/ok/ask")
}

decision := {"verdict": "deny", "rule": "test.body", "reason": "The body is bad."} if {
	here
	startswith(input.request.path, "/ok/inspect")
	contains(input.request.body.text, "evil")
}

decision := {
	"verdict": "allow",
	"rule": "test.ok",
	"reason": "It is below /ok.",
	"limits": {"request_bytes": 1000000, "response_bytes": 1000000},
} if {
	here
	startswith(input.request.path, "/ok")
	not startswith(input.request.path, "/ok/ask")
	not bad_body
}

bad_body if {
	startswith(input.request.path, "/ok/inspect")
	contains(input.request.body.text, "evil")
}

here if {
	input.request.protocol != "dns"
	input.request.host == "api.test"
}

body := {"max_bytes": 64} if startswith(input.request.path, "/ok/inspect")
"#;

/// Knows no name: tests say where everything is.
#[derive(Debug)]
struct NoLookup;

impl Lookup for NoLookup {
    fn lookup<'a>(
        &'a self,
        _: &'a Name,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Answer, LookupError>> + Send + 'a>> {
        Box::pin(std::future::ready(Err(LookupError::NotFound)))
    }
}

/// One sandbox behind a broker, and an origin for `api.test`.
pub(super) struct World {
    pub(super) attached: Attached,
    pub(super) _broker: Broker,
    pub(super) door: SocketAddr,
    pub(super) ledger: Ledger,
    dir: TempDir,
}

impl World {
    /// Puts one sandbox behind a broker whose `api.test` is at `origin`.
    pub(super) async fn new(origin: SocketAddr, limits: Limits, roots: rustls::RootCertStore) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("bundle");
        std::fs::create_dir(&bundle).unwrap();
        std::fs::File::create(bundle.join("policy.rego"))
            .unwrap()
            .write_all(REGO.as_bytes())
            .unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        // The machine may be busy: what is tested is not how fast a debug build evaluates.
        let policy_limits = PolicyLimits {
            eval_timeout: Duration::from_secs(5),
            ..PolicyLimits::default()
        };
        let policy = Policy::load(&bundle, &policy_limits).unwrap();
        let ledger_dir = dir.path().join("ledger");
        let ledger = Ledger::open(&ledger_dir, LedgerOptions::default(), Arc::clone(&clock)).unwrap();
        let armoury = Armoury::default();
        let shared = Shared::new(
            policy,
            ServiceMap::default(),
            ledger.clone(),
            armoury,
            limits,
            Arc::clone(&clock),
        );
        let root = Root::load_or_create(&dir.path().join("ca"), &clock).unwrap();
        let exception = Exception {
            host: Host::parse("api.test").unwrap(),
            port: None,
            address: origin,
        };
        let exceptions = Arc::new(Exceptions::new(vec![exception], Vec::new()).unwrap());
        let resolver = Resolver::new(Arc::new(NoLookup), exceptions, Arc::clone(&clock));
        let trust = UpstreamTrust::with_roots(roots, &[], clock).unwrap();
        let broker = Broker::new(Arc::new(shared), root, resolver, trust);
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let door = listener.local_addr().unwrap();
        let facts = SandboxFacts {
            id: "agent-1".parse().unwrap(),
            labels: [("team".to_owned(), "research".to_owned())].into(),
            source: IdentitySource::Tap,
        };
        let sockets = Sockets {
            tcp: vec![listener],
            dns: Vec::new(),
            mark: None,
        };
        let attached = broker.attach(facts, sockets).await.unwrap();
        Self {
            attached,
            _broker: broker,
            door,
            ledger,
            dir,
        }
    }

    /// Says `bytes` in the clear and returns everything that comes back.
    pub(super) async fn say(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.door).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // A reset is an end too.
        drop(within(stream.read_to_end(&mut answer)).await);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Everything that the ledger holds of a kind, after the sandbox is gone.
    pub(super) async fn records(self, kind: &str) -> Vec<Value> {
        let Self {
            attached,
            ledger,
            dir,
            ..
        } = self;
        attached.detach().await.unwrap();
        tokio::task::spawn_blocking(move || drop(ledger.close()))
            .await
            .unwrap();
        let reader = Reader::open(&dir.path().join("ledger")).unwrap();
        let all = reader
            .query(&Filter {
                kind: Some(kind.parse().unwrap()),
                ..Filter::default()
            })
            .unwrap();
        all.iter()
            .map(|hit| serde_json::from_str::<Value>(&hit.record.json).unwrap()["body"].clone())
            .collect()
    }
}

/// A deadline for tests that would otherwise hang.
pub(super) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("in time")
}

/// What an origin got: each request's head, and its body without its framing.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<Got>>>);

/// A head and a body.
pub(super) type Got = (String, Vec<u8>);

impl Seen {
    pub(super) fn take(&self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// An origin in the clear that writes down what it gets and answers each request with `answer`.
pub(super) async fn origin(answer: &'static [u8]) -> (SocketAddr, Seen, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let writes = seen.clone();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(write_down(stream, writes.clone(), answer));
        }
    });
    (address, seen, task)
}

async fn write_down(mut stream: TcpStream, seen: Seen, answer: &'static [u8]) {
    let mut buffer = Vec::new();
    loop {
        let Some(head) = read_until(&mut stream, &mut buffer, b"\r\n\r\n").await else {
            return;
        };
        let head = String::from_utf8(head).unwrap();
        let lower = head.to_ascii_lowercase();
        let body = if lower.contains("\r\ntransfer-encoding: chunked") {
            let Some(body) = read_chunks(&mut stream, &mut buffer).await else {
                return;
            };
            body
        } else {
            let length = lower
                .split_once("\r\ncontent-length: ")
                .map_or(0, |(_, rest)| rest.split("\r\n").next().unwrap().parse().unwrap());
            let Some(body) = read_exactly(&mut stream, &mut buffer, length).await else {
                return;
            };
            body
        };
        seen.0.lock().unwrap().push((head, body));
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

async fn read_chunks(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_until(stream, buffer, b"\r\n").await?;
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        if size == 0 {
            while read_until(stream, buffer, b"\r\n").await?.len() > 2 {}
            return Some(body);
        }
        body.extend(read_exactly(stream, buffer, size).await?);
        read_exactly(stream, buffer, 2).await?;
    }
}

async fn read_until(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = memchr::memmem::find(buffer, end) {
            return Some(buffer.drain(..at + end.len()).collect());
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

async fn read_exactly(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(buffer.drain(..length).collect())
}
