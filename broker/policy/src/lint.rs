//! What a bundle's data says that its writer hardly meant: domains that strangers can register below, rules that let
//! everything through, entries that no request can reach, keys that nothing reads.
//!
//! The Rego is compiled and otherwise taken at its word; the data is the part that an operator writes by hand, in the shape
//! of the library's `hosts.rego` (`data.allow.hosts`, `data.allow.domains`). A domain that is wide on purpose is listed in
//! `data.lint.wide_domains`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use wallgate_types::address::AddressClass;
use wallgate_types::authority::Host;

use crate::bundle::{Bundle, BundleDigest, BundleError, Place};
use crate::policy::{Policy, PolicyLimits};
use crate::program::Compiled;

/// Second-level names that registries sell below, as under `uk`: an excerpt of the public suffix list's shape.
const REGISTRY_LABELS: [&str; 12] = [
    "ac", "co", "com", "edu", "gob", "gov", "ltd", "mil", "ne", "net", "or", "org",
];

/// Where anybody can have a name for the asking: storage, pages, functions, tunnels.
const MULTI_TENANT: [&str; 58] = [
    "amazonaws.com",
    "appspot.com",
    "azure-api.net",
    "azureedge.net",
    "azurefd.net",
    "azurewebsites.net",
    "b-cdn.net",
    "backblazeb2.com",
    "bitbucket.io",
    "blob.core.windows.net",
    "blogspot.com",
    "cdn.digitaloceanspaces.com",
    "cloudapp.azure.com",
    "cloudapp.net",
    "cloudflareaccess.com",
    "cloudfront.net",
    "cloudfunctions.net",
    "codesandbox.io",
    "core.windows.net",
    "deno.dev",
    "digitaloceanspaces.com",
    "duckdns.org",
    "elasticbeanstalk.com",
    "fastly.net",
    "firebaseapp.com",
    "firebaseio.com",
    "fly.dev",
    "github.dev",
    "github.io",
    "githubpreview.dev",
    "gitlab.io",
    "gitpod.io",
    "glitch.me",
    "herokuapp.com",
    "hf.space",
    "loca.lt",
    "myshopify.com",
    "netlify.app",
    "ngrok-free.app",
    "ngrok.app",
    "ngrok.io",
    "nip.io",
    "on.aws",
    "onrender.com",
    "pages.dev",
    "r2.cloudflarestorage.com",
    "r2.dev",
    "repl.co",
    "replit.app",
    "run.app",
    "sharepoint.com",
    "sslip.io",
    "surge.sh",
    "trycloudflare.com",
    "vercel.app",
    "web.app",
    "webflow.io",
    "workers.dev",
];

/// The keys of one rule of `data.allow`.
const RULE_KEYS: [&str; 7] = [
    "methods",
    "paths",
    "ports",
    "protocols",
    "credentials",
    "add_taints",
    "limits",
];
const PROTOCOLS: [&str; 4] = ["http", "websocket", "grpc", "tcp"];
/// A rule that has all of these lets any change through.
const CHANGING: [&str; 3] = ["POST", "PUT", "DELETE"];

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It opens or closes something that its writer hardly meant.
    Error,
    /// Worth a look.
    Warning,
}

impl Severity {
    /// `error` or `warning`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What kind, stable: `wide_domain`, `multi_tenant_domain`, `allows_everything`, `unreachable`, `overlap`, `unread_data`.
    pub code: &'static str,
    /// Where.
    pub place: Place,
    /// What, in one sentence.
    pub message: String,
}

/// A bundle that loads, and what was found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The bundle's name.
    pub digest: BundleDigest,
    /// What its `.manifest` calls it.
    pub revision: Option<String>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether something is wrong enough not to use the bundle.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }
}

