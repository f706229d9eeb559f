//! From text to [`Config`]: every rule that a type alone cannot hold.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use wallgate_types::authority::{Authority, Host};
use wallgate_vault::config::RawCredential;
use wallgate_vault::reference::SecretRef;

use super::raw::{RawConfig, RawHashicorp, RawLimits, RawLog, RawPolicy, RawRun, RawService, RawUpstream};
use super::{
    Config, ConfigError, CredentialConfig, DEFAULT_BUNDLE, DEFAULT_DRAIN, DEFAULT_EVAL_TIMEOUT,
    DEFAULT_GRACE, DEFAULT_STATE_DIR, HashicorpConfig, LimitsConfig, LogConfig, MAX_CONFIG_BYTES,
    MAX_ENTRIES, PolicyConfig, RunConfig, ServiceConfig, UpstreamConfig,
};

/// The longest name of a service or credential, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The longest delay that can be configured.
const MAX_DELAY_MS: u64 = 600_000;
/// The longest policy evaluation that can be configured.
const MAX_EVAL_MS: u64 = 10_000;

/// Reads and validates the file at `path`.
///
/// # Errors
/// See [`ConfigError`]. Nothing has been opened or changed but the file itself.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let absolute = std::fs::canonicalize(path).map_err(unreadable)?;
    let metadata = std::fs::metadata(&absolute).map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > MAX_CONFIG_BYTES {
        return Err(ConfigError::NotText(path.to_owned()));
    }
    let bytes = std::fs::read(&absolute).map_err(unreadable)?;
    let text = String::from_utf8(bytes).or(Err(ConfigError::NotText(path.to_owned())))?;
    parse(&text, path, &absolute)
}

/// Validates `text`. `shown` is the path as the operator wrote it, `absolute` the one that relative paths start from.
pub(super) fn parse(text: &str, shown: &Path, absolute: &Path) -> Result<Config, ConfigError> {
    let file = File {
        text,
        shown,
        directory: absolute.parent().unwrap_or(Path::new("/")),
    };
    let raw: RawConfig = toml::from_str(text).map_err(|error| file.syntax(&error))?;
    Reader { file, raw }.config(absolute)
}

/// The text, for saying where something stands in it.
struct File<'a> {
    text: &'a str,
    shown: &'a Path,
    directory: &'a Path,
}

