//! Which host is which service, and which names it may be asked for.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;
use wallgate_types::authority::Host;
use wallgate_types::operation::{Action, Operation};

use crate::classify::{Profile, normalise_pypi};

/// The most names of one list.
pub const MAX_NAMES: usize = 100_000;

/// A service that the operator configured: what a host is, for the classifier and for policy.
#[derive(Debug)]
pub struct Service {
    /// The operator's name for it.
    pub name: String,
    /// The grammar of its requests.
    pub profile: Profile,
    /// The only names that exist, when the operator gave a lockfile.
    pub names: Option<NameList>,
}

impl Service {
    /// Whether this operation is about a name that the list has, or about none. Without a list, always.
    #[must_use]
    pub fn admits(&self, operation: &Operation) -> bool {
        let (Some(names), Action::Read) = (&self.names, operation.action) else {
            // What is no read is policy's to refuse, by its own name.
            return true;
        };
        if operation.name == "npm.audit" {
            // Its body names packages that the operation does not tell. A client installs without an audit, too.
            return false;
        }
        operation
            .package
            .as_deref()
            .is_none_or(|package| names.has(self.profile, package))
    }
}

/// The names in a lockfile, each in its ecosystem's canonical spelling.
#[derive(Debug, PartialEq, Eq)]
pub struct NameList(BTreeSet<String>);

/// Why a file is no list of names.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameListError {
    /// This profile has no lockfile that is known, or this is not its name.
    #[error(
        "`{file}` is no lockfile for the profile {profile}: known are package-lock.json, requirements.txt and Cargo.lock"
    )]
    Unknown {
        /// The file's name.
        file: String,
        /// The profile's name.
        profile: &'static str,
    },
    /// It does not parse.
    #[error("`{file}` does not parse: {what}")]
    Malformed {
        /// The file's name.
        file: String,
        /// What is wrong, and where.
        what: String,
    },
    /// More than [`MAX_NAMES`].
    #[error("the lockfile names more than {MAX_NAMES} packages")]
    TooMany,
}

impl NameList {
    /// Reads the names out of a lockfile: `package-lock.json` (npm), `requirements.txt` (PyPI), `Cargo.lock` (Cargo).
    ///
    /// # Errors
    /// See [`NameListError`].
    pub fn from_lockfile(profile: Profile, file_name: &str, text: &str) -> Result<Self, NameListError> {
        let malformed = |what: String| NameListError::Malformed {
            file: file_name.to_owned(),
            what,
        };
        let names = match (
            profile,
            file_name.rsplit_once('.').map(|(_, extension)| extension),
        ) {
            (Profile::Npm, Some("json")) => npm_names(text).map_err(malformed)?,
            (Profile::Pypi, Some("txt")) => requirement_names(text).map_err(malformed)?,
            (Profile::Cargo, Some("lock")) => cargo_names(text).map_err(malformed)?,
            (Profile::Npm | Profile::Pypi | Profile::Cargo | Profile::Git | Profile::None, _) => {
                return Err(NameListError::Unknown {
                    file: file_name.to_owned(),
                    profile: profile.as_str(),
                });
            }
        };
        if names.len() > MAX_NAMES {
            return Err(NameListError::TooMany);
        }
        Ok(Self(names))
    }

    fn has(&self, profile: Profile, package: &str) -> bool {
        self.0.contains(&canonical_name(profile, package))
    }
}

fn canonical_name(profile: Profile, package: &str) -> String {
    match profile {
        Profile::Pypi => normalise_pypi(package),
        Profile::Cargo => package.to_ascii_lowercase().replace('_', "-"),
        Profile::Npm | Profile::Git | Profile::None => package.to_owned(),
    }
}

/// Version 2 and 3 list `packages` by directory, version 1 nests `dependencies` by name.
fn npm_names(text: &str) -> Result<BTreeSet<String>, String> {
    let lock: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut names = BTreeSet::new();
    for (directory, package) in lock
        .get("packages")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let installed = directory.rsplit_once("node_modules/").map(|(_, name)| name);
        // An alias is fetched by the name that it stands for.
        let fetched = package.get("name").and_then(Value::as_str).or(installed);
        names.extend(installed.and(fetched).map(str::to_owned));
    }
    let mut levels: Vec<&Value> = lock.get("dependencies").into_iter().collect();
    while let Some(level) = levels.pop() {
        for (name, package) in level.as_object().into_iter().flatten() {
            names.insert(name.clone());
            levels.extend(package.get("dependencies"));
        }
    }
    if names.is_empty() {
        Err("it lists no packages".to_owned())
    } else {
        Ok(names)
    }
}

