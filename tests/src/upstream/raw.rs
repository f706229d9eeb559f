//! A server that keeps every byte that it gets, and answers with bytes that the test chose.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::{Upstream, listener};
use crate::journal::Journal;
use crate::pki::Flaw;
use crate::room::Room;

/// What it does after the first bytes.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Nothing: it reads until the other side closes.
    Nothing,
    /// This, once the end of a head was seen; then it goes on reading.
    AfterHead(Vec<u8>),
    /// This, and then it closes, however much is still to come.
    AfterHeadThenClose(Vec<u8>),
}

impl Upstream {
    /// Keeps what arrives inside TLS as `HOST`, without HTTP of its own.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn raw_tls(room: &Room, host: &str, reply: Reply) -> Result<Self> {
        let tls = room.pki().server_with_alpn(host, Flaw::None, &["http/1.1"])?;
        Self::raw_with(room, host, Some(tls), reply)
    }

    /// Keeps what arrives as `HOST`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn raw(room: &Room, host: &str, reply: Reply) -> Result<Self> {
        Self::raw_with(room, host, None, reply)
    }

    fn raw_with(room: &Room, host: &str, tls: Option<Arc<ServerConfig>>, reply: Reply) -> Result<Self> {
        let (listener, address) = room.block_on(listener())?;
        let journal = Journal::default();
        let kept = journal.clone();
        let ca = tls.as_ref().map(|_| room.pki().certificate().to_owned());
        room.runtime().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, reply, journal) = (tls.clone(), reply.clone(), kept.clone());
                let connection = journal.connection();
                tokio::spawn(async move {
                    // However a connection ends, what came on it has been kept.
                    let _ended = match tls {
                        None => keep(stream, connection, &journal, &reply).await,
                        Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                            Ok(stream) => keep(stream, connection, &journal, &reply).await,
                            Err(error) => Err(error).context("no handshake"),
                        },
                    };
                });
            }
        });
        Ok(Self {
            host: host.to_owned(),
            address,
            ca,
            journal,
        })
    }
}

async fn keep(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: u64,
    journal: &Journal,
    reply: &Reply,
) -> Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let mut seen = Vec::new();
    let mut replied = false;
    loop {
        let length = stream.read(&mut buffer).await?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        journal.raw(connection, bytes);
        seen.extend_from_slice(bytes);
        if replied || !seen.windows(4).any(|window| window == b"\r\n\r\n") {
            continue;
        }
        replied = true;
        match reply {
            Reply::Nothing => {}
            Reply::AfterHead(answer) => {
                stream.write_all(answer).await?;
                stream.flush().await?;
            }
            Reply::AfterHeadThenClose(answer) => {
                stream.write_all(answer).await?;
                stream.shutdown().await?;
                return Ok(());
            }
        }
    }
}