impl File<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        memchr::memchr_iter(b'\n', before).count().saturating_add(1)
    }

    /// What serde or the TOML parser refused. The key is the one on that line.
    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let line = error.span().map_or(1, |span| self.line(&span));
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let key = text.split('=').next().unwrap_or_default().trim();
        ConfigError::Invalid {
            path: self.shown.to_owned(),
            line,
            key: if key.is_empty() { "(file)" } else { key }.to_owned(),
            problem: error.message().replace('\n', " "),
        }
    }

    fn invalid(&self, span: &Range<usize>, key: &str, problem: impl Display) -> ConfigError {
        ConfigError::Invalid {
            path: self.shown.to_owned(),
            line: self.line(span),
            key: key.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    fn check<T>(
        &self,
        value: &Spanned<T>,
        key: &str,
        holds: impl FnOnce(&T) -> bool,
        problem: &str,
    ) -> Result<(), ConfigError> {
        if holds(value.get_ref()) {
            Ok(())
        } else {
            Err(self.invalid(&value.span(), key, problem))
        }
    }

    fn delay(
        &self,
        value: Option<&Spanned<u64>>,
        key: &str,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        let Some(value) = value else { return Ok(default) };
        let problem = "must be at most 600000 milliseconds";
        self.check(value, key, |ms| *ms <= MAX_DELAY_MS, problem)?;
        Ok(Duration::from_millis(*value.get_ref()))
    }

    /// A file that must be there, absolute.
    fn existing(&self, path: &Spanned<PathBuf>, key: &str) -> Result<PathBuf, ConfigError> {
        let resolved = self.resolve(path.get_ref());
        if resolved.exists() {
            Ok(resolved)
        } else {
            let problem = format!("there is no {}", resolved.display());
            Err(self.invalid(&path.span(), key, problem))
        }
    }

    fn name(
        &self,
        value: &Spanned<String>,
        key: &str,
        seen: &mut BTreeSet<String>,
    ) -> Result<String, ConfigError> {
        let fine = |name: &String| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(allowed)
        };
        let problem = "a name has 1 to 128 of A-Z, a-z, 0-9, '-', '_' and '.'";
        self.check(value, key, fine, problem)?;
        let name = value.get_ref().clone();
        if seen.insert(name.clone()) {
            Ok(name)
        } else {
            Err(self.invalid(&value.span(), key, format!("{name:?} is defined twice")))
        }
    }

    fn host(&self, value: &Spanned<String>, key: &str) -> Result<Host, ConfigError> {
        Host::parse_unicode(value.get_ref()).map_err(|error| self.invalid(&value.span(), key, error))
    }

    fn authority(&self, value: &Spanned<String>, key: &str) -> Result<(Authority, bool), ConfigError> {
        // A default that no port can be, to learn whether one was written.
        let text = value.get_ref();
        let refused = |error| self.invalid(&value.span(), key, error);
        if text.is_ascii() {
            let with_443 = Authority::parse(text, 443).map_err(refused)?;
            let explicit = Authority::parse(text, 80).map_err(refused)? == with_443;
            return Ok((with_443, explicit));
        }
        let host = Host::parse_unicode(text).map_err(refused)?;
        Ok((Authority::new(host, 443).map_err(refused)?, false))
    }

    /// An `env:` or `file:` reference.
    fn local_source(&self, value: &Spanned<String>, key: &str) -> Result<SecretRef, ConfigError> {
        let reference =
            SecretRef::parse(value.get_ref()).map_err(|error| self.invalid(&value.span(), key, error))?;
        if ["env", "file"].contains(&reference.scheme()) {
            Ok(reference)
        } else {
            Err(self.invalid(
                &value.span(),
                key,
                "the vault's own token comes from env: or file:",
            ))
        }
    }

    /// Where `key` stands in the table that begins at `span`, or else the table.
    fn key_in(&self, span: &Range<usize>, key: &str) -> Range<usize> {
        let mut start = span.start;
        for line in self
            .text
            .get(span.start..)
            .unwrap_or_default()
            .split_inclusive('\n')
        {
            let text = line.trim_start();
            if start > span.start && text.starts_with('[') {
                break;
            }
            if text
                .strip_prefix(key)
                .is_some_and(|rest| rest.trim_start().starts_with('='))
            {
                return start..start;
            }
            start = start.saturating_add(line.len());
        }
        span.clone()
    }
}

struct Reader<'a> {
    file: File<'a>,
    raw: RawConfig,
}

impl Reader<'_> {
    fn config(self, absolute: &Path) -> Result<Config, ConfigError> {
        let Self { file, raw } = self;
        let lists = [
            ("service", raw.service.len()),
            ("upstream", raw.upstream.len()),
            ("credential", raw.credential.len()),
        ];
        if let Some((key, count)) = lists.into_iter().find(|(_, count)| *count > MAX_ENTRIES) {
            return Err(file.invalid(&(0..0), key, format!("{count} entries; at most {MAX_ENTRIES}")));
        }
        let state_dir = raw.state_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_STATE_DIR));
        let hashicorp = raw.vault.hashicorp.as_ref();
        let hashicorp = hashicorp.map(|vault| vault_config(&file, vault)).transpose()?;
        let config = Config {
            path: absolute.to_owned(),
            state_dir: file.resolve(&state_dir),
            policy: policy_config(&file, &raw.policy)?,
            services: service_configs(&file, &raw.service)?,
            upstreams: upstream_configs(&file, &raw.upstream)?,
            credentials: credential_configs(&file, &raw.credential, hashicorp.is_some())?,
            run: run_config(&file, &raw.run)?,
            limits: limits_config(&file, &raw.limits)?,
            hashicorp,
            log: log_config(&file, raw.log)?,
        };
        Ok(config)
    }
}

fn policy_config(file: &File<'_>, raw: &RawPolicy) -> Result<PolicyConfig, ConfigError> {
    let eval_timeout = match &raw.eval_timeout_ms {
        None => DEFAULT_EVAL_TIMEOUT,
        Some(value) => {
            let problem = "must be 1 to 10000 milliseconds";
            let bounded = |ms: &u64| (1..=MAX_EVAL_MS).contains(ms);
            file.check(value, "policy.eval_timeout_ms", bounded, problem)?;
            Duration::from_millis(*value.get_ref())
        }
    };
    let bundle = raw.bundle.as_deref().unwrap_or(Path::new(DEFAULT_BUNDLE));
    let data = raw.data.iter().map(|path| file.existing(path, "policy.data"));
    Ok(PolicyConfig {
        bundle: file.resolve(bundle),
        data: data.collect::<Result<_, _>>()?,
        eval_timeout,
    })
}

