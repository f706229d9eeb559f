//! Bundles: what policy is made of.
//!
//! A bundle is a directory in OPA's layout: `*.rego` (Rego v1) anywhere, `data.json` mounted at the path of its
//! directory, and an optional `.manifest` at the root. An operator's own data files are laid over `data.json`, so that a
//! library of rules can be used unmodified. `*_test.rego` and `*.cases.toml` test a bundle and are no part of what
//! decides. Hidden files are skipped, everything else that is not named here is ignored.
//!
//! The digest names exactly what decides. It is SHA-256 over
//!
//! ```text
//! "wallgate bundle v1\n"
//! for each deciding file, sorted by path, then each overlay as "overlay/<n>" in order:
//!     u64-BE length of the path, path, u64-BE length of the content, content
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::policy::PolicyLimits;

/// How deep a bundle's directories may nest.
const MAX_DIRECTORY_DEPTH: usize = 16;

/// SHA-256 over a bundle's files: the name of exactly this policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleDigest(pub(crate) [u8; 32]);

impl fmt::Display for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Where in a bundle something is, as an editor understands it: `file:line:col`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, relative to the bundle.
    pub file: String,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// The column, from 1; 0 when the whole line is meant.
    pub column: usize,
}

impl Place {
    pub(crate) fn file(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        Ok(())
    }
}

