//! What the supervisor and the broker say to each other.
//!
//! Each datagram of a `SOCK_SEQPACKET` socket pair is one JSON message of at most [`MAX_MESSAGE_BYTES`], with at most
//! [`MAX_DESCRIPTORS`] descriptors beside it (`SCM_RIGHTS`, unix(7)). The first message each way is a `hello` with
//! [`VERSION`]; sides of different versions part at once, so that a replaced broker never guesses.
//!
//! ```text
//!  supervisor                                broker
//!  hello {version}                      ──▶
//!                                       ◀──  hello {version}
//!  setup {config, state_dir} +secrets   ──▶       opens policy, secrets, ledger, CA; shuts itself in
//!                                       ◀──  opened {…}                        or failed {exit, message}
//!  attach {sandbox, mark, …} +3 sockets ──▶       records the attach proof
//!                                       ◀──  ready {sandbox, ledger_index}
//!  detach {sandbox, counters}           ──▶       drains, records the counters
//!                                       ◀──  detached {sandbox, summary}
//!  shutdown                             ──▶       stop record, last checkpoint
//!                                       ◀──  stopped {ledger}
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wallgate_types::sandbox::{SandboxFacts, SandboxId};

use crate::exit::Failure;

/// The version of these messages. Any change raises it: both ends are the same program.
pub const VERSION: u32 = 1;
/// The longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// The most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// From the supervisor to the broker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToBroker {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// What to open. Beside it: a memory file with the secrets that the environment held, as JSON.
    Setup {
        /// The configuration file, absolute.
        config: PathBuf,
        /// The state directory, which the supervisor has locked.
        state_dir: PathBuf,
    },
    /// A sandbox. Beside it: its TCP listener, its DNS-over-TCP listener and its DNS socket.
    Attach(Box<Attach>),
    /// A sandbox is gone.
    Detach {
        /// Which.
        sandbox: SandboxId,
        /// What the wall counted.
        counters: Vec<CounterRow>,
    },
    /// Finish what is under way, close the ledger, end.
    Shutdown,
}

/// What the broker is told of a sandbox.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Who it is.
    pub sandbox: SandboxFacts,
    /// The mark that each of its connections must carry.
    pub mark: u32,
    /// Its own addresses, for the record.
    pub v4: Ipv4Addr,
    /// Its own addresses, for the record.
    pub v6: Ipv6Addr,
    /// Where it finds the broker.
    pub gateway_v4: Ipv4Addr,
    /// Where it finds the broker.
    pub gateway_v6: Ipv6Addr,
    /// What proves that the wall's programs were there before its first frame; recorded as it is.
    pub proof: serde_json::Value,
}

/// How many frames met one fate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CounterRow {
    /// The stable reason code.
    pub reason: String,
    /// `passed`, `dropped`, `refused` or `noted`.
    pub effect: String,
    /// How many.
    pub frames: u64,
}

/// From the broker to the supervisor.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToSupervisor {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Everything that was asked for in `setup` is open.
    Opened {
        /// What sandboxes must trust, in PEM.
        root_certificate: String,
    },
    /// Something cannot be opened or went wrong for good; the broker ends.
    Failed(Failure),
    /// The sandbox's proof is in the ledger and its sockets are served.
    Ready {
        /// Which.
        sandbox: SandboxId,
        /// Where the proof stands.
        ledger_index: u64,
    },
    /// The sandbox's connections are over and its counters recorded.
    Detached {
        /// Which.
        sandbox: SandboxId,
        /// What it did.
        summary: Summary,
    },
    /// The ledger is closed.
    Stopped {
        /// Why it could not be closed as it should, if so.
        ledger_failure: Option<String>,
    },
}

/// What a sandbox did, as the ledger has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Decisions that let something out, name lookups included.
    pub allowed: u64,
    /// Decisions that did not.
    pub denied: u64,
    /// Why it says that its task cannot be done, if it says so: its own words, made inert for a terminal.
    pub quit: Option<String>,
}

