//! DNS over TCP (RFC 7766): each message behind its length, answered in order.

use std::future::Future;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::message::Transport;
use super::{DnsServer, NameGate};
use crate::edge_limits::{DNS_CONNECTION_TIMEOUT, MAX_DNS_QUERY_BYTES, MAX_QUERIES_PER_CONNECTION};

impl<G: NameGate> DnsServer<G> {
    /// Answers what comes on one connection until it ends, breaks, is silent for [`DNS_CONNECTION_TIMEOUT`], sends what
    /// gets no answer, or `stop` is cancelled.
    ///
    /// Not cancel-safe: dropping it closes the connection.
    pub async fn serve_tcp<S>(&self, stream: S, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Ok(_permit) = self.connections.try_acquire() else {
            self.tally.count("overloaded");
            return;
        };
        tokio::select! {
            () = self.converse(stream) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S) {
        for _ in 0..MAX_QUERIES_PER_CONNECTION {
            let Some(message) = in_time(receive(&mut stream)).await.flatten() else {
                break;
            };
            if message.len() > MAX_DNS_QUERY_BYTES {
                self.tally.count("oversize");
                break;
            }
            let Some(answer) = self.answer(&message, Transport::Tcp).await else {
                break;
            };
            let Ok(length) = u16::try_from(answer.len()) else {
                break;
            };
            let frame = [&length.to_be_bytes()[..], &answer].concat();
            if !matches!(in_time(stream.write_all(&frame)).await, Some(Ok(()))) {
                break;
            }
        }
        // The connection is over either way.
        drop(in_time(stream.shutdown()).await);
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
    timeout(DNS_CONNECTION_TIMEOUT, work).await.ok()
}

/// The next message; of one that is too long, only the part that shows it.
async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Vec<u8>> {
    let length = usize::from(stream.read_u16().await.ok()?);
    let mut message = vec![0; length.min(MAX_DNS_QUERY_BYTES.saturating_add(1))];
    stream.read_exact(&mut message).await.ok()?;
    Some(message)
}
