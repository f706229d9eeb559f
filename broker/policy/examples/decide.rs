//! How long one decision takes: the library with 200 hosts, over package and host requests. Prints microseconds a decision;
//! the gate is 30. `cargo run --release -p wallgate-policy --example decide`

#![expect(clippy::disallowed_methods, reason = "a measurement reads the real clock")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, json};
use wallgate_policy::{Policy, PolicyLimits, Profile, RequestShape, Situation, Usage, classify};
use wallgate_types::authority::Authority;
use wallgate_types::clock::Timestamp;
use wallgate_types::operation::Operation;
use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestFacts, RequestId, Scheme};
use wallgate_types::sandbox::{IdentitySource, SandboxFacts};

const HOSTS: usize = 200;
const ROUNDS: u32 = 20_000;
const GATE_MICROS: f64 = 30.0;

fn request(host: &str, path: &str, service: Option<(&str, Profile)>) -> Result<RequestFacts, Box<dyn Error>> {
    let mut facts = RequestFacts {
        id: RequestId(7),
        sandbox: Arc::new(SandboxFacts {
            id: "agent-7".parse()?,
            labels: BTreeMap::new(),
            source: IdentitySource::Tap,
        }),
        protocol: Protocol::Http,
        method: "GET".into(),
        scheme: Scheme::Https,
        authority: Authority::parse(host, 443)?,
        path: path.to_owned(),
        segments: path.split('/').skip(1).map(str::to_owned).collect(),
        raw_query: None,
        query: Vec::new(),
        headers: ["accept", "accept-encoding", "user-agent"]
            .map(|name| (name.to_owned(), "*/*".to_owned()))
            .into(),
        body: BodyFacts::default(),
        destination: DestinationFacts {
            service: service.map(|(name, _)| name.to_owned()),
            ..DestinationFacts::default()
        },
        operation: Operation::unknown("none"),
        original_dst: None,
        sni: None,
    };
    if let Some((_, profile)) = service {
        facts.operation = classify(profile, &RequestShape::of(&facts));
    }
    Ok(facts)
}

fn main() -> Result<(), Box<dyn Error>> {
    let hosts: Map<String, serde_json::Value> = (0..HOSTS)
        .map(|number| {
            let rule =
                json!([{"methods": ["GET", "HEAD"], "paths": ["/repos/", "/user"], "credentials": ["read"]}]);
            (format!("api{number}.example.test"), rule)
        })
        .collect();
    let data = json!({
        "allow": {"hosts": hosts, "domains": {"example.org": [{"methods": ["GET"]}]}},
        "mirrors": {"npm": {"credentials": ["npm-read"]}, "pypi": {}, "cargo": {}},
    });
    let overlay = std::env::temp_dir().join(format!("wallgate-decide-{}.json", std::process::id()));
    fs::write(&overlay, data.to_string())?;
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies");
    let policy = Policy::load_with_data(&library, std::slice::from_ref(&overlay), &PolicyLimits::default());
    fs::remove_file(&overlay)?;
    let policy = policy?;
    let requests = [
        (
            "a listed host",
            request("api77.example.test", "/repos/a/b", None)?,
        ),
        ("a name below a domain", request("a.b.example.org", "/", None)?),
        ("an unlisted host", request("elsewhere.example.test", "/", None)?),
        (
            "npm.tarball",
            request(
                "npm.corp.test",
                "/left-pad/-/left-pad-1.3.0.tgz",
                Some(("npm", Profile::Npm)),
            )?,
        ),
        (
            "pypi.simple",
            request(
                "pypi.corp.test",
                "/simple/left-pad/",
                Some(("pypi", Profile::Pypi)),
            )?,
        ),
        (
            "cargo.index",
            request(
                "cargo.corp.test",
                "/le/ft/leftpad",
                Some(("cargo", Profile::Cargo)),
            )?,
        ),
    ];
    let window = |count: u64| [("1m".to_owned(), count), ("1h".to_owned(), count)].into();
    let situation = Situation {
        taints: Vec::new(),
        usage: Usage {
            requests: window(12),
            bytes_out: window(4096),
            denied: window(1),
            distinct_names: window(3),
            not_found: window(0),
        },
        now: Timestamp(1_700_000_000_000),
    };
    let mut report = String::new();
    let mut slowest: f64 = 0.0;
    for (what, facts) in &requests {
        let mut ruling = String::new();
        // The first half warms up.
        let mut micros = 0.0;
        for _ in 0..2 {
            let begin = Instant::now();
            for _ in 0..ROUNDS / 2 {
                let decided = policy.decide(facts.clone(), &situation);
                decided.ruling().rule.clone_into(&mut ruling);
            }
            micros = begin.elapsed().as_secs_f64() * 2e6 / f64::from(ROUNDS);
        }
        slowest = slowest.max(micros);
        writeln!(report, "{micros:8.1} us  {what}: {ruling}")?;
    }
    print!("{report}");
    if slowest > GATE_MICROS {
        return Err(format!("the slowest takes {slowest:.1} us, the gate is {GATE_MICROS} us").into());
    }
    Ok(())
}
