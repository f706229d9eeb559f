//! A Cargo registry's grammar: the sparse index (RFC 2789), downloads, and the web API.

use wallgate_types::operation::{Action, Operation};

use super::table::{Content, Part, Query, Row};
use super::{Plain, find, names};

use Part::{Crate, CrateFile, IndexCrate, Is, Rest, Semver, VersionFile, Word};

const GET: &[&str] = &["GET", "HEAD"];

const fn read(path: &'static [Part], name: &'static str) -> Row {
    Row {
        methods: GET,
        path,
        query: Query::None,
        content: Content::None,
        action: Action::Read,
        name,
    }
}

const fn other(
    methods: &'static [&'static str],
    path: &'static [Part],
    action: Action,
    name: &'static str,
) -> Row {
    Row {
        methods,
        path,
        query: Query::Any,
        content: Content::Any,
        action,
        name,
    }
}

const API: (Part, Part, Part) = (Is("api"), Is("v1"), Is("crates"));

const ROWS: &[Row] = &[
    read(
        &[API.0, API.1, API.2, Crate, Semver, Is("download")],
        "cargo.download",
    ),
    read(&[Is("crates"), Crate, Semver, Is("download")], "cargo.download"),
    read(&[Is("crates"), Crate, CrateFile], "cargo.download"),
    read(&[Is("dl"), Crate, Semver, Is("download")], "cargo.download"),
    read(&[Is("dl"), Crate, CrateFile], "cargo.download"),
    read(&[Is("dl"), Crate, VersionFile], "cargo.download"),
    read(&[API.0, API.1, API.2, Crate], "cargo.metadata"),
    read(&[API.0, API.1, API.2, Crate, Semver], "cargo.metadata"),
    Row {
        methods: GET,
        path: &[API.0, API.1, API.2],
        query: Query::Keys(&["q"], &["per_page", "page", "sort"]),
        content: Content::None,
        action: Action::Search,
        name: "cargo.search",
    },
    other(GET, &[API.0, API.1, API.2], Action::List, "cargo.list"),
    other(
        GET,
        &[API.0, API.1, API.2, Crate, Is("owners")],
        Action::List,
        "cargo.owners",
    ),
    other(
        &["PUT", "DELETE", "POST"],
        &[API.0, API.1, API.2, Crate, Is("owners")],
        Action::Write,
        "cargo.owners",
    ),
    other(
        &["PUT", "POST"],
        &[API.0, API.1, API.2, Is("new")],
        Action::Write,
        "cargo.publish",
    ),
    other(
        &["DELETE"],
        &[API.0, API.1, API.2, Crate, Semver, Is("yank")],
        Action::Write,
        "cargo.yank",
    ),
    other(
        &["PUT"],
        &[API.0, API.1, API.2, Crate, Semver, Is("unyank")],
        Action::Write,
        "cargo.unyank",
    ),
    other(GET, &[Is("me")], Action::Write, "cargo.login"),
    other(
        &["GET", "HEAD", "PUT", "POST", "DELETE"],
        &[Is("api"), Is("v1"), Is("me"), Rest],
        Action::Write,
        "cargo.login",
    ),
    other(
        &["PUT", "POST", "DELETE"],
        &[Is("api"), Is("v1"), Is("trusted_publishing"), Word],
        Action::Write,
        "cargo.login",
    ),
];

const INDEX_ROWS: &[Row] = &[
    read(&[Is("config.json")], "cargo.config"),
    read(&[Is("1"), IndexCrate], "cargo.index"),
    read(&[Is("2"), IndexCrate], "cargo.index"),
    read(&[Is("3"), Word, IndexCrate], "cargo.index"),
    read(&[Word, Word, IndexCrate], "cargo.index"),
];

pub(super) fn classify(plain: &Plain<'_>) -> Option<Operation> {
    find("cargo", ROWS, plain, &plain.segments).or_else(|| index(plain))
}

/// The index is at the root of its host, or below `/index`.
fn index(plain: &Plain<'_>) -> Option<Operation> {
    let segments = match plain.segments.as_slice() {
        [first, rest @ ..] if first == "index" => rest,
        segments => segments,
    };
    let operation = find("cargo", INDEX_ROWS, plain, segments)?;
    // The directory follows from the name; any other is not a path that a client asks for.
    let Some(name) = &operation.package else {
        return Some(operation);
    };
    let expected = format!("{}/{name}", names::index_prefix(name)?);
    (segments.join("/") == expected).then_some(operation)
}
