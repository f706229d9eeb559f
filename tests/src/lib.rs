//! wallgate-tests.

pub mod frames;
pub mod hostile;