impl Policy {
    /// Compiles a bundle with the operator's data, and says what is suspicious about the data.
    ///
    /// # Errors
    /// When the bundle does not load.
    pub fn check(path: &Path, data: &[PathBuf], limits: &PolicyLimits) -> Result<CheckReport, BundleError> {
        let bundle = Bundle::read(path, data, limits)?;
        let (_, outline) = Compiled::new(&bundle, limits)?;
        let mut lint = Lint {
            bundle: &bundle,
            findings: Vec::new(),
        };
        lint.unread(&outline.reads);
        lint.hosts();
        lint.domains();
        lint.findings
            .sort_by(|left, right| (left.severity, &left.place).cmp(&(right.severity, &right.place)));
        Ok(CheckReport {
            digest: bundle.digest.clone(),
            revision: bundle.manifest.revision.clone(),
            findings: lint.findings,
        })
    }
}

struct Lint<'a> {
    bundle: &'a Bundle,
    findings: Vec<Finding>,
}

impl<'a> Lint<'a> {
    fn find(&mut self, severity: Severity, code: &'static str, key: &str, message: String) {
        let place = self.place(key);
        self.findings.push(Finding {
            severity,
            code,
            place,
            message,
        });
    }

    /// The last file that has the key, and its first line there.
    fn place(&self, key: &str) -> Place {
        let quoted = Value::from(key).to_string();
        let mut files = self.bundle.data_files.iter().rev();
        files
            .find_map(|file| {
                let line = file.text.lines().position(|line| line.contains(&quoted))?;
                Some(Place {
                    line: line.saturating_add(1),
                    ..Place::file(&file.path)
                })
            })
            .unwrap_or_else(|| Place::file("data.json"))
    }

    fn allowed(&self, kind: &str) -> Option<&'a Map<String, Value>> {
        self.bundle.data.get("allow")?.get(kind)?.as_object()
    }

    fn unread(&mut self, all: &BTreeSet<String>) {
        let top = self.bundle.data.as_object();
        for key in top.into_iter().flat_map(Map::keys).filter(|key| *key != "lint") {
            let path = format!("data.{key}");
            let below = format!("{path}.");
            let read = all.iter().any(|read| *read == path || read.starts_with(&below));
            if !read {
                let message = format!("No rule reads `{path}`; is it misspelt?");
                self.find(Severity::Error, "unread_data", key, message);
            }
        }
        for key in ["allow", "taints"] {
            let inner = self.bundle.data.get(key).and_then(Value::as_object);
            for name in inner.into_iter().flat_map(Map::keys) {
                let path = format!("data.{key}.{name}");
                let (whole, below) = (format!("data.{key}"), format!("{path}."));
                let reads = |read: &String| *read == whole || *read == path || read.starts_with(&below);
                let read = all.iter().any(reads);
                if !read {
                    let message = format!("No rule reads `{path}`; is it misspelt?");
                    self.find(Severity::Error, "unread_data", name, message);
                }
            }
        }
    }

    fn hosts(&mut self) {
        for (host, rules) in self.allowed("hosts").into_iter().flatten() {
            match Host::parse(host) {
                Ok(parsed) if parsed.to_string() == *host => match parsed.address().map(AddressClass::of) {
                    None | Some(AddressClass::Public) => {}
                    Some(class) => self.unreachable(
                        host,
                        format!(
                            "`{host}` is an address of class {}, which no rule opens.",
                            class.as_str()
                        ),
                    ),
                },
                Ok(parsed) => self.unreachable(
                    host,
                    format!("`{host}` never matches: a request's host is written `{parsed}`."),
                ),
                Err(error) => self.unreachable(host, format!("`{host}` never matches: {error}.")),
            }
            self.rules(host, rules);
        }
    }

    fn domains(&mut self) {
        let wide_on_purpose: Vec<&str> = self
            .bundle
            .data
            .pointer("/lint/wide_domains")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let hosts = self.allowed("hosts");
        for (domain, rules) in self.allowed("domains").into_iter().flatten() {
            let canonical = Host::parse(domain).is_ok_and(|host| host.to_string() == *domain);
            if !canonical || domain.parse::<IpAddr>().is_ok() {
                self.unreachable(
                    domain,
                    format!("`{domain}` is no domain as a request has it: lower case, no `*.`, no dot at either end."),
                );
            }
            if !wide_on_purpose.contains(&domain.as_str()) {
                self.width(domain);
            }
            let below = format!(".{domain}");
            let shadowing = hosts
                .into_iter()
                .flat_map(Map::keys)
                .filter(|host| host.ends_with(&below));
            for host in shadowing {
                let message = format!(
                    "`{host}` has rules of its own, so those of the domain `{domain}` do not apply to it."
                );
                self.find(Severity::Warning, "overlap", host, message);
            }
            self.rules(domain, rules);
        }
    }

    fn width(&mut self, domain: &str) {
        let labels: Vec<&str> = domain.split('.').collect();
        let registry = match labels.as_slice() {
            [_] => true,
            [second, top] => top.len() == 2 && REGISTRY_LABELS.contains(second),
            _ => false,
        };
        if registry {
            let message =
                format!("Anybody can register a name below `{domain}`: list the names that are meant.");
            self.find(Severity::Error, "wide_domain", domain, message);
            return;
        }
        // Below a tenant's own name only that tenant hands out names.
        let shared = MULTI_TENANT
            .iter()
            .any(|suffix| domain == *suffix || suffix.ends_with(&format!(".{domain}")));
        // A region of a shared name is as shared: `s3.eu-west-1.` of one provider.
        let region = domain.ends_with(".amazonaws.com");
        if shared || region {
            let message = format!(
                "Anybody can have a name below `{domain}` for the asking, so this opens a way to them: list the names that are meant."
            );
            self.find(Severity::Error, "multi_tenant_domain", domain, message);
        }
    }

    fn unreachable(&mut self, key: &str, message: String) {
        self.find(Severity::Error, "unreachable", key, message);
    }

    fn rules(&mut self, host: &str, rules: &Value) {
        let Some(rules) = rules.as_array() else {
            self.unreachable(
                host,
                format!("The rules of `{host}` are no list, so none applies."),
            );
            return;
        };
        if rules.is_empty() {
            self.unreachable(host, format!("`{host}` has no rule, so nothing is allowed."));
        }
        for rule in rules {
            let Some(rule) = rule.as_object() else {
                self.unreachable(host, format!("A rule of `{host}` is no object."));
                continue;
            };
            for message in unusable(host, rule) {
                self.unreachable(host, message);
            }
            let methods = texts(rule.get("methods"));
            let every_method = CHANGING.iter().all(|method| methods.contains(method));
            let every_path = rule.get("paths").is_none() || texts(rule.get("paths")).contains(&"/");
            if every_method && every_path {
                let message =
                    format!("A rule of `{host}` allows every change at every path: name methods or paths.");
                self.find(Severity::Warning, "allows_everything", host, message);
            }
        }
    }
}

