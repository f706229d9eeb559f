//! Git over smart HTTP (gitprotocol-http(5)).
//!
//! ```text
//!   GET  REPO/info/refs?service=git-upload-pack    git.advertise  read
//!   POST REPO/git-upload-pack                      git.fetch      read, when its body is one
//!   GET  REPO/info/refs?service=git-receive-pack   git.push       write: a client that asks this wants to push
//!   POST REPO/git-receive-pack                     git.push       write
//! ```
//!
//! Everything else is unknown: the dumb protocol (`HEAD`, `objects/…`), which has no request to judge, and
//! `git-upload-archive`.

use wallgate_types::operation::{Action, Operation};

use super::{Plain, body};

/// The deepest path of groups that a repository may lie below.
const MAX_REPOSITORY_SEGMENTS: usize = 10;
/// The longest segment of a repository's path, in bytes.
const MAX_SEGMENT_BYTES: usize = 100;
/// Where a repository's own files and services begin: never a part of its name.
const RESERVED: [&str; 6] = [
    "info",
    "objects",
    "HEAD",
    "git-upload-pack",
    "git-receive-pack",
    "git-upload-archive",
];

pub(super) fn classify(plain: &Plain<'_>) -> Option<Operation> {
    let segments = plain.segments.as_slice();
    if wants_to_push(plain) {
        let repository = match segments {
            [repository @ .., info, refs] if info == "info" && refs == "refs" => repository,
            [repository @ .., _] => repository,
            [] => segments,
        };
        return Some(operation(Action::Write, "git.push", repository_name(repository)));
    }
    if plain.trailing_slash {
        return None;
    }
    match segments {
        [repository @ .., info, refs] if info == "info" && refs == "refs" => {
            let service = match plain.query {
                [(key, value)] if key == "service" => value.as_str(),
                _ => return None,
            };
            let quiet = plain.media_type.is_none() && plain.body.is_none_or(<[u8]>::is_empty);
            if plain.method != "GET" || service != "git-upload-pack" || !quiet {
                return None;
            }
            let name = repository_name(repository)?;
            Some(operation(Action::Read, "git.advertise", Some(name)))
        }
        [repository @ .., service] if service == "git-upload-pack" => {
            let typed = plain.media_type.as_deref() == Some("application/x-git-upload-pack-request");
            if plain.method != "POST" || !plain.query.is_empty() || !typed {
                return None;
            }
            let name = repository_name(repository)?;
            let action = match plain.body {
                // Until it was read, what else it says is not known.
                None => Action::Unknown,
                Some(request) if body::is_upload_pack_request(request) => Action::Read,
                Some(_) => return None,
            };
            Some(operation(action, "git.fetch", Some(name)))
        }
        _ => None,
    }
}

fn operation(action: Action, name: &'static str, package: Option<String>) -> Operation {
    Operation {
        ecosystem: "git",
        action,
        name,
        package,
        version: None,
    }
}

/// Anything that names the service that takes pushes, in whatever form, is told to be one.
fn wants_to_push(plain: &Plain<'_>) -> bool {
    let service = "git-receive-pack";
    plain.segments.last().is_some_and(|last| last == service)
        || plain
            .query
            .iter()
            .any(|(key, value)| key == "service" && value == service)
}

/// `group/repository`, without `.git`.
fn repository_name(segments: &[String]) -> Option<String> {
    if segments.is_empty() || segments.len() > MAX_REPOSITORY_SEGMENTS {
        return None;
    }
    let valid = |segment: &String| {
        segment.len() <= MAX_SEGMENT_BYTES
            && !RESERVED.contains(&segment.as_str())
            && segment
                .as_bytes()
                .first()
                .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'~'))
            && segment
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+' | b'~'))
    };
    if !segments.iter().all(valid) {
        return None;
    }
    let path = segments.join("/");
    Some(path.strip_suffix(".git").unwrap_or(&path).to_owned())
}