fn service_configs(file: &File<'_>, raw: &[RawService]) -> Result<Vec<ServiceConfig>, ConfigError> {
    let mut names = BTreeSet::new();
    let mut hosts_seen = BTreeSet::new();
    raw.iter()
        .map(|service| {
            let name = file.name(&service.name, "service.name", &mut names)?;
            if service.hosts.is_empty() {
                return Err(file.invalid(&service.name.span(), "service.hosts", "names no host"));
            }
            let hosts = service
                .hosts
                .iter()
                .map(|text| {
                    let host = file.host(text, "service.hosts")?;
                    if hosts_seen.insert(host.clone()) {
                        Ok(host)
                    } else {
                        let problem = format!("{host} belongs to two services");
                        Err(file.invalid(&text.span(), "service.hosts", problem))
                    }
                })
                .collect::<Result<_, _>>()?;
            let known =
                |profile: &String| ["npm", "pypi", "cargo", "git", "none"].contains(&profile.as_str());
            file.check(
                &service.profile,
                "service.profile",
                known,
                "must be npm, pypi, cargo, git or none",
            )?;
            let profile = service.profile.get_ref().clone();
            let list = service.names.as_ref();
            let names = list
                .map(|path| file.existing(path, "service.names"))
                .transpose()?;
            Ok(ServiceConfig {
                name,
                hosts,
                profile,
                names,
            })
        })
        .collect()
}

fn upstream_configs(file: &File<'_>, raw: &[RawUpstream]) -> Result<Vec<UpstreamConfig>, ConfigError> {
    let mut seen = BTreeSet::new();
    raw.iter()
        .map(|upstream| {
            let (authority, explicit) = file.authority(&upstream.host, "upstream.host")?;
            let port = explicit.then(|| authority.port());
            if !seen.insert((authority.host().clone(), port)) {
                let problem = format!("{:?} is defined twice", upstream.host.get_ref());
                return Err(file.invalid(&upstream.host.span(), "upstream.host", problem));
            }
            let address = upstream.address.get_ref().parse().map_err(|_not_an_address| {
                let problem = "must be ADDRESS:PORT, such as 127.0.0.1:8443 or [::1]:8443";
                file.invalid(&upstream.address.span(), "upstream.address", problem)
            })?;
            let ca = upstream.ca.as_ref();
            Ok(UpstreamConfig {
                host: authority.host().clone(),
                port,
                address,
                ca: ca.map(|path| file.existing(path, "upstream.ca")).transpose()?,
            })
        })
        .collect()
}

fn credential_configs(
    file: &File<'_>,
    raw: &[Spanned<RawCredential>],
    has_vault: bool,
) -> Result<Vec<CredentialConfig>, ConfigError> {
    let mut names = BTreeSet::new();
    raw.iter()
        .map(|spanned| {
            let invalid = |key: &str, problem: &dyn Display| {
                let place = file.key_in(&spanned.span(), key);
                file.invalid(&place, &format!("credential.{key}"), problem)
            };
            let raw = spanned.get_ref().clone();
            let (credential, source) = raw.validate().map_err(|error| {
                let problem = error.to_string();
                // The first word in backticks is the key, `bind.hosts` being one in the table `bind`.
                let key = problem.split('`').nth(1).unwrap_or("name").split('.').next();
                invalid(key.unwrap_or("name"), &problem)
            })?;
            if !names.insert(credential.name.clone()) {
                return Err(invalid(
                    "name",
                    &format!("{:?} is defined twice", credential.name),
                ));
            }
            match source.scheme() {
                "env" | "file" => {}
                "vault" if has_vault => {}
                "vault" => {
                    let problem =
                        "a vault: source needs [vault.hashicorp] with the server's address and token";
                    return Err(invalid("source", &problem));
                }
                other => {
                    let problem =
                        format!("there is no secret source {other}:, there are env:, file: and vault:");
                    return Err(invalid("source", &problem));
                }
            }
            Ok(CredentialConfig { credential, source })
        })
        .collect()
}

