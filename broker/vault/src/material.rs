//! A secret, checked and shaped: the header that is injected, and what the scrubber has to look for.
//!
//! This is the one module of the crate that looks at a secret.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use wallgate_types::secret::Secret;
use zeroize::{Zeroize as _, Zeroizing};

/// The shortest secret, in bytes. A shorter one would be found in innocent responses, and could be guessed.
pub const MIN_SECRET_BYTES: usize = 8;
/// The longest secret that fits a header, in bytes.
pub const MAX_HEADER_SECRET_BYTES: usize = 8 * 1024;

/// What a credential looks like on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `Authorization: Bearer VALUE` (RFC 6750, section 2.1).
    Bearer,
    /// `Authorization: Basic base64(USER:VALUE)` (RFC 7617). Without a user the value is `user:password`.
    Basic {
        /// The configured user.
        user: Option<String>,
    },
    /// `NAME: PREFIX VALUE`, the prefix exactly as configured.
    Header {
        /// The header.
        name: HeaderName,
        /// What stands before the value.
        prefix: String,
    },
}

impl Shape {
    /// The header that it writes.
    #[must_use]
    pub fn header(&self) -> &HeaderName {
        match self {
            Self::Bearer | Self::Basic { .. } => &AUTHORIZATION,
            Self::Header { name, .. } => name,
        }
    }
}

/// Why a fetched value cannot be used. Says nothing of the value but what is wrong with its form.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub enum ValueError {
    /// Nothing there.
    #[error("the value is empty")]
    Empty,
    /// Shorter than [`MIN_SECRET_BYTES`].
    #[error(
        "the secret is shorter than {MIN_SECRET_BYTES} characters, so it could not be told from other text in a response"
    )]
    TooShort,
    /// Longer than [`MAX_HEADER_SECRET_BYTES`].
    #[error("the secret is longer than {MAX_HEADER_SECRET_BYTES} characters")]
    TooLong,
    /// A line break, control character, or something outside ASCII.
    #[error("the value has a line break, a control character or a non-ASCII character")]
    Character,
    /// White space at an end, which a header loses (RFC 9110, section 5.5).
    #[error("the value begins or ends with white space")]
    Space,
    /// A space inside a bearer token (RFC 6750, section 2.1).
    #[error("the value has a space, which a bearer token cannot have")]
    BearerSpace,
    /// No `user:` in front of a basic password.
    #[error("the value is not user:password, and no user is configured")]
    NoUser,
}

/// A usable credential value of one version.
///
/// It holds the header value in memory that is overwritten when its last holder is gone.
pub struct Material {
    id: u64,
    name: Arc<str>,
    version: String,
    header: HeaderName,
    value: HeaderValue,
    needles: Vec<Secret<Vec<u8>>>,
}

