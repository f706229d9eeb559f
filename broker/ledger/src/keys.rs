//! The signing key's file: mode 0600, made at the first start, refused when anybody else could read it.
//!
//! A rotation writes the next key beside the present one, records it, then renames it over. A crash in between is seen when
//! opening: the key that the log names stays, the other one goes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeroize::Zeroizing;

use crate::entropy;
use crate::note::{NoteError, SignerKey};
use crate::storage::{sync_directory, write_atomically};

const FILE: &str = "signing.key";
const NEXT: &str = "signing.key.next";
/// More than an encoded key with the longest origin has.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// Why there is no key to sign with.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody but its owner may read or write it.
    #[error("{path} has mode {mode:04o}: the signing key must be its owner's alone (chmod 600)")]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The ledger has records, but the key that signed them is gone.
    #[error("{path} is missing: this ledger's signing key cannot be made again")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Not a key.
    #[error("{path}: {source}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: NoteError,
    },
    /// A key, but not the one that the log names.
    #[error("{path} is not the key that the ledger's records name, {expected}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The verifier key that the log names.
        expected: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::Io { path, source }
}

fn generate(name: &str, path: &Path) -> Result<SignerKey, KeyError> {
    let seed = Zeroizing::new(entropy::bytes::<32>());
    let malformed = |source| KeyError::Malformed {
        path: path.to_owned(),
        source,
    };
    let key = SignerKey::from_seed(name, &seed).map_err(malformed)?;
    write_atomically(path, key.encode().as_bytes(), 0o600).map_err(io_error(path))?;
    Ok(key)
}

fn read(path: &Path) -> Result<Option<SignerKey>, KeyError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(path)(source)),
    };
    let mode = file.metadata().map_err(io_error(path))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Readable {
            path: path.to_owned(),
            mode,
        });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_KEY_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(io_error(path))?;
    let malformed = |source| KeyError::Malformed {
        path: path.to_owned(),
        source,
    };
    SignerKey::parse(&text).map(Some).map_err(malformed)
}

/// The key of a ledger that has no records yet: the one in the directory, else a new one.
pub(crate) fn first(directory: &Path, name: &str) -> Result<SignerKey, KeyError> {
    let path = directory.join(FILE);
    match read(&path)? {
        Some(key) if key.verifier().name() == name => Ok(key),
        Some(_) => Err(KeyError::Wrong {
            path,
            expected: name.to_owned(),
        }),
        None => generate(name, &path),
    }
}

/// The key whose public half the log names, after whatever a crash during a rotation left.
pub(crate) fn named(directory: &Path, vkey: &str) -> Result<SignerKey, KeyError> {
    let (path, next_path) = (directory.join(FILE), directory.join(NEXT));
    if let Some(next) = read(&next_path)? {
        if next.verifier().to_string() == vkey {
            install_next(directory)?;
            return Ok(next);
        }
        std::fs::remove_file(&next_path).map_err(io_error(&next_path))?;
    }
    let key = read(&path)?.ok_or_else(|| KeyError::Missing { path: path.clone() })?;
    if key.verifier().to_string() == vkey {
        Ok(key)
    } else {
        Err(KeyError::Wrong {
            path,
            expected: vkey.to_owned(),
        })
    }
}

/// Makes the key that will follow, durably, beside the present one.
pub(crate) fn prepare_next(directory: &Path, name: &str) -> Result<SignerKey, KeyError> {
    generate(name, &directory.join(NEXT))
}

/// Puts the following key in the place of the present one, which is gone then.
pub(crate) fn install_next(directory: &Path) -> Result<(), KeyError> {
    let (path, next_path) = (directory.join(FILE), directory.join(NEXT));
    std::fs::rename(&next_path, &path).map_err(io_error(&path))?;
    sync_directory(directory).map_err(io_error(directory))
}
