use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RData;
use hickory_proto::serialize::binary::BinDecodable as _;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wallgate_types::clock::ManualClock;
use wallgate_types::sandbox::IdentitySource;

use super::*;
use crate::edge_limits::{
    DNS_BURST, DNS_CONNECTION_TIMEOUT, MAX_DISTINCT_NAMES, MAX_DNS_QUERY_BYTES, MAX_NAMES,
};

/// Allows what ends in `.ok.test`; keeps what it was told.
#[derive(Debug, Default)]
struct Gate {
    recorded: Mutex<Vec<String>>,
    reports: Mutex<Vec<DnsReport>>,
    broken: AtomicBool,
}

struct Decision {
    facts: RequestFacts,
    ruling: Ruling,
}

impl NameGate for Arc<Gate> {
    type Decision = Decision;

    fn decide(&self, facts: RequestFacts) -> Decision {
        let mut ruling = Ruling::refusal("default_deny", "nothing allows it");
        if facts.authority.host().to_string().ends_with("ok.test") {
            ruling.verdict = Verdict::Allow;
            ruling.rule = "names.ok".into();
        }
        Decision { facts, ruling }
    }

    fn ruling<'d>(&self, decision: &'d Decision) -> &'d Ruling {
        &decision.ruling
    }

    async fn record(&self, decision: Decision) -> Result<(), Unrecorded> {
        tokio::task::yield_now().await;
        if self.broken.load(Ordering::SeqCst) {
            return Err(Unrecorded);
        }
        let facts = &decision.facts;
        assert_eq!((facts.protocol, facts.scheme), (Protocol::Dns, Scheme::Dns));
        let text = format!(
            "{} {} {}",
            facts.method,
            facts.authority,
            decision.ruling.verdict.as_str()
        );
        self.recorded.lock().unwrap().push(text);
        Ok(())
    }

    async fn report(&self, report: DnsReport) {
        for (reason, _) in &report.unasked {
            assert!(
                DnsReport::REASONS.iter().any(|(known, _)| known == reason),
                "{reason} is not declared"
            );
        }
        self.reports.lock().unwrap().push(report);
    }
}

struct Fixture {
    server: Arc<DnsServer<Arc<Gate>>>,
    gate: Arc<Gate>,
    names: Arc<NameTable>,
    clock: Arc<ManualClock>,
}

fn fixture() -> Fixture {
    let clock = Arc::new(ManualClock::at(1_000));
    let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let names = Arc::new(NameTable::new([5; 16], Arc::clone(&shared)));
    let gate = Arc::new(Gate::default());
    let sandbox = Arc::new(SandboxFacts {
        id: "agent-1".parse().unwrap(),
        labels: BTreeMap::new(),
        source: IdentitySource::Tap,
    });
    let server = DnsServer::new(sandbox, Arc::clone(&names), shared, Arc::clone(&gate));
    Fixture {
        server: Arc::new(server),
        gate,
        names,
        clock,
    }
}

impl Fixture {
    async fn ask(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.server.answer(message, Transport::Udp).await
    }

    async fn unasked(&self) -> Vec<(&'static str, u64)> {
        self.server.report().await;
        let report = self.gate.reports.lock().unwrap().pop();
        report.map(|report| report.unasked).unwrap_or_default()
    }

    fn recorded(&self) -> Vec<String> {
        std::mem::take(&mut *self.gate.recorded.lock().unwrap())
    }
}

const OPT: [u8; 11] = [0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0];

/// A question in wire form: labels as they are, type, class IN.
fn question(labels: &[&[u8]], record_type: u16) -> Vec<u8> {
    let mut out: Vec<u8> = labels
        .iter()
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], *label].concat())
        .collect();
    out.push(0);
    out.extend(record_type.to_be_bytes());
    out.extend([0, 1]);
    out
}

fn message(flags: u16, counts: [u16; 4], body: &[u8]) -> Vec<u8> {
    let mut out = 0x1234_u16.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    out.extend_from_slice(body);
    out
}

/// A plain query with recursion desired and an OPT record.
fn query(name: &str, record_type: u16) -> Vec<u8> {
    let labels: Vec<&[u8]> = name.split('.').map(str::as_bytes).collect();
    message(
        0x0100,
        [1, 0, 0, 1],
        &[question(&labels, record_type), OPT.to_vec()].concat(),
    )
}

/// Decodes an answer with a library that did not make it.
fn decode(answer: &[u8]) -> Message {
    Message::from_bytes(answer).unwrap()
}

