//! What a sandbox brings to log in with: by name, in headers and in the URL.
//!
//! There is no registry of such names, so two nets are used: the names that are known, and the words that names of such
//! headers are made of. A header too many is only missed by a service that has a credential of ours anyway.

use http::{HeaderMap, HeaderName};
use wallgate_types::request::RequestFacts;
use wallgate_vault::config::Credential;

/// Names that the words below do not give away.
const KNOWN: [&str; 19] = [
    "cookie",
    "cookie2",
    "dd-application-key",
    "ocp-apim-subscription-key",
    "openai-organization",
    "openai-project",
    "anthropic-organization",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-functions-key",
    "x-goog-user-project",
    "x-honeycomb-team",
    "x-ms-date",
    "x-ms-client-principal",
    "x-jfrog-art-api",
    "x-plex-client-identifier",
    "x-remote-user",
    "x-tenant-key",
    "x-user-key",
];

/// Words of names that carry something to log in with.
const WORDS: [&str; 22] = [
    "accesskey",
    "apikey",
    "apitoken",
    "assertion",
    "auth",
    "authentication",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "dpop",
    "jwt",
    "otp",
    "passwd",
    "password",
    "pat",
    "secret",
    "session",
    "sessionid",
    "signature",
    "sid",
    "token",
];

/// Words before `key` that make it one to log in with.
const KEYS: [&str; 5] = ["access", "api", "license", "private", "subscription"];

/// Names with such a word that log nobody in.
const HARMLESS: [&str; 8] = [
    "www-authenticate",
    "x-csrf-token",
    "x-xsrf-token",
    "csrf-token",
    "xsrf-token",
    "sec-websocket-key",
    "idempotency-key",
    "x-continuation-token",
];

/// Query keys that carry something to log in with, lower case, with `-` and `.` as `_`.
const QUERY: [&str; 45] = [
    "key",
    "api_key",
    "apikey",
    "apitoken",
    "api_token",
    "access_key",
    "accesskey",
    "access_token",
    "accesstoken",
    "account_key",
    "app_key",
    "appkey",
    "auth",
    "auth_key",
    "auth_token",
    "authtoken",
    "authorization",
    "awsaccesskeyid",
    "bearer",
    "bearer_token",
    "client_assertion",
    "client_secret",
    "credential",
    "credentials",
    "googleaccessid",
    "id_token",
    "job_token",
    "jwt",
    "oauth_token",
    "oauth_signature",
    "passwd",
    "password",
    "personal_access_token",
    "private_token",
    "pat",
    "refresh_token",
    "secret",
    "session_token",
    "sig",
    "signature",
    "subscription_key",
    "token",
    "x_api_key",
    "sas_token",
    "x_token",
];

/// Query keys of signed URLs begin so.
const SIGNED: [&str; 3] = ["x_amz_", "x_goog_", "x_ms_"];

/// Where a URL brings a credential, if it does.
pub(super) fn in_url(facts: &RequestFacts) -> Option<&'static str> {
    facts
        .query
        .iter()
        .any(|(key, _)| is_query_credential(key))
        .then_some("query")
}

fn is_query_credential(key: &str) -> bool {
    // An array or object notation means the same key to many servers.
    let key = key.split('[').next().unwrap_or(key);
    let plain: String = key
        .chars()
        .filter(|c| !c.is_whitespace() && !c.is_control())
        .map(|c| match c {
            '-' | '.' => '_',
            other => other.to_ascii_lowercase(),
        })
        .collect();
    QUERY.contains(&plain.as_str()) || SIGNED.iter().any(|prefix| plain.starts_with(prefix))
}

/// Takes out every header that could log somebody in. Returns their names.
pub(super) fn remove(fields: &mut HeaderMap, bound: &[&Credential]) -> Vec<String> {
    let names: Vec<HeaderName> = fields
        .keys()
        .filter(|name| is_credential(name) || bound.iter().any(|c| c.shape.header() == *name))
        .cloned()
        .collect();
    for name in &names {
        fields.remove(name);
    }
    names.iter().map(ToString::to_string).collect()
}

fn is_credential(name: &HeaderName) -> bool {
    let name = name.as_str();
    if HARMLESS.contains(&name) {
        return false;
    }
    if KNOWN.contains(&name) {
        return true;
    }
    let words: Vec<&str> = name.split(['-', '_', '.']).collect();
    let logs_in = words.iter().any(|word| WORDS.contains(word));
    let is_key = words
        .windows(2)
        .any(|pair| matches!(pair, [kind, "key" | "keys"] if KEYS.contains(kind)));
    logs_in || is_key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_logs_somebody_in() {
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "api-key",
            "apikey",
            "x-goog-api-key",
            "x-auth-token",
            "private-token",
            "job-token",
            "x-vault-token",
            "x-amz-security-token",
            "x-shopify-access-token",
            "x-subscription-token",
            "x-rapidapi-key-api-key",
            "dd-api-key",
            "circle-token",
            "openai-organization",
            "x-forwarded-access-token",
            "x-original-authorization",
            "x-client-secret",
            "npm-otp",
            "x_auth",
            "dpop",
        ] {
            assert!(is_credential(&HeaderName::from_static(name)), "{name}");
        }
        for name in [
            "accept",
            "content-type",
            "user-agent",
            "x-csrf-token",
            "idempotency-key",
            "anthropic-version",
            "x-github-api-version",
            "if-none-match",
            "git-protocol",
            "npm-in-ci",
            "x-request-id",
            "traceparent",
        ] {
            assert!(!is_credential(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn knows_query_keys_in_any_spelling() {
        for key in [
            "key",
            "API-Key",
            "access_token",
            "X-Amz-Signature",
            "token[]",
            "auth.token",
            "to ken",
        ] {
            assert!(is_query_credential(key), "{key}");
        }
        for key in ["per_page", "page_token", "next", "keyword", "sort_key", ""] {
            assert!(!is_query_credential(key), "{key}");
        }
    }
}
