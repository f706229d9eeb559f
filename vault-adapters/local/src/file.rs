//! `file:PATH` and `file:PATH#key`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use serde::de::DeserializeSeed as _;
use wallgate_types::secret::Secret;
use wallgate_vault::field::{Field, FieldOf};
use wallgate_vault::material::trimmed;
use wallgate_vault::reference::{RefError, SecretBackend, SecretRef};
use wallgate_vault::source::{BoxFuture, Fetched, MAX_SECRET_BYTES, SecretSource, SourceError};
use zeroize::Zeroizing;

/// Opens `file:` references.
#[derive(Clone, Debug)]
pub struct FileBackend {
    base: PathBuf,
}

impl FileBackend {
    /// The host's files; a relative path is relative to `base`, where the configuration lies.
    #[must_use]
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }
}

impl SecretBackend for FileBackend {
    fn scheme(&self) -> &'static str {
        "file"
    }

    fn open(&self, reference: &SecretRef) -> Result<Arc<dyn SecretSource>, RefError> {
        let path = self.base.join(reference.locator());
        Ok(Arc::new(FileSource {
            path: path.display().to_string(),
            key: reference.key().map(str::to_owned),
        }))
    }
}

#[derive(Clone, Debug)]
struct FileSource {
    path: String,
    key: Option<String>,
}