/// The extended error in an answer, whose OPT record stands last and has this one option.
fn extended_error(answer: &[u8]) -> Option<(u16, String)> {
    const OPT_HEAD: [u8; 5] = [0, 0, 41, 0x04, 0xd0];
    let opt = answer
        .windows(OPT_HEAD.len())
        .rposition(|bytes| bytes == OPT_HEAD)?;
    let option = answer.get(opt + OPT.len()..)?;
    let (head, text) = option.split_first_chunk::<6>()?;
    assert_eq!(head[..2], [0, 15]);
    assert_eq!(
        usize::from(u16::from_be_bytes([head[2], head[3]])),
        text.len() + 2
    );
    Some((
        u16::from_be_bytes([head[4], head[5]]),
        String::from_utf8(text.to_vec()).unwrap(),
    ))
}

#[tokio::test]
async fn an_allowed_name_gets_the_addresses_that_stand_for_it() {
    let fixture = fixture();
    let a = decode(&fixture.ask(&query("WwW.ok.TEST", 1)).await.unwrap());
    assert_eq!(a.metadata.id, 0x1234);
    assert_eq!(a.metadata.response_code, ResponseCode::NoError);
    assert!(a.metadata.recursion_available && a.metadata.recursion_desired);
    assert_eq!(
        a.queries[0].name().to_ascii(),
        "WwW.ok.TEST.",
        "the case is the client's own"
    );
    let RData::A(v4) = a.answers[0].data else {
        panic!("{a:?}")
    };
    assert_eq!(a.answers[0].ttl, SYNTHETIC_TTL_SECS);
    let aaaa = decode(&fixture.ask(&query("www.ok.test", 28)).await.unwrap());
    let RData::AAAA(v6) = aaaa.answers[0].data else {
        panic!("{aaaa:?}")
    };
    let name = Name::parse("www.ok.test").ok();
    assert_eq!(fixture.names.lookup(v4.0.into()), name);
    assert_eq!(fixture.names.lookup(v6.0.into()), name);
    assert_eq!(
        fixture.recorded(),
        ["A www.ok.test:53 allow", "AAAA www.ok.test:53 allow"]
    );
}

#[tokio::test]
async fn other_types_of_an_allowed_name_are_empty_and_decided_too() {
    let fixture = fixture();
    for record_type in [2, 5, 6, 10, 15, 16, 33, 43, 64, 65, 257, 4321] {
        let answer = decode(&fixture.ask(&query("ok.test", record_type)).await.unwrap());
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert!(answer.answers.is_empty(), "type {record_type}");
    }
    assert_eq!(fixture.recorded().len(), 12);
    assert!(fixture.names.is_empty());
}

#[tokio::test]
async fn a_denied_name_is_refused_with_the_reason() {
    let fixture = fixture();
    for record_type in [1, 28, 16, 65] {
        let answer = fixture.ask(&query("evil.test", record_type)).await.unwrap();
        assert_eq!(decode(&answer).metadata.response_code, ResponseCode::Refused);
        let (code, text) = extended_error(&answer).unwrap();
        assert_eq!(code, ExtendedError::BLOCKED);
        assert_eq!(
            text,
            "default_deny: nothing allows it (http://wallgate.internal/)"
        );
    }
    assert_eq!(fixture.recorded()[0], "A evil.test:53 deny");
    assert!(fixture.names.is_empty());
}

#[tokio::test]
async fn repeats_are_counted_exactly_and_recorded_anew_after_the_window() {
    let fixture = fixture();
    for _ in 0..5 {
        fixture.ask(&query("a.ok.test", 1)).await.unwrap();
        fixture.ask(&query("evil.test", 1)).await.unwrap();
    }
    assert_eq!(fixture.recorded().len(), 2);
    fixture.server.report().await;
    let report = fixture.gate.reports.lock().unwrap().pop().unwrap();
    let counts: Vec<_> = report
        .repeats
        .iter()
        .map(|r| (r.name.as_str(), r.verdict, r.count))
        .collect();
    assert_eq!(
        counts,
        [("a.ok.test", Verdict::Allow, 4), ("evil.test", Verdict::Deny, 4)]
    );
    fixture.ask(&query("a.ok.test", 1)).await.unwrap();
    assert!(fixture.recorded().is_empty(), "still counted");
    fixture.clock.advance(DNS_NAME_WINDOW);
    fixture.server.report().await;
    fixture.ask(&query("a.ok.test", 1)).await.unwrap();
    assert_eq!(fixture.recorded(), ["A a.ok.test:53 allow"]);
    let report = fixture.gate.reports.lock().unwrap().pop().unwrap();
    assert_eq!(report.repeats[0].count, 1);
    fixture.server.report().await;
    assert!(
        fixture.gate.reports.lock().unwrap().is_empty(),
        "nothing happened, nothing is reported"
    );
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_answered() {
    let fixture = fixture();
    fixture.gate.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = fixture.ask(&query("a.ok.test", 1)).await.unwrap();
        assert_eq!(decode(&answer).metadata.response_code, ResponseCode::ServFail);
    }
    assert!(fixture.names.is_empty());
    fixture.gate.broken.store(false, Ordering::SeqCst);
    let answer = fixture.ask(&query("a.ok.test", 1)).await.unwrap();
    assert_eq!(decode(&answer).metadata.response_code, ResponseCode::NoError);
    assert_eq!(fixture.unasked().await, [("unrecorded", 2)]);
}

