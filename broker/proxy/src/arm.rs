//! Placeholder until the credential stage lands: injects nothing, and refuses whatever asks for a credential.

use http::StatusCode;
use http::request::Parts;
use wallgate_ledger::Recorded;
use wallgate_policy::Allowed;
use wallgate_types::clock::Timestamp;
use wallgate_types::record::CredentialUse;
use wallgate_types::request::RequestFacts;
use wallgate_types::ruling::Ruling;

use crate::parse::{Parsed, RequestBody};
use crate::scrub::Scrubber;

/// What credentials are injected from.
#[derive(Debug, Default)]
pub struct Armoury {}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ArmRefusal;

impl ArmRefusal {
    pub(crate) const fn code(self) -> &'static str {
        "credential_unknown"
    }

    pub(crate) const fn status(self) -> StatusCode {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[derive(Debug, thiserror::Error)]
#[error("credential_unknown")]
pub(crate) struct ArmError {
    pub(crate) refusal: ArmRefusal,
    pub(crate) uses: Vec<CredentialUse>,
}

pub(crate) struct Armed(ArmedParts);

pub(crate) struct ArmedParts {
    pub(crate) head: Parts,
    pub(crate) body: RequestBody,
    pub(crate) facts: RequestFacts,
    pub(crate) ruling: Ruling,
    pub(crate) scrub: Option<Scrubber>,
}

impl Armed {
    pub(crate) const fn uses(&self) -> &[CredentialUse] {
        &[]
    }

    pub(crate) const fn pool_key(&self) -> Option<&str> {
        None
    }

    pub(crate) fn into_parts(self) -> ArmedParts {
        self.0
    }
}

pub(crate) async fn arm(
    recorded: Recorded<Allowed<Parsed>>,
    _: &Armoury,
    _: Timestamp,
) -> Result<Armed, ArmError> {
    let (parsed, ruling) = recorded.into_value().into_parts();
    if !ruling.credentials.is_empty() {
        return Err(ArmError { refusal: ArmRefusal, uses: Vec::new() });
    }
    let Parsed { facts, head, body, .. } = parsed;
    Ok(Armed(ArmedParts { head, body, facts, ruling, scrub: None }))
}
