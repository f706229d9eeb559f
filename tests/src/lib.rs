//! wallgate-tests.
