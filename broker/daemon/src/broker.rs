//! `wallgate broker`: the process that parses hostile bytes.
//!
//! It is started by the supervisor with nothing but a channel, gives up every right at once ([`confine::shed`]), opens
//! what the configuration names ([`parts`]), shuts itself in ([`confine::enclose`]) and only then is handed a sandbox's
//! sockets ([`serve`]). It serves any number of sandboxes; `wallgate run` hands it one.

pub mod confine;
mod logging;
mod parts;
mod serve;

pub(crate) use parts::{policy_limits, told_whole};

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::channel::{self, Channel, ChannelError, ToBroker, ToSupervisor, VERSION};
use crate::exit::{Exit, Failure};

/// The broker from its first instruction to its last.
///
/// # Errors
/// When it was not started by a supervisor, or the supervisor is gone. Everything else is said over the channel.
pub fn main() -> Result<ExitCode, Failure> {
    let channel = take_channel()?;
    confine::shed().map_err(Failure::internal)?;
    match live(&channel) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => match channel.send(&ToSupervisor::Failed(failure.clone()), &[]) {
            // The supervisor tells the operator.
            Ok(()) => Ok(ExitCode::from(&failure)),
            Err(_) => Err(failure),
        },
    }
}

/// What the supervisor asks to be opened.
struct Setup {
    config: PathBuf,
    state_dir: PathBuf,
    secrets: OwnedFd,
}

fn live(channel: &Channel) -> Result<(), Failure> {
    let setup = greet(channel).map_err(Failure::internal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("broker")
        .build()
        .map_err(Failure::internal)?;
    let parts = runtime.block_on(parts::open(&setup.config, &setup.state_dir, setup.secrets))?;
    let opened = ToSupervisor::Opened {
        root_certificate: parts.root_certificate(),
    };
    channel.send(&opened, &[]).map_err(Failure::internal)?;
    let served = runtime.block_on(serve::serve(channel, parts));
    // Whatever still runs has nothing left to record into.
    runtime.shutdown_background();
    served
}

fn greet(channel: &Channel) -> Result<Setup, ChannelError> {
    match channel.receive()? {
        (ToBroker::Hello { version }, _) => {
            channel.send(&ToSupervisor::Hello { version: VERSION }, &[])?;
            channel::agree(version)?;
        }
        _ => return Err(ChannelError::Unexpected { expected: "hello" }),
    }
    let (message, mut descriptors) = channel.receive()?;
    match (message, descriptors.pop()) {
        (ToBroker::Setup { config, state_dir }, Some(secrets)) => Ok(Setup {
            config,
            state_dir,
            secrets,
        }),
        _ => Err(ChannelError::Unexpected {
            expected: "setup with the secrets of the environment",
        }),
    }
}

/// The channel stands at standard input, which is then closed to everything else.
fn take_channel() -> Result<Channel, Failure> {
    let stdin = std::io::stdin();
    let is_channel = rustix::net::sockopt::socket_type(stdin.as_fd())
        .is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET);
    if !is_channel {
        let problem = "`wallgate broker` is started by the other commands, not by hand";
        return Err(Failure::new(Exit::Usage, problem));
    }
    let socket = stdin.as_fd().try_clone_to_owned().map_err(Failure::internal)?;
    let nothing = std::fs::File::open("/dev/null").map_err(Failure::internal)?;
    rustix::stdio::dup2_stdin(&nothing).map_err(Failure::internal)?;
    Ok(Channel::over(socket))
}
