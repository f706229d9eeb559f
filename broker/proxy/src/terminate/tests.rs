use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{DuplexStream, duplex};
use wallgate_types::clock::{Clock, ManualClock};

use super::*;
use crate::client_hello::tests::{hello, sni};
use crate::tls::ca::Root;
use crate::tls::upstream::{AlpnOffer, OwnCa, UpstreamTls, UpstreamTrust};

const NOW_MS: u64 = 1_780_000_000_000;

#[derive(Debug)]
struct AllBut(&'static str);

impl MintPolicy for AllBut {
    fn may_mint(&self, host: &Host) -> bool {
        host.to_string() != self.0
    }
}

struct Fixture {
    tls: SandboxTls,
    names: NameTable,
    client: ClientConfig,
    _dir: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOW_MS));
    let root = Root::load_or_create(&dir.path().join("ca"), &clock).unwrap();
    let ca = root.intermediate(&"agent-1".parse().unwrap()).unwrap();
    let own = OwnCa {
        host: Host::parse("unused.test").unwrap(),
        port: None,
        pem: root.certificate_pem().as_bytes().to_vec(),
        origin: "root".into(),
    };
    let trust =
        UpstreamTrust::with_roots(rustls::RootCertStore::empty(), &[own], Arc::clone(&clock)).unwrap();
    let authority = wallgate_types::authority::Authority::parse("unused.test", 443).unwrap();
    let client = UpstreamTls::new(&trust)
        .unwrap()
        .config(&authority, AlpnOffer::Any);
    Fixture {
        tls: SandboxTls::new(
            Minter::new(ca, Arc::clone(&clock)).unwrap(),
            Arc::new(AllBut("forbidden.test")),
        ),
        names: NameTable::new([3; 16], clock),
        client: ClientConfig::clone(&client),
        _dir: dir,
    }
}

fn at(ip: IpAddr) -> OriginalDst {
    OriginalDst(SocketAddr::new(ip, 443))
}

fn elsewhere() -> OriginalDst {
    at("192.0.2.7".parse().unwrap())
}

impl Fixture {
    fn synthetic(&self, name: &str) -> OriginalDst {
        at(self.names.assign(&Name::parse(name).unwrap()).unwrap().v6.into())
    }

    async fn terminate(
        &self,
        stream: DuplexStream,
        dst: OriginalDst,
    ) -> Result<Terminated<DuplexStream>, TerminateError> {
        terminate(stream, dst, &self.tls, &self.names).await
    }

    /// Shakes hands as `name`.
    async fn shake(
        &self,
        name: &str,
        alpn: &[&[u8]],
        dst: OriginalDst,
    ) -> (
        Result<Terminated<DuplexStream>, TerminateError>,
        io::Result<tokio_rustls::client::TlsStream<DuplexStream>>,
    ) {
        let (near, far) = duplex(1 << 16);
        let mut config = self.client.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        tokio::join!(self.terminate(far, dst), connector.connect(name, near))
    }
}

