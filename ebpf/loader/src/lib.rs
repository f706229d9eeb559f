//! wallgate-wall.
