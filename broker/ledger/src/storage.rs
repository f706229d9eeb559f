//! What the journal needs of a disk, so that tests can put one under it that breaks.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Segments by their base position. Nothing is durable before [`Storage::sync`] or [`Storage::create`] returns.
pub(crate) trait Storage: Debug + Send {
    /// The bases of all segments, ascending.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// What a segment holds from `offset` on, at most `limit` bytes.
    fn read(&self, base: u64, offset: u64, limit: u64) -> io::Result<Vec<u8>>;
    /// Makes a segment with this header, durable in itself and in its directory, or not at all.
    fn create(&mut self, base: u64, header: &[u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write(&mut self, base: u64, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written, and the length, durable.
    fn sync(&mut self, base: u64) -> io::Result<()>;
    /// Cuts a segment there.
    fn set_len(&mut self, base: u64, length: u64) -> io::Result<()>;
}

const SUFFIX: &str = ".seg";

/// A directory of segment files.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    open: Option<(u64, File)>,
}

impl Directory {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    pub(crate) fn file_path(&self, base: u64) -> PathBuf {
        self.path.join(format!("{base:020}{SUFFIX}"))
    }

    /// The file to write to: the last one used stays open.
    fn file(&mut self, base: u64) -> io::Result<&File> {
        let open = match self.open.take() {
            Some((at, file)) if at == base => (at, file),
            _ => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(self.file_path(base))?;
                (base, file)
            }
        };
        Ok(&self.open.insert(open).1)
    }
}

/// Makes a directory's entries durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file so that it is there whole, and durable, or not at all: beside it, then renamed over it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = directory.join(name);
    match std::fs::remove_file(&beside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    sync_directory(directory)
}

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<u64>> {
        let mut bases = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let base = name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX))
                .filter(|digits| digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok());
            match base {
                Some(base) => bases.push(base),
                // What an interrupted `write_atomically` left.
                None if name.to_string_lossy().ends_with(".seg.new") => {}
                None => {
                    return Err(io::Error::other(format!(
                        "{} is no segment of a journal",
                        self.path.join(&name).display()
                    )));
                }
            }
        }
        bases.sort_unstable();
        Ok(bases)
    }

    fn read(&self, base: u64, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let file = File::open(self.file_path(base))?;
        let length = file.metadata()?.len().saturating_sub(offset).min(limit);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn create(&mut self, base: u64, header: &[u8]) -> io::Result<()> {
        write_atomically(&self.file_path(base), header, 0o600)
    }

    fn write(&mut self, base: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(base)?.write_all_at(bytes, offset)
    }

    fn sync(&mut self, base: u64) -> io::Result<()> {
        self.file(base)?.sync_data()
    }

    fn set_len(&mut self, base: u64, length: u64) -> io::Result<()> {
        self.file(base)?.set_len(length)
    }
}
