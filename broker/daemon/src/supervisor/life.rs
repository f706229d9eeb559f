//! The life of one run, from the wall to the closed ledger.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use wallgate_types::sandbox::SandboxId;
use wallgate_wall::{Attachment, Counter, SandboxNetns, Wall, WallOptions};

use super::broker_process::{BrokerProcess, Event, gone};
use super::command::{Ended, RunningCommand};
use super::prepare::Prepared;
use crate::channel::{Attach, CounterRow, Summary, ToSupervisor};
use crate::exit::{Exit, Failure};
use crate::sandbox::bubblewrap::Sandbox;
use crate::sandbox::environment::{environment, trust_variables};
use crate::sandbox::{etc, filter};

/// This many interrupts of an impatient operator's terminal kill the command.
const INTERRUPTS_THAT_KILL: u32 = 3;
/// The most reasons that are reported at once; there are fewer.
const MAX_COUNTER_ROWS: usize = 512;

/// Lives it.
pub(super) async fn live(prepared: Prepared) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen().map_err(Failure::internal)?;
    let opening = BrokerProcess::start(&prepared);
    let (mut broker, root) = tokio::select! {
        started = opening => started?,
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    let (mut wall, attachment, namespace) = build_wall()?;
    let id = prepared.facts.id.clone();
    announce(&mut broker, &prepared, &attachment).await?;
    if let Some(notice) = &prepared.view.notice {
        eprintln!("wallgate: {notice}");
    }
    let slot = attachment.slot;
    let sandbox = sandbox(&prepared, &attachment, &root)?;
    // The broker has its own duplicates; ours would keep the ports open after its death.
    drop(attachment);
    let quiet = prepared.quiet;
    let grace = prepared.config.run.grace;
    let outcome = run_command(sandbox, namespace, &mut broker, &mut signals, grace).await;
    let counters = wall.detach(slot).map(counter_rows).unwrap_or_default();
    drop(wall);
    let ended = match outcome {
        Ok(ended) => ended,
        Err(failure) => {
            close(broker, id, counters, true).await;
            return Err(failure);
        }
    };
    close(broker, id, counters, quiet).await;
    drop(prepared);
    exit_code(ended)
}

fn build_wall() -> Result<(Wall, Attachment, SandboxNetns), Failure> {
    let refused =
        |error: wallgate_wall::WallError| Failure::new(Exit::Unavailable, format!("no wall: {error}"));
    let mut wall = Wall::create(&WallOptions::default()).map_err(refused)?;
    let slot = wall
        .free_slot()
        .ok_or_else(|| Failure::internal("a new wall has no free slot"))?;
    let (attachment, namespace) = wall.veth_sandbox(slot).map_err(refused)?;
    Ok((wall, attachment, namespace))
}

/// Hands the sandbox's sockets to the broker. When this returns, the attach proof is in the ledger.
async fn announce(
    broker: &mut BrokerProcess,
    prepared: &Prepared,
    attachment: &Attachment,
) -> Result<(), Failure> {
    let proof = &attachment.proof;
    let attach = Attach {
        sandbox: prepared.facts.clone(),
        mark: attachment.mark,
        v4: attachment.addressing.v4,
        v6: attachment.addressing.v6,
        gateway_v4: attachment.addressing.gateway_v4,
        gateway_v6: attachment.addressing.gateway_v6,
        proof: serde_json::json!({
            "ifindex": proof.ifindex,
            "ingress_program": proof.ingress_program,
            "egress_program": proof.egress_program,
            "steer_program": proof.steer_program,
            "map_generation": proof.map_generation,
            "object_sha256": proof.object_sha256,
        }),
    };
    let sockets = [
        attachment.tcp.as_fd(),
        attachment.dns_tcp.as_fd(),
        attachment.dns_udp.as_fd(),
    ];
    broker.attach(attach, &sockets).await?;
    Ok(())
}

fn sandbox(prepared: &Prepared, attachment: &Attachment, root: &str) -> Result<Sandbox, Failure> {
    let bundle = etc::bundle(root).map_err(|error| Failure::new(Exit::Unavailable, error))?;
    let gateway = &attachment.addressing;
    let files = etc::files(
        &prepared.facts.id,
        gateway.gateway_v4,
        gateway.gateway_v6,
        root,
        &bundle,
    );
    let trust = trust_variables(etc::BUNDLE_PATH, etc::ROOT_PATH);
    Ok(Sandbox {
        program: prepared.bubblewrap.clone(),
        hostname: prepared.facts.id.to_string(),
        view: prepared.view.clone(),
        files,
        filter: filter::program().map_err(|error| Failure::new(Exit::Unavailable, error))?,
        environment: environment(std::env::vars_os(), trust, &prepared.environment),
        command: prepared.command.iter().map(OsString::clone).collect(),
    })
}

