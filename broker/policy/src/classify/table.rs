//! One row of a grammar, and how a request matches it.

use wallgate_types::operation::{Action, Operation};

use super::{Plain, body, names};

/// One shape of request and what it is called.
pub(super) struct Row {
    pub(super) methods: &'static [&'static str],
    pub(super) path: &'static [Part],
    pub(super) query: Query,
    pub(super) content: Content,
    pub(super) action: Action,
    pub(super) name: &'static str,
}

/// One part of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Exactly this.
    Is(&'static str),
    /// An npm package, scoped or not.
    NpmPackage,
    /// `name-1.0.0.tgz` of the package before it.
    NpmTarball,
    /// `name@1.0.0`.
    NpmPackageAtVersion,
    /// `org.couchdb.user:NAME`.
    NpmUser,
    /// A semantic version.
    Semver,
    /// A semantic version, or `latest`: any other word could be a path of the mirror's own (`/api/system`).
    SemverOrLatest,
    /// A PyPI project's name, in any spelling.
    Project,
    /// A PEP 440 version.
    PyVersion,
    /// A wheel or source archive, which names its project and version.
    Distribution,
    /// A wheel's or archive's metadata (PEP 658) or signature.
    DistributionExtra,
    /// A crate's name.
    Crate,
    /// A crate's name in lower case, as an index spells it.
    IndexCrate,
    /// `name-1.0.0.crate` of the crate before it.
    CrateFile,
    /// `1.0.0.crate` of the crate before it.
    VersionFile,
    /// Lower-case hexadecimal digits, this many.
    Hex(usize),
    /// A short word of letters, digits and `._-`: a revision, tag, team. Only in rows that are no reads.
    Word,
    /// Everything that is left, whatever it is. Only in rows that are no reads.
    Rest,
    /// A trailing slash. A path has none unless its row says so.
    Slash,
}

/// What may stand in the query.
#[derive(Clone, Copy, Debug)]
pub(super) enum Query {
    /// Nothing.
    None,
    /// Exactly these.
    Is(&'static [(&'static str, &'static str)]),
    /// All of the first, and any of the second.
    Keys(&'static [&'static str], &'static [&'static str]),
    /// Whatever. Only in rows that are no reads.
    Any,
}

/// What the body must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// None: no media type and no body.
    None,
    /// One of these media types.
    Type(&'static [&'static str]),
    /// An npm bulk audit: JSON that maps names to versions.
    NpmBulkAudit,
    /// One of npm's older audits: JSON with a tree of dependencies.
    NpmAuditTree,
    /// Whatever. Only in rows that are no reads.
    Any,
}

/// What the variable parts of a path said.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) package: Option<String>,
    pub(super) version: Option<String>,
}

impl Row {
    pub(super) fn operation(
        &self,
        ecosystem: &'static str,
        plain: &Plain<'_>,
        segments: &[String],
    ) -> Option<Operation> {
        if !self.methods.contains(&plain.method) {
            return None;
        }
        let mut found = Found::default();
        let matches = self.path_matches(segments, plain.trailing_slash, &mut found)
            && self.query.matches(plain.query)
            && self.content.matches(plain);
        let action = if self.content.needs_body() && plain.body.is_none() {
            Action::Unknown
        } else {
            self.action
        };
        matches.then_some(Operation {
            ecosystem,
            action,
            name: self.name,
            package: found.package,
            version: found.version,
        })
    }

    fn path_matches(&self, segments: &[String], trailing_slash: bool, found: &mut Found) -> bool {
        let mut segments = segments.iter();
        let mut slash = false;
        for part in self.path {
            match part {
                Part::Rest => return true,
                Part::Slash => slash = true,
                part => {
                    let Some(segment) = segments.next() else {
                        return false;
                    };
                    if !part.matches(segment, found) {
                        return false;
                    }
                }
            }
        }
        segments.next().is_none() && slash == trailing_slash
    }
}

