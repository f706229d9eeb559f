//! The certificate authority and the minter together.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use wallgate_types::authority::Host;
use wallgate_types::clock::{Clock, ManualClock};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::ca::{CaError, Root};
use super::mint::{MintCounters, Minter};
use crate::edge_limits::{LEAF_LIFETIME, LEAF_RENEWAL, MAX_LEAVES, MINT_BURST, MINTS_PER_SECOND};

const NOW_MS: u64 = 1_780_000_000_000;
const DAY: Duration = Duration::from_hours(24);

fn load(dir: &Path, clock: &Arc<ManualClock>) -> Result<Root, CaError> {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
    Root::load_or_create(dir, &clock)
}

fn roots(root: &Root) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(root.certificate_pem().as_bytes())
        .map(Result::unwrap)
        .collect()
}

struct Fixture {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

fn fixture() -> Fixture {
    Fixture {
        dir: tempfile::tempdir().unwrap(),
        clock: Arc::new(ManualClock::at(NOW_MS)),
    }
}

impl Fixture {
    fn ca_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("ca")
    }

    fn root(&self) -> Root {
        load(&self.ca_dir(), &self.clock).unwrap()
    }

    fn minter(&self, sandbox: &str) -> Minter {
        let ca = self.root().intermediate(&sandbox.parse().unwrap()).unwrap();
        Minter::new(ca, Arc::<ManualClock>::clone(&self.clock)).unwrap()
    }
}

#[test]
fn a_root_is_made_once_and_its_key_is_private() {
    let fixture = fixture();
    let first = roots(&fixture.root());
    let again = roots(&fixture.root());
    assert_eq!(first, again);
    assert_eq!(first.len(), 1);
    let file = std::fs::metadata(fixture.ca_dir().join("root.pem")).unwrap();
    assert_eq!(file.mode() & 0o7777, 0o600);
    assert_eq!(
        std::fs::metadata(fixture.ca_dir()).unwrap().mode() & 0o7777,
        0o700
    );
    let names: Vec<_> = std::fs::read_dir(fixture.ca_dir())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["root.pem"], "no temporary file stays");
    let (_, root) = X509Certificate::from_der(&first[0]).unwrap();
    assert!(root.is_ca());
    assert!(!fixture.root().certificate_pem().contains("PRIVATE"));
    assert!(!format!("{:?}", fixture.root()).contains("PRIVATE"));
}

#[test]
fn a_root_that_others_could_have_read_or_written_is_refused() {
    for (mode, code) in [
        (0o644, "ca_permissions"),
        (0o640, "ca_permissions"),
        (0o604, "ca_permissions"),
        (0o700, "ca_permissions"),
    ] {
        let fixture = fixture();
        drop(fixture.root());
        let path = fixture.ca_dir().join("root.pem");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            load(&fixture.ca_dir(), &fixture.clock).unwrap_err().code(),
            code,
            "{mode:o}"
        );
    }
    let fixture = fixture();
    drop(fixture.root());
    std::fs::set_permissions(fixture.ca_dir(), std::fs::Permissions::from_mode(0o770)).unwrap();
    assert_eq!(
        load(&fixture.ca_dir(), &fixture.clock).unwrap_err().code(),
        "ca_permissions"
    );
}