#[tokio::test]
async fn the_broker_itself_is_found_without_policy() {
    let fixture = fixture();
    let answer = decode(&fixture.ask(&query(INTERNAL_NAME, 1)).await.unwrap());
    assert_eq!(answer.answers.len(), 1);
    assert!(fixture.recorded().is_empty());
    assert_eq!(fixture.unasked().await, [("local", 1)]);
}

#[tokio::test]
async fn a_pointer_knows_the_sandbox_s_own_names_only() {
    let fixture = fixture();
    let name = Name::parse("a.ok.test").unwrap();
    let both = fixture.names.assign(&name).unwrap();
    let [a, b, c, d] = both.v4.octets();
    let v4 = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
    let nibbles: Vec<String> = both
        .v6
        .octets()
        .iter()
        .rev()
        .map(|o| format!("{:x}.{:x}", o & 15, o >> 4))
        .collect();
    let v6 = format!("{}.ip6.arpa", nibbles.join("."));
    for (question, expected) in [
        (v4.as_str(), ResponseCode::NoError),
        (v6.as_str(), ResponseCode::NoError),
        ("1.0.0.127.in-addr.arpa", ResponseCode::NXDomain),
        ("0.127.in-addr.arpa", ResponseCode::NXDomain),
        ("x.ip6.arpa", ResponseCode::NXDomain),
        ("a.ok.test", ResponseCode::NXDomain),
    ] {
        let answer = decode(&fixture.ask(&query(question, 12)).await.unwrap());
        assert_eq!(answer.metadata.response_code, expected, "{question}");
        if expected == ResponseCode::NoError {
            let RData::PTR(pointed) = &answer.answers[0].data else {
                panic!("{answer:?}")
            };
            assert_eq!(pointed.0.to_ascii(), "a.ok.test.");
        }
    }
    assert!(fixture.recorded().is_empty());
}

