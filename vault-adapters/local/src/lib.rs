//! wallgate-vault-local.
