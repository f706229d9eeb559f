//! The broker as the supervisor sees it: a child at the other end of a channel.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::prepare::Prepared;
use crate::channel::{
    self, Attach, Channel, ChannelError, CounterRow, Summary, ToBroker, ToSupervisor, VERSION,
};
use crate::exit::{Exit, Failure};
use crate::sandbox::bubblewrap::{memory_file, spawn_plain};

/// How long the broker may take to open everything: a long ledger is checked meanwhile.
const OPEN_DEADLINE: Duration = Duration::from_mins(2);
/// How long it may take to record and serve one sandbox.
const ATTACH_DEADLINE: Duration = Duration::from_secs(20);
/// Beyond the configured drain, how long it may take to close the ledger.
const CLOSE_DEADLINE: Duration = Duration::from_secs(20);

/// Variables of the operator's that say which certificates the host trusts.
const TRUST_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What the broker says, or that it is gone.
#[derive(Debug)]
pub(super) enum Event {
    Said(ToSupervisor),
    /// It ended, or said something that no broker says and was killed for it.
    Gone(String),
}

/// A running broker. Dropping it kills it.
#[derive(Debug)]
pub(super) struct BrokerProcess {
    channel: Channel,
    events: mpsc::UnboundedReceiver<Event>,
    process: OwnedFd,
    reader: Option<JoinHandle<()>>,
    drain: Duration,
    /// Whether its end has been told.
    gone: bool,
}

impl BrokerProcess {
    /// Starts the broker and has it open everything. Returns the root certificate that sandboxes trust.
    pub(super) async fn start(prepared: &Prepared) -> Result<(Self, String), Failure> {
        let mut broker = Self::spawn(prepared.config.limits.drain).map_err(Failure::internal)?;
        broker.send(&ToBroker::Hello { version: VERSION }, &[])?;
        match broker.next(OPEN_DEADLINE).await? {
            ToSupervisor::Hello { version } => channel::agree(version).map_err(Failure::internal)?,
            _ => return Err(Failure::internal(ChannelError::Unexpected { expected: "hello" })),
        }
        let secrets = secrets_file(prepared)?;
        let setup = ToBroker::Setup {
            config: prepared.config.path.clone(),
            state_dir: prepared.state.paths().root().to_owned(),
        };
        broker.send(&setup, &[secrets.as_fd()])?;
        match broker.next(OPEN_DEADLINE).await? {
            ToSupervisor::Opened { root_certificate } => Ok((broker, root_certificate)),
            _ => Err(Failure::internal(ChannelError::Unexpected { expected: "opened" })),
        }
    }

    fn spawn(drain: Duration) -> std::io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        // The broker's own group: a terminal's signals are for the command.
        command
            .arg("broker")
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .current_dir("/")
            .process_group(0);
        command.envs(
            TRUST_VARIABLES
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        let child = spawn_plain(&mut command)?;
        // The command holds the broker's end; the broker alone must, or its death would not be seen.
        drop(command);
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let (sender, events) = mpsc::unbounded_channel();
        let listening = channel.try_clone()?;
        let killable = process.try_clone()?;
        let reader = std::thread::Builder::new()
            .name("broker-channel".to_owned())
            .spawn(move || listen(&listening, child, &killable, &sender))?;
        Ok(Self {
            channel,
            events,
            process,
            reader: Some(reader),
            drain,
            gone: false,
        })
    }

