//! wallgate-vault.
