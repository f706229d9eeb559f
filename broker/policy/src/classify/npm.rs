//! The npm registry's grammar, as npm, yarn and pnpm speak it.

use wallgate_types::operation::{Action, Operation};

use super::table::{Content, Part, Query, Row};
use super::{Plain, find};

const GET: &[&str] = &["GET", "HEAD"];

use Part::{Is, NpmPackage, NpmPackageAtVersion, NpmTarball, NpmUser, Rest, SemverOrLatest, Word};

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

const fn audit(path: &'static [Part], content: Content) -> Row {
    Row {
        methods: &["POST"],
        path,
        query: Query::None,
        content,
        action: Action::Read,
        name: "npm.audit",
    }
}

const SECURITY: (Part, Part, Part, Part) = (Is("-"), Is("npm"), Is("v1"), Is("security"));

const ROWS: &[Row] = &[
    read(&[Is("-"), Is("ping")], "npm.ping"),
    read(&[Is("-"), Is("whoami")], "npm.whoami"),
    read(&[Is("-"), Is("npm"), Is("v1"), Is("keys")], "npm.keys"),
    read(
        &[
            Is("-"),
            Is("npm"),
            Is("v1"),
            Is("attestations"),
            NpmPackageAtVersion,
        ],
        "npm.attestations",
    ),
    read(
        &[Is("-"), Is("package"), NpmPackage, Is("dist-tags")],
        "npm.dist_tags",
    ),
    read(&[NpmPackage], "npm.metadata"),
    read(&[NpmPackage, Is("-"), NpmTarball], "npm.tarball"),
    read(&[NpmPackage, SemverOrLatest], "npm.version"),
    // Reads by POST: every install sends one.
    audit(
        &[
            SECURITY.0,
            SECURITY.1,
            SECURITY.2,
            SECURITY.3,
            Is("advisories"),
            Is("bulk"),
        ],
        Content::NpmBulkAudit,
    ),
    audit(
        &[SECURITY.0, SECURITY.1, SECURITY.2, SECURITY.3, Is("audits")],
        Content::NpmAuditTree,
    ),
    audit(
        &[
            SECURITY.0,
            SECURITY.1,
            SECURITY.2,
            SECURITY.3,
            Is("audits"),
            Is("quick"),
        ],
        Content::NpmAuditTree,
    ),
    Row {
        methods: GET,
        path: &[Is("-"), Is("v1"), Is("search")],
        query: Query::Keys(
            &[],
            &["text", "size", "from", "quality", "popularity", "maintenance"],
        ),
        content: Content::None,
        action: Action::Search,
        name: "npm.search",
    },
    other(GET, &[Is("-"), Is("all"), Rest], Action::List, "npm.list"),
    // The same address as the metadata, but it announces a write and is never cached.
    Row {
        methods: GET,
        path: &[NpmPackage],
        query: Query::Is(&[("write", "true")]),
        content: Content::Any,
        action: Action::Write,
        name: "npm.write_intent",
    },
    other(&["PUT"], &[NpmPackage], Action::Write, "npm.publish"),
    other(
        &["PUT", "DELETE"],
        &[NpmPackage, Is("-rev"), Word],
        Action::Write,
        "npm.unpublish",
    ),
    other(
        &["DELETE"],
        &[NpmPackage, Is("-"), Rest],
        Action::Write,
        "npm.unpublish",
    ),
    other(&["DELETE"], &[NpmPackage], Action::Write, "npm.unpublish"),
    other(
        &["PUT", "POST", "DELETE"],
        &[Is("-"), Is("package"), NpmPackage, Is("dist-tags"), Rest],
        Action::Write,
        "npm.dist_tag",
    ),
    other(
        &["PUT", "POST"],
        &[Is("-"), Is("user"), NpmUser, Rest],
        Action::Write,
        "npm.login",
    ),
    other(
        &["POST"],
        &[Is("-"), Is("v1"), Is("login"), Rest],
        Action::Write,
        "npm.login",
    ),
    other(
        &["GET", "HEAD"],
        &[Is("-"), Is("v1"), Is("done"), Rest],
        Action::Write,
        "npm.login",
    ),
    other(
        &["DELETE"],
        &[Is("-"), Is("user"), Is("token"), Rest],
        Action::Write,
        "npm.token",
    ),
    other(
        &["POST", "PUT", "DELETE"],
        &[Is("-"), Is("npm"), Is("v1"), Is("tokens"), Rest],
        Action::Write,
        "npm.token",
    ),
    other(
        GET,
        &[Is("-"), Is("npm"), Is("v1"), Is("tokens"), Rest],
        Action::Admin,
        "npm.token",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("npm"), Is("v1"), Is("hooks"), Rest],
        Action::Admin,
        "npm.hook",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("npm"), Is("v1"), Is("user"), Rest],
        Action::Admin,
        "npm.profile",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("package"), NpmPackage, Is("access"), Rest],
        Action::Admin,
        "npm.access",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("package"), NpmPackage, Is("collaborators"), Rest],
        Action::Admin,
        "npm.access",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("org"), Rest],
        Action::Admin,
        "npm.access",
    ),
    other(
        &["GET", "HEAD", "POST", "PUT", "DELETE"],
        &[Is("-"), Is("team"), Rest],
        Action::Admin,
        "npm.access",
    ),
];

pub(super) fn classify(plain: &Plain<'_>) -> Option<Operation> {
    find("npm", ROWS, plain, &join_scopes(&plain.segments))
}

/// A scoped name is one segment (`@scope%2fname`) or two (`@scope/name`): here it is always one.
fn join_scopes(segments: &[String]) -> Vec<String> {
    let mut joined = Vec::with_capacity(segments.len());
    let mut rest = segments.iter();
    while let Some(segment) = rest.next() {
        if segment.starts_with('@')
            && !segment.contains('/')
            && let Some(name) = rest.next()
        {
            joined.push(format!("{segment}/{name}"));
        } else {
            joined.push(segment.clone());
        }
    }
    joined
}
