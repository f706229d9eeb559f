//! wallgate-wall-shared.
