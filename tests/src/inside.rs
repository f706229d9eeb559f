//! Programs that attack from inside: what a polite client would never send.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::wallgate::Wallgate;

/// Sends bytes over one connection, TLS or not, to an address and with a handshake name of the caller's choice, and
/// prints everything that comes back.
///
/// `raw.py tls|tcp ADDRESS PORT SNI BYTES…`: each BYTES is sent after something came back for the one before;
/// backslash escapes as in Python.
const RAW_CLIENT: &str = r#"
import socket, ssl, sys

kind, address, port, sni, *pieces = sys.argv[1:]
stream = socket.create_connection((address, int(port)), 20)
try:
    if kind == "tls":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        stream = context.wrap_socket(stream, server_hostname=sni or None)
    stream.settimeout(20)
    for number, piece in enumerate(pieces):
        stream.sendall(piece.encode("latin-1").decode("unicode_escape").encode("latin-1"))
        if number + 1 < len(pieces):
            sys.stdout.write(stream.recv(65536).decode("latin-1"))
    stream.settimeout(3)
    while True:
        got = stream.recv(65536)
        if not got:
            break
        sys.stdout.write(got.decode("latin-1"))
except (ssl.SSLError, OSError) as error:
    print("raw: ", type(error).__name__, error)
"#;

/// Puts the client where the sandbox can run it, and returns the command that does.
///
/// # Errors
///
/// When it cannot be written.
pub fn raw_client(wallgate: &Wallgate<'_>) -> Result<String> {
    let script: PathBuf = wallgate.work().join("raw.py");
    fs::write(&script, RAW_CLIENT).context("cannot write the raw client")?;
    Ok(format!("python3 {}", script.display()))
}