/// Why a bundle is not used. A bad bundle never replaces a good one.
#[derive(Debug, Error)]
pub enum BundleError {
    /// There is no such directory.
    #[error("the policy bundle {0} does not exist")]
    Missing(PathBuf),
    /// It is not a directory.
    #[error("the policy bundle {0} is not a directory")]
    NotADirectory(PathBuf),
    /// A file or directory cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A symbolic link to a directory, or a file name that is not UTF-8.
    #[error("{0} is a link to a directory, or its name is not UTF-8")]
    Entry(PathBuf),
    /// More files than [`PolicyLimits::bundle_files`], more bytes than [`PolicyLimits::bundle_bytes`], or too deep.
    #[error("the bundle exceeds its limit of {limit} {what}")]
    TooLarge {
        /// `files`, `bytes` or `directory levels`.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
    /// Not one `*.rego` file.
    #[error("the policy bundle {0} has no .rego file")]
    NoPolicy(PathBuf),
    /// `data.json`, an overlay or a case file is malformed.
    #[error("{place}: {message}")]
    Data {
        /// Where.
        place: Place,
        /// What is wrong.
        message: String,
    },
    /// Rego that does not parse or compile.
    #[error("{place}: {message}")]
    Rego {
        /// Where.
        place: Place,
        /// What the compiler says.
        message: String,
    },
    /// A built-in function that is not deterministic, reaches outside, or cannot be bounded.
    #[error("{place}: `{name}` is not available to policy: {hint}")]
    Forbidden {
        /// Where.
        place: Place,
        /// The function.
        name: String,
        /// What to use instead.
        hint: &'static str,
    },
    /// Rules that call each other in a circle, or too deep a chain of calls.
    #[error("{message}")]
    Recursion {
        /// The chain.
        message: String,
    },
    /// No rule `decision` in package `wallgate`.
    #[error("the bundle has no rule `data.wallgate.decision` (package wallgate, rule decision)")]
    NoDecision,
}

/// One file of a bundle.
#[derive(Clone, Debug)]
pub(crate) struct BundleFile {
    /// Relative to the bundle, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What a bundle consists of, read but not compiled.
#[derive(Clone, Debug)]
pub(crate) struct Bundle {
    pub(crate) policies: Vec<BundleFile>,
    pub(crate) tests: Vec<BundleFile>,
    pub(crate) cases: Vec<BundleFile>,
    /// The files that `data` was made of, the last laid over the others.
    pub(crate) data_files: Vec<BundleFile>,
    pub(crate) data: serde_json::Value,
    pub(crate) manifest: Manifest,
    pub(crate) digest: BundleDigest,
}

/// `.manifest`, as far as it matters here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Manifest {
    #[serde(default)]
    pub(crate) revision: Option<String>,
    #[serde(default)]
    roots: Option<Vec<String>>,
    #[serde(default)]
    rego_version: Option<u8>,
}

impl Bundle {
    pub(crate) fn read(
        path: &Path,
        overlays: &[PathBuf],
        limits: &PolicyLimits,
    ) -> Result<Self, BundleError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(BundleError::NotADirectory(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BundleError::Missing(path.to_owned()));
            }
            Err(source) => {
                return Err(BundleError::Read {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let mut reader = Reader {
            limits,
            bytes: 0,
            files: Vec::new(),
        };
        reader.walk(path, "", 0)?;
        let mut files = reader.files;
        files.sort_by(|left, right| left.path.cmp(&right.path));
        reader.files = Vec::new();
        for (index, overlay) in overlays.iter().enumerate() {
            reader.take(overlay, format!("overlay/{index}"))?;
        }
        Self::assemble(path, files, &reader.files, overlays)
    }

    fn assemble(
        path: &Path,
        files: Vec<BundleFile>,
        overlays: &[BundleFile],
        overlay_names: &[PathBuf],
    ) -> Result<Self, BundleError> {
        let mut hasher = Sha256::new();
        hasher.update(b"wallgate bundle v1\n");
        let mut bundle = Self {
            policies: Vec::new(),
            tests: Vec::new(),
            cases: Vec::new(),
            data_files: Vec::new(),
            data: serde_json::Value::Object(serde_json::Map::new()),
            manifest: Manifest::default(),
            digest: BundleDigest([0; 32]),
        };
        for file in files {
            match Kind::of(&file.path) {
                Kind::Policy => {
                    absorb(&mut hasher, &file);
                    bundle.policies.push(file);
                }
                Kind::Data => {
                    absorb(&mut hasher, &file);
                    mount(&mut bundle.data, &file)?;
                    bundle.data_files.push(file);
                }
                Kind::Manifest => {
                    absorb(&mut hasher, &file);
                    bundle.manifest = parse_json(&file.path, &file.text)?;
                }
                Kind::Test => bundle.tests.push(file),
                Kind::Cases => bundle.cases.push(file),
                Kind::Unread => {
                    return Err(BundleError::Data {
                        place: Place::file(&file.path),
                        message: "data is read from data.json only".to_owned(),
                    });
                }
                Kind::Ignored => {}
            }
        }
        if bundle.policies.is_empty() {
            return Err(BundleError::NoPolicy(path.to_owned()));
        }
        bundle.check_manifest()?;
        for (file, name) in overlays.iter().zip(overlay_names) {
            absorb(&mut hasher, file);
            let value: serde_json::Value = parse_json(&name.display().to_string(), &file.text)?;
            if !value.is_object() {
                return Err(BundleError::Data {
                    place: Place::file(&name.display().to_string()),
                    message: "a data file is a JSON object".to_owned(),
                });
            }
            lay_over(&mut bundle.data, value);
            bundle.data_files.push(BundleFile {
                path: name.display().to_string(),
                text: file.text.clone(),
            });
        }
        bundle.digest = BundleDigest(hasher.finalize().into());
        Ok(bundle)
    }

    /// OPA, "Bundles": `roots` claim the paths that a bundle owns; everything in it must be below one of them.
    fn check_manifest(&self) -> Result<(), BundleError> {
        let refuse = |message: String| BundleError::Data {
            place: Place::file(".manifest"),
            message,
        };
        if self.manifest.rego_version.is_some_and(|version| version != 1) {
            return Err(refuse("rego_version must be 1".to_owned()));
        }
        let Some(roots) = &self.manifest.roots else {
            return Ok(());
        };
        let Some(top) = self.data.as_object() else {
            return Ok(());
        };
        for key in top.keys() {
            let owned = roots
                .iter()
                .any(|root| root.is_empty() || root.split('/').next() == Some(key.as_str()));
            if !owned {
                return Err(refuse(format!("data.{key} is outside the manifest's roots")));
            }
        }
        Ok(())
    }
}

enum Kind {
    Policy,
    Test,
    Cases,
    Data,
    Manifest,
    /// Something that OPA would read as data and that we do not: ignoring it would change what policy means.
    Unread,
    Ignored,
}

impl Kind {
    fn of(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name {
            ".manifest" if path == ".manifest" => Self::Manifest,
            "data.json" => Self::Data,
            "data.yaml" | "data.yml" => Self::Unread,
            _ if name.ends_with("_test.rego") => Self::Test,
            _ if name.strip_suffix(".rego").is_some() => Self::Policy,
            _ if name.ends_with(".cases.toml") => Self::Cases,
            _ => Self::Ignored,
        }
    }
}

struct Reader<'a> {
    limits: &'a PolicyLimits,
    bytes: u64,
    files: Vec<BundleFile>,
}

impl Reader<'_> {
    fn walk(&mut self, directory: &Path, prefix: &str, depth: usize) -> Result<(), BundleError> {
        if depth > MAX_DIRECTORY_DEPTH {
            return Err(BundleError::TooLarge {
                what: "directory levels",
                limit: MAX_DIRECTORY_DEPTH as u64,
            });
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BundleError::Read { path, source }
        };
        for entry in fs::read_dir(directory).map_err(failed(directory))? {
            let entry = entry.map_err(failed(directory))?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                return Err(BundleError::Entry(path));
            };
            if name.starts_with('.') && name != ".manifest" {
                continue;
            }
            let relative = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(failed(&path))?;
            let metadata = fs::metadata(&path).map_err(failed(&path))?;
            if metadata.is_dir() {
                if kind.is_symlink() {
                    return Err(BundleError::Entry(path));
                }
                self.walk(&path, &format!("{relative}/"), depth.saturating_add(1))?;
            } else if !matches!(Kind::of(&relative), Kind::Ignored) {
                self.take(&path, relative)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, relative: String) -> Result<(), BundleError> {
        use io::Read as _;

        let failed = |source| BundleError::Read {
            path: path.to_owned(),
            source,
        };
        if self.files.len() >= self.limits.bundle_files {
            return Err(BundleError::TooLarge {
                what: "files",
                limit: self.limits.bundle_files as u64,
            });
        }
        let left = self.limits.bundle_bytes.saturating_sub(self.bytes);
        let mut text = String::new();
        fs::File::open(path)
            .and_then(|file| file.take(left.saturating_add(1)).read_to_string(&mut text))
            .map_err(failed)?;
        if text.len() as u64 > left {
            return Err(BundleError::TooLarge {
                what: "bytes",
                limit: self.limits.bundle_bytes,
            });
        }
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.files.push(BundleFile { path: relative, text });
        Ok(())
    }
}

fn absorb(hasher: &mut Sha256, file: &BundleFile) {
    for part in [&file.path, &file.text] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
}

pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, BundleError> {
    serde_json::from_str(text).map_err(|error| BundleError::Data {
        place: Place {
            file: name.to_owned(),
            line: error.line(),
            column: error.column(),
        },
        message: error.to_string(),
    })
}

/// Puts a `data.json` where its directory says. Two files that say different things about one key are an error.
fn mount(data: &mut serde_json::Value, file: &BundleFile) -> Result<(), BundleError> {
    let mut value: serde_json::Value = parse_json(&file.path, &file.text)?;
    if !value.is_object() {
        return Err(BundleError::Data {
            place: Place::file(&file.path),
            message: "data.json is a JSON object".to_owned(),
        });
    }
    for directory in file.path.rsplit('/').skip(1) {
        let mut outer = serde_json::Map::new();
        outer.insert(directory.to_owned(), value);
        value = serde_json::Value::Object(outer);
    }
    merge(data, value).map_err(|key| BundleError::Data {
        place: Place::file(&file.path),
        message: format!("{key} is already set by another data.json"),
    })
}

fn merge(into: &mut serde_json::Value, from: serde_json::Value) -> Result<(), String> {
    let (Some(object), serde_json::Value::Object(from)) = (into.as_object_mut(), from) else {
        return Err(String::new());
    };
    for (key, value) in from {
        match object.get_mut(&key) {
            None => {
                object.insert(key, value);
            }
            Some(present) if present.is_object() && value.is_object() => {
                merge(present, value).map_err(|inner| format!("{key}.{inner}"))?;
            }
            Some(_) => return Err(key),
        }
    }
    Ok(())
}

/// Objects are merged key by key; anything else is replaced. `null` removes a key.
pub(crate) fn lay_over(data: &mut serde_json::Value, overlay: serde_json::Value) {
    let serde_json::Value::Object(overlay) = overlay else {
        *data = overlay;
        return;
    };
    if !data.is_object() {
        *data = serde_json::Value::Object(serde_json::Map::new());
    }
    let Some(object) = data.as_object_mut() else {
        return;
    };
    for (key, value) in overlay {
        if value.is_null() {
            object.remove(&key);
        } else {
            lay_over(object.entry(key).or_insert(serde_json::Value::Null), value);
        }
    }
}