    /// Hands over a sandbox and waits until its proof is recorded and its sockets are served.
    pub(super) async fn attach(
        &mut self,
        attach: Attach,
        sockets: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<u64, Failure> {
        self.send(&ToBroker::Attach(Box::new(attach)), sockets)?;
        match self.next(ATTACH_DEADLINE).await? {
            ToSupervisor::Ready { ledger_index, .. } => Ok(ledger_index),
            _ => Err(Failure::internal(ChannelError::Unexpected { expected: "ready" })),
        }
    }

    /// Takes the sandbox back and waits until its outcomes and counters are recorded.
    pub(super) async fn detach(
        &mut self,
        sandbox: wallgate_types::sandbox::SandboxId,
        counters: Vec<CounterRow>,
    ) -> Result<Summary, Failure> {
        self.send(&ToBroker::Detach { sandbox, counters }, &[])?;
        match self.next(self.drain.saturating_add(CLOSE_DEADLINE)).await? {
            ToSupervisor::Detached { summary, .. } => Ok(summary),
            _ => Err(Failure::internal(ChannelError::Unexpected {
                expected: "detached",
            })),
        }
    }

    /// Has the broker close the ledger and end. Returns why the ledger could not be closed as it should, if so.
    pub(super) async fn shut_down(mut self) -> Result<Option<String>, Failure> {
        self.send(&ToBroker::Shutdown, &[])?;
        match self.next(self.drain.saturating_add(CLOSE_DEADLINE)).await? {
            ToSupervisor::Stopped { ledger_failure } => Ok(ledger_failure),
            _ => Err(Failure::internal(ChannelError::Unexpected {
                expected: "stopped",
            })),
        }
    }

    /// Whether it is known to be gone.
    pub(super) const fn is_gone(&self) -> bool {
        self.gone
    }

    /// What it says next, unasked. Cancel-safe.
    pub(super) async fn event(&mut self) -> Event {
        let closed = || Event::Gone("its channel closed".to_owned());
        let event = self.events.recv().await.unwrap_or_else(closed);
        self.gone = matches!(event, Event::Gone(_));
        event
    }

    async fn next(&mut self, deadline: Duration) -> Result<ToSupervisor, Failure> {
        match timeout(deadline, self.event()).await {
            Ok(Event::Said(ToSupervisor::Failed(failure))) => Err(failure),
            Ok(Event::Said(message)) => Ok(message),
            Ok(Event::Gone(how)) => Err(gone(&how)),
            Err(_) => Err(Failure::internal(format!(
                "the broker did not answer within {} seconds",
                deadline.as_secs()
            ))),
        }
    }

    fn send(&self, message: &ToBroker, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Failure> {
        match self.channel.send(message, descriptors) {
            // Why it is gone is in the events.
            Ok(()) | Err(ChannelError::Closed) => Ok(()),
            Err(error) => Err(Failure::internal(error)),
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        if let Some(reader) = self.reader.take() {
            // The thread has nothing to say but what it sent.
            let _said_already = reader.join();
        }
    }
}

/// The failure of a run whose broker ended.
pub(super) fn gone(how: &str) -> Failure {
    Failure::internal(format!("the broker is gone ({how}); the sandbox was ended"))
}

fn listen(channel: &Channel, mut child: Child, process: &OwnedFd, events: &mpsc::UnboundedSender<Event>) {
    let unreadable = loop {
        match channel.receive::<ToSupervisor>() {
            Ok((message, _)) => {
                if events.send(Event::Said(message)).is_err() {
                    break None;
                }
            }
            Err(ChannelError::Closed) => break None,
            Err(error) => {
                let _ = pidfd_send_signal(process, Signal::KILL);
                break Some(error.to_string());
            }
        }
    };
    let ended = child.wait();
    let how = unreadable.unwrap_or_else(|| ended.map_or_else(|error| error.to_string(), describe));
    // Nobody listens any more when the run is over.
    let _nobody_listens = events.send(Event::Gone(how));
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".to_owned(),
    }
}

/// A memory file with the secrets as a JSON object of byte arrays in base64.
fn secrets_file(prepared: &Prepared) -> Result<OwnedFd, Failure> {
    use base64::Engine as _;
    use zeroize::Zeroizing;

    let refused = |error: std::io::Error| Failure::new(Exit::Internal, error);
    let mut text = Zeroizing::new(String::with_capacity(1024));
    for (name, value) in &prepared.secrets {
        let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(value));
        text.push_str(name);
        text.push('=');
        text.push_str(&encoded);
        text.push('\n');
    }
    let file = File::from(memory_file(text.as_bytes()).map_err(refused)?);
    Ok(file.into())
}
