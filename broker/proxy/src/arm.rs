//! Credentials, last of all (P6, DESIGN §10).
//!
//! [`arm`] takes nothing but a recorded allowance, so no credential leaves on a request that was not decided and
//! recorded. It does, in this order:
//!
//! 1. refuses a placeholder that is not this sandbox's, or stands where it was not declared (attacks C02, C08);
//! 2. for a host that any credential is bound to: takes out every credential that the sandbox brought, or refuses
//!    where that is in the URL, so that a foreign key cannot ride along (attacks C06, X01);
//! 3. checks that each credential that the ruling names is bound to this request, over TLS;
//! 4. fetches them all, or refuses (attack C15);
//! 5. takes out what would make the response impossible to scrub;
//! 6. injects.
//!
//! [`Armed`] is the proof. It has private fields and one maker.

mod foreign;
mod misplaced;

use std::fmt;
use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use thiserror::Error;
use wallgate_ledger::Recorded;
use wallgate_policy::Allowed;
use wallgate_types::clock::Timestamp;
use wallgate_types::record::CredentialUse;
use wallgate_types::request::{Protocol, RequestFacts};
use wallgate_types::ruling::Ruling;
use wallgate_vault::binding::Withheld;
use wallgate_vault::config::Credential;
use wallgate_vault::material::Material;
use wallgate_vault::placeholder::Placeholders;
use wallgate_vault::store::{CredentialError, CredentialStore};

use crate::parse::{Parsed, RequestBody};
use crate::scrub::{Scrubber, ScrubberCache, prepare_request};
use misplaced::Misplaced;

/// What arming needs. One for all sandboxes. The default has no credential.
#[derive(Debug, Default)]
pub struct Armoury {
    store: Arc<CredentialStore>,
    placeholders: Arc<Placeholders>,
    scrubbers: ScrubberCache,
}

impl Armoury {
    /// These credentials and these placeholders.
    #[must_use]
    pub fn new(store: Arc<CredentialStore>, placeholders: Arc<Placeholders>) -> Self {
        Self {
            store,
            placeholders,
            scrubbers: ScrubberCache::new(),
        }
    }

    /// The credentials.
    #[must_use]
    pub const fn store(&self) -> &Arc<CredentialStore> {
        &self.store
    }
}

/// A request with its credentials, ready to be sent.
#[must_use = "an armed request is sent or dropped"]
pub struct Armed {
    parsed: Parsed,
    ruling: Ruling,
    equipment: Equipment,
}

/// What was put on a request, and what its response must not show.
#[derive(Debug)]
struct Equipment {
    uses: Vec<CredentialUse>,
    pool_key: Option<String>,
    scrub: Option<Scrubber>,
}

/// An [`Armed`] request, apart.
pub(crate) struct ArmedParts {
    pub(crate) head: Parts,
    pub(crate) body: RequestBody,
    pub(crate) facts: RequestFacts,
    pub(crate) ruling: Ruling,
    /// What must not be in the response, unless nothing could be.
    pub(crate) scrub: Option<Scrubber>,
}

impl Armed {
    /// What became of each credential, and what of the sandbox's own was taken out: for the outcome's record.
    pub(crate) fn uses(&self) -> &[CredentialUse] {
        &self.equipment.uses
    }

    /// What tells pooled connections apart: names and versions of what was injected.
    pub(crate) fn pool_key(&self) -> Option<&str> {
        self.equipment.pool_key.as_deref()
    }

    /// The request as it is sent: the proof is spent.
    pub(crate) fn into_parts(self) -> ArmedParts {
        let Parsed {
            facts, head, body, ..
        } = self.parsed;
        ArmedParts {
            head,
            body,
            facts,
            ruling: self.ruling,
            scrub: self.equipment.scrub,
        }
    }
}

impl fmt::Debug for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed")
            .field("id", &self.parsed.facts.id)
            .field("pool_key", &self.equipment.pool_key)
            .finish_non_exhaustive()
    }
}

