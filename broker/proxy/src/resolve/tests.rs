use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use wallgate_types::clock::ManualClock;

use super::*;

/// Answers from a script, one entry a call, and counts the calls.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Answer, LookupError>>>,
    calls: AtomicUsize,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Result<Answer, LookupError>>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.into_iter().collect()),
            calls: AtomicUsize::new(0),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Lookup for Script {
    fn lookup<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<Answer, LookupError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let next = self.answers.lock().unwrap().pop_front();
        Box::pin(async move {
            match next {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is one entry of a script")]
fn answer(addresses: &[&str], ttl_secs: u64) -> Result<Answer, LookupError> {
    Ok(Answer {
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ttl: Duration::from_secs(ttl_secs),
    })
}

fn authority(text: &str) -> Authority {
    Authority::parse(text, 443).unwrap()
}

struct Fixture {
    resolver: Resolver,
    script: Arc<Script>,
    clock: Arc<ManualClock>,
}

fn fixture(
    answers: impl IntoIterator<Item = Result<Answer, LookupError>>,
    exceptions: Vec<Exception>,
) -> Fixture {
    let script = Script::of(answers);
    let clock = Arc::new(ManualClock::at(0));
    let own = vec![
        "0.0.0.0:9000".parse().unwrap(),
        "203.0.114.9:9001".parse().unwrap(),
    ];
    let exceptions = Arc::new(Exceptions::new(exceptions, own).unwrap());
    let resolver = Resolver::new(
        Arc::<Script>::clone(&script),
        exceptions,
        Arc::<ManualClock>::clone(&clock),
    );
    Fixture {
        resolver,
        script,
        clock,
    }
}

fn exception(host: &str, port: Option<u16>, address: &str) -> Exception {
    Exception {
        host: Host::parse(host).unwrap(),
        port,
        address: address.parse().unwrap(),
    }
}

/// What one answer makes of one name: its addresses, or the reason code and class.
async fn check(addresses: &[&str], expected: Result<&[&str], (&str, Option<AddressClass>)>) {
    let fixture = fixture([answer(addresses, 0)], Vec::new());
    let got = fixture.resolver.resolve(&authority("a.test")).await;
    let got = got
        .map(|checked| {
            checked
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        })
        .map_err(|error| (error.code(), error.class()));
    let expected = expected.map(|texts| texts.iter().map(ToString::to_string).collect());
    assert_eq!(got, expected, "{addresses:?}");
}

#[tokio::test]
async fn one_address_that_is_not_public_refuses_the_name() {
    use AddressClass as C;
    check(&["8.8.8.8"], Ok(&["8.8.8.8:443"])).await;
    check(
        &["8.8.8.8", "2606:4700::1", "8.8.8.8"],
        Ok(&["8.8.8.8:443", "[2606:4700::1]:443"]),
    )
    .await;
    check(&["::ffff:8.8.8.8"], Ok(&["8.8.8.8:443"])).await;
    check(&[], Err(("name_not_found", None))).await;
    for (address, class) in [
        ("127.0.0.1", C::Loopback),
        ("10.0.0.1", C::Private),
        ("169.254.169.254", C::Metadata),
        ("100.64.0.1", C::Shared),
        ("0.0.0.0", C::Unspecified),
        ("198.18.0.5", C::Benchmarking),
        ("::1", C::Loopback),
        ("fd00::1", C::UniqueLocal),
        ("fd00:ec2::254", C::Metadata),
        ("::ffff:169.254.169.254", C::Metadata),
        ("64:ff9b::a9fe:a9fe", C::Metadata),
        ("2002:7f00:1::", C::Loopback),
        ("fe80::1", C::LinkLocal),
    ] {
        let refused = Err(("dest_forbidden", Some(class)));
        check(&[address], refused).await;
        check(&["8.8.8.8", address], refused).await;
        check(&[address, "8.8.8.8"], refused).await;
    }
}

#[tokio::test]
async fn a_literal_is_classified_like_any_answer() {
    let fixture = fixture([], Vec::new());
    for (text, code) in [
        ("169.254.169.254:80", Err("dest_forbidden")),
        ("[::1]:443", Err("dest_forbidden")),
        ("[::ffff:10.0.0.1]:443", Err("dest_forbidden")),
        ("8.8.8.8:443", Ok(())),
        ("203.0.114.9:9001", Err("dest_self")),
    ] {
        let got = fixture.resolver.resolve(&authority(text)).await;
        assert_eq!(got.map(drop).map_err(|error| error.code()), code, "{text}");
    }
    assert_eq!(fixture.script.calls(), 0);
}

/// A server that alternates a public address with internal ones, TTL 0: each dial is checked by the answer that it uses.
#[tokio::test]
async fn a_rebinding_server_is_refused_each_time_that_it_lies() {
    let lies = ["169.254.169.254", "10.0.0.1", "::1"];
    let answers = lies
        .iter()
        .flat_map(|lie| [answer(&["8.8.8.8"], 0), answer(&[lie], 0)]);
    let fixture = fixture(answers, Vec::new());
    for _ in lies {
        let good = fixture.resolver.resolve(&authority("a.test")).await.unwrap();
        assert_eq!(good.addresses(), ["8.8.8.8:443".parse().unwrap()]);
        let bad = fixture.resolver.resolve(&authority("a.test")).await.unwrap_err();
        assert_eq!(bad.code(), "dest_forbidden");
    }
    assert_eq!(fixture.script.calls(), 6);
}

#[tokio::test]
async fn an_answer_is_kept_for_its_ttl_and_no_longer_than_the_limit() {
    let answers = [
        answer(&["8.8.8.8"], 86_400),
        Err(LookupError::NotFound),
        Err(LookupError::Failed("servfail".into())),
        answer(&["9.9.9.9"], 1),
    ];
    let fixture = fixture(answers, Vec::new());
    let resolve = async || {
        let got = fixture.resolver.resolve(&authority("a.test")).await;
        got.map(|checked| checked.addresses()[0].ip().to_string())
            .map_err(|error| error.code())
    };
    assert_eq!(resolve().await.as_deref(), Ok("8.8.8.8"));
    fixture
        .clock
        .advance(MAX_POSITIVE_TTL.checked_sub(Duration::from_millis(1)).unwrap());
    assert_eq!(resolve().await.as_deref(), Ok("8.8.8.8"));
    assert_eq!(fixture.script.calls(), 1);
    fixture.clock.advance(Duration::from_millis(1));
    assert_eq!(resolve().await, Err("name_not_found"));
    assert_eq!(resolve().await, Err("name_not_found"));
    assert_eq!(fixture.script.calls(), 2);
    fixture.clock.advance(MAX_NEGATIVE_TTL);
    assert_eq!(resolve().await, Err("resolve_failed"));
    assert_eq!(
        resolve().await.as_deref(),
        Ok("9.9.9.9"),
        "a failure is not remembered"
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_a_timeout() {
    let fixture = fixture([], Vec::new());
    let got = fixture.resolver.resolve(&authority("a.test")).await;
    assert_eq!(got.map(drop), Err(ResolveError::Timeout));
}

#[tokio::test(start_paused = true)]
async fn lookups_under_way_are_bounded() {
    let fixture = fixture([], Vec::new());
    let target = authority("a.test");
    let waiting = (0..MAX_LOOKUPS_IN_FLIGHT).map(|_| fixture.resolver.resolve(&target));
    let all = futures_util::future::join_all(waiting);
    tokio::pin!(all);
    assert!(futures_util::poll!(all.as_mut()).is_pending());
    assert_eq!(
        fixture.resolver.resolve(&target).await.map(drop),
        Err(ResolveError::Overloaded)
    );
    let other = fixture.resolver.for_sandbox();
    assert_eq!(
        other.resolve(&target).await.map(drop),
        Err(ResolveError::Timeout),
        "another sandbox is not held up"
    );
    assert!(
        all.await
            .iter()
            .all(|result| *result.as_ref().unwrap_err() == ResolveError::Timeout)
    );
}

#[tokio::test]
async fn an_exception_is_for_exactly_its_name_and_port() {
    let exceptions = vec![
        exception("a.test", Some(443), "127.0.0.1:8443"),
        exception("b.test", None, "10.0.0.7:81"),
        exception("b.test", Some(22), "10.0.0.7:22"),
    ];
    let fixture = fixture(
        [Err(LookupError::NotFound), Err(LookupError::NotFound)],
        exceptions,
    );
    for (text, expected) in [
        ("a.test:443", Some("127.0.0.1:8443")),
        ("a.test:80", None),
        ("sub.a.test:443", None),
        ("b.test:443", Some("10.0.0.7:81")),
        ("b.test:22", Some("10.0.0.7:22")),
    ] {
        let got = fixture.resolver.resolve(&authority(text)).await.ok();
        assert!(got.as_ref().is_none_or(Checked::is_exception));
        let address = got.map(|checked| checked.addresses()[0].to_string());
        assert_eq!(address.as_deref(), expected, "{text}");
    }
    assert_eq!(
        fixture
            .resolver
            .resolve(&authority("127.0.0.1:8443"))
            .await
            .map(drop)
            .map_err(|e| e.code()),
        Err("dest_forbidden"),
        "the address of an exception is no exception"
    );
}

#[test]
fn an_exception_never_reaches_metadata_or_wallgate_itself() {
    let own: Vec<SocketAddr> = vec!["0.0.0.0:9000".parse().unwrap()];
    for (address, refused) in [
        ("169.254.169.254:80", true),
        ("[::ffff:169.254.169.254]:80", true),
        ("[fd00:ec2::254]:80", true),
        ("0.0.0.0:80", true),
        ("224.0.0.1:80", true),
        ("198.18.0.1:80", true),
        ("127.0.0.1:9000", true),
        ("127.0.0.1:0", true),
        ("127.0.0.1:9001", false),
        ("10.0.0.1:9000", false),
    ] {
        let got = Exceptions::new(vec![exception("a.test", None, address)], own.clone());
        assert_eq!(got.is_err(), refused, "{address}");
    }
    let twice = vec![
        exception("a.test", None, "10.0.0.1:1"),
        exception("a.test", None, "10.0.0.2:1"),
    ];
    assert!(matches!(
        Exceptions::new(twice, own),
        Err(ExceptionError::Duplicate { .. })
    ));
}