fn texts(value: Option<&Value>) -> Vec<&str> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// Why a rule, or part of it, applies to no request.
fn unusable(host: &str, rule: &Map<String, Value>) -> Vec<String> {
    let mut messages = Vec::new();
    for key in rule.keys().filter(|key| !RULE_KEYS.contains(&key.as_str())) {
        messages.push(format!(
            "A rule of `{host}` has the key `{key}`, which nothing reads."
        ));
    }
    let methods = texts(rule.get("methods"));
    if methods.is_empty() {
        messages.push(format!(
            "A rule of `{host}` has no methods, so it applies to no request."
        ));
    }
    for method in methods {
        if method.is_empty() || !method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
            messages.push(format!(
                "`{method}` of `{host}` is no method: they are upper case, and there is no `*`."
            ));
        }
    }
    for path in texts(rule.get("paths")) {
        if !path.starts_with('/') || path.contains(['*', '?', '#', ' ']) || path.contains("//") {
            messages.push(format!(
                "`{path}` of `{host}` is no path: it begins with `/`, ends with `/` to mean all below, and has no `*`."
            ));
        }
    }
    for protocol in texts(rule.get("protocols")) {
        if !PROTOCOLS.contains(&protocol) {
            messages.push(format!(
                "`{protocol}` of `{host}` is no protocol: {}.",
                PROTOCOLS.join(", ")
            ));
        }
    }
    let ports = rule.get("ports").and_then(Value::as_array).into_iter().flatten();
    for port in ports.filter(|port| !port.as_u64().is_some_and(|port| (1..=65535).contains(&port))) {
        messages.push(format!("{port} of `{host}` is no port."));
    }
    messages
}
