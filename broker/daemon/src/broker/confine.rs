//! What the broker may not do.
//!
//! ```text
//!  shed     at once     dies with the supervisor; no core dumps, not dumpable; no new privileges; no capabilities,
//!                       not even bounded ones
//!  enclose  after the   Landlock: reads configuration, policy, secrets and the host's resolver and certificates; writes
//!           parts are   its state directory; signals nobody; reaches no abstract socket
//!           open        seccomp: executes nothing, traces nothing, makes no namespace, mount or device; opens only
//!                       Unix, IPv4, IPv6 and netlink sockets
//! ```
//!
//! The user stays root in number, so that the files of an operator who is root can be read; without capabilities and
//! behind Landlock that number opens nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use caps::CapSet;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use seccompiler::{SeccompAction, SeccompCmpOp, SeccompCondition, SeccompRule};
use thiserror::Error;

use crate::sandbox::filter::{FilterError, compile, is};

/// Why the broker is not shut in; then it does not start.
#[derive(Debug, Error)]
pub enum ConfineError {
    /// A process attribute cannot be set.
    #[error("the broker cannot give up its rights: {0}")]
    Process(#[from] rustix::io::Errno),
    /// Capabilities cannot be dropped.
    #[error("the broker cannot drop its capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The file system rules cannot be made.
    #[error("the broker cannot be confined to its files: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// The system call filter cannot be made.
    #[error("the broker's system call filter cannot be made: {0}")]
    Filter(#[from] FilterError),
    /// The system call filter cannot be installed.
    #[error("the broker's system call filter cannot be installed: {0}")]
    Install(#[from] seccompiler::Error),
}

/// Gives up every right. Must run while the process has one thread.
///
/// # Errors
/// See [`ConfineError`].
pub fn shed() -> Result<(), ConfineError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::thread::set_no_new_privs(true)?;
    // The bounding set first: dropping from it needs a capability itself. An unprivileged broker has none to drop.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    for set in [
        CapSet::Ambient,
        CapSet::Effective,
        CapSet::Permitted,
        CapSet::Inheritable,
    ] {
        caps::clear(None, set)?;
    }
    Ok(())
}

/// What the broker may still open.
#[derive(Debug, Default)]
pub struct Files {
    /// Directories and files to read.
    pub read: Vec<PathBuf>,
    /// Directories and files to read, write, make and remove in.
    pub write: Vec<PathBuf>,
}

/// Where resolver and certificates of the host stand.
const HOST_FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
    "/run/systemd/resolve",
    "/proc/self",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
];

/// Shuts every thread of the process in. Returns whether the kernel holds all of the file rules.
///
/// # Errors
/// See [`ConfineError`].
pub fn enclose(files: &Files) -> Result<RulesetStatus, ConfineError> {
    let status = confine_files(files)?;
    for program in [refusals()?, missing()?] {
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(status)
}

/// Landlock is asked for as far as this kernel has it; what it lacks is left to the other measures.
fn confine_files(files: &Files) -> Result<RulesetStatus, ConfineError> {
    const KNOWN: ABI = ABI::V6;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let host = HOST_FILES.iter().map(Path::new);
    for path in files.read.iter().map(PathBuf::as_path).chain(host) {
        ruleset = allow(ruleset, path, AccessFs::from_read(KNOWN) & !AccessFs::Execute)?;
    }
    for path in &files.write {
        ruleset = allow(ruleset, path, AccessFs::from_all(KNOWN) & !AccessFs::Execute)?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

fn allow(
    ruleset: landlock::RulesetCreated,
    path: &Path,
    access: landlock::BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, ConfineError> {
    // What is not there needs no permission.
    let Ok(place) = PathFd::new(path) else {
        return Ok(ruleset);
    };
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(ABI::V6)
    };
    Ok(ruleset.add_rule(PathBeneath::new(place, access))?)
}

/// Never needed by a process that only moves bytes.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mknodat,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_fanotify_init,
    libc::SYS_personality,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_vhangup,
];

/// Flags of clone(2) that make namespaces.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];

fn refusals() -> Result<seccompiler::BpfProgram, FilterError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    for call in [
        libc::SYS_mknod,
        libc::SYS_iopl,
        libc::SYS_ioperm,
        libc::SYS_fork,
        libc::SYS_vfork,
    ] {
        rules.insert(call, Vec::new());
    }
    let other_family = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
        .into_iter()
        .map(|family| is(0, SeccompCmpOp::Ne, family))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other_family)?]);
    // Threads share everything; a clone that does not share memory is a process.
    let threads = u64::from(libc::CLONE_THREAD.cast_unsigned());
    let mut clones = vec![SeccompRule::new(vec![SeccompCondition::new(
        0,
        seccompiler::SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(threads),
        0,
    )?])?];
    for flag in NAMESPACE_FLAGS {
        let flag = u64::from(flag.cast_unsigned());
        clones.push(SeccompRule::new(vec![SeccompCondition::new(
            0,
            seccompiler::SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(flag),
            flag,
        )?])?);
    }
    rules.insert(libc::SYS_clone, clones);
    compile(rules, SeccompAction::Errno(libc::EPERM.unsigned_abs()))
}

/// clone3(2) hides its flags behind a pointer. Answered as by an older kernel, so that the C library takes clone(2).
fn missing() -> Result<seccompiler::BpfProgram, FilterError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    compile(rules, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))
}
