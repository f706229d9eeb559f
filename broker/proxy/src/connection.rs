//! The life of a connection.