/// One requirement a line (PEP 508): the name ends at the first character that a name cannot have.
fn requirement_names(text: &str) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '-']) {
            continue;
        }
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'));
        let name = line.get(..end.unwrap_or(line.len())).unwrap_or_default();
        if name.is_empty() {
            return Err(format!("line {} names no package", number.saturating_add(1)));
        }
        names.insert(normalise_pypi(name));
    }
    if names.is_empty() {
        Err("it lists no packages".to_owned())
    } else {
        Ok(names)
    }
}

/// `name = "…"` of each `[[package]]`: Cargo writes one a line, whatever the lockfile's version.
fn cargo_names(text: &str) -> Result<BTreeSet<String>, String> {
    let names: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .map(|name| canonical_name(Profile::Cargo, name))
        .collect();
    if names.is_empty() {
        Err("it lists no packages".to_owned())
    } else {
        Ok(names)
    }
}

/// Services by host: exact names only, so that a host below another is not taken for it.
#[derive(Debug, Default)]
pub struct ServiceMap(HashMap<Host, Arc<Service>>);

/// Why a service cannot be added.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ServiceError {
    /// Another service has this host.
    #[error("the host {host} belongs to two services, {first} and {second}")]
    Taken {
        /// The host.
        host: String,
        /// Who had it.
        first: String,
        /// Who wants it too.
        second: String,
    },
}

impl ServiceMap {
    /// Says what a host is.
    ///
    /// # Errors
    /// When the host has a service already.
    pub fn insert(&mut self, host: Host, service: Arc<Service>) -> Result<(), ServiceError> {
        if let Some(first) = self.0.get(&host) {
            return Err(ServiceError::Taken {
                host: host.to_string(),
                first: first.name.clone(),
                second: service.name.clone(),
            });
        }
        self.0.insert(host, service);
        Ok(())
    }

    /// What a host is.
    #[must_use]
    pub fn get(&self, host: &Host) -> Option<&Arc<Service>> {
        self.0.get(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(profile: Profile, file: &str, text: &str, expected: &[&str]) {
        let names = NameList::from_lockfile(profile, file, text).unwrap();
        assert_eq!(names.0.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_lockfile_lists_names_in_their_canonical_spelling() {
        let v3 = r#"{"packages": {"": {"name": "app"}, "node_modules/left-pad": {}, "node_modules/@s/n/node_modules/x": {},
                     "node_modules/alias": {"name": "real"}}}"#;
        check(Profile::Npm, "package-lock.json", v3, &["left-pad", "real", "x"]);
        let v1 = r#"{"dependencies": {"a": {"dependencies": {"@s/b": {}}}}}"#;
        check(Profile::Npm, "package-lock.json", v1, &["@s/b", "a"]);
        let requirements =
            "# pinned\nFoo.Bar_baz==1.0 ; python_version > '3'\n--hash=sha256:00\nuvicorn[standard]>=1\n";
        check(
            Profile::Pypi,
            "requirements.txt",
            requirements,
            &["foo-bar-baz", "uvicorn"],
        );
        check(
            Profile::Cargo,
            "Cargo.lock",
            "[[package]]\nname = \"serde_json\"\nversion = \"1\"\n",
            &["serde-json"],
        );
    }

    #[test]
    fn what_is_no_lockfile_is_refused() {
        for (profile, file, text) in [
            (Profile::Git, "Cargo.lock", "name = \"a\""),
            (Profile::Npm, "package-lock.json", "{"),
            (Profile::Npm, "package-lock.json", "{}"),
            (Profile::Pypi, "requirements.txt", "==1.0"),
            (Profile::Cargo, "Cargo.lock", ""),
        ] {
            assert!(
                NameList::from_lockfile(profile, file, text).is_err(),
                "{file}: {text}"
            );
        }
    }

    #[test]
    fn reads_are_limited_to_the_list_and_a_host_has_one_service() {
        let names = NameList::from_lockfile(Profile::Pypi, "requirements.txt", "left.pad").ok();
        let service = Arc::new(Service {
            name: "pypi".into(),
            profile: Profile::Pypi,
            names,
        });
        let read = |package: Option<&str>| Operation {
            ecosystem: "pypi",
            action: Action::Read,
            name: "pypi.simple",
            package: package.map(str::to_owned),
            version: None,
        };
        assert!(service.admits(&read(Some("Left_Pad"))) && service.admits(&read(None)));
        assert!(!service.admits(&read(Some("exfil-dghl"))));
        let audit = Operation {
            name: "npm.audit",
            ..read(None)
        };
        assert!(!service.admits(&audit));
        let host = Host::parse("pypi.corp.test").unwrap();
        let mut map = ServiceMap::default();
        assert_eq!(map.insert(host.clone(), Arc::clone(&service)), Ok(()));
        assert!(map.insert(host.clone(), service).is_err());
        assert!(map.get(&host).is_some());
    }
}