impl SecretSource for FileSource {
    fn describe(&self) -> String {
        match &self.key {
            Some(key) => format!("file:{}#{key}", self.path),
            None => format!("file:{}", self.path),
        }
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>> {
        let source = self.clone();
        Box::pin(async move {
            // A file may lie on a network file system that does not answer; that must not stop the broker.
            let path = source.path.clone();
            tokio::task::spawn_blocking(move || source.read())
                .await
                .map_err(|error| SourceError::Io {
                    path,
                    source: io::Error::other(error),
                })?
        })
    }
}

impl FileSource {
    fn read(&self) -> Result<Fetched, SourceError> {
        let failed = |source: io::Error| SourceError::Io {
            path: self.path.clone(),
            source,
        };
        // NONBLOCK: opening a pipe that nobody writes to must not hang. It means nothing for a regular file.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = open(&self.path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let status = fstat(&descriptor).map_err(|error| failed(error.into()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(SourceError::NotAFile {
                path: self.path.clone(),
            });
        }
        let content = self.read_bounded(File::from(descriptor), failed)?;
        let value = match &self.key {
            None => trimmed(content),
            Some(key) => self.pick(&content, key)?,
        };
        Ok(Fetched {
            value,
            version: format!(
                "{}.{:09}-{}",
                status.st_mtime, status.st_mtime_nsec, status.st_ino
            ),
            lease: None,
        })
    }

    /// Reads into one buffer that never moves, so that no copy is left behind.
    fn read_bounded(
        &self,
        mut file: File,
        failed: impl Fn(io::Error) -> SourceError,
    ) -> Result<Zeroizing<Vec<u8>>, SourceError> {
        let mut content = Zeroizing::new(vec![0; MAX_SECRET_BYTES.saturating_add(1)]);
        let mut filled = 0;
        while let Some(free) = content.get_mut(filled..).filter(|free| !free.is_empty()) {
            match file.read(free) {
                Ok(0) => break,
                Ok(count) => filled = filled.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if filled > MAX_SECRET_BYTES {
            return Err(SourceError::TooLarge {
                what: format!("file {}", self.path),
                limit: MAX_SECRET_BYTES,
            });
        }
        content.truncate(filled);
        Ok(content)
    }

    fn pick(&self, content: &[u8], key: &str) -> Result<Secret<Vec<u8>>, SourceError> {
        let malformed = |reason| SourceError::Malformed {
            what: format!("file {}", self.path),
            reason,
        };
        let mut json = serde_json::Deserializer::from_slice(content);
        // What the parser says could quote the file.
        let field = FieldOf(key)
            .deserialize(&mut json)
            .and_then(|field| json.end().map(|()| field))
            .or(Err(malformed("it is not one JSON object")))?;
        match field {
            Field::Text(value) => Ok(value),
            Field::Other => Err(malformed("the value under the key is not a string")),
            Field::Absent => Err(SourceError::Missing {
                what: format!("the key {key} in file {}", self.path),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;
    use wallgate_vault::contract::{self, Fixture};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[derive(Debug)]
    struct Dir {
        dir: TempDir,
        key: Option<&'static str>,
    }

    impl Dir {
        fn path(&self) -> PathBuf {
            self.dir.path().join("secret")
        }

        fn write(&self, value: &str) {
            let text = match self.key {
                Some(key) => format!("{{\"other\": [1, {{}}], \"{key}\": \"{value}\", \"more\": null}}"),
                None => format!("{value}\r\n"),
            };
            // As rotation is done: written beside it, then renamed over it.
            let beside = self.dir.path().join("new");
            fs::write(&beside, text).unwrap();
            fs::rename(beside, self.path()).unwrap();
        }

        fn reference(&self, path: &str) -> Result<Arc<dyn SecretSource>, RefError> {
            let key = self.key.map(|key| format!("#{key}")).unwrap_or_default();
            FileBackend::new("/").open(&SecretRef::parse(&format!("file:{path}{key}"))?)
        }
    }

    impl Fixture for Dir {
        fn open(&self) -> Result<Arc<dyn SecretSource>, RefError> {
            self.reference(&self.path().display().to_string())
        }

        fn open_absent(&self) -> Result<Arc<dyn SecretSource>, RefError> {
            self.reference(&self.dir.path().join("absent").display().to_string())
        }

        fn put<'a>(&'a self, value: &'a str) -> BoxFuture<'a, bool> {
            self.write(value);
            Box::pin(async { true })
        }

        fn take_away(&self) -> BoxFuture<'_, bool> {
            fs::remove_file(self.path()).unwrap();
            Box::pin(async { true })
        }
    }

    fn fixture(key: Option<&'static str>) -> Dir {
        let dir = Dir {
            dir: tempfile::tempdir().unwrap(),
            key,
        };
        dir.write("canary-in-a-file");
        dir
    }

    #[tokio::test]
    async fn keeps_the_contract() {
        contract::check(&fixture(None), "canary-in-a-file").await.unwrap();
        contract::check(&fixture(Some("token")), "canary-in-a-file")
            .await
            .unwrap();
    }

    /// Fetches after `prepare` changed the file, and compares the error with the path left out.
    async fn check(key: Option<&'static str>, prepare: impl Fn(&PathBuf), expected: &str) {
        let dir = fixture(key);
        prepare(&dir.path());
        let error = dir.open().unwrap().fetch().await.unwrap_err().to_string();
        assert_eq!(error.replace(&dir.path().display().to_string(), "F"), expected);
    }

    #[tokio::test]
    async fn says_why_a_file_cannot_be_used() {
        let become_directory = |path: &PathBuf| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        };
        let become_pipe = |path: &PathBuf| {
            fs::remove_file(path).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path,
                FileType::Fifo,
                Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
        };
        check(None, become_directory, "file F is not a regular file").await;
        check(None, become_pipe, "file F is not a regular file").await;
        check(
            None,
            |path| fs::remove_file(path).unwrap(),
            "file F: no such file",
        )
        .await;
        check(
            None,
            |path| fs::write(path, vec![b'x'; MAX_SECRET_BYTES + 1]).unwrap(),
            "file F is larger than 65536 bytes",
        )
        .await;
        let rows = [
            ("token = 1", "file F: it is not one JSON object"),
            ("{\"token\": \"a\"} {}", "file F: it is not one JSON object"),
            (
                "{\"token\": \"a\", \"token\": \"b\"}",
                "file F: it is not one JSON object",
            ),
            ("[\"token\"]", "file F: it is not one JSON object"),
            (
                "{\"token\": 12345678}",
                "file F: the value under the key is not a string",
            ),
            (
                "{\"token\": {\"a\": [1]}}",
                "file F: the value under the key is not a string",
            ),
            (
                "{\"nokey\": \"12345678\"}",
                "the key token in file F does not exist",
            ),
        ];
        for (text, expected) in rows {
            check(Some("token"), |path| fs::write(path, text).unwrap(), expected).await;
        }
    }

    #[tokio::test]
    async fn an_unreadable_file_says_permission_denied() {
        let dir = fixture(None);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o000)).unwrap();
        // Root may read every file, but capabilities are a thread's own, and threads that it starts inherit them.
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, sets).unwrap();
        let error = dir.open().unwrap().fetch().await.unwrap_err().to_string();
        assert!(error.ends_with(": permission denied"), "{error}");
    }

    #[tokio::test]
    async fn a_relative_path_lies_beside_the_configuration() {
        let dir = fixture(None);
        let source = FileBackend::new(dir.dir.path())
            .open(&SecretRef::parse("file:secret").unwrap())
            .unwrap();
        assert!(source.fetch().await.is_ok());
        assert_eq!(source.describe(), format!("file:{}", dir.path().display()));
    }
}
