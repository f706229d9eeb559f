//! What a credential may be used for.
//!
//! Everything is compared in its one canonical form, and everything that is not said is narrow: no methods means
//! `GET` and `HEAD`, no ports means 443, and the scheme is always `https`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use wallgate_types::authority::{Authority, AuthorityError, Host, Name};
use wallgate_types::clock::Timestamp;
use wallgate_types::request::{RequestFacts, Scheme};
use wallgate_types::sandbox::SandboxId;

use crate::glob::PathGlob;

/// The port of a binding that names none.
pub const DEFAULT_PORT: u16 = 443;

/// The hosts, requests and sandboxes that a credential is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Whom it may be sent to. Never empty.
    pub hosts: Vec<HostPattern>,
    /// At which ports, for the hosts that name none themselves. Empty means [`DEFAULT_PORT`].
    pub ports: BTreeSet<u16>,
    /// With which methods. Empty means `GET` and `HEAD`.
    pub methods: BTreeSet<String>,
    /// On which paths. Empty means any.
    pub paths: Vec<PathGlob>,
    /// For which sandboxes. Empty means any.
    pub sandboxes: BTreeSet<SandboxId>,
    /// For sandboxes that have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// How often, since this process started.
    pub max_uses: Option<u64>,
    /// Until when.
    pub expires: Option<Timestamp>,
}

/// Why a binding does not cover a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Withheld {
    /// Another host.
    Host,
    /// Another port.
    Port,
    /// Not over TLS.
    Scheme,
    /// Another method.
    Method,
    /// Another path, or one that could be read in two ways.
    Path,
    /// Another sandbox.
    Sandbox,
    /// A sandbox without the labels.
    Label,
    /// It was used as often as it may be.
    Uses,
    /// Its time is over.
    Expired,
}

impl Withheld {
    /// Every reason there is.
    pub const ALL: [Self; 9] = [
        Self::Host,
        Self::Port,
        Self::Scheme,
        Self::Method,
        Self::Path,
        Self::Sandbox,
        Self::Label,
        Self::Uses,
        Self::Expired,
    ];

    /// The stable word for the record.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Port => "port",
            Self::Scheme => "scheme",
            Self::Method => "method",
            Self::Path => "path",
            Self::Sandbox => "sandbox",
            Self::Label => "label",
            Self::Uses => "uses",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Binding {
    /// Whether the credential may be put on this request, `used` times after the process started.
    ///
    /// # Errors
    /// The first thing that the binding does not cover.
    pub fn permits(&self, facts: &RequestFacts, now: Timestamp, used: u64) -> Result<(), Withheld> {
        let require = |holds: bool, otherwise: Withheld| if holds { Ok(()) } else { Err(otherwise) };
        let sandbox = &facts.sandbox;
        require(facts.scheme == Scheme::Https, Withheld::Scheme)?;
        self.permits_authority(&facts.authority)?;
        require(self.permits_method(&facts.method), Withheld::Method)?;
        require(
            self.paths.is_empty() || self.paths.iter().any(|path| path.matches(&facts.path)),
            Withheld::Path,
        )?;
        require(
            self.sandboxes.is_empty() || self.sandboxes.contains(&sandbox.id),
            Withheld::Sandbox,
        )?;
        require(
            self.labels
                .iter()
                .all(|(key, value)| sandbox.labels.get(key) == Some(value)),
            Withheld::Label,
        )?;
        require(self.expires.is_none_or(|end| now < end), Withheld::Expired)?;
        require(self.max_uses.is_none_or(|most| used < most), Withheld::Uses)
    }

    /// Whether any port of this host is the binding's: what decides that a sandbox's own credentials do not go there.
    #[must_use]
    pub fn covers_host(&self, host: &Host) -> bool {
        self.hosts.iter().any(|pattern| pattern.covers(host))
    }

    fn permits_authority(&self, authority: &Authority) -> Result<(), Withheld> {
        let mut covering = self
            .hosts
            .iter()
            .filter(|pattern| pattern.covers(authority.host()))
            .peekable();
        if covering.peek().is_none() {
            return Err(Withheld::Host);
        }
        let default = |port: u16| {
            if self.ports.is_empty() {
                port == DEFAULT_PORT
            } else {
                self.ports.contains(&port)
            }
        };
        let port = authority.port();
        let permitted = covering.any(|pattern| pattern.port.map_or_else(|| default(port), |own| own == port));
        if permitted { Ok(()) } else { Err(Withheld::Port) }
    }

    fn permits_method(&self, method: &str) -> bool {
        if self.methods.is_empty() {
            matches!(method, "GET" | "HEAD")
        } else {
            self.methods.contains(method)
        }
    }
}

/// `api.example.test`, `api.example.test:8443`, `192.0.2.1`, or `*.example.test` for the names one label below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    host: PatternHost,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternHost {
    Exactly(Host),
    OneLabelBelow(Name),
}