/// Each kind of message that is no plain question: its rule, and what it is counted as.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
async fn every_other_message_has_its_rule() {
    use ResponseCode as R;
    let plain = question(&[b"ok", b"test"], 1);
    let one = [1, 0, 0, 0];
    let with = |tail: &[u8]| [&plain[..], tail].concat();
    let typed = |record_type| message(0, one, &question(&[b"ok", b"test"], record_type));
    let named = |labels: &[&[u8]]| message(0, one, &question(labels, 1));
    let mut chaos = plain.clone();
    *chaos.last_mut().unwrap() = 3;
    let mut any_class = plain.clone();
    *any_class.last_mut().unwrap() = 255;
    let mut mdns = plain.clone();
    mdns[plain.len() - 2] = 0x80;
    let mut version = OPT;
    version[6] = 1;
    let mut tsig = OPT;
    tsig[2] = 250;
    let long: Vec<&[u8]> = vec![&[b'a'; 63]; 4];
    let rows: Vec<(&str, Vec<u8>, Option<R>)> = vec![
        ("short", vec![0; 11], None),
        ("response", message(0x8000, one, &plain), None),
        ("response", message(0x8180, [1, 1, 0, 0], &plain), None),
        (
            "oversize",
            message(0, one, &with(&vec![0; MAX_DNS_QUERY_BYTES])),
            Some(R::FormErr),
        ),
        ("opcode", message(0x2000, one, &plain), Some(R::NotImp)),
        ("opcode", message(0x2800, one, &plain), Some(R::NotImp)),
        ("truncated", message(0x0200, one, &plain), Some(R::FormErr)),
        ("counts", message(0, [0; 4], &[]), Some(R::FormErr)),
        (
            "counts",
            message(0, [2, 0, 0, 0], &with(&plain)),
            Some(R::FormErr),
        ),
        ("counts", message(0, [1, 1, 0, 0], &plain), Some(R::FormErr)),
        (
            "counts",
            message(0, [1, 0, 0, 2], &with(&[OPT, OPT].concat())),
            Some(R::FormErr),
        ),
        ("question", message(0, one, &[]), Some(R::FormErr)),
        (
            "question",
            message(0, one, &plain[..plain.len() - 1]),
            Some(R::FormErr),
        ),
        (
            "question",
            message(0, one, &[0xc0, 12, 0, 1, 0, 1]),
            Some(R::FormErr),
        ),
        (
            "question",
            message(0, one, &[1, b'a', 0xc0, 12, 0, 1, 0, 1]),
            Some(R::FormErr),
        ),
        (
            "question",
            message(0, one, &[0x41, 1, 2, 0, 1, 0, 1]),
            Some(R::FormErr),
        ),
        ("question", named(&[&[b'a'; 63][..]; 5]), Some(R::FormErr)),
        ("question", named(&long), Some(R::FormErr)),
        ("bad_name", named(&[]), Some(R::Refused)),
        ("bad_name", named(&[b"a_b", b"ok", b"test"]), Some(R::Refused)),
        (
            "bad_name",
            named(&[b"evil.test\0", b"ok", b"test"]),
            Some(R::Refused),
        ),
        ("bad_name", named(&[b"www.ok", b"test"]), Some(R::Refused)),
        (
            "bad_name",
            named(&[b"\xe3\x80\x82", b"ok", b"test"]),
            Some(R::Refused),
        ),
        ("bad_name", named(&[b"*", b"ok", b"test"]), Some(R::Refused)),
        ("bad_name", named(&[b"127", b"1"]), Some(R::Refused)),
        ("bad_name", named(&[b"xn--a", b"ok", b"test"]), Some(R::Refused)),
        ("class", message(0, one, &chaos), Some(R::Refused)),
        ("class", message(0, one, &any_class), Some(R::Refused)),
        ("class", message(0, one, &mdns), Some(R::Refused)),
        ("type", typed(255), Some(R::Refused)),
        ("type", typed(252), Some(R::Refused)),
        ("type", typed(251), Some(R::Refused)),
        ("type", typed(249), Some(R::Refused)),
        ("type", typed(41), Some(R::Refused)),
        ("type", typed(0), Some(R::Refused)),
        ("trailing_bytes", message(0, one, &with(&[0])), Some(R::FormErr)),
        ("additional", message(0, [1, 0, 0, 1], &plain), Some(R::FormErr)),
        (
            "additional",
            message(0, [1, 0, 0, 1], &with(&tsig)),
            Some(R::FormErr),
        ),
        (
            "additional",
            message(0, [1, 0, 0, 1], &with(&[&OPT[..], &[0]].concat())),
            Some(R::FormErr),
        ),
        (
            "additional",
            message(0, [1, 0, 0, 1], &with(&OPT[..10])),
            Some(R::FormErr),
        ),
        // 16 is BADVERS with EDNS and BADSIG with TSIG; the library knows the latter only.
        (
            "edns_version",
            message(0, [1, 0, 0, 1], &with(&version)),
            Some(R::BADSIG),
        ),
    ];
    for (reason, bytes, expected) in rows {
        let fixture = fixture();
        let answer = fixture.ask(&bytes).await;
        let got = answer
            .as_deref()
            .map(|answer| decode(answer).metadata.response_code);
        assert_eq!(got, expected, "{reason}: {bytes:?}");
        assert_eq!(fixture.unasked().await, [(reason, 1)], "{bytes:?}");
        assert!(fixture.recorded().is_empty() && fixture.names.is_empty());
    }
}

#[tokio::test]
async fn cookies_padding_and_unknown_options_are_read_over() {
    let fixture = fixture();
    let options = [
        &[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8][..],
        &[0, 12, 0, 2, 0, 0],
        &[0xff, 0xff, 0, 0],
    ]
    .concat();
    let mut opt = OPT.to_vec();
    *opt.last_mut().unwrap() = u8::try_from(options.len()).unwrap();
    opt.extend(options);
    let body = [question(&[b"ok", b"test"], 1), opt.clone()].concat();
    let answer = decode(&fixture.ask(&message(0, [1, 0, 0, 1], &body)).await.unwrap());
    assert_eq!(answer.answers.len(), 1);
    assert!(
        answer.edns.unwrap().options().as_ref().is_empty(),
        "nothing is echoed"
    );
    opt.pop();
    let cut = [question(&[b"ok", b"test"], 1), opt].concat();
    let answer = decode(&fixture.ask(&message(0, [1, 0, 0, 1], &cut)).await.unwrap());
    assert_eq!(answer.metadata.response_code, ResponseCode::FormErr);
}