/// Why a request goes nowhere after it was allowed.
#[derive(Debug, Error)]
pub enum ArmRefusal {
    /// A credential that the ruling names is not bound to this request.
    #[error("credential \"{name}\" is not bound to this request: {reason}")]
    Binding {
        /// The credential.
        name: String,
        /// What its binding does not cover.
        reason: Withheld,
    },
    /// A placeholder that is somebody else's, nobody's, or in the wrong place.
    #[error("a placeholder in {location} is {standing}")]
    Placeholder {
        /// Where.
        location: &'static str,
        /// What is wrong with it.
        standing: &'static str,
    },
    /// The sandbox's own credential, where it cannot be taken out.
    #[error("the request brings a credential of its own in {location}")]
    Foreign {
        /// Where.
        location: &'static str,
    },
    /// Two credentials for one header.
    #[error("two credentials of the ruling would go into the same header")]
    Conflict,
    /// The ruling wants the request relayed undecrypted, where nothing can be injected or scrubbed.
    #[error("a passthrough request gets no credential")]
    Passthrough,
    /// What follows the response would not be HTTP, so it could not be scrubbed.
    #[error("a host with credentials takes no protocol upgrade")]
    Upgrade,
    /// There is no usable value.
    #[error(transparent)]
    Unavailable(#[from] CredentialError),
    /// The scrubber cannot be built.
    #[error("the response could not be scrubbed")]
    Scrub,
}

impl ArmRefusal {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Binding { .. } => "credential_binding",
            Self::Placeholder { .. } => "credential_placeholder",
            Self::Foreign { .. } => "credential_foreign",
            Self::Conflict => "credential_conflict",
            Self::Passthrough => "credential_passthrough",
            Self::Upgrade => "credential_upgrade",
            Self::Unavailable(error) => error.code(),
            Self::Scrub => "scrub_unavailable",
        }
    }

    /// What the sandbox is told: never, or not now.
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::Unavailable(_) | Self::Scrub => StatusCode::SERVICE_UNAVAILABLE,
            Self::Binding { .. }
            | Self::Placeholder { .. }
            | Self::Foreign { .. }
            | Self::Conflict
            | Self::Passthrough
            | Self::Upgrade => StatusCode::FORBIDDEN,
        }
    }
}

/// A refusal, with what its record says of credentials.
#[derive(Debug, Error)]
#[error("{refusal}")]
pub struct ArmError {
    /// Why.
    #[source]
    pub refusal: ArmRefusal,
    /// Each credential that was withheld, and what of the sandbox's own was taken out.
    pub uses: Vec<CredentialUse>,
}

/// Puts on a request the credentials that its ruling names. Nothing has been sent when it fails. Cancel-safe: a use
/// may have been counted.
///
/// # Errors
/// [`ArmError`] when the request must not be sent.
pub async fn arm(
    recorded: Recorded<Allowed<Parsed>>,
    armoury: &Armoury,
    now: Timestamp,
) -> Result<Armed, ArmError> {
    let (mut parsed, ruling) = recorded.into_value().into_parts();
    let equipment = equip(&mut parsed, &ruling, armoury, now).await?;
    Ok(Armed {
        parsed,
        ruling,
        equipment,
    })
}

async fn equip(
    parsed: &mut Parsed,
    ruling: &Ruling,
    armoury: &Armoury,
    now: Timestamp,
) -> Result<Equipment, ArmError> {
    let mut uses = Vec::new();
    match prepare(parsed, ruling, armoury, now, &mut uses).await {
        Ok((scrub, materials)) => {
            for material in &materials {
                material.inject(&mut parsed.head.headers);
                uses.push(CredentialUse {
                    name: material.name().to_string(),
                    version: Some(material.version().to_owned()),
                    withheld: None,
                });
            }
            let keys: Vec<_> = materials
                .iter()
                .map(|material| format!("{}@{}#{}", material.name(), material.version(), material.id()))
                .collect();
            Ok(Equipment {
                uses,
                pool_key: (!keys.is_empty()).then(|| keys.join(",")),
                scrub,
            })
        }
        Err(refusal) => {
            let names_one = uses.iter().any(|each: &CredentialUse| !is_own(&each.name));
            if !names_one {
                uses.extend(
                    ruling
                        .credentials
                        .iter()
                        .map(|name| withheld(name, refusal.code())),
                );
            }
            Err(ArmError { refusal, uses })
        }
    }
}

