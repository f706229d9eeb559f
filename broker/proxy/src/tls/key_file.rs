//! Files that hold keys: read only if nobody else could, written whole or not at all.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use zeroize::Zeroizing;

use super::ca::CaError;

/// The largest file that is read as a key.
pub(super) const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;

pub(super) fn prepare_directory(dir: &Path) -> Result<(), CaError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(dir).map_err(io("create", dir))?;
    let metadata = std::fs::symlink_metadata(dir).map_err(io("inspect", dir))?;
    check_owner(dir, &metadata)?;
    if metadata.mode() & 0o022 != 0 {
        return Err(CaError::Permissions {
            path: dir.to_owned(),
            mode: metadata.mode() & 0o7777,
            wanted: "writable by its owner only",
        });
    }
    Ok(())
}

fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), CaError> {
    let expected = rustix::process::geteuid().as_raw();
    if metadata.uid() == expected {
        return Ok(());
    }
    Err(CaError::Owner {
        path: path.to_owned(),
        owner: metadata.uid(),
        expected,
    })
}

pub(super) fn exists(path: &Path) -> Result<bool, CaError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io("inspect", path)(error)),
    }
}

/// The bytes of a key file, once it is certain that nobody else could read it.
pub(super) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, CaError> {
    let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(no_follow)
        .open(path)
        .map_err(io("open", path))?;
    let metadata = file.metadata().map_err(io("inspect", path))?;
    if !metadata.is_file() || metadata.len() > MAX_KEY_FILE_BYTES {
        return Err(CaError::NotAFile {
            path: path.to_owned(),
        });
    }
    check_owner(path, &metadata)?;
    if metadata.mode() & 0o177 != 0 {
        return Err(CaError::Permissions {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
            wanted: "0600 or less",
        });
    }
    // Room for the whole file at once, so that no copy of the key is left behind by a reallocation.
    let room = usize::try_from(MAX_KEY_FILE_BYTES).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(MAX_KEY_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(io("read", path))?;
    Ok(bytes)
}

/// What happens to a file that is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwrite {
    Yes,
    No,
}

/// Writes a file of mode 0600 that is there whole or not at all, also after a power cut.
pub(super) fn write_atomically(path: &Path, bytes: &[u8], overwrite: Overwrite) -> Result<(), CaError> {
    let mut nonce = [0_u8; 8];
    aws_lc_rs::rand::fill(&mut nonce).or(Err(CaError::Key))?;
    let temporary = path.with_extension(format!("{:016x}.tmp", u64::from_be_bytes(nonce)));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(io("create", &temporary))?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(io("write", &temporary))
        .and_then(|()| match overwrite {
            Overwrite::Yes => rename(&temporary, path),
            // A link fails when there is a file already: then somebody else's root is the one.
            Overwrite::No => match std::fs::hard_link(&temporary, path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                other => other.map_err(io("link", path)),
            },
        });
    if overwrite == Overwrite::No || written.is_err() {
        // Nothing can be done about a temporary file that stays; it is as private as the root.
        drop(std::fs::remove_file(&temporary));
    }
    written?;
    sync_directory(path)
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), CaError> {
    std::fs::rename(from, to).map_err(io("rename", to))?;
    sync_directory(to)
}

fn sync_directory(path: &Path) -> Result<(), CaError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", directory))
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CaError {
    let path = path.to_owned();
    move |source| CaError::Io { action, path, source }
}

/// PEM (RFC 7468): lines of 64 characters.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(der));
    // Room for everything at once, so that no copy of a key is left behind by a reallocation.
    let mut text = String::with_capacity(encoded.len().saturating_mul(2).saturating_add(128));
    text.push_str("-----BEGIN ");
    text.push_str(label);
    text.push_str("-----\n");
    let mut rest = encoded.as_str();
    while let Some((line, after)) = rest.split_at_checked(64) {
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    if !rest.is_empty() {
        text.push_str(rest);
        text.push('\n');
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}