#[tokio::test]
async fn without_edns_there_is_no_opt_and_at_most_512_bytes() {
    let fixture = fixture();
    let name = [&[b'a'; 63][..], &[b'b'; 63], &[b'c'; 63], b"evil", b"test"];
    let answer = fixture
        .ask(&message(0, [1, 0, 0, 0], &question(&name, 1)))
        .await
        .unwrap();
    assert!(answer.len() <= 512);
    assert!(decode(&answer).edns.is_none());
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_truncated() {
    let bytes = message(0, [1, 0, 0, 0], &question(&[b"ok", b"test"], 1));
    let Reading::Query(query) = message::read(&bytes) else {
        panic!("a query")
    };
    let data = vec![(Data::V4(Ipv4Addr::LOCALHOST), 1); 40];
    let over_udp = query.answer(Rcode::NoError, &data, None, Transport::Udp);
    assert!(over_udp.len() <= 512);
    assert!(decode(&over_udp).metadata.truncation);
    let over_tcp = query.answer(Rcode::NoError, &data, None, Transport::Tcp);
    assert_eq!(decode(&over_tcp).answers.len(), 40);
}

#[tokio::test]
async fn names_and_queries_have_budgets() {
    let fixture = fixture();
    let mut refused = 0;
    for turn in 0..MAX_DISTINCT_NAMES + 10 {
        fixture.clock.advance(Duration::from_millis(10));
        let answer = fixture.ask(&query(&format!("n{turn}.ok.test"), 1)).await.unwrap();
        refused += u64::from(decode(&answer).metadata.response_code == ResponseCode::Refused);
    }
    assert_eq!(refused, 10);
    let known = fixture.ask(&query("n0.ok.test", 1)).await.unwrap();
    assert_eq!(decode(&known).answers.len(), 1, "a known name is no new one");
    assert_eq!(fixture.unasked().await, [("distinct_names", 10)]);
    for _ in 0..=DNS_BURST {
        fixture.ask(&query("n0.ok.test", 1)).await;
    }
    fixture.server.report().await;
    let report = fixture.gate.reports.lock().unwrap().pop().unwrap();
    assert!(
        report
            .unasked
            .iter()
            .any(|(reason, count)| *reason == "rate" && *count > 0)
    );
    assert!(report.is_finding());
}

#[tokio::test]
async fn a_full_table_of_names_is_a_failure_and_not_another_s_address() {
    let fixture = fixture();
    for turn in 0..MAX_NAMES {
        fixture
            .names
            .assign(&Name::parse(&format!("n{turn}.test")).unwrap())
            .unwrap();
    }
    let answer = fixture.ask(&query("a.ok.test", 1)).await.unwrap();
    assert_eq!(decode(&answer).metadata.response_code, ResponseCode::ServFail);
    assert_eq!(fixture.unasked().await, [("names_full", 1)]);
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

#[tokio::test]
async fn over_tcp_pipelined_queries_are_answered_in_order() {
    let fixture = fixture();
    let (near, far) = tokio::io::duplex(7);
    let (mut reader, mut writer) = tokio::io::split(near);
    let names = ["a.ok.test", "evil.test", "b.ok.test"];
    let asking = async {
        for name in names {
            writer.write_all(&framed(&query(name, 1))).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let reading = async {
        for name in names {
            let length = reader.read_u16().await.unwrap();
            let mut answer = vec![0; length.into()];
            reader.read_exact(&mut answer).await.unwrap();
            assert_eq!(decode(&answer).queries[0].name().to_ascii(), format!("{name}."));
        }
    };
    tokio::join!(
        asking,
        reading,
        fixture.server.serve_tcp(far, CancellationToken::new())
    );
}

#[tokio::test(start_paused = true)]
async fn a_tcp_connection_ends_at_its_limits() {
    let fixture = fixture();
    for sent in [
        &b""[..],
        b"\0",
        b"\xff\xff",
        b"\0\0",
        b"\0\x0cshort",
        &framed(&message(0x8000, [1, 0, 0, 0], &question(&[b"ok", b"test"], 1))),
        &framed(&vec![0; MAX_DNS_QUERY_BYTES + 1]),
    ] {
        let (mut near, far) = tokio::io::duplex(4096);
        near.write_all(sent).await.unwrap();
        let began = tokio::time::Instant::now();
        fixture.server.serve_tcp(far, CancellationToken::new()).await;
        assert!(began.elapsed() <= DNS_CONNECTION_TIMEOUT * 2, "{sent:?}");
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
    }
    let silent: Vec<_> = (0..MAX_DNS_CONNECTIONS).map(|_| tokio::io::duplex(8)).collect();
    let (near, far): (Vec<_>, Vec<_>) = silent.into_iter().unzip();
    let stop = CancellationToken::new();
    let serving = futures_util::future::join_all(
        far.into_iter()
            .map(|far| fixture.server.serve_tcp(far, stop.clone())),
    );
    tokio::pin!(serving);
    assert!(futures_util::poll!(serving.as_mut()).is_pending());
    let (_one_more, far) = tokio::io::duplex(8);
    fixture.server.serve_tcp(far, stop.clone()).await;
    stop.cancel();
    serving.await;
    drop(near);
    assert!(fixture.unasked().await.contains(&("overloaded", 1)));
}

/// The same over real sockets: the answer must come from the very address that was asked, or a client drops it.
async fn over_udp(listen: &str, ask: &str) {
    let fixture = fixture();
    let socket = match UdpSocket::bind(listen) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("SKIPPED: cannot bind {listen}: {error}");
            return;
        }
    };
    let port = socket.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stop) = (Arc::clone(&fixture.server), stop.clone());
        async move { server.serve_udp(socket, stop).await }
    });
    let ask: IpAddr = ask.parse().unwrap();
    let any: IpAddr = if ask.is_ipv6() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    let client = tokio::net::UdpSocket::bind((any, 0)).await.unwrap();
    client.send_to(&query("a.ok.test", 1), (ask, port)).await.unwrap();
    let mut buffer = [0; 1500];
    let (length, from) = client.recv_from(&mut buffer).await.unwrap();
    assert_eq!(from.ip(), ask);
    assert_eq!(decode(&buffer[..length]).answers.len(), 1);
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn over_udp_the_answer_comes_from_the_address_that_was_asked() {
    over_udp("0.0.0.0:0", "127.0.0.53").await;
    over_udp("[::]:0", "127.3.2.1").await;
    over_udp("[::]:0", "::1").await;
}

