use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::RootCertStore;
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wallgate_types::authority::{Authority, Host, Name};
use wallgate_types::clock::{Clock, ManualClock};

use super::*;
use crate::resolve::{Answer, Exception, Exceptions, Lookup, LookupError, Resolver};
use crate::tls::upstream::{OwnCa, UpstreamTrust};

const NOW_MS: u64 = 1_780_000_000_000;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn moment(offset: Duration, before: bool) -> time::OffsetDateTime {
    let now = time::OffsetDateTime::from_unix_timestamp(i64::try_from(NOW_MS / 1000).unwrap()).unwrap();
    if before { now - offset } else { now + offset }
}

const DAY: Duration = Duration::from_hours(24);

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn ca(name: &str) -> Ca {
    CertifiedIssuer::self_signed(ca_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn leaf_params(sans: Vec<SanType>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = sans;
    params.not_before = moment(DAY, true);
    params.not_after = moment(DAY, false);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn key_of(pair: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(pair.serialize_der()).unwrap()
}

fn signed(params: &CertificateParams, key: &KeyPair, issuer: &Ca, chain: &[&Ca]) -> CertifiedKey {
    let leaf = params.signed_by(key, issuer).unwrap();
    let chain = std::iter::once(leaf.der().clone()).chain(chain.iter().map(|ca| ca.der().clone()));
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key_of(key)).unwrap();
    CertifiedKey::new(chain.collect(), signer)
}

#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// An origin that shakes hands with this certificate and echoes.
async fn origin(certificate: CertifiedKey, alpn: &[&[u8]]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Always(Arc::new(certificate))));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let (mut reader, mut writer) = tokio::io::split(stream);
                    drop(tokio::io::copy(&mut reader, &mut writer).await);
                }
            });
        }
    });
    address
}

#[derive(Debug)]
struct Nobody;

impl Lookup for Nobody {
    fn lookup<'a>(&'a self, _: &'a Name) -> futures_util::future::BoxFuture<'a, Result<Answer, LookupError>> {
        Box::pin(async { Err(LookupError::NotFound) })
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(NOW_MS))
}

async fn checked(host: &str, address: SocketAddr) -> Checked {
    let host = Host::parse(host).unwrap();
    let exception = Exception {
        host: host.clone(),
        port: None,
        address,
    };
    let exceptions = Exceptions::new(vec![exception], Vec::new()).unwrap();
    let resolver = Resolver::new(Arc::new(Nobody), Arc::new(exceptions), clock());
    resolver
        .resolve(&Authority::new(host, 443).unwrap())
        .await
        .unwrap()
}

fn trusting(roots: &[&Ca], own: &[OwnCa]) -> UpstreamTls {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.der().clone()).unwrap();
    }
    UpstreamTls::new(&UpstreamTrust::with_roots(store, own, clock()).unwrap()).unwrap()
}

async fn dial_https(host: &str, address: SocketAddr, tls: &UpstreamTls) -> Result<UpstreamStream, DialError> {
    dial(&checked(host, address).await, Scheme::Https, AlpnOffer::Any, tls).await
}

/// Dials `host` at an origin with this certificate, trusting `root`; `None` is success.
async fn check(
    what: &str,
    host: &str,
    certificate: CertifiedKey,
    root: &Ca,
    expected: Option<CertificateReason>,
) {
    let address = origin(certificate, &[]).await;
    let got = dial_https(host, address, &trusting(&[root], &[])).await;
    let reason = match &got {
        Ok(stream) => {
            assert!(stream.is_verified_tls());
            assert_eq!(stream.peer(), address);
            None
        }
        Err(error) => {
            assert_eq!(error.code(), "upstream_certificate", "{what}: {error:?}");
            error.certificate()
        }
    };
    assert_eq!(reason, expected, "{what}: {got:?}");
}