#[test]
fn the_first_bytes_say_what_is_spoken() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n"[..], Sniffed::Http1),
        (b"G", Sniffed::NeedMore),
        (b"GET ", Sniffed::NeedMore),
        (b"M-SEARCH * HTTP/1.1", Sniffed::Http1),
        (b"OPTIONS *", Sniffed::Http1),
        (b"GET http://a.test/", Sniffed::Http1),
        (b"CONNECT a.test:443 HTTP/1.1", Sniffed::Http1),
        (b"PROPFIND /", Sniffed::Http1),
        (b"P", Sniffed::NeedMore),
        (b"PRI * H", Sniffed::NeedMore),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Sniffed::H2c),
        (b"PRI /", Sniffed::Http1),
        (b"get / HTTP/1.1", Sniffed::Unknown),
        (b"GET x", Sniffed::Unknown),
        (b"GET  /", Sniffed::Unknown),
        (b" /", Sniffed::Unknown),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Sniffed::Unknown),
        (b"EHLO mail.test\r\n", Sniffed::Unknown),
        (b"USER foo", Sniffed::Unknown),
        (b"\r\nGET / HTTP/1.1", Sniffed::Unknown),
        (b"\x80\x2e\x01\x00\x02", Sniffed::Unknown),
        (b"\0", Sniffed::Unknown),
        (&[b'A'; 33], Sniffed::Unknown),
        (&[b'A'; 32], Sniffed::NeedMore),
    ] {
        assert_eq!(sniff(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[tokio::test]
async fn what_was_looked_at_is_read_again() {
    let fixture = fixture();
    let (mut near, far) = duplex(1);
    let request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let dst = fixture.synthetic("a.test");
    let (terminated, ()) = tokio::join!(
        async {
            let mut terminated = fixture.terminate(far, dst).await.unwrap();
            let mut got = Vec::new();
            terminated.stream.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, request);
            terminated
        },
        async {
            near.write_all(request).await.unwrap();
            near.shutdown().await.unwrap();
        }
    );
    assert_eq!(terminated.scheme, Scheme::Http);
    assert_eq!(terminated.protocol, HttpProtocol::Http1);
    assert_eq!(terminated.required_host(), Host::parse("a.test").ok().as_ref());
}

#[tokio::test]
async fn in_the_clear_a_literal_address_names_nobody() {
    let fixture = fixture();
    let (mut near, far) = duplex(64);
    near.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let terminated = fixture.terminate(far, elsewhere()).await.unwrap();
    assert_eq!(
        terminated.named,
        Named::Literal(Host::parse("192.0.2.7").unwrap())
    );
    assert_eq!(terminated.required_host(), None);
}

#[tokio::test]
async fn a_handshake_is_answered_with_a_leaf_for_exactly_its_name() {
    let fixture = fixture();
    for (name, dst, expected) in [
        (
            "a.test",
            fixture.synthetic("a.test"),
            Named::Sni(Host::parse("a.test").unwrap()),
        ),
        (
            "A.Test",
            fixture.synthetic("a.test"),
            Named::Sni(Host::parse("a.test").unwrap()),
        ),
        ("a.test", elsewhere(), Named::Sni(Host::parse("a.test").unwrap())),
        (
            "192.0.2.7",
            elsewhere(),
            Named::Literal(Host::parse("192.0.2.7").unwrap()),
        ),
        (
            "2001:db8::7",
            at("2001:db8::7".parse().unwrap()),
            Named::Literal(Host::parse("[2001:db8::7]").unwrap()),
        ),
    ] {
        let (terminated, client) = fixture.shake(name, &[ALPN_H2, ALPN_HTTP1], dst).await;
        let terminated = terminated.unwrap();
        client.unwrap();
        assert_eq!(terminated.named, expected, "{name}");
        assert_eq!(terminated.required_host(), Some(expected.host()), "{name}");
        assert_eq!(
            (terminated.scheme, terminated.protocol),
            (Scheme::Https, HttpProtocol::Http2)
        );
    }
}

#[tokio::test]
async fn without_a_server_name_the_synthetic_address_says_it() {
    let mut fixture = fixture();
    fixture.client.enable_sni = false;
    let (terminated, client) = fixture.shake("a.test", &[], fixture.synthetic("a.test")).await;
    assert_eq!(
        terminated.unwrap().named,
        Named::Synthetic(Host::parse("a.test").unwrap())
    );
    client.unwrap();
}

#[tokio::test]
async fn a_hello_is_reassembled_when_every_byte_comes_alone() {
    let fixture = fixture();
    // Only what the client says dribbles: without room in both directions, both sides would wait to write.
    let (dribble_in, dribble_out) = tokio::io::simplex(1);
    let (answer_in, answer_out) = tokio::io::simplex(1 << 16);
    let near = tokio::io::join(answer_in, dribble_out);
    let far = tokio::io::join(dribble_in, answer_out);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(fixture.client.clone()));
    let server = async {
        let dst = fixture.synthetic("a.test");
        let terminated = terminate(far, dst, &fixture.tls, &fixture.names).await.unwrap();
        assert_eq!(terminated.named, Named::Sni(Host::parse("a.test").unwrap()));
    };
    let client = async {
        let name = ServerName::try_from("a.test").unwrap();
        connector.connect(name, near).await.unwrap()
    };
    let ((), _client) = tokio::join!(server, client);
}

#[tokio::test]
async fn the_application_protocol_is_one_of_two() {
    let fixture = fixture();
    for (offer, expected) in [
        (&[ALPN_H2][..], Ok(HttpProtocol::Http2)),
        (&[ALPN_HTTP1], Ok(HttpProtocol::Http1)),
        (&[ALPN_HTTP1, ALPN_H2], Ok(HttpProtocol::Http2)),
        (&[], Ok(HttpProtocol::Http1)),
        (&[b"spdy/3", ALPN_HTTP1], Ok(HttpProtocol::Http1)),
        (&[b"acme-tls/1"], Err("alpn")),
    ] {
        let (terminated, _client) = fixture.shake("a.test", offer, elsewhere()).await;
        let got = terminated
            .map(|terminated| terminated.protocol)
            .map_err(|error| error.code());
        assert_eq!(got, expected, "{offer:?}");
    }
}

/// What a client sees of a refusal is an alert, so that it can say something better than "connection reset".
#[tokio::test]
async fn a_refused_hello_is_answered_with_an_alert() {
    let fixture = fixture();
    let synthetic = fixture.synthetic("a.test");
    let named = |name: &[u8]| hello(&[sni(&[name])], 1 << 14);
    for (wire, dst, code, alert) in [
        (named(b"b.test"), synthetic, "sni_mismatch", 112),
        (named(b"sub.a.test"), synthetic, "sni_mismatch", 112),
        (named(b"a.test."), synthetic, "bad_sni", 112),
        (named(b"127.0.0.1"), elsewhere(), "bad_sni", 112),
        (named(b"allowed.test\0.evil.test"), elsewhere(), "bad_sni", 112),
        (named(b"forbidden.test"), elsewhere(), "name_not_allowed", 49),
        (
            hello(&[vec![0, 43, 0, 3, 2, 3, 2]], 1 << 14),
            elsewhere(),
            "tls_version",
            70,
        ),
        (
            vec![22, 3, 1, 0, 4, 2, 0, 0, 0],
            elsewhere(),
            "hello_malformed",
            50,
        ),
        (
            vec![22, 3, 1, 0, 4, 1, 1, 0, 1],
            elsewhere(),
            "hello_too_long",
            50,
        ),
    ] {
        let (mut near, far) = duplex(1 << 16);
        near.write_all(&wire).await.unwrap();
        let error = fixture.terminate(far, dst).await.unwrap_err();
        assert_eq!(error.code(), code);
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, alert], "{code}");
    }
    assert_eq!(
        fixture.tls.minter().counters().minted,
        0,
        "nothing is minted for a refusal"
    );
}