/// Why a text is no host pattern.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub enum HostPatternError {
    /// The name or port is not one.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// `*.test`, or a `*` elsewhere than in front.
    #[error("a * stands for one label in front of a name of at least two")]
    Wildcard,
}

impl HostPattern {
    /// Whether it covers this host, at whatever port.
    #[must_use]
    pub fn covers(&self, host: &Host) -> bool {
        match (&self.host, host) {
            (PatternHost::Exactly(own), _) => own == host,
            (PatternHost::OneLabelBelow(parent), Host::Name(name)) => name
                .as_str()
                .split_once('.')
                .is_some_and(|(_, rest)| rest == parent.as_str()),
            (PatternHost::OneLabelBelow(_), Host::V4(_) | Host::V6(_)) => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (wildcard, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.contains('*') {
            return Err(HostPatternError::Wildcard);
        }
        // Port 0 is nobody's, so it marks that none was written.
        let (host, port) = match Host::parse_unicode(rest) {
            Ok(host) => (host, None),
            Err(error) => match rest.rsplit_once(':') {
                Some(_) => {
                    let authority = Authority::parse(rest, DEFAULT_PORT)?;
                    (authority.host().clone(), Some(authority.port()))
                }
                None => return Err(error.into()),
            },
        };
        let host = match (wildcard, host) {
            (false, host) => PatternHost::Exactly(host),
            (true, Host::Name(name)) if name.as_str().contains('.') => PatternHost::OneLabelBelow(name),
            (true, _) => return Err(HostPatternError::Wildcard),
        };
        Ok(Self { host, port })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use wallgate_types::operation::Operation;
    use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestId};
    use wallgate_types::sandbox::{IdentitySource, SandboxFacts};

    use super::*;

    pub(crate) fn facts(method: &str, authority: &str, path: &str) -> RequestFacts {
        RequestFacts {
            id: RequestId(1),
            sandbox: Arc::new(SandboxFacts {
                id: "agent-7".parse().unwrap(),
                labels: [("team".to_owned(), "research".to_owned())].into(),
                source: IdentitySource::Tap,
            }),
            protocol: Protocol::Http,
            method: method.to_owned(),
            scheme: Scheme::Https,
            authority: Authority::parse(authority, 443).unwrap(),
            path: path.to_owned(),
            segments: Vec::new(),
            raw_query: None,
            query: Vec::new(),
            headers: Vec::new(),
            body: BodyFacts::default(),
            destination: DestinationFacts::default(),
            operation: Operation::unknown("none"),
            original_dst: None,
            sni: None,
        }
    }

    pub(crate) fn binding(hosts: &[&str]) -> Binding {
        Binding {
            hosts: hosts.iter().map(|h| h.parse().unwrap()).collect(),
            ports: BTreeSet::new(),
            methods: BTreeSet::new(),
            paths: Vec::new(),
            sandboxes: BTreeSet::new(),
            labels: BTreeMap::new(),
            max_uses: None,
            expires: None,
        }
    }

    #[track_caller]
    fn check(binding: &Binding, facts: &RequestFacts, expected: Result<(), Withheld>) {
        assert_eq!(
            binding.permits(facts, Timestamp(1_000), 3),
            expected,
            "{binding:?} on {} {} {}",
            facts.method,
            facts.authority,
            facts.path
        );
    }

    #[test]
    fn what_is_not_said_is_narrow() {
        let plain = binding(&["api.example.test"]);
        check(&plain, &facts("GET", "api.example.test", "/x"), Ok(()));
        check(&plain, &facts("HEAD", "api.example.test", "/x"), Ok(()));
        check(
            &plain,
            &facts("POST", "api.example.test", "/x"),
            Err(Withheld::Method),
        );
        check(
            &plain,
            &facts("get", "api.example.test", "/x"),
            Err(Withheld::Method),
        );
        check(
            &plain,
            &facts("GET", "api.example.test:8443", "/x"),
            Err(Withheld::Port),
        );
        check(&plain, &facts("GET", "example.test", "/x"), Err(Withheld::Host));
        check(
            &plain,
            &facts("GET", "a.api.example.test", "/x"),
            Err(Withheld::Host),
        );
        let mut clear = facts("GET", "api.example.test", "/x");
        clear.scheme = Scheme::Http;
        check(&plain, &clear, Err(Withheld::Scheme));
    }

    #[test]
    fn hosts_are_exact_or_one_label_below() {
        let rows = [
            ("*.example.test", "a.example.test", Ok(())),
            ("*.example.test", "a.b.example.test", Err(Withheld::Host)),
            ("*.example.test", "example.test", Err(Withheld::Host)),
            ("*.example.test", "evilexample.test", Err(Withheld::Host)),
            ("API.Example.test.", "api.example.test", Ok(())),
            ("api.example.test:8443", "api.example.test:8443", Ok(())),
            ("api.example.test:8443", "api.example.test", Err(Withheld::Port)),
            ("192.0.2.1", "192.0.2.1", Ok(())),
            ("[2001:db8::1]:8443", "[2001:db8::1]:8443", Ok(())),
            ("[2001:db8::1]", "[2001:db8::1]", Ok(())),
        ];
        for (pattern, authority, expected) in rows {
            check(&binding(&[pattern]), &facts("GET", authority, "/"), expected);
        }
    }

    #[test]
    fn each_condition_has_its_reason() {
        let request = facts("GET", "api.example.test", "/repos/a");
        let base = binding(&["api.example.test"]);
        let rows: Vec<(Binding, Result<(), Withheld>)> = vec![
            (
                Binding {
                    paths: vec!["/repos/**".parse().unwrap()],
                    ..base.clone()
                },
                Ok(()),
            ),
            (
                Binding {
                    paths: vec!["/user".parse().unwrap()],
                    ..base.clone()
                },
                Err(Withheld::Path),
            ),
            (
                Binding {
                    sandboxes: ["agent-8".parse().unwrap()].into(),
                    ..base.clone()
                },
                Err(Withheld::Sandbox),
            ),
            (
                Binding {
                    sandboxes: ["agent-7".parse().unwrap()].into(),
                    ..base.clone()
                },
                Ok(()),
            ),
            (
                Binding {
                    labels: [("team".into(), "research".into())].into(),
                    ..base.clone()
                },
                Ok(()),
            ),
            (
                Binding {
                    labels: [("team".into(), "ops".into())].into(),
                    ..base.clone()
                },
                Err(Withheld::Label),
            ),
            (
                Binding {
                    labels: [("tier".into(), "research".into())].into(),
                    ..base.clone()
                },
                Err(Withheld::Label),
            ),
            (
                Binding {
                    max_uses: Some(4),
                    ..base.clone()
                },
                Ok(()),
            ),
            (
                Binding {
                    max_uses: Some(3),
                    ..base.clone()
                },
                Err(Withheld::Uses),
            ),
            (
                Binding {
                    expires: Some(Timestamp(1_001)),
                    ..base.clone()
                },
                Ok(()),
            ),
            (
                Binding {
                    expires: Some(Timestamp(1_000)),
                    ..base.clone()
                },
                Err(Withheld::Expired),
            ),
            (
                Binding {
                    ports: [8443].into(),
                    ..base.clone()
                },
                Err(Withheld::Port),
            ),
            (
                Binding {
                    methods: ["POST".into()].into(),
                    ..base
                },
                Err(Withheld::Method),
            ),
        ];
        for (binding, expected) in rows {
            check(&binding, &request, expected);
        }
    }

    #[test]
    fn refuses_host_patterns_that_are_too_wide_or_no_hosts() {
        for text in [
            "*",
            "*.test",
            "*.*.test",
            "a.*.test",
            "*a.test",
            "*.192.0.2.1",
            "",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_reason_has_its_own_word() {
        let words: BTreeSet<_> = Withheld::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(words.len(), Withheld::ALL.len());
    }
}
