//! The one place where what went wrong becomes a status and a code. A sandbox gets these and nothing else (C04).

use http::StatusCode;
use thiserror::Error;

use crate::arm::ArmError;
use crate::dial::DialError;
use crate::parse::BodyError;
use crate::parse::refusal::Refusal;
use crate::resolve::ResolveError;

/// Why a request did not get a response from its origin.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// Refused before policy.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The request's body broke off, or was too large.
    #[error("the request's body: {0}")]
    Body(#[from] BodyError),
    /// The request's body broke off while it was being sent.
    #[error("the request's body broke off: {code}")]
    BodyCut {
        /// What the sandbox gets.
        status: StatusCode,
        /// Why.
        code: &'static str,
    },
    /// A ruling wants a read to be rebuilt from its operation, and this operation has no such form.
    #[error("the operation has no canonical form")]
    NotCanonical,
    /// A body that policy wanted to see is encoded in a way that is not read.
    #[error("the body's encoding is not one that policy can look into")]
    Encoding,
    /// The decision could not be recorded.
    #[error("not recorded: {0}")]
    Ledger(#[from] wallgate_ledger::LedgerError),
    /// The decision was not recorded in time.
    #[error("not recorded in time")]
    LedgerTimeout,
    /// A credential could not be injected.
    #[error("not armed: {0}")]
    Arm(#[source] Box<ArmError>),
    /// A credential was not there in time.
    #[error("not armed in time")]
    ArmTimeout,
    /// The name does not resolve, or to where nobody may go.
    #[error("not resolved: {0}")]
    Resolve(#[from] ResolveError),
    /// The resolver did not answer in time.
    #[error("not resolved in time")]
    ResolveTimeout,
    /// There is no connection to the origin.
    #[error("not dialled: {0}")]
    Dial(#[from] DialError),
    /// The origin did not accept a connection in time.
    #[error("not dialled in time")]
    DialTimeout,
    /// The origin broke the protocol or hung up.
    #[error("upstream broke off: {0}")]
    Upstream(#[source] hyper::Error),
    /// The origin did not answer in time.
    #[error("upstream did not answer in time")]
    UpstreamTimeout,
    /// The origin answered with something that is not passed on.
    #[error("upstream answered what cannot be passed on")]
    UpstreamAnswer,
    /// The response cannot be scrubbed.
    #[error("the response cannot be scrubbed")]
    Scrub,
    /// The sandbox has as many taints as can be remembered.
    #[error("no room for another taint")]
    Taints,
}

impl Failure {
    /// The stable reason code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Body(error) => error.code(),
            Self::BodyCut { code, .. } => code,
            Self::NotCanonical => "not_canonical",
            Self::Encoding => "body_encoding",
            Self::Ledger(error) => error.code(),
            Self::LedgerTimeout => "ledger_timeout",
            Self::Arm(error) => error.refusal.code(),
            Self::ArmTimeout => "credential_timeout",
            Self::Resolve(error) => error.code(),
            Self::ResolveTimeout => "resolve_timeout",
            Self::Dial(error) => error.code(),
            Self::DialTimeout => "upstream_connect_timeout",
            Self::Upstream(_) => "upstream_broken",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamAnswer => "upstream_answer",
            Self::Scrub => "scrub_unavailable",
            Self::Taints => "taints_full",
        }
    }

    /// What the sandbox gets.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Body(BodyError::RequestLimit { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyError::Client(_) | BodyError::Trailer) => StatusCode::BAD_REQUEST,
            Self::Body(BodyError::Upstream(_) | BodyError::ResponseLimit { .. } | BodyError::Scrub(_))
            | Self::Upstream(_)
            | Self::UpstreamAnswer
            | Self::Scrub => StatusCode::BAD_GATEWAY,
            Self::BodyCut { status, .. } => *status,
            Self::NotCanonical => StatusCode::FORBIDDEN,
            Self::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Ledger(_) | Self::LedgerTimeout | Self::ArmTimeout | Self::Taints => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Arm(error) => error.refusal.status(),
            Self::Resolve(error) => match error.code() {
                "dest_forbidden" | "dest_self" => StatusCode::FORBIDDEN,
                "resolve_timeout" => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            },
            Self::Dial(error) => match error.code() {
                "upstream_connect_timeout" | "upstream_tls_timeout" => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            },
            Self::ResolveTimeout | Self::DialTimeout | Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// One sentence for a person, free of anything that a sandbox should not learn.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.to_string(),
            Self::Body(BodyError::RequestLimit { .. }) => {
                "The request's body is larger than is allowed.".to_owned()
            }
            Self::NotCanonical => {
                "This operation cannot be rebuilt from its name, so nothing was sent.".to_owned()
            }
            Self::Body(_) | Self::BodyCut { .. } => "A body broke off.".to_owned(),
            Self::Encoding => "The body is encoded in a way that policy cannot look into.".to_owned(),
            Self::Ledger(_) | Self::LedgerTimeout => {
                "The decision could not be recorded, so nothing was sent.".to_owned()
            }
            Self::Arm(_) | Self::ArmTimeout => {
                "A credential could not be used, so nothing was sent.".to_owned()
            }
            Self::Resolve(_) | Self::ResolveTimeout => {
                "The host could not be resolved to a permitted address.".to_owned()
            }
            Self::Dial(_) | Self::DialTimeout => "The host could not be reached safely.".to_owned(),
            Self::Upstream(_) | Self::UpstreamTimeout | Self::UpstreamAnswer => {
                "The host did not answer usably.".to_owned()
            }
            Self::Scrub => "The response could not be checked for secrets.".to_owned(),
            Self::Taints => "The sandbox's memory is full, so nothing was sent.".to_owned(),
        }
    }
}
