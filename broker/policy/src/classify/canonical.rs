//! How a simple read is spelled when nothing of it is the sandbox's choice but the package's name and version.
//!
//! A request that is not spelled like this carries something else to the mirror: an unusual case, an escape, a query.

use wallgate_types::operation::{Action, Operation};

use super::names;

/// The one spelling of this operation, built from its package and version only; nothing for what is no read, or whose path
/// depends on the server (a file below its digest).
#[must_use]
pub fn canonical_path(operation: &Operation) -> Option<String> {
    spellings(operation)?.into_iter().next()
}

/// Whether a request for this operation is spelled in a way that says nothing more than the operation does.
#[must_use]
pub fn is_canonical(operation: &Operation, path: &str, query: Option<&str>) -> bool {
    query.is_none()
        && spellings(operation).is_some_and(|spellings| spellings.iter().any(|spelling| spelling == path))
}

/// The spellings that real clients and servers use, the preferred one first.
fn spellings(operation: &Operation) -> Option<Vec<String>> {
    if operation.action != Action::Read {
        return None;
    }
    let package = || operation.package.as_deref();
    let version = || operation.version.as_deref();
    let spellings = match operation.name {
        "npm.ping" => vec!["/-/ping".to_owned()],
        "npm.whoami" => vec!["/-/whoami".to_owned()],
        "npm.keys" => vec!["/-/npm/v1/keys".to_owned()],
        "npm.metadata" => npm_names(package()?)
            .into_iter()
            .map(|name| format!("/{name}"))
            .collect(),
        "npm.version" => {
            let version = version()?;
            let names = npm_names(package()?).into_iter();
            names.map(|name| format!("/{name}/{version}")).collect()
        }
        "npm.dist_tags" => {
            let names = npm_names(package()?).into_iter();
            names.map(|name| format!("/-/package/{name}/dist-tags")).collect()
        }
        "npm.tarball" => {
            let (package, version) = (package()?, version()?);
            let base = names::npm_base(package);
            vec![format!("/{package}/-/{base}-{version}.tgz")]
        }
        "pypi.simple" => vec![format!("/simple/{}/", package()?)],
        "pypi.json" => match version() {
            Some(version) => vec![format!("/pypi/{}/{version}/json", package()?)],
            None => vec![format!("/pypi/{}/json", package()?)],
        },
        "cargo.config" => vec!["/config.json".to_owned(), "/index/config.json".to_owned()],
        "cargo.index" => {
            let name = package()?;
            let prefix = names::index_prefix(name)?;
            vec![format!("/{prefix}/{name}"), format!("/index/{prefix}/{name}")]
        }
        "cargo.download" => {
            let (name, version) = (package()?, version()?);
            vec![
                format!("/api/v1/crates/{name}/{version}/download"),
                format!("/crates/{name}/{name}-{version}.crate"),
                format!("/crates/{name}/{version}/download"),
                format!("/dl/{name}/{name}-{version}.crate"),
                format!("/dl/{name}/{version}/download"),
                format!("/dl/{name}/{version}.crate"),
            ]
        }
        _ => return None,
    };
    Some(spellings)
}

/// npm and yarn escape a scope's slash in lower case; pnpm does not escape it where it need not.
fn npm_names(package: &str) -> Vec<String> {
    if package.starts_with('@') {
        vec![
            package.replace('/', "%2f"),
            package.replace('/', "%2F"),
            package.to_owned(),
        ]
    } else {
        vec![package.to_owned()]
    }
}
