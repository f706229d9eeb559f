//! Writing what was asked for to standard output.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::exit::Failure;

/// Writes one line. A reader that has gone away is no failure.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    tolerate(writeln!(io::stdout(), "{text}"))
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    line(&text)
}

fn tolerate(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::internal(format!(
            "cannot write to standard output: {error}"
        ))),
        Ok(()) | Err(_) => Ok(()),
    }
}