impl Part {
    fn matches(self, segment: &str, found: &mut Found) -> bool {
        let package = |found: &mut Found, valid: bool| {
            if valid {
                found.package = Some(segment.to_owned());
            }
            valid
        };
        let version = |found: &mut Found, text: &str, valid: bool| {
            if valid {
                found.version = Some(text.to_owned());
            }
            valid
        };
        match self {
            Self::Is(literal) => segment == literal,
            Self::NpmPackage => package(found, names::is_npm_package(segment)),
            Self::NpmTarball => {
                let base = found.package.as_deref().map(names::npm_base);
                match base.and_then(|base| names::version_between(segment, base, ".tgz")) {
                    Some(text) => version(found, text, names::is_semver(text)),
                    None => false,
                }
            }
            Self::NpmPackageAtVersion => match segment.rsplit_once('@') {
                Some((name, text)) if names::is_npm_package(name) && names::is_semver(text) => {
                    found.package = Some(name.to_owned());
                    version(found, text, true)
                }
                _ => false,
            },
            Self::NpmUser => segment
                .strip_prefix("org.couchdb.user:")
                .is_some_and(|user| !user.is_empty()),
            Self::Semver => version(found, segment, names::is_semver(segment)),
            Self::SemverOrLatest => version(found, segment, segment == "latest" || names::is_semver(segment)),
            Self::Project => {
                let valid = names::is_pypi_project(segment);
                let name = names::normalise_pypi(segment);
                // A second project in one path must be the same.
                if !valid || found.package.as_ref().is_some_and(|earlier| *earlier != name) {
                    return false;
                }
                found.package = Some(name);
                true
            }
            Self::PyVersion => {
                let agrees = found.version.as_deref().is_none_or(|earlier| earlier == segment);
                agrees && version(found, segment, names::is_pep440(segment))
            }
            Self::Distribution => distribution(segment, found),
            Self::DistributionExtra => segment
                .strip_suffix(".metadata")
                .or_else(|| segment.strip_suffix(".asc"))
                .is_some_and(|file| distribution(file, found)),
            Self::Crate => package(found, names::is_crate(segment)),
            Self::IndexCrate => {
                let lower = !segment.bytes().any(|b| b.is_ascii_uppercase());
                package(found, lower && names::is_crate(segment))
            }
            Self::CrateFile => {
                let name = found.package.clone().unwrap_or_default();
                match names::version_between(segment, &name, ".crate") {
                    Some(text) => version(found, text, names::is_semver(text)),
                    None => false,
                }
            }
            Self::VersionFile => match segment.strip_suffix(".crate") {
                Some(text) => version(found, text, names::is_semver(text)),
                None => false,
            },
            Self::Hex(length) => {
                segment.len() == length
                    && segment
                        .bytes()
                        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            }
            Self::Word => names::is_word(segment),
            Self::Rest | Self::Slash => false,
        }
    }
}

fn distribution(file: &str, found: &mut Found) -> bool {
    let Some((project, version)) = names::pypi_distribution(file) else {
        return false;
    };
    let project = names::normalise_pypi(project);
    if found.package.as_ref().is_some_and(|earlier| *earlier != project) {
        return false;
    }
    found.package = Some(project);
    found.version = Some(version.to_owned());
    true
}

impl Query {
    fn matches(self, query: &[(String, String)]) -> bool {
        let has = |key: &str| query.iter().any(|(present, _)| present == key);
        match self {
            Self::None => query.is_empty(),
            Self::Is(pairs) => {
                query.len() == pairs.len()
                    && pairs
                        .iter()
                        .all(|(key, value)| query.iter().any(|(k, v)| k == key && v == value))
            }
            Self::Keys(required, optional) => {
                required.iter().all(|key| has(key))
                    && query
                        .iter()
                        .all(|(key, _)| required.contains(&key.as_str()) || optional.contains(&key.as_str()))
            }
            Self::Any => true,
        }
    }
}

impl Content {
    /// Whether nothing can be said of the request before its body was read.
    const fn needs_body(self) -> bool {
        match self {
            Self::NpmBulkAudit | Self::NpmAuditTree => true,
            Self::None | Self::Type(_) | Self::Any => false,
        }
    }

    fn matches(self, plain: &Plain<'_>) -> bool {
        let media_type = plain.media_type.as_deref();
        let json = media_type == Some("application/json");
        match self {
            Self::None => media_type.is_none() && plain.body.is_none_or(<[u8]>::is_empty),
            Self::Type(types) => media_type.is_some_and(|media_type| types.contains(&media_type)),
            Self::NpmBulkAudit => json && plain.body.is_none_or(body::is_bulk_audit),
            Self::NpmAuditTree => json && plain.body.is_none_or(body::is_audit_tree),
            Self::Any => true,
        }
    }
}
