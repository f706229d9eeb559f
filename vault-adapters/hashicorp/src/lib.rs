//! wallgate-vault-hashicorp.
