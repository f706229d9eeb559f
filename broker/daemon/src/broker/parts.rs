//! stub
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use crate::channel::{Attach, CounterRow, Summary};
use crate::exit::Failure;
use wallgate_types::sandbox::SandboxId;
#[derive(Debug)]
pub(super) struct Parts { }
#[derive(Debug)]
pub(super) struct Sockets { pub(super) tcp: TcpListener, pub(super) dns_tcp: TcpListener, pub(super) dns_udp: UdpSocket }
pub(super) async fn open(config: &Path, state: &Path, _s: OwnedFd) -> Result<Parts, Failure> {
    let config = crate::config::read(config).map_err(Failure::internal)?;
    super::logging::start(&config.log)?;
    let files = super::confine::Files { read: vec![config.directory().to_owned()], write: vec![state.to_owned()] };
    super::confine::enclose(&files).map_err(Failure::internal)?;
    Ok(Parts {})
}
impl Parts {
    pub(super) fn root_certificate(&self) -> String { "-----BEGIN CERTIFICATE-----\n".into() }
    pub(super) async fn attach(&mut self, _a: Attach, _s: Sockets) -> Result<u64, Failure> { std::mem::drop((_a, _s.tcp, _s.dns_tcp, _s.dns_udp)); Ok(0) }
    pub(super) async fn detach(&mut self, _s: &SandboxId, _c: Vec<CounterRow>) -> Summary { Summary::default() }
    pub(super) async fn quit(&mut self) -> (SandboxId, String) { std::future::pending().await }
    pub(super) async fn close(self) -> Option<String> { None }
}