/// Starts the command and waits for its end, passing on signals, as long as there is a broker.
async fn run_command(
    sandbox: Sandbox,
    namespace: SandboxNetns,
    broker: &mut BrokerProcess,
    signals: &mut Signals,
    grace: Duration,
) -> Result<Ended, Failure> {
    let namespace = namespace
        .as_fd()
        .try_clone_to_owned()
        .map_err(Failure::internal)?;
    let refused =
        |error: std::io::Error| Failure::internal(format!("the sandbox cannot be started: {error}"));
    let mut command = RunningCommand::start(sandbox, namespace).await.map_err(refused)?;
    let mut deadline: Option<Instant> = None;
    let mut interrupts = 0_u32;
    loop {
        let too_late = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = command.ended() => return ended.map_err(refused),
            event = broker.event() => match event {
                Event::Said(ToSupervisor::Failed(failure)) => {
                    command.kill();
                    return Err(failure);
                }
                Event::Said(_) => {
                    command.kill();
                    return Err(Failure::internal("the broker said something out of turn"));
                }
                Event::Gone(how) => {
                    command.kill();
                    return Err(gone(&how));
                }
            },
            signal = signals.next() => {
                let from_terminal = matches!(signal, Signal::INT | Signal::QUIT) && in_terminal_foreground();
                if from_terminal {
                    // The terminal has sent it to the command as well, which decides what it means, as in a shell.
                    interrupts = interrupts.saturating_add(1);
                    if interrupts >= INTERRUPTS_THAT_KILL {
                        command.kill();
                    }
                } else {
                    command.signal(signal);
                    deadline.get_or_insert_with(|| Instant::now() + grace);
                }
            }
            () = too_late => {
                command.kill();
                deadline = None;
            }
        }
    }
}

/// Whether the terminal sends its interrupts to our process group, which is the command's as well.
fn in_terminal_foreground() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal()
        && rustix::termios::tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Takes the sandbox from the broker and has it close the ledger. What goes wrong here is told, but changes nothing
/// about the command's exit code.
async fn close(mut broker: BrokerProcess, id: SandboxId, counters: Vec<CounterRow>, quiet: bool) {
    if broker.is_gone() {
        return;
    }
    let summary = match broker.detach(id.clone(), counters).await {
        Ok(summary) => summary,
        Err(failure) => {
            eprintln!("wallgate: {failure}");
            return;
        }
    };
    match broker.shut_down().await {
        Ok(None) => {}
        Ok(Some(problem)) => eprintln!("wallgate: the ledger could not be closed as it should: {problem}"),
        Err(failure) => eprintln!("wallgate: {failure}"),
    }
    if !quiet {
        let Summary {
            allowed,
            denied,
            quit,
        } = summary;
        eprintln!("wallgate: sandbox {id}: {allowed} allowed, {denied} denied");
        if let Some(reason) = quit {
            eprintln!("wallgate: sandbox {id} says that its task cannot be done: {reason}");
        }
    }
}

fn counter_rows(counters: Vec<Counter>) -> Vec<CounterRow> {
    let row = |counter: Counter| CounterRow {
        reason: counter.reason.as_str().to_owned(),
        effect: match counter.effect() {
            wallgate_wall::Effect::Passed => "passed",
            wallgate_wall::Effect::Dropped => "dropped",
            wallgate_wall::Effect::Refused => "refused",
            wallgate_wall::Effect::Noted => "noted",
        }
        .to_owned(),
        frames: counter.frames,
    };
    counters.into_iter().take(MAX_COUNTER_ROWS).map(row).collect()
}

fn exit_code(ended: Ended) -> Result<ExitCode, Failure> {
    match ended {
        Ended::Code(code) => Ok(ExitCode::from(code)),
        Ended::Killed => Ok(ended_by(Signal::KILL)),
        Ended::NotMade => Err(Failure::new(
            Exit::Unavailable,
            "the sandbox could not be made; what bubblewrap says stands above, and `wallgate doctor` may know the remedy",
        )),
    }
}

/// 128 and the signal's number, as shells have it.
fn ended_by(signal: Signal) -> ExitCode {
    let number = u8::try_from(signal.as_raw()).unwrap_or(u8::MAX);
    ExitCode::from(number.saturating_add(128))
}

/// The signals that end a run.
#[derive(Debug)]
struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    hang_up: SignalStream,
    quit: SignalStream,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The next one. Cancel-safe.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }
}