#[tokio::test]
async fn what_is_neither_tls_nor_http_is_refused_by_name() {
    let fixture = fixture();
    for (bytes, code) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "unknown_protocol"),
        (b"GE", "unknown_protocol"),
        (H2_PREFACE, "h2c"),
        (b"", "closed_early"),
        (b"\x16\x03", "hello_malformed"),
    ] {
        let (mut near, far) = duplex(1 << 16);
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        let error = fixture.terminate(far, elsewhere()).await.unwrap_err();
        assert_eq!(error.code(), code, "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_and_dribbling_have_their_deadlines() {
    let fixture = fixture();
    for (bytes, code, within) in [
        (&b""[..], "first_byte_timeout", FIRST_BYTE_TIMEOUT),
        (b"GE", "handshake_timeout", HANDSHAKE_TIMEOUT),
        (b"\x16\x03\x01", "handshake_timeout", HANDSHAKE_TIMEOUT),
        (&hello(&[], 1 << 14), "tls_handshake", Duration::ZERO),
    ] {
        let (mut near, far) = duplex(1 << 16);
        near.write_all(bytes).await.unwrap();
        let started = Instant::now();
        let error = fixture.terminate(far, elsewhere()).await.unwrap_err();
        assert_eq!(error.code(), code);
        assert_eq!(started.elapsed().as_secs(), within.as_secs(), "{code}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_trust_us_is_told_apart() {
    let mut fixture = fixture();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOW_MS));
    let trust = UpstreamTrust::with_roots(rustls::RootCertStore::empty(), &[], clock).unwrap();
    let authority = wallgate_types::authority::Authority::parse("a.test", 443).unwrap();
    let distrusting = UpstreamTls::new(&trust)
        .unwrap()
        .config(&authority, AlpnOffer::Any);
    fixture.client = ClientConfig::clone(&distrusting);
    let (terminated, client) = fixture.shake("a.test", &[], elsewhere()).await;
    assert_eq!(terminated.unwrap_err().code(), "client_refused_certificate");
    client.unwrap_err();
}

#[tokio::test]
async fn the_second_connection_resumes_the_first() {
    let fixture = fixture();
    for (round, expected) in [
        (0, rustls::HandshakeKind::Full),
        (1, rustls::HandshakeKind::Resumed),
    ] {
        let (terminated, client) = fixture.shake("a.test", &[ALPN_H2], elsewhere()).await;
        let (mut terminated, mut client) = (terminated.unwrap(), client.unwrap());
        // The ticket comes with the first bytes of the server.
        terminated.stream.write_all(b"x").await.unwrap();
        terminated.stream.flush().await.unwrap();
        client.read_u8().await.unwrap();
        assert_eq!(
            client.get_ref().1.handshake_kind(),
            Some(expected),
            "round {round}"
        );
    }
    assert_eq!(fixture.tls.minter().counters().minted, 1);
}
