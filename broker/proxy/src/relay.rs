//! A WebSocket after its handshake: bytes both ways, counted and bounded, until either side ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::outcome::Outcome;
use crate::parse::body::Progress;
use crate::parse::{ResponseBody, body};
use crate::shared::Shared;

/// Bytes that are on their way in one direction.
const BUFFER: usize = 16 * 1024;

/// Answers the handshake and relays what follows. The task is the sandbox's, and ends with its lifeline.
pub(crate) fn relay(
    response: Response<ResponseBody>,
    client: OnUpgrade,
    upstream: OnUpgrade,
    mut outcome: Outcome,
    connection: &Arc<Connection>,
    shared: &Arc<Shared>,
    response_limit: u64,
) -> Response<ResponseBody> {
    connection.flow.upgrade();
    let (head, _) = response.into_parts();
    outcome.status = Some(head.status);
    let limits = Arc::clone(&shared.limits);
    let held = Arc::clone(connection);
    connection.sandbox.spawn(async move {
        let progress = Arc::clone(outcome.progress());
        let both = timeout(limits.dial, async { tokio::try_join!(client, upstream) }).await;
        let Ok(Ok((client, upstream))) = both else {
            outcome.relayed(Some("upgrade"));
            return;
        };
        let (from_client, to_client) = split(client);
        let (from_upstream, to_upstream) = split(upstream);
        let up = copy(
            from_client,
            to_upstream,
            &progress.request_bytes,
            progress.request_limit(),
            &progress,
        );
        let down = copy(
            from_upstream,
            to_client,
            &progress.response_bytes,
            response_limit,
            &progress,
        );
        let result = tokio::select! {
            result = async { tokio::try_join!(up, down) } => result.map(|_both| ()),
            () = still(&progress, limits.stream_stall) => Err("relay_stalled"),
        };
        outcome.relayed(result.err());
        drop(held);
    });
    Response::from_parts(head, body::empty())
}

/// Returns when nothing has moved for so long.
async fn still(progress: &Progress, patience: Duration) {
    let mut seen = u64::MAX;
    loop {
        let now = progress.beats.load(Ordering::Relaxed);
        if now == seen {
            return;
        }
        seen = now;
        tokio::time::sleep(patience).await;
    }
}

fn split(upgraded: Upgraded) -> (impl AsyncRead + Unpin, impl AsyncWrite + Unpin) {
    tokio::io::split(TokioIo::new(upgraded))
}

/// Copies until the end, and then ends the other direction's reader's view of it.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: &AtomicU64,
    limit: u64,
    progress: &Progress,
) -> Result<(), &'static str> {
    let mut buffer = vec![0_u8; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.map_err(|_broken| "relay_broken")?;
        if read == 0 {
            return to.shutdown().await.map_err(|_broken| "relay_broken");
        }
        progress.beat();
        let read_bytes = u64::try_from(read).unwrap_or(u64::MAX);
        let before = count.fetch_add(read_bytes, Ordering::Relaxed);
        if before.saturating_add(read_bytes) > limit {
            return Err("relay_limit");
        }
        let bytes = buffer.get(..read).unwrap_or_default();
        to.write_all(bytes).await.map_err(|_broken| "relay_broken")?;
        to.flush().await.map_err(|_broken| "relay_broken")?;
    }
}
