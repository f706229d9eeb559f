//! What of the host's file system a sandbox sees.
//!
//! Nothing, but for: the programs (`/usr`, `/opt` and what belongs to them), a list of entries of `/etc`, the current
//! directory, the files that the command line names, and what the operator binds. Over all of that, last, lie the
//! masks: wallgate's own state, configuration, policy and secrets. File permissions hold as they do for nobody.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use thiserror::Error;

use super::{HOME, NOBODY};

/// Directories of programs, and links into them on a merged `/usr`.
const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
];

/// Entries of `/etc` that programs need and that hold no secret. What is written by [`super::etc`] is not here.
const ETC: &[&str] = &[
    "adduser.conf",
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "ethertypes",
    "fonts",
    "gai.conf",
    "gnutls",
    "gss",
    "host.conf",
    "inputrc",
    "issue",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "profile.d",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/ca-bundle.pem",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "wgetrc",
    "xdg",
];
/// Beginnings of names of entries of `/etc` that carry a version.
const ETC_PREFIXES: &[&str] = &["python", "java-", "openjdk", "ruby", "php", "R"];

/// Fresh, empty and gone afterwards.
const EMPTY: &[&str] = &["/tmp", "/run", "/var", "/home", HOME];

/// Never bound as a current directory, nor anything inside: their own sandbox versions stand there.
const HIDDEN_TREES: &[&str] = &["/etc", "/run", "/var/run", "/proc", "/sys", "/dev", "/boot"];
/// Not bound as a current directory themselves, for what else is in them.
const HIDDEN_ROOTS: &[&str] = &[
    "/", "/home", "/root", "/var", "/var/lib", "/usr", "/opt", "/tmp", "/var/tmp", "/mnt",
];

/// Why a sandbox's view cannot be built.
#[derive(Debug, Error)]
pub enum ViewError {
    /// A path that the operator wants bound is not absolute, or not there.
    #[error("cannot bind {}: {problem}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// Becoming nobody, to see what nobody sees, failed.
    #[error("cannot look at the file system as nobody: {0}")]
    Nobody(#[source] io::Error),
}

/// One step of building the view, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An empty directory of its own.
    Empty(PathBuf),
    /// The same link as on the host.
    Link {
        /// Where it points.
        target: PathBuf,
        /// Where it stands.
        path: PathBuf,
    },
    /// Bound read-only at the same place.
    ReadOnly(PathBuf),
    /// Bound for writing at the same place.
    Writable(PathBuf),
    /// A directory that is empty whatever lies beneath.
    MaskDirectory(PathBuf),
    /// A file that cannot be opened whatever lies beneath.
    MaskFile(PathBuf),
}

impl Step {
    fn bound(&self) -> Option<&Path> {
        match self {
            Self::ReadOnly(path) | Self::Writable(path) => Some(path),
            Self::Empty(_) | Self::Link { .. } | Self::MaskDirectory(_) | Self::MaskFile(_) => None,
        }
    }
}

/// What the operator asks for.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The current directory.
    pub directory: PathBuf,
    /// The command and its arguments: absolute paths of files among them are bound.
    pub command: Vec<OsString>,
    /// Bound for writing.
    pub bind: Vec<PathBuf>,
    /// Bound read-only.
    pub ro_bind: Vec<PathBuf>,
    /// Never seen: state, configuration, policy, secrets.
    pub masked: Vec<PathBuf>,
}

/// The view, and where the command starts in it.
#[derive(Clone, Debug)]
pub struct View {
    /// Before the sandbox's own files are written.
    pub steps: Vec<Step>,
    /// After them, last of all.
    pub masks: Vec<Step>,
    /// Where the command starts.
    pub directory: PathBuf,
    /// What the operator should know, if the current directory could not be taken along.
    pub notice: Option<String>,
}

/// Decides what is seen.
///
/// # Errors
/// See [`ViewError`].
pub fn view(wishes: &Wishes) -> Result<View, ViewError> {
    let mut steps = programs();
    steps.extend(etc_entries());
    steps.extend(EMPTY.iter().map(|path| Step::Empty(PathBuf::from(path))));
    let masked = canonical_masks(&wishes.masked);
    let mut binds = wished(&wishes.ro_bind, Step::ReadOnly)?;
    binds.extend(wished(&wishes.bind, Step::Writable)?);
    let (directory, notice) = current_directory(&wishes.directory, &masked)?;
    let start = match &directory {
        Some(path) => {
            binds.push(Step::Writable(path.clone()));
            path.clone()
        }
        None => PathBuf::from(HOME),
    };
    // Parents before what lies in them; of equals, writable last.
    binds.sort_by_key(|step| step.bound().map_or(0, |path| path.components().count()));
    steps.extend(binds);
    let files = command_files(&wishes.command, &steps)?;
    steps.extend(files);
    let masks = masks(&masked, &steps)?;
    Ok(View {
        steps,
        masks,
        directory: start,
        notice,
    })
}