#[test]
fn what_is_no_root_is_refused_and_not_replaced() {
    let whole = {
        let fixture = fixture();
        drop(fixture.root());
        std::fs::read_to_string(fixture.ca_dir().join("root.pem")).unwrap()
    };
    let other = {
        let fixture = fixture();
        drop(fixture.root());
        std::fs::read_to_string(fixture.ca_dir().join("root.pem")).unwrap()
    };
    let (key, certificate) = whole.split_once("-----BEGIN CERTIFICATE").unwrap();
    let (other_key, _) = other.split_once("-----BEGIN CERTIFICATE").unwrap();
    let certificate_only = whole.strip_prefix(key).unwrap();
    let (half, _) = whole.split_at(whole.len() / 2);
    let mixed = format!("{other_key}-----BEGIN CERTIFICATE{certificate}");
    for text in ["", "junk", key, certificate_only, &mixed, half] {
        let fixture = fixture();
        std::fs::create_dir(fixture.ca_dir()).unwrap();
        let path = fixture.ca_dir().join("root.pem");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(fixture.ca_dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(
            load(&fixture.ca_dir(), &fixture.clock).unwrap_err().code(),
            "ca_malformed"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    let fixture = fixture();
    std::fs::create_dir(fixture.ca_dir()).unwrap();
    std::fs::set_permissions(fixture.ca_dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
    symlink("/dev/null", fixture.ca_dir().join("root.pem")).unwrap();
    assert_eq!(
        load(&fixture.ca_dir(), &fixture.clock).unwrap_err().code(),
        "ca_io"
    );
}

#[test]
fn a_root_of_the_future_is_refused() {
    let fixture = fixture();
    drop(fixture.root());
    let earlier = Arc::new(ManualClock::at(NOW_MS - 1000 * 86_400));
    assert_eq!(
        load(&fixture.ca_dir(), &earlier).unwrap_err().code(),
        "ca_not_yet_valid"
    );
}

#[test]
fn roots_rotate_with_overlap() {
    let fixture = fixture();
    let first = roots(&fixture.root());
    let lifetime = 5 * 365 * DAY;
    fixture.clock.advance(lifetime.checked_sub(181 * DAY).unwrap());
    assert_eq!(roots(&fixture.root()), first, "no successor yet");
    fixture.clock.advance(2 * DAY);
    let announced = roots(&fixture.root());
    assert_eq!(announced.len(), 2, "the successor is trusted before it signs");
    assert_eq!(announced[0], first[0]);
    let spki = fixture.root().spki_sha256();
    fixture.clock.advance(90 * DAY);
    let promoted = roots(&fixture.root());
    assert_eq!(
        promoted,
        [announced[1].clone(), announced[0].clone()],
        "the successor signs, its predecessor is trusted"
    );
    assert_ne!(fixture.root().spki_sha256(), spki);
    fixture.clock.advance(90 * DAY);
    assert_eq!(
        roots(&fixture.root()),
        [announced[1].clone()],
        "the predecessor has ended"
    );
}

#[test]
fn an_intermediate_signs_leaves_only_and_is_nobody_else_s() {
    let fixture = fixture();
    let root = fixture.root();
    let a = root.intermediate(&"a".parse().unwrap()).unwrap();
    let b = root.intermediate(&"a".parse().unwrap()).unwrap();
    assert_ne!(a.spki_sha256(), b.spki_sha256());
    let (_, parsed) = X509Certificate::from_der(a.certificate()).unwrap();
    let constraints = parsed.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca);
    assert_eq!(constraints.value.path_len_constraint, Some(0));
    let usage = parsed.key_usage().unwrap().unwrap();
    assert!(usage.value.key_cert_sign() && !usage.value.digital_signature());
    let roots = roots(&root);
    let (_, issuer) = X509Certificate::from_der(&roots[0]).unwrap();
    assert_eq!(parsed.issuer(), issuer.subject());
    assert!(a.not_after().0 > fixture.clock.now().0);
}

#[test]
fn a_leaf_names_exactly_one_name_for_less_than_a_day() {
    let fixture = fixture();
    let minter = fixture.minter("a");
    let long = format!("{}.test", ["a".repeat(60).as_str(); 4].join("."));
    for host in [
        "a.test",
        "xn--bcher-kva.test",
        "192.0.2.1",
        "[2001:db8::1]",
        &long,
    ] {
        let parsed_host = Host::parse(host).unwrap();
        let now = fixture.clock.now();
        let chain = minter.chain(&parsed_host, now, now.plus(LEAF_LIFETIME)).unwrap();
        assert_eq!(chain.len(), 2, "the leaf and the intermediate, not the root");
        assert_eq!(chain[1], *minter.ca().certificate());
        let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
        let sans = &leaf
            .subject_alternative_name()
            .unwrap()
            .unwrap()
            .value
            .general_names;
        let [san] = sans.as_slice() else {
            panic!("{sans:?}")
        };
        match (&parsed_host, san) {
            (Host::Name(name), GeneralName::DNSName(text)) => assert_eq!(name.as_str(), *text),
            (Host::V4(address), GeneralName::IPAddress(bytes)) => assert_eq!(address.octets(), *bytes),
            (Host::V6(address), GeneralName::IPAddress(bytes)) => assert_eq!(address.octets(), *bytes),
            other => panic!("{other:?}"),
        }
        assert!(!leaf.is_ca());
        let extended = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.server_auth && !extended.client_auth && !extended.any);
        let validity = leaf.validity();
        let seconds = validity.not_after.timestamp() - validity.not_before.timestamp();
        assert!(seconds < 86_400, "{seconds}");
        assert!(
            validity.not_before.timestamp() < i64::try_from(now.as_secs()).unwrap(),
            "dated back"
        );
        let (_, issuer) = X509Certificate::from_der(&chain[1]).unwrap();
        assert_eq!(authority_key(&leaf), subject_key(&issuer));
        assert_eq!(leaf.raw_serial().len(), 16);
    }
}

fn authority_key(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
            _ => None,
        })
}

