//! Servers on free loopback ports, each keeping what it received.
//!
//! [`origin`] is our own and answers what a test needs; [`front`] puts TLS and a journal in front of real servers that
//! speak plain HTTP ([`pypi`], [`npm`]); [`git`] and [`crates`] answer what the real clients ask; [`raw`] keeps bytes.

pub mod crates;
pub mod front;
pub mod git;
pub mod npm;
pub mod openbao;
pub mod origin;
pub mod pypi;
pub mod raw;
mod serve;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::net::TcpListener;

use crate::journal::Journal;
use crate::pki::Flaw;
use crate::room::Room;

pub use serve::{Answer, Answering, Arrived, Service, answer_text, body_of};

/// A server, as the test configures it upstream of a wall.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The name that it is for.
    pub host: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Who signed its certificate; `None` when it speaks no TLS.
    pub ca: Option<PathBuf>,
    /// What it received.
    pub journal: Journal,
}

impl Upstream {
    /// Serves `service` as `https://HOST`, over HTTP/1.1 and HTTP/2.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn https(room: &Room, host: &str, service: impl Service) -> Result<Self> {
        Self::https_with(room, host, Flaw::None, &["h2", "http/1.1"], service)
    }

    /// The same, with something wrong with its certificate, or fewer protocols.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn https_with(
        room: &Room,
        host: &str,
        flaw: Flaw,
        alpn: &[&str],
        service: impl Service,
    ) -> Result<Self> {
        let tls = room.pki().server_with_alpn(host, flaw, alpn)?;
        let (listener, address) = room.block_on(listener())?;
        let journal = Journal::default();
        room.runtime()
            .spawn(serve::serve(listener, Some(tls), journal.clone(), service));
        Ok(Self {
            host: host.to_owned(),
            address,
            ca: Some(room.pki().certificate().to_owned()),
            journal,
        })
    }

    /// Serves `service` as `http://HOST`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn http(room: &Room, host: &str, service: impl Service) -> Result<Self> {
        let (listener, address) = room.block_on(listener())?;
        let journal = Journal::default();
        room.runtime()
            .spawn(serve::serve(listener, None, journal.clone(), service));
        Ok(Self {
            host: host.to_owned(),
            address,
            ca: None,
            journal,
        })
    }
}

async fn listener() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("no free port")?;
    let address = listener.local_addr().context("no address")?;
    Ok((listener, address))
}
