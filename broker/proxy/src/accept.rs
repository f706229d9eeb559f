//! Who is asking: the listener that accepted the connection, and the mark that proves that the filter ran (P2).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wallgate_types::address::{GuestAddr, OriginalDst};

use crate::connection::connection;
use crate::shared::{Sandbox, Shared};

/// How often old counts are recorded and idle upstream connections are closed.
const SWEEP: Duration = Duration::from_secs(5);
/// How long accepting rests when the process has no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// A connection of a sandbox that is known by the listener it came in on.
#[must_use = "an accepted connection is served or closed"]
#[derive(Debug)]
pub struct Accepted {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) original_dst: OriginalDst,
    pub(crate) guest: GuestAddr,
    pub(crate) stream: TcpStream,
    pub(crate) lifeline: CancellationToken,
    pub(crate) place: OwnedSemaphorePermit,
}

/// Serves one sandbox's listener until `stop`; then lets what is under way finish for a bounded time, and awaits it all.
///
/// Not cancel-safe: dropping it severs the sandbox's connections.
///
/// # Errors
/// The listener itself failed, which only the kernel can make it do.
pub(crate) async fn serve(
    listener: TcpListener,
    sandbox: Arc<Sandbox>,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut serving = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if let Some(accepted) = admit(stream, peer, &sandbox, &shared).await {
                        serving.spawn(connection(accepted, Arc::clone(&shared), stop.clone()));
                    }
                }
                Err(error) if is_exhausted(&error) => tokio::time::sleep(EXHAUSTED).await,
                Err(error) if is_fatal(&error) => return Err(error),
                // The client was gone before we had it.
                Err(_) => {}
            },
            Some(ended) = serving.join_next() => note_panic(ended, &sandbox, &shared).await,
            _ = sweep.tick() => tidy(&sandbox, &shared, false).await,
        }
    }
    let drained = tokio::time::timeout(shared.limits.drain, async {
        while let Some(ended) = serving.join_next().await {
            note_panic(ended, &sandbox, &shared).await;
        }
    });
    if drained.await.is_err() {
        tracing::info!(sandbox = %sandbox.facts.id, "connections did not finish in time and are cut");
    }
    serving.shutdown().await;
    sandbox.quarantine();
    sandbox.tasks.close();
    sandbox.tasks.wait().await;
    tidy(&sandbox, &shared, true).await;
    Ok(())
}

/// Checks that the connection came through this sandbox's filter and finds a place for it. What is refused is closed
/// and counted.
async fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    sandbox: &Arc<Sandbox>,
    shared: &Shared,
) -> Option<Accepted> {
    let refuse = |code| {
        sandbox
            .refusals
            .note("flow_deny", code, shared.clock.monotonic(), || {
                Sandbox::sample(&[("guest", Some(peer.to_string()))])
            })
    };
    if let Some(expected) = sandbox.mark
        && getsockopt(&stream, sockopt::Mark).ok() != Some(expected)
    {
        shared.note(refuse("mark")).await;
        return None;
    }
    let Some(lifeline) = sandbox.lifeline() else {
        shared.note(refuse("quarantined")).await;
        return None;
    };
    let Ok(place) = Arc::clone(&sandbox.connections).try_acquire_owned() else {
        shared.note(refuse("connection_limit")).await;
        return None;
    };
    let local = stream.local_addr().ok()?;
    stream.set_nodelay(true).ok()?;
    Some(Accepted {
        sandbox: Arc::clone(sandbox),
        original_dst: OriginalDst(plain(local)),
        guest: GuestAddr(plain(peer)),
        stream,
        lifeline,
        place,
    })
}

/// A dual-stack listener shows IPv4 as mapped addresses.
fn plain(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}

async fn tidy(sandbox: &Sandbox, shared: &Shared, all: bool) {
    sandbox.pool.sweep();
    for event in sandbox.refusals.due(shared.clock.monotonic(), all) {
        shared.note(Some(event)).await;
    }
}

async fn note_panic(ended: Result<(), tokio::task::JoinError>, sandbox: &Sandbox, shared: &Shared) {
    if ended.is_err_and(|error| error.is_panic()) {
        let event = sandbox
            .refusals
            .note("worker_crash", "panic", shared.clock.monotonic(), || {
                serde_json::Value::Null
            });
        shared.note(event).await;
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        code,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

fn is_fatal(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        code,
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)
    )
}