/// Everything but the injection itself, which cannot fail.
async fn prepare(
    parsed: &mut Parsed,
    ruling: &Ruling,
    armoury: &Armoury,
    now: Timestamp,
    uses: &mut Vec<CredentialUse>,
) -> Result<(Option<Scrubber>, Vec<Arc<Material>>), ArmRefusal> {
    let Armoury {
        store,
        placeholders,
        scrubbers,
    } = armoury;
    let Parsed { facts, head, .. } = parsed;
    let host = facts.authority.host();
    let bound: Vec<&Credential> = store.bound_to(host).collect();

    misplaced::check(facts, &head.headers, placeholders, &bound)
        .map_err(|Misplaced { location, standing }| ArmRefusal::Placeholder { location, standing })?;
    if !bound.is_empty() {
        if let Some(location) = foreign::in_url(facts) {
            return Err(ArmRefusal::Foreign { location });
        }
        let removed = foreign::remove(&mut head.headers, &bound);
        uses.extend(removed.into_iter().map(|name| own(&name)));
        if facts.protocol == Protocol::Websocket || head.method == Method::CONNECT {
            return Err(ArmRefusal::Upgrade);
        }
    }

    let mut names: Vec<&str> = ruling.credentials.iter().map(String::as_str).collect();
    names.dedup();
    if !names.is_empty() && ruling.passthrough {
        return Err(ArmRefusal::Passthrough);
    }
    for name in &names {
        store.permits(name, facts, now).map_err(|reason| match reason {
            Some(reason) => {
                uses.push(withheld(name, reason.code()));
                ArmRefusal::Binding {
                    name: (*name).to_owned(),
                    reason,
                }
            }
            None => ArmRefusal::Unavailable(CredentialError::Unknown {
                name: (*name).to_owned(),
            }),
        })?;
    }
    let mut materials: Vec<Arc<Material>> = Vec::with_capacity(names.len());
    for name in &names {
        let material = store.get(name).await?;
        if materials.iter().any(|other| other.header() == material.header()) {
            return Err(ArmRefusal::Conflict);
        }
        materials.push(material);
    }
    let mut to_scrub = store.remembered_for(host);
    to_scrub.extend(materials.iter().cloned());
    let scrubber = if to_scrub.is_empty() {
        None
    } else {
        prepare_request(&mut head.headers);
        Some(scrubbers.scrubber(&to_scrub).ok_or(ArmRefusal::Scrub)?)
    };
    for name in &names {
        store.take_use(name).map_err(|reason| {
            uses.push(withheld(name, reason.code()));
            ArmRefusal::Binding {
                name: (*name).to_owned(),
                reason,
            }
        })?;
    }
    keep_end_to_end(&mut head.headers, &materials);
    Ok((scrubber, materials))
}

/// `Connection` may not name what is about to be injected, or the next hop would take it off (RFC 9110, section
/// 7.6.1).
fn keep_end_to_end(fields: &mut HeaderMap, materials: &[Arc<Material>]) {
    if materials.is_empty() || !fields.contains_key(CONNECTION) {
        return;
    }
    let is_injected = |token: &str| {
        materials
            .iter()
            .any(|material| material.header().as_str().eq_ignore_ascii_case(token))
    };
    let kept: Vec<String> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty() && !is_injected(token))
        .map(str::to_owned)
        .collect();
    fields.remove(CONNECTION);
    if let (false, Ok(value)) = (kept.is_empty(), HeaderValue::try_from(kept.join(", "))) {
        fields.insert(CONNECTION, value);
    }
}

/// What a record calls something that the sandbox brought. No credential's name has a colon.
const OWN: &str = "sandbox:";

fn own(location: &str) -> CredentialUse {
    withheld(&format!("{OWN}{location}"), "foreign")
}

fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

fn withheld(name: &str, reason: &str) -> CredentialUse {
    CredentialUse {
        name: name.to_owned(),
        version: None,
        withheld: Some(reason.to_owned()),
    }
}

#[cfg(test)]
mod tests;
