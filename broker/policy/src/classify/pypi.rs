//! The grammar of a Python package index (PEP 503, 658, 691) and of its files.

use wallgate_types::operation::{Action, Operation};

use super::table::{Content, Part, Query, Row};
use super::{Plain, find};

use Part::{Distribution, DistributionExtra, Hex, Is, Project, PyVersion, Rest, Slash, Word};

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

const fn post(
    path: &'static [Part],
    types: &'static [&'static str],
    action: Action,
    name: &'static str,
) -> Row {
    Row {
        methods: &["POST"],
        path,
        query: Query::Any,
        content: Content::Type(types),
        action,
        name,
    }
}

const ROWS: &[Row] = &[
    read(&[Is("simple"), Project, Slash], "pypi.simple"),
    read(&[Is("simple"), Project], "pypi.simple"),
    read(&[Is("pypi"), Project, Is("json")], "pypi.json"),
    read(&[Is("pypi"), Project, PyVersion, Is("json")], "pypi.json"),
    // Files: flat, below the two beginnings and the rest of their digest, or below project and version.
    read(&[Is("packages"), Distribution], "pypi.file"),
    read(
        &[Is("packages"), Hex(2), Hex(2), Hex(60), Distribution],
        "pypi.file",
    ),
    read(&[Is("packages"), Project, PyVersion, Distribution], "pypi.file"),
    read(&[Is("simple"), Project, Distribution], "pypi.file"),
    read(&[Is("packages"), DistributionExtra], "pypi.file"),
    read(
        &[Is("packages"), Hex(2), Hex(2), Hex(60), DistributionExtra],
        "pypi.file",
    ),
    read(
        &[Is("packages"), Project, PyVersion, DistributionExtra],
        "pypi.file",
    ),
    read(&[Is("simple"), Project, DistributionExtra], "pypi.file"),
    Row {
        methods: GET,
        path: &[Is("simple"), Slash],
        query: Query::None,
        content: Content::None,
        action: Action::List,
        name: "pypi.list",
    },
    Row {
        methods: GET,
        path: &[Is("simple")],
        query: Query::None,
        content: Content::None,
        action: Action::List,
        name: "pypi.list",
    },
    Row {
        methods: GET,
        path: &[Is("search"), Rest],
        query: Query::Any,
        content: Content::None,
        action: Action::Search,
        name: "pypi.search",
    },
    // Which path an index takes uploads at is its own affair; what the body is tells one.
    post(
        &[Rest],
        &["multipart/form-data", "application/x-www-form-urlencoded"],
        Action::Write,
        "pypi.upload",
    ),
    post(
        &[Rest],
        &["application/vnd.pypi.upload.v2+json"],
        Action::Write,
        "pypi.upload",
    ),
    // XML-RPC: its one use by clients is search.
    post(
        &[Rest],
        &["text/xml", "application/xml"],
        Action::Search,
        "pypi.search",
    ),
    Row {
        methods: &["GET", "HEAD", "POST"],
        path: &[Is("_"), Is("oidc"), Word],
        query: Query::Any,
        content: Content::Any,
        action: Action::Write,
        name: "pypi.token",
    },
];

pub(super) fn classify(plain: &Plain<'_>) -> Option<Operation> {
    find("pypi", ROWS, plain, &plain.segments)
}
