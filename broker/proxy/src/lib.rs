//! wallgate-proxy.