fn subject_key(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
}

#[test]
fn a_leaf_is_minted_once_and_again_before_it_ends() {
    let fixture = fixture();
    let minter = fixture.minter("a");
    let host = Host::parse("a.test").unwrap();
    let first = minter.server_config(&host).unwrap();
    assert!(Arc::ptr_eq(&first, &minter.server_config(&host).unwrap()));
    fixture.clock.advance(
        LEAF_LIFETIME
            .checked_sub(LEAF_RENEWAL)
            .unwrap()
            .checked_sub(Duration::from_secs(1))
            .unwrap(),
    );
    assert!(Arc::ptr_eq(&first, &minter.server_config(&host).unwrap()));
    fixture.clock.advance(Duration::from_secs(1));
    let second = minter.server_config(&host).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(
        Arc::ptr_eq(&first.session_storage, &second.session_storage),
        "sessions are the sandbox's"
    );
    let expected = MintCounters {
        minted: 2,
        cached: 2,
        ..MintCounters::default()
    };
    assert_eq!(minter.counters(), expected);
}

#[test]
fn many_threads_at_once_mint_a_name_once() {
    let fixture = fixture();
    let minter = fixture.minter("a");
    let host = Host::parse("a.test").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| minter.server_config(&host).unwrap());
        }
    });
    assert_eq!(minter.counters().minted, 1);
}

#[test]
fn a_flood_of_names_is_limited_and_the_cache_is_bounded() {
    let fixture = fixture();
    let minter = fixture.minter("a");
    let mint = |number: u32| minter.server_config(&Host::parse(&format!("n{number}.test")).unwrap());
    let limited = (0..MINT_BURST + 100)
        .filter(|number| mint(*number).is_err())
        .count();
    assert_eq!(limited, 100);
    assert_eq!(mint(u32::MAX).unwrap_err().code(), "mint_limited");
    mint(0).unwrap();
    for number in 0..u32::try_from(MAX_LEAVES).unwrap() {
        fixture.clock.advance(Duration::from_secs(1) / MINTS_PER_SECOND);
        fixture.clock.advance(Duration::from_millis(1));
        mint(10_000 + number).unwrap();
    }
    let counters = minter.counters();
    assert_eq!(counters.limited, 101);
    assert_eq!(counters.evicted, u64::from(MINT_BURST));
    assert_eq!(
        fixture.minter("b").counters(),
        MintCounters::default(),
        "another sandbox is not limited"
    );
}

#[test]
fn nothing_is_minted_beyond_the_authority_s_end() {
    let fixture = fixture();
    let minter = fixture.minter("a");
    let end = minter.ca().not_after();
    fixture
        .clock
        .advance(Duration::from_millis(end.0 - NOW_MS - 3_600_000));
    let host = Host::parse("a.test").unwrap();
    minter.server_config(&host).unwrap();
    fixture.clock.advance(Duration::from_hours(1));
    assert_eq!(minter.server_config(&host).unwrap_err().code(), "mint_failed");
}
