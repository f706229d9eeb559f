//! Which system calls answer inside a sandbox.
//!
//! The network namespace, the user namespace and the wall hold by themselves; this closes what goes round a network
//! namespace (vsock), what has often gone round everything (`io_uring`, bpf, userfaultfd …), and what types into the
//! operator's terminal.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use thiserror::Error;

/// Why there is no filter. Without one nothing is started.
#[derive(Debug, Error)]
pub enum FilterError {
    /// Not an architecture that this is written for.
    #[error("no system call filter for {0}")]
    Architecture(&'static str),
    /// The rules do not compile.
    #[error("the system call filter cannot be made: {0}")]
    Compile(#[from] seccompiler::BackendError),
}

/// Calls that no command needs: each reaches a part of the kernel that is shared with the host.
const DENIED: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_lookup_dcookie,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_nfsservctl,
    libc::SYS_fanotify_init,
];

/// Address families that a command may open: the rest (vsock, packet, alg, bluetooth, …) is refused.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The bit that marks a system call of the x32 ABI (`__X32_SYSCALL_BIT`).
const X32_BIT: u32 = 0x4000_0000;

/// The filter of a sandboxed command, as bytes for `bwrap --seccomp`: an array of `struct sock_filter` in host order
/// (linux/filter.h).
///
/// # Errors
/// See [`FilterError`].
pub fn program() -> Result<Vec<u8>, FilterError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let other_family = FAMILIES
        .into_iter()
        .map(|family| is(0, SeccompCmpOp::Ne, family))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other_family)?]);
    // The kernel reads the request as 32 bits, so nothing in the upper half may hide it.
    let terminal_input = [libc::TIOCSTI, libc::TIOCLINUX]
        .into_iter()
        .map(|request| {
            let request = i32::try_from(request).unwrap_or(i32::MAX);
            SeccompRule::new(vec![is(1, SeccompCmpOp::Eq, request)?])
        })
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_ioctl, terminal_input);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let mut program = foreign_abi_killer();
    program.extend(compile(rules, refuse)?);
    Ok(program.iter().flat_map(bytes).collect())
}

/// A filter that does `action` on `rules` and allows everything else. Foreign architectures are killed.
///
/// # Errors
/// See [`FilterError`].
pub fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    action: SeccompAction,
) -> Result<BpfProgram, FilterError> {
    let architecture = std::env::consts::ARCH;
    let target = TargetArch::try_from(architecture).or(Err(FilterError::Architecture(architecture)))?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, action, target)?.try_into()?)
}

/// A condition on one 32-bit argument.
///
/// # Errors
/// When `index` is no argument.
pub fn is(
    index: u8,
    operator: SeccompCmpOp,
    value: i32,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    let value = u64::from(value.cast_unsigned());
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
}

/// On x86-64 the x32 ABI shares the architecture's number, and would find every rule's call under another number.
fn foreign_abi_killer() -> BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let load_number = sock_filter {
        code: 0x20, // BPF_LD | BPF_W | BPF_ABS
        jt: 0,
        jf: 0,
        k: 0, // offsetof(struct seccomp_data, nr)
    };
    let skip_unless_x32 = sock_filter {
        code: 0x35, // BPF_JMP | BPF_JGE | BPF_K
        jt: 0,
        jf: 1,
        k: X32_BIT,
    };
    let kill = sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_KILL_PROCESS,
    };
    vec![load_number, skip_unless_x32, kill]
}

fn bytes(instruction: &sock_filter) -> [u8; 8] {
    let [code_low, code_high] = instruction.code.to_ne_bytes();
    let mut bytes = [code_low, code_high, instruction.jt, instruction.jf, 0, 0, 0, 0];
    if let Some(constant) = bytes.last_chunk_mut() {
        *constant = instruction.k.to_ne_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_by_killing_the_other_abi_and_is_whole_instructions() {
        let program = program().unwrap();
        assert_eq!(program.len() % 8, 0);
        assert!(program.len() > 8 * DENIED.len());
        if cfg!(target_arch = "x86_64") {
            let expected = [0x20, 0, 0, 0, 0, 0, 0, 0, 0x35, 0, 0, 1, 0, 0, 0, 0x40];
            assert_eq!(program.get(..16), Some(expected.as_slice()));
        }
    }
}
