//! The sandboxed command as the supervisor sees it.
//!
//! It is started by a thread of its own that has entered the sandbox's network namespace and lives until the command is
//! reaped: bubblewrap's parent-death signal is bound to the thread that started it, not to the process.

use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use crate::sandbox::bubblewrap::{self, Sandbox};

/// How the sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command ran; its exit code, or 128 and its signal.
    Code(u8),
    /// Bubblewrap was killed from outside the sandbox, by us or somebody else.
    Killed,
    /// The sandbox could not be made; bubblewrap has said why on standard error.
    NotMade,
}

/// A running sandbox. Dropping it kills everything in it.
#[derive(Debug)]
pub(super) struct RunningCommand {
    outer: OwnedFd,
    init: mpsc::UnboundedReceiver<i32>,
    init_pid: Option<i32>,
    ended: oneshot::Receiver<std::io::Result<Ended>>,
    thread: Option<JoinHandle<()>>,
}

/// A line of bubblewrap's status.
#[derive(Debug, Deserialize)]
struct Status {
    #[serde(rename = "child-pid")]
    child_pid: Option<i32>,
    #[serde(rename = "exit-code")]
    exit_code: Option<i32>,
}

impl RunningCommand {
    /// Starts the sandbox in this network namespace.
    pub(super) async fn start(sandbox: Sandbox, namespace: OwnedFd) -> std::io::Result<Self> {
        let (started, starting) = oneshot::channel();
        let (init_sender, init) = mpsc::unbounded_channel();
        let (ended_sender, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("sandbox".to_owned())
            .spawn(move || {
                let outcome = live(&sandbox, &namespace, started, &init_sender);
                // Nobody waits any more when the run was given up.
                let _nobody_waits = ended_sender.send(outcome);
            })?;
        match starting.await {
            Ok(outer) => Ok(Self {
                outer,
                init,
                init_pid: None,
                ended,
                thread: Some(thread),
            }),
            // It did not get as far as starting; the thread says why.
            Err(_) => match ended.await {
                Ok(Err(error)) => Err(error),
                Ok(Ok(_)) | Err(_) => Err(std::io::Error::other("the sandbox's thread ended")),
            },
        }
    }

    /// Waits for the end. Cancel-safe.
    pub(super) async fn ended(&mut self) -> std::io::Result<Ended> {
        let thread_died = || Err(std::io::Error::other("the sandbox's thread ended"));
        (&mut self.ended).await.unwrap_or_else(|_| thread_died())
    }

    /// Sends a signal to the command itself, not to what keeps it. Without effect while there is none.
    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(command) = self.command() {
            // It may have ended meanwhile.
            let _ = pidfd_send_signal(command, signal);
        }
    }

    /// Ends everything in the sandbox: its first process takes the others along.
    pub(super) fn kill(&self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.outer, Signal::KILL);
    }

    /// The command is the one child of the sandbox's first process that was there from the start.
    fn command(&mut self) -> Option<OwnedFd> {
        while let Ok(pid) = self.init.try_recv() {
            self.init_pid = Some(pid);
        }
        let children = format!("/proc/{0}/task/{0}/children", self.init_pid?);
        let first = || {
            let text = std::fs::read_to_string(&children).ok()?;
            text.split_ascii_whitespace().next()?.parse::<i32>().ok()
        };
        let pid = first()?;
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // Looked at twice, so that the number cannot have come to mean a process outside meanwhile.
        (first() == Some(pid)).then_some(process)
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.kill();
        if let Some(thread) = self.thread.take() {
            // The thread has nothing to say but what it sent.
            let _said_already = thread.join();
        }
    }
}

fn live(
    sandbox: &Sandbox,
    namespace: &OwnedFd,
    started: oneshot::Sender<OwnedFd>,
    init: &mpsc::UnboundedSender<i32>,
) -> std::io::Result<Ended> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let (status, theirs) = std::io::pipe()?;
    let mut child = bubblewrap::spawn(sandbox, theirs.into())?;
    let outer = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    // The run may have been given up already; then the child is killed through the same descriptor's drop.
    if let Err(outer) = started.send(outer) {
        let _ = pidfd_send_signal(outer, Signal::KILL);
    }
    let mut exit_code = None;
    for line in BufReader::new(status).lines().map_while(Result::ok) {
        let Ok(status) = serde_json::from_str::<Status>(&line) else {
            continue;
        };
        if let Some(pid) = status.child_pid {
            let _ = init.send(pid);
        }
        exit_code = exit_code.or(status.exit_code);
    }
    Ok(how(exit_code, child.wait()?))
}

fn how(exit_code: Option<i32>, status: ExitStatus) -> Ended {
    match (exit_code.map(u8::try_from), status.signal()) {
        (Some(Ok(code)), _) => Ended::Code(code),
        (Some(Err(_)), _) => Ended::Code(u8::MAX),
        (None, Some(_)) => Ended::Killed,
        (None, None) => Ended::NotMade,
    }
}
