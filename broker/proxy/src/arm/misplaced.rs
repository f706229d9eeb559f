//! Placeholders where they do not belong.
//!
//! The one place for a sandbox's own placeholder is the header that its credential is injected into, on a host that
//! the credential is bound to. Anywhere else it is a credential on its way to the wrong place, or somebody trying what
//! placeholders are good for. Either way it is refused, and a finding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use wallgate_types::request::RequestFacts;
use wallgate_vault::config::Credential;
use wallgate_vault::placeholder::{Placeholder, Placeholders, Standing};

/// A placeholder that may not be where it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misplaced {
    pub(super) location: &'static str,
    pub(super) standing: &'static str,
}

/// Looks wherever a placeholder could stand: path, query, header names and values (and what is inside basic
/// authentication), and the body as far as policy asked to see it.
pub(super) fn check(
    facts: &RequestFacts,
    headers: &HeaderMap,
    known: &Placeholders,
    bound: &[&Credential],
) -> Result<(), Misplaced> {
    let sandbox = &facts.sandbox.id;
    let refuse = |location: &'static str, text: &[u8], declared: &dyn Fn(&str) -> bool| {
        for placeholder in Placeholder::all_in(text) {
            let standing = match known.standing(placeholder, sandbox) {
                Standing::Own(credential) if declared(&credential) => continue,
                Standing::Own(_) => "out of place",
                Standing::Foreign => "another sandbox's",
                Standing::Unknown => "unknown",
            };
            return Err(Misplaced { location, standing });
        }
        Ok(())
    };
    let nowhere = |_: &str| false;

    refuse("path", facts.path.as_bytes(), &nowhere)?;
    for segment in &facts.segments {
        refuse("path", segment.as_bytes(), &nowhere)?;
    }
    if let Some(query) = &facts.raw_query {
        refuse("query", query.as_bytes(), &nowhere)?;
    }
    for (key, value) in &facts.query {
        refuse("query", key.as_bytes(), &nowhere)?;
        refuse("query", value.as_bytes(), &nowhere)?;
    }
    for (name, value) in headers {
        let declared = |credential: &str| is_place_of(credential, name, bound);
        refuse("header", name.as_str().as_bytes(), &nowhere)?;
        refuse("header", value.as_bytes(), &declared)?;
        if let Some(inside) = inside_basic(name, value.as_bytes()) {
            refuse("header", &inside, &declared)?;
        }
    }
    if let Some(text) = &facts.body.text {
        refuse("body", text.as_bytes(), &nowhere)?;
    }
    if let Some(json) = &facts.body.json {
        refuse("body", json.to_string().as_bytes(), &nowhere)?;
    }
    Ok(())
}

fn is_place_of(credential: &str, header: &HeaderName, bound: &[&Credential]) -> bool {
    bound
        .iter()
        .any(|candidate| &*candidate.name == credential && candidate.shape.header() == header)
}

/// What `Authorization: Basic` holds.
fn inside_basic(name: &HeaderName, value: &[u8]) -> Option<Vec<u8>> {
    if name != AUTHORIZATION {
        return None;
    }
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    STANDARD.decode(rest.trim_ascii()).ok()
}