/// Why a message could not be sent or read.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The other process is gone, or closed its end.
    #[error("the other end is gone")]
    Closed,
    /// The socket failed.
    #[error("the channel failed: {0}")]
    Io(#[source] io::Error),
    /// Longer than [`MAX_MESSAGE_BYTES`], or with more than [`MAX_DESCRIPTORS`].
    #[error("a message is too long")]
    TooLong,
    /// Not a message that this side knows.
    #[error("a message is not understood: {0}")]
    Malformed(#[source] serde_json::Error),
    /// Not the message, or not the descriptors, that the exchange calls for here.
    #[error("expected {expected}")]
    Unexpected {
        /// What it calls for.
        expected: &'static str,
    },
    /// The other end speaks another version.
    #[error(
        "the two processes speak versions {ours} and {theirs} of the channel; they must be the same program"
    )]
    Version {
        /// [`VERSION`].
        ours: u32,
        /// What the other end said.
        theirs: u32,
    },
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(error: rustix::io::Errno) -> Self {
        match error {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => Self::Closed,
            other => Self::Io(other.into()),
        }
    }
}

/// One end. Each call blocks; reading has a thread of its own on both sides.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Two ends, closed on exec.
    ///
    /// # Errors
    /// What socketpair(2) says.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self { socket: ours }, theirs))
    }

    /// The end that this process was started with.
    #[must_use]
    pub const fn over(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Another handle to the same end, so that one thread can read while another sends.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
        })
    }

    /// Sends one message and duplicates of `descriptors`.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let bytes = serde_json::to_vec(message).map_err(ChannelError::Malformed)?;
        if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::TooLong);
        }
        let slices = [IoSlice::new(&bytes)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &slices, &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the other end is gone; else see [`ChannelError`].
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(ChannelError::TooLong);
        }
        let text = bytes.get(..received.bytes).unwrap_or_default();
        if text.is_empty() {
            return Err(ChannelError::Closed);
        }
        let message = serde_json::from_slice(text).map_err(ChannelError::Malformed)?;
        Ok((message, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Refuses any version but ours.
///
/// # Errors
/// [`ChannelError::Version`].
pub const fn agree(theirs: u32) -> Result<(), ChannelError> {
    if theirs == VERSION {
        Ok(())
    } else {
        Err(ChannelError::Version {
            ours: VERSION,
            theirs,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use super::*;

    fn ends() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel::over(theirs))
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (supervisor, broker) = ends();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let sent = ToBroker::Detach {
            sandbox: "a".parse().unwrap(),
            counters: vec![CounterRow {
                reason: "spoofed_source".into(),
                effect: "dropped".into(),
                frames: 3,
            }],
        };
        supervisor.send(&sent, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (received, mut descriptors) = broker.receive::<ToBroker>().unwrap();
        assert_eq!(received, sent);
        File::from(descriptors.pop().unwrap()).write_all(b"here").unwrap();
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "here");
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let (supervisor, broker) = ends();
        let rows = [
            serde_json::json!({"hello": {"version": 1, "extra": true}}),
            serde_json::json!({"reboot": {}}),
            serde_json::json!([]),
        ];
        for row in rows {
            supervisor.send(&row, &[]).unwrap();
            assert!(
                matches!(broker.receive::<ToBroker>(), Err(ChannelError::Malformed(_))),
                "{row}"
            );
        }
        let long = "x".repeat(MAX_MESSAGE_BYTES);
        assert!(matches!(supervisor.send(&long, &[]), Err(ChannelError::TooLong)));
    }

    #[test]
    fn another_version_is_told_apart_from_everything_else() {
        let error = agree(VERSION + 1).unwrap_err();
        assert!(matches!(error, ChannelError::Version { .. }));
        agree(VERSION).unwrap();
    }

    #[test]
    fn says_when_the_other_end_is_gone() {
        let (supervisor, broker) = ends();
        drop(broker);
        assert!(matches!(
            supervisor.send(&ToBroker::Shutdown, &[]),
            Err(ChannelError::Closed)
        ));
        assert!(matches!(
            supervisor.receive::<ToSupervisor>(),
            Err(ChannelError::Closed)
        ));
    }
}