#[tokio::test(start_paused = true)]
async fn counts_are_reported_every_few_seconds_and_at_the_end() {
    let fixture = fixture();
    let stop = CancellationToken::new();
    let reporting = fixture.server.report_until(stop.clone());
    let driving = async {
        fixture.ask(&[0]).await;
        tokio::time::advance(DNS_REPORT_INTERVAL * 2).await;
        tokio::task::yield_now().await;
        fixture.ask(&[0]).await;
        fixture.ask(&[0]).await;
        stop.cancel();
    };
    tokio::join!(reporting, driving);
    let counts: Vec<_> = fixture
        .gate
        .reports
        .lock()
        .unwrap()
        .iter()
        .map(|r| r.unasked.clone())
        .collect();
    assert_eq!(counts, [vec![("short", 1)], vec![("short", 2)]]);
}

proptest! {
    #[test]
    fn never_panics_and_never_answers_an_answer(mut bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        drop(fuzz_read(&bytes));
        if let Some(flags) = bytes.get_mut(2) {
            *flags |= 0x80;
        }
        prop_assert_eq!(fuzz_read(&bytes), None);
        if bytes.len() >= 12 {
            bytes[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        if let Some(answer) = fuzz_read(&bytes) {
            prop_assert!(answer.len() <= 1232);
            prop_assert_eq!(&answer[..2], &bytes[..2]);
            prop_assert!(answer[2] & 0x80 != 0);
        }
    }

    #[test]
    fn what_is_answered_decodes_and_echoes_its_question(
        labels in proptest::collection::vec("[a-zA-Z][a-zA-Z0-9]{0,20}", 1..6),
        record_type in 1_u16..100,
    ) {
        let labels: Vec<&[u8]> = labels.iter().map(String::as_bytes).collect();
        let asked = question(&labels, record_type);
        let answer = fuzz_read(&message(0x0100, [1, 0, 0, 1], &[asked.clone(), OPT.to_vec()].concat())).unwrap();
        prop_assert_eq!(&answer[12..12 + asked.len()], &asked[..]);
        prop_assert!(Message::from_bytes(&answer).is_ok());
    }
}