/// What badssl-like origins present, and what it is called.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
async fn a_certificate_that_is_not_right_is_refused_for_its_reason() {
    use CertificateReason as R;
    let root = ca("root");
    let other = ca("other root");
    let key = KeyPair::generate().unwrap();
    let good = leaf_params(vec![dns("a.test")]);
    check("good", "a.test", signed(&good, &key, &root, &[]), &root, None).await;

    let mut expired = good.clone();
    expired.not_before = moment(2 * DAY, true);
    expired.not_after = moment(DAY, true);
    check(
        "expired",
        "a.test",
        signed(&expired, &key, &root, &[]),
        &root,
        Some(R::Expired),
    )
    .await;

    let mut early = good.clone();
    early.not_before = moment(DAY, false);
    early.not_after = moment(2 * DAY, false);
    check(
        "early",
        "a.test",
        signed(&early, &key, &root, &[]),
        &root,
        Some(R::NotYetValid),
    )
    .await;

    check(
        "wrong host",
        "b.test",
        signed(&good, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;
    check(
        "untrusted root",
        "a.test",
        signed(&good, &key, &other, &[]),
        &root,
        Some(R::UnknownIssuer),
    )
    .await;
    check(
        "untrusted chain",
        "a.test",
        signed(&good, &key, &other, &[&other]),
        &root,
        Some(R::UnknownIssuer),
    )
    .await;

    let self_signed = CertifiedKey::new(
        vec![good.self_signed(&key).unwrap().der().clone()],
        rustls::crypto::aws_lc_rs::sign::any_supported_type(&key_of(&key)).unwrap(),
    );
    check(
        "self-signed",
        "a.test",
        self_signed,
        &root,
        Some(R::UnknownIssuer),
    )
    .await;

    let wildcard = leaf_params(vec![dns("*.a.test")]);
    check(
        "wildcard",
        "x.a.test",
        signed(&wildcard, &key, &root, &[]),
        &root,
        None,
    )
    .await;
    check(
        "wildcard apex",
        "a.test",
        signed(&wildcard, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;
    check(
        "wildcard depth 2",
        "y.x.a.test",
        signed(&wildcard, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;

    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let address_san = leaf_params(vec![SanType::IpAddress(localhost)]);
    check(
        "address",
        "127.0.0.1",
        signed(&address_san, &key, &root, &[]),
        &root,
        None,
    )
    .await;
    check(
        "name for an address",
        "127.0.0.1",
        signed(&good, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;
    let text_san = leaf_params(vec![dns("127.0.0.1")]);
    check(
        "address as text",
        "127.0.0.1",
        signed(&text_san, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;

    let mut common_name = leaf_params(Vec::new());
    common_name
        .distinguished_name
        .push(rcgen::DnType::CommonName, "a.test");
    check(
        "common name only",
        "a.test",
        signed(&common_name, &key, &root, &[]),
        &root,
        Some(R::WrongName),
    )
    .await;

    let mut for_clients = good.clone();
    for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    check(
        "for clients",
        "a.test",
        signed(&for_clients, &key, &root, &[]),
        &root,
        Some(R::Purpose),
    )
    .await;

    let constrained = |subtree| {
        let mut params = ca_params("constrained");
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![subtree],
            excluded_subtrees: Vec::new(),
        });
        CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap()
    };
    let to_b = constrained(GeneralSubtree::DnsName("b.test".into()));
    check(
        "constrained away",
        "a.test",
        signed(&good, &key, &to_b, &[&to_b]),
        &root,
        Some(R::Other),
    )
    .await;
    let to_a = constrained(GeneralSubtree::DnsName("a.test".into()));
    check(
        "constrained to it",
        "a.test",
        signed(&good, &key, &to_a, &[&to_a]),
        &root,
        None,
    )
    .await;
    let to_net = constrained(GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix(
        [10, 0, 0, 0],
        8,
    )));
    check(
        "constrained addresses",
        "127.0.0.1",
        signed(&address_san, &key, &to_net, &[&to_net]),
        &root,
        Some(R::Other),
    )
    .await;

    let leaf_as_ca = CertifiedIssuer::signed_by(
        leaf_params(vec![dns("b.test")]),
        KeyPair::generate().unwrap(),
        &root,
    )
    .unwrap();
    let forged = signed(&good, &key, &leaf_as_ca, &[&leaf_as_ca]);
    check("a leaf as issuer", "a.test", forged, &root, Some(R::Other)).await;

    let mut revoked = signed(&good, &key, &root, &[]);
    let serial = {
        let (_, parsed) = x509_parser::parse_x509_certificate(&revoked.cert[0]).unwrap();
        parsed.raw_serial().to_vec()
    };
    revoked.ocsp = Some(crate::tls::test_staple(&serial, true));
    check(
        "revoked by its staple",
        "a.test",
        revoked.clone(),
        &root,
        Some(R::Revoked),
    )
    .await;
    revoked.ocsp = Some(crate::tls::test_staple(&serial, false));
    check("vouched for by its staple", "a.test", revoked, &root, None).await;
}

#[tokio::test]
async fn an_upstream_with_its_own_ca_is_verified_against_that_alone() {
    let public = ca("public root");
    let corporate = ca("corporate root");
    let key = KeyPair::generate().unwrap();
    let params = leaf_params(vec![dns("a.test"), dns("b.test")]);
    let own = OwnCa {
        host: Host::parse("a.test").unwrap(),
        port: None,
        pem: corporate.pem().into_bytes(),
        origin: "corp-ca.pem".into(),
    };
    let tls = trusting(&[&public], &[own]);
    let by_corporate = origin(signed(&params, &key, &corporate, &[]), &[]).await;
    let by_public = origin(signed(&params, &key, &public, &[]), &[]).await;
    for (host, address, expected) in [
        ("a.test", by_corporate, None),
        ("a.test", by_public, Some(CertificateReason::UnknownIssuer)),
        ("b.test", by_public, None),
        ("b.test", by_corporate, Some(CertificateReason::UnknownIssuer)),
    ] {
        let got = dial_https(host, address, &tls)
            .await
            .err()
            .and_then(|error| error.certificate());
        assert_eq!(got, expected, "{host}");
    }
}

#[tokio::test]
async fn a_configured_ca_that_is_none_is_refused_at_start() {
    for pem in [
        &b""[..],
        b"junk",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        let own = OwnCa {
            host: Host::parse("a.test").unwrap(),
            port: None,
            pem: pem.to_vec(),
            origin: "corp-ca.pem".into(),
        };
        let got = UpstreamTrust::with_roots(RootCertStore::empty(), &[own], clock());
        assert!(got.unwrap_err().to_string().contains("corp-ca.pem"));
    }
}

#[tokio::test]
async fn the_protocol_is_what_upstream_chose_of_what_was_offered() {
    let root = ca("root");
    let key = KeyPair::generate().unwrap();
    let certificate = || signed(&leaf_params(vec![dns("a.test")]), &key, &root, &[]);
    let both = origin(certificate(), &[b"h2", b"http/1.1"]).await;
    let none = origin(certificate(), &[]).await;
    let other = origin(certificate(), &[b"spdy/3"]).await;
    let tls = trusting(&[&root], &[]);
    for (address, offer, expected) in [
        (both, AlpnOffer::Any, Ok(HttpProtocol::Http2)),
        (both, AlpnOffer::Http1Only, Ok(HttpProtocol::Http1)),
        (none, AlpnOffer::Any, Ok(HttpProtocol::Http1)),
        (other, AlpnOffer::Any, Err("upstream_tls")),
    ] {
        let got = dial(&checked("a.test", address).await, Scheme::Https, offer, &tls).await;
        let got = got.map(|stream| stream.protocol()).map_err(|error| error.code());
        assert_eq!(got, expected, "{offer:?}");
    }
}

#[tokio::test]
async fn bytes_go_both_ways_and_sessions_resume() {
    let root = ca("root");
    let key = KeyPair::generate().unwrap();
    let address = origin(signed(&leaf_params(vec![dns("a.test")]), &key, &root, &[]), &[]).await;
    let tls = trusting(&[&root], &[]);
    for (round, kind) in [
        (0, rustls::HandshakeKind::Full),
        (1, rustls::HandshakeKind::Resumed),
    ] {
        let mut stream = dial_https("a.test", address, &tls).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"ping");
        let Transport::Tls(inner) = &stream.transport else {
            panic!("https is TLS")
        };
        assert_eq!(inner.get_ref().1.handshake_kind(), Some(kind), "round {round}");
        assert!(inner.get_ref().0.nodelay().unwrap());
    }
    let another = trusting(&[&root], &[]);
    let stream = dial_https("a.test", address, &another).await.unwrap();
    let Transport::Tls(inner) = &stream.transport else {
        panic!("https is TLS")
    };
    assert_eq!(
        inner.get_ref().1.handshake_kind(),
        Some(rustls::HandshakeKind::Full),
        "another sandbox's sessions"
    );
}

#[tokio::test]
async fn a_plain_or_silent_port_is_no_downgrade() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        drop(stream);
        drop(listener);
    });
    let tls = trusting(&[&ca("root")], &[]);
    assert_eq!(
        dial_https("a.test", address, &tls).await.unwrap_err().code(),
        "upstream_tls"
    );
    serving.await.unwrap();
    assert_eq!(
        dial_https("a.test", address, &tls).await.unwrap_err().code(),
        "upstream_refused"
    );
    let plain = dial(
        &checked("a.test", address).await,
        Scheme::Http,
        AlpnOffer::Any,
        &tls,
    )
    .await;
    assert_eq!(plain.unwrap_err().code(), "upstream_refused");
    let dns = dial(
        &checked("a.test", address).await,
        Scheme::Dns,
        AlpnOffer::Any,
        &tls,
    )
    .await;
    assert_eq!(dns.unwrap_err().code(), "upstream_undialable");
}

#[tokio::test]
async fn a_dead_address_does_not_keep_from_a_living_one() {
    let dead = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let living = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (_, address) = connect(&[dead, living.local_addr().unwrap()]).await.unwrap();
    assert_eq!(address, living.local_addr().unwrap());
    assert_eq!(connect(&[dead]).await.unwrap_err().code(), "upstream_refused");
    assert_eq!(connect(&[]).await.unwrap_err().code(), "upstream_undialable");
}

#[test]
fn families_alternate_and_attempts_are_bounded() {
    let all: Vec<SocketAddr> = ["1.1.1.1:1", "1.1.1.2:1", "[2606::1]:1", "1.1.1.3:1"]
        .map(|a| a.parse().unwrap())
        .to_vec();
    let order: Vec<_> = alternating(&all).iter().map(ToString::to_string).collect();
    assert_eq!(order, ["[2606::1]:1", "1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"]);
    let many = vec![all[0]; 100];
    assert_eq!(alternating(&many).len(), MAX_DIALLED_ADDRESSES);
}