/// Memory that a [`Bytes`] keeps and that is overwritten in the end.
struct Overwritten(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for Overwritten {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Material {
    /// Checks `value` and shapes it.
    ///
    /// # Errors
    /// [`ValueError`] when it could not be sent safely or not be found again in a response.
    #[expect(
        clippy::disallowed_methods,
        reason = "here the secret becomes the header, and is taken apart for the scrubber"
    )]
    pub fn new(
        name: Arc<str>,
        shape: &Shape,
        value: &Secret<Vec<u8>>,
        version: String,
    ) -> Result<Self, ValueError> {
        let value = value.expose().as_slice();
        check_value(value)?;
        let mut needles = Vec::new();
        let header_value = match shape {
            Shape::Bearer => {
                if value.contains(&b' ') {
                    return Err(ValueError::BearerSpace);
                }
                needles.push(needle(value)?);
                join(&[b"Bearer ", value])
            }
            Shape::Basic { user } => {
                let pair = match user {
                    Some(user) => join(&[user.as_bytes(), b":", value]),
                    None => join(&[value]),
                };
                let password = pair
                    .iter()
                    .position(|b| *b == b':')
                    .and_then(|colon| pair.get(colon.saturating_add(1)..))
                    .ok_or(ValueError::NoUser)?;
                needles.push(needle(password)?);
                let encoded = Zeroizing::new(STANDARD.encode(pair.as_slice()));
                needles.push(needle(encoded.as_bytes())?);
                join(&[b"Basic ", encoded.as_bytes()])
            }
            Shape::Header { prefix, .. } => {
                needles.push(needle(value)?);
                join(&[prefix.as_bytes(), value])
            }
        };
        let shared = Bytes::from_owner(Overwritten(header_value));
        let mut header_value = HeaderValue::from_maybe_shared(shared).or(Err(ValueError::Character))?;
        header_value.set_sensitive(true);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name,
            version,
            header: shape.header().clone(),
            value: header_value,
            needles,
        })
    }

    /// A number that no other material of this process has.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The credential's name.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the source calls this value.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The header that [`Material::inject`] writes.
    #[must_use]
    pub const fn header(&self) -> &HeaderName {
        &self.header
    }

    /// Puts the credential on a request, in place of whatever stood there.
    pub fn inject(&self, headers: &mut HeaderMap) {
        headers.insert(self.header.clone(), self.value.clone());
    }

    /// Whether the other is the same value under the same version. Compared in constant time.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.version == other.version
            && self.header == other.header
            && bool::from(self.value.as_bytes().ct_eq(other.value.as_bytes()))
    }

    /// What must not come back: each at least [`MIN_SECRET_BYTES`] long.
    #[must_use]
    pub fn needles(&self) -> &[Secret<Vec<u8>>] {
        &self.needles
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn check_value(value: &[u8]) -> Result<(), ValueError> {
    if value.is_empty() {
        return Err(ValueError::Empty);
    }
    if value.len() > MAX_HEADER_SECRET_BYTES {
        return Err(ValueError::TooLong);
    }
    if !value.iter().all(|b| matches!(b, 0x20..=0x7e)) {
        return Err(ValueError::Character);
    }
    if value.first() == Some(&b' ') || value.last() == Some(&b' ') {
        return Err(ValueError::Space);
    }
    Ok(())
}

fn needle(secret: &[u8]) -> Result<Secret<Vec<u8>>, ValueError> {
    if secret.len() < MIN_SECRET_BYTES {
        return Err(ValueError::TooShort);
    }
    Ok(Secret::new(secret.to_vec()))
}

/// Concatenates without leaving a copy behind in an outgrown buffer.
fn join(parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let length = parts.iter().map(|part| part.len()).sum();
    let mut whole = Zeroizing::new(Vec::with_capacity(length));
    for part in parts {
        whole.extend_from_slice(part);
    }
    whole
}

/// Removes one trailing line break and surrounding white space, as text files have them, without leaving a copy.
#[must_use]
pub fn trimmed(mut value: Zeroizing<Vec<u8>>) -> Secret<Vec<u8>> {
    let end = value.trim_ascii_end().len();
    if let Some(tail) = value.get_mut(end..) {
        tail.zeroize();
    }
    value.truncate(end);
    Secret::new(std::mem::take(&mut *value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearerless(value: &[u8], shape: &Shape) -> Result<Material, ValueError> {
        Material::new("c".into(), shape, &Secret::new(value.to_vec()), "1".into())
    }

    #[track_caller]
    fn check(shape: &Shape, value: &str, expected: Result<(&str, &str), ValueError>) {
        let got = bearerless(value.as_bytes(), shape).map(|material| {
            let mut headers = HeaderMap::new();
            material.inject(&mut headers);
            let (name, value) = headers
                .iter()
                .next()
                .map(|(n, v)| (n.clone(), v.clone()))
                .unwrap();
            assert!(value.is_sensitive());
            (name.to_string(), value.to_str().unwrap().to_owned())
        });
        let expected = expected.map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(got, expected);
    }

    #[test]
    fn shapes_are_what_their_specifications_say() {
        let header = |name: &'static str, prefix: &str| Shape::Header {
            name: HeaderName::from_static(name),
            prefix: prefix.to_owned(),
        };
        check(
            &Shape::Bearer,
            "tok-12345678",
            Ok(("authorization", "Bearer tok-12345678")),
        );
        // RFC 7617, section 2.
        check(
            &Shape::Basic { user: None },
            "Aladdin:open sesame",
            Ok(("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
        );
        check(
            &Shape::Basic {
                user: Some("Aladdin".into()),
            },
            "open sesame",
            Ok(("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
        );
        check(
            &header("x-api-key", ""),
            "k-12345678",
            Ok(("x-api-key", "k-12345678")),
        );
        check(
            &header("authorization", "token "),
            "k-12345678",
            Ok(("authorization", "token k-12345678")),
        );
    }

    #[test]
    fn refuses_what_cannot_be_sent_or_found_again() {
        let basic = Shape::Basic { user: None };
        let rows = [
            (&Shape::Bearer, "", ValueError::Empty),
            (&Shape::Bearer, "1234567", ValueError::TooShort),
            (&Shape::Bearer, "12345678\r\nx: y", ValueError::Character),
            (&Shape::Bearer, "12345678\0", ValueError::Character),
            (&Shape::Bearer, "12345678\t9", ValueError::Character),
            (&Shape::Bearer, "12345678é", ValueError::Character),
            (&Shape::Bearer, " 12345678", ValueError::Space),
            (&Shape::Bearer, "1234 5678", ValueError::BearerSpace),
            (&basic, "no-colon-at-all", ValueError::NoUser),
            (&basic, "long-user-name:short", ValueError::TooShort),
        ];
        for (shape, value, error) in rows {
            check(shape, value, Err(error));
        }
        check(
            &Shape::Bearer,
            &"x".repeat(MAX_HEADER_SECRET_BYTES + 1),
            Err(ValueError::TooLong),
        );
    }

    #[test]
    fn nothing_shows_the_value() {
        let material = bearerless(b"hunter2-hunter2", &Shape::Bearer).unwrap();
        let mut headers = HeaderMap::new();
        material.inject(&mut headers);
        let shown = format!("{material:?} {headers:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