fn run_config(file: &File<'_>, raw: &RawRun) -> Result<RunConfig, ConfigError> {
    let env = raw
        .env
        .iter()
        .map(|(name, value)| {
            let holdable = |value: &String| variable_name(name) && !value.contains('\0');
            file.check(
                value,
                "run.env",
                holdable,
                "not a variable that a process can have",
            )?;
            Ok((name.clone(), value.get_ref().clone()))
        })
        .collect::<Result<_, ConfigError>>()?;
    let pass_env = raw
        .pass_env
        .iter()
        .map(|name| {
            let problem = "not a name that a variable can have";
            file.check(name, "run.pass_env", |name| variable_name(name), problem)?;
            Ok(name.get_ref().clone())
        })
        .collect::<Result<_, ConfigError>>()?;
    let paths = |paths: &[Spanned<PathBuf>], key| {
        paths
            .iter()
            .map(|path| file.existing(path, key))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(RunConfig {
        bind: paths(&raw.bind, "run.bind")?,
        ro_bind: paths(&raw.ro_bind, "run.ro_bind")?,
        env,
        pass_env,
        grace: file.delay(raw.grace_ms.as_ref(), "run.grace_ms", DEFAULT_GRACE)?,
    })
}

/// Whether a process can have a variable of this name.
pub(crate) fn variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn limits_config(file: &File<'_>, raw: &RawLimits) -> Result<LimitsConfig, ConfigError> {
    let positive = |value: &Option<Spanned<u64>>, key| {
        let Some(value) = value else { return Ok(None) };
        file.check(value, key, |count| *count > 0, "must be at least 1")?;
        Ok(Some(*value.get_ref()))
    };
    let connections = positive(&raw.connections_per_sandbox, "limits.connections_per_sandbox")?;
    Ok(LimitsConfig {
        connections_per_sandbox: connections.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        body_bytes: positive(&raw.body_bytes, "limits.body_bytes")?,
        inspect_bytes: positive(&raw.inspect_bytes, "limits.inspect_bytes")?,
        drain: file.delay(raw.drain_ms.as_ref(), "limits.drain_ms", DEFAULT_DRAIN)?,
    })
}

fn vault_config(file: &File<'_>, raw: &RawHashicorp) -> Result<HashicorpConfig, ConfigError> {
    let scheme = |address: &String| address.starts_with("https://") || address.starts_with("http://");
    let problem = "must be https://HOST[:PORT], or http:// for a loopback address";
    file.check(&raw.address, "vault.hashicorp.address", scheme, problem)?;
    let token = file.local_source(&raw.token, "vault.hashicorp.token")?;
    let ca = raw.ca.as_ref();
    Ok(HashicorpConfig {
        address: raw.address.get_ref().trim_end_matches('/').to_owned(),
        token,
        namespace: raw.namespace.clone(),
        ca: ca
            .map(|path| file.existing(path, "vault.hashicorp.ca"))
            .transpose()?,
    })
}

fn log_config(file: &File<'_>, raw: RawLog) -> Result<LogConfig, ConfigError> {
    let level = match raw.level {
        None => "warn".to_owned(),
        Some(level) => {
            let known =
                |level: &String| ["error", "warn", "info", "debug", "trace"].contains(&level.as_str());
            file.check(
                &level,
                "log.level",
                known,
                "must be error, warn, info, debug or trace",
            )?;
            level.into_inner()
        }
    };
    Ok(LogConfig {
        level,
        file: raw.file.map(|path| file.resolve(&path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wallgate.toml");
        let error = parse(text, Path::new("wallgate.toml"), &path).expect_err(text);
        let message = error.to_string();
        assert!(message.contains(expected), "{text:?} gave {message:?}");
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        let config = parse("", Path::new("w.toml"), Path::new("/etc/w/w.toml")).unwrap();
        assert_eq!(config.state_dir, Path::new(DEFAULT_STATE_DIR));
        assert_eq!(config.policy.bundle, Path::new("/etc/w/policies"));
        assert_eq!(config.policy.eval_timeout, DEFAULT_EVAL_TIMEOUT);
        assert_eq!(config.run.grace, DEFAULT_GRACE);
    }

    #[test]
    fn relative_paths_start_at_the_file() {
        let text = "state_dir = \"state\"\n[policy]\nbundle = \"p\"\n[[credential]]\nname = \"a\"\nsource = \"file:s#k\"\n\
                    shape = \"bearer\"\nbind = { hosts = [\"a.test\"] }\n";
        let config = parse(text, Path::new("w.toml"), Path::new("/etc/w/w.toml")).unwrap();
        assert_eq!(config.state_dir, Path::new("/etc/w/state"));
        assert_eq!(config.policy.bundle, Path::new("/etc/w/p"));
        assert_eq!(
            config.secret_files().collect::<Vec<_>>(),
            [PathBuf::from("/etc/w/s")]
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_file_line_and_key() {
        let credential = |body: &str| format!("[[credential]]\nname = \"a\"\n{body}");
        let bound = "bind = { hosts = [\"a.test\"] }";
        let rows = [
            ("\nstate = 1\n", "wallgate.toml:2: state: unknown field"),
            (
                "[policy]\nbundel = \"x\"\n",
                "wallgate.toml:2: bundel: unknown field",
            ),
            ("a = \n", "wallgate.toml:1: a:"),
            (
                "[policy]\neval_timeout_ms = \"soon\"\n",
                "wallgate.toml:2: eval_timeout_ms: invalid type",
            ),
            (
                "[policy]\neval_timeout_ms = 0\n",
                "wallgate.toml:2: policy.eval_timeout_ms: must be 1",
            ),
            (
                "[[service]]\nname = \"a\"\nhosts = []\nprofile = \"npm\"\n",
                ":2: service.hosts: names no host",
            ),
            (
                "[[service]]\nname = \"a b\"\nhosts = [\"a.test\"]\nprofile = \"npm\"\n",
                ":2: service.name: a name has",
            ),
            (
                "[[service]]\nname = \"a\"\nhosts = [\"a_b\"]\nprofile = \"npm\"\n",
                ":3: service.hosts: the name has",
            ),
            (
                "[[service]]\nname = \"a\"\nhosts = [\"a.test\"]\nprofile = \"x\"\n",
                ":4: service.profile:",
            ),
            (
                "[[upstream]]\nhost = \"127.1\"\naddress = \"127.0.0.1:1\"\n",
                ":2: upstream.host: the name could",
            ),
            (
                "[[upstream]]\nhost = \"a.test\"\naddress = \"localhost:1\"\n",
                ":3: upstream.address: must be ADDRESS",
            ),
            (
                "[[upstream]]\nhost = \"a.test\"\naddress = \"127.0.0.1:1\"\nca = \"no\"\n",
                ":4: upstream.ca: there is no",
            ),
            ("[run]\ngrace_ms = 700000\n", ":2: run.grace_ms: must be at most"),
            ("[run]\nbind = [\"nowhere\"]\n", ":2: run.bind: there is no"),
            ("[log]\nlevel = \"loud\"\n", ":2: log.level: must be"),
            (
                "[limits]\nconnections_per_sandbox = 0\n",
                ":2: limits.connections_per_sandbox: must be at least 1",
            ),
            (
                "[vault.hashicorp]\naddress = \"vault\"\ntoken = \"env:T\"\n",
                ":2: vault.hashicorp.address: must be",
            ),
            ("[vault.other]\n", "wallgate.toml:1:"),
        ];
        for (text, expected) in rows {
            check(text, expected);
        }
        let rows = [
            (
                "source = \"T\"\nshape = \"bearer\"",
                ":3: credential.source: credential \"a\": `source`: the reference has no",
            ),
            ("source = \"env:\"\nshape = \"bearer\"", ":3: credential.source:"),
            (
                "source = \"op:x\"\nshape = \"bearer\"",
                ":3: credential.source: there is no secret source op:",
            ),
            (
                "source = \"vault:kv/x#f\"\nshape = \"bearer\"",
                ":3: credential.source: a vault: source needs",
            ),
            (
                "source = \"env:T\"\nshape = \"cookie\"",
                ":4: credential.shape: credential \"a\": `shape` is",
            ),
            (
                "source = \"env:T\"\nshape = \"bearer\"\nheader = \"x\"",
                ":5: credential.header:",
            ),
            (
                "source = \"env:T\"\nshape = \"header\"\nheader = \"a b\"",
                ":5: credential.header:",
            ),
            ("source = \"env:T\"\nshape = 1", ":4: shape: invalid type"),
        ];
        for (body, expected) in rows {
            check(&credential(&format!("{body}\n{bound}\n")), expected);
        }
        let open = "source = \"env:T\"\nshape = \"bearer\"\nbind = { hosts = [] }\n";
        check(
            &credential(open),
            ":5: credential.bind: credential \"a\": `bind.hosts` is empty",
        );
    }
}
