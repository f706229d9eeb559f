//! The vocabulary of wallgate: what every stage of a request's life is spelled with.
//!
//! This crate does no I/O, knows no runtime and makes no decision. It holds the newtypes that keep things apart
//! which would otherwise be swapped by accident, and the one strict parser of names that everything else relies on.
//!
//! ```text
//!   sandbox   who is asking            SandboxId, SandboxFacts, IdentitySource
//!   authority what is asked for        Host, Authority            (one canonical value, or refused)
//!   address   where it would go        OriginalDst, GuestAddr, AddressClass
//!   operation what it would do         Operation, Action
//!   request   all that policy may see  RequestFacts, Subject
//!   ruling    what policy said         Verdict, Ruling
//!   record    what the ledger keeps    DecisionRecord, Recordable
//!   secret    what nobody may see      Secret<T>
//!   clock     when                     Clock, Timestamp
//! ```
//!
//! Start at [`authority`], whose parser every name goes through, and at [`request`].
#![forbid(unsafe_code)]

pub mod address;
pub mod authority;
pub mod clock;
pub mod operation;
pub mod record;
pub mod request;
pub mod ruling;
pub mod sandbox;
pub mod secret;