fn programs() -> Vec<Step> {
    let step = |path: &&str| {
        let path = PathBuf::from(path);
        let metadata = fs::symlink_metadata(&path).ok()?;
        if metadata.is_symlink() {
            let target = fs::read_link(&path).ok()?;
            return Some(Step::Link { target, path });
        }
        metadata.is_dir().then_some(Step::ReadOnly(path))
    };
    PROGRAMS.iter().filter_map(step).collect()
}

fn etc_entries() -> Vec<Step> {
    let mut names: BTreeSet<PathBuf> = ETC.iter().map(PathBuf::from).collect();
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let versioned = entries.map(|entry| entry.file_name()).filter(|name| {
        name.to_str()
            .is_some_and(|name| ETC_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
    });
    names.extend(versioned.map(PathBuf::from));
    names
        .into_iter()
        .map(|name| Path::new("/etc").join(name))
        .filter(|path| path.exists())
        .map(Step::ReadOnly)
        .collect()
}

fn wished(paths: &[PathBuf], step: fn(PathBuf) -> Step) -> Result<Vec<Step>, ViewError> {
    let bind = |path: &PathBuf| {
        let refused = |problem| ViewError::Bind {
            path: path.clone(),
            problem,
        };
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(plain) {
            return Err(refused("the path must be absolute and without '..'"));
        }
        let own = ["/", "/proc", "/dev", "/sys", "/run"];
        if own.iter().any(|own| path == Path::new(own))
            || ["/proc", "/dev", "/sys"].iter().any(|own| path.starts_with(own))
        {
            return Err(refused("the sandbox has its own there"));
        }
        match reach(path)? {
            Reach::Whole => Ok(step(path.clone())),
            Reach::Stops(_) => Err(refused(
                "nobody (uid 65534), whom the sandbox runs as, cannot reach it",
            )),
            Reach::Missing => Err(refused("it is not there")),
        }
    };
    paths.iter().map(bind).collect()
}

/// The current directory when it can be taken along, else what to tell the operator.
fn current_directory(
    directory: &Path,
    masked: &[PathBuf],
) -> Result<(Option<PathBuf>, Option<String>), ViewError> {
    let leave = |why: &str| {
        let notice = format!(
            "the current directory {} is not in the sandbox ({why}); the command starts in {HOME}",
            directory.display()
        );
        Ok((None, Some(notice)))
    };
    let hidden = HIDDEN_TREES.iter().any(|tree| directory.starts_with(tree))
        || HIDDEN_ROOTS.iter().any(|root| directory == Path::new(root));
    if hidden {
        return leave("it is a system directory");
    }
    if masked.iter().any(|mask| directory.starts_with(mask)) {
        return leave("it holds wallgate's own files");
    }
    match reach(directory)? {
        Reach::Whole => Ok((Some(directory.to_owned()), None)),
        Reach::Stops(_) | Reach::Missing => leave("nobody, whom the sandbox runs as, cannot enter it"),
    }
}

/// Regular files that the command line names by an absolute path and that are not seen yet.
fn command_files(command: &[OsString], steps: &[Step]) -> Result<Vec<Step>, ViewError> {
    let mut files = Vec::new();
    for argument in command {
        let path = Path::new(argument);
        let own = ["/proc", "/dev", "/sys", "/run"]
            .iter()
            .any(|own| path.starts_with(own));
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let seen = steps
            .iter()
            .filter_map(Step::bound)
            .any(|bound| path.starts_with(bound));
        if !path.is_absolute() || own || !plain || seen || !path.is_file() {
            continue;
        }
        let step = Step::ReadOnly(path.to_owned());
        if !files.contains(&step) && matches!(reach(path)?, Reach::Whole) {
            files.push(step);
        }
    }
    Ok(files)
}

/// Each masked path as written and as it really is.
fn canonical_masks(masked: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = BTreeSet::new();
    for path in masked {
        paths.extend(fs::canonicalize(path));
        paths.insert(path.clone());
    }
    paths.into_iter().collect()
}

/// A mask for each path that would be seen. Where nobody cannot reach the path itself, the directory that stops them is
/// masked instead, so that a later change of its mode opens nothing.
fn masks(masked: &[PathBuf], steps: &[Step]) -> Result<Vec<Step>, ViewError> {
    let mut masks = Vec::new();
    for path in masked {
        let seen = steps
            .iter()
            .filter_map(Step::bound)
            .any(|bound| path.starts_with(bound));
        if !seen {
            continue;
        }
        let place = match reach(path)? {
            Reach::Whole => path.clone(),
            Reach::Stops(directory) => directory,
            Reach::Missing => continue,
        };
        // A link is masked where it leads: the canonical path is in the list as well.
        let Ok(metadata) = fs::symlink_metadata(&place) else {
            continue;
        };
        let mask = if metadata.is_symlink() {
            continue;
        } else if metadata.is_dir() {
            Step::MaskDirectory(place)
        } else {
            Step::MaskFile(place)
        };
        if !masks.contains(&mask) {
            masks.push(mask);
        }
    }
    Ok(masks)
}

/// How far nobody gets on the way to a path.
enum Reach {
    /// All the way.
    Whole,
    /// This directory cannot be entered.
    Stops(PathBuf),
    /// Something on the way does not exist.
    Missing,
}

fn reach(path: &Path) -> Result<Reach, ViewError> {
    as_nobody(|| {
        let mut last = PathBuf::from("/");
        for ancestor in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let opened = rustix::fs::open(ancestor, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            match opened {
                Ok(_) => ancestor.clone_into(&mut last),
                Err(rustix::io::Errno::ACCESS) => return Reach::Stops(last),
                Err(_) => return Reach::Missing,
            }
        }
        // Entering the last one is asked for as well, when it is a directory.
        if path.is_dir() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() {
            return Reach::Stops(path.to_owned());
        }
        Reach::Whole
    })
}

/// Runs `look` on a thread that is nobody. Without root it runs as who we are, who cannot start a sandbox anyway.
fn as_nobody<T: Send>(look: impl FnOnce() -> T + Send) -> Result<T, ViewError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(look());
    }
    let (user, group) = (
        rustix::fs::Uid::from_raw(NOBODY),
        rustix::fs::Gid::from_raw(NOBODY),
    );
    let change = || -> rustix::io::Result<()> {
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)
    };
    let looked = std::thread::scope(|scope| {
        scope
            .spawn(move || change().map(|()| look()))
            .join()
            .unwrap_or(Err(rustix::io::Errno::CANCELED))
    });
    looked.map_err(|error| ViewError::Nobody(error.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn open_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    fn wishes(directory: &Path) -> Wishes {
        Wishes {
            directory: directory.to_owned(),
            ..Wishes::default()
        }
    }

    #[test]
    fn the_current_directory_comes_along_with_what_is_secret_in_it_masked() {
        let directory = open_directory();
        let place = directory.path().canonicalize().unwrap();
        fs::create_dir(place.join("state")).unwrap();
        fs::write(place.join("wallgate.toml"), "").unwrap();
        let view = view(&Wishes {
            masked: vec![
                place.join("state"),
                place.join("wallgate.toml"),
                "/etc/wallgate".into(),
            ],
            ..wishes(&place)
        })
        .unwrap();
        assert_eq!(view.directory, place);
        assert!(view.steps.contains(&Step::Writable(place.clone())));
        let expected = [
            Step::MaskDirectory(place.join("state")),
            Step::MaskFile(place.join("wallgate.toml")),
        ];
        assert_eq!(view.masks, expected);
    }

    #[test]
    fn a_system_directory_or_our_own_does_not_come_along() {
        let directory = open_directory();
        let place = directory.path().canonicalize().unwrap();
        for (start, masked) in [
            ("/", None),
            ("/etc/ssl", None),
            (place.to_str().unwrap(), Some(place.clone())),
        ] {
            let view = view(&Wishes {
                masked: masked.into_iter().collect(),
                ..wishes(Path::new(start))
            })
            .unwrap();
            assert_eq!(view.directory, Path::new(HOME), "{start}");
            assert!(view.notice.is_some());
        }
    }

    #[test]
    fn files_that_the_command_names_are_seen_and_nothing_beside_them() {
        let directory = open_directory();
        let script = directory.path().join("script");
        fs::write(&script, "").unwrap();
        let view = view(&Wishes {
            command: vec![
                script.clone().into(),
                "/etc/../etc/shadow".into(),
                "/run/x.sock".into(),
                "/proc/1/environ".into(),
            ],
            ..wishes(Path::new("/"))
        })
        .unwrap();
        assert_eq!(view.steps.last(), Some(&Step::ReadOnly(script)));
    }

    #[test]
    fn what_cannot_be_bound_is_refused() {
        for path in ["relative", "/a/../b", "/", "/proc/1", "/nowhere/at/all"] {
            let wishes = Wishes {
                bind: vec![path.into()],
                ..wishes(Path::new("/"))
            };
            assert!(matches!(view(&wishes), Err(ViewError::Bind { .. })), "{path}");
        }
    }

    #[test]
    fn where_nobody_is_stopped_the_stopping_directory_is_masked() {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "SKIPPED-PRIVILEGED where_nobody_is_stopped_the_stopping_directory_is_masked: not root"
            );
            return;
        }
        let directory = open_directory();
        let place = directory.path().canonicalize().unwrap();
        fs::create_dir(place.join("closed")).unwrap();
        fs::write(place.join("closed/token"), "").unwrap();
        fs::set_permissions(place.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        let view = view(&Wishes {
            masked: vec![place.join("closed/token")],
            ..wishes(&place)
        })
        .unwrap();
        assert_eq!(view.masks, [Step::MaskDirectory(place.join("closed"))]);
    }
}
