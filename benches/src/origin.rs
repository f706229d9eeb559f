//! The origin: Debian's nginx, which is faster than anything that is measured in front of it.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::pki::{self, Files};
use crate::process::{Owned, pinned, wait_for};

/// How large the big file is.
pub(crate) const BIG_BYTES: u64 = 100 * 1024 * 1024;

/// A running nginx.
#[derive(Debug)]
pub(crate) struct Origin {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    _process: Owned,
}

/// A port of the loopback that was free a moment ago.
pub(crate) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

impl Origin {
    /// Starts nginx on `cpu`, with `1k.json` and `100m.bin` to serve.
    pub(crate) fn start(folder: &Path, files: &Files, cpu: usize) -> Result<Self> {
        let address = free_port()?;
        let www = folder.join("www");
        fs::create_dir_all(&www)?;
        fs::write(
            www.join("1k.json"),
            format!("{{\"padding\": \"{}\"}}", "x".repeat(1024 - 15)),
        )?;
        fs::File::create(www.join("100m.bin"))?.set_len(BIG_BYTES)?;
        let config = folder.join("nginx.conf");
        fs::write(&config, configuration(folder, files, address)?)?;
        let mut command = pinned(cpu, "nginx");
        command
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(folder)
            .stderr(Stdio::inherit());
        let process = Owned::start(&mut command).context("nginx is needed: apt-get install nginx-light")?;
        wait_for("nginx does not answer", || Ok(TcpStream::connect(address)?))?;
        Ok(Self {
            address,
            _process: process,
        })
    }
}

fn configuration(folder: &Path, files: &Files, address: SocketAddr) -> Result<String> {
    let place = folder.display();
    let mut text = format!(
        "daemon off; user root; worker_processes 1; worker_rlimit_nofile 16384;
         pid {place}/nginx.pid; error_log {place}/nginx.log warn;
         events {{ worker_connections 8192; }}
         http {{
           access_log off; sendfile on; tcp_nodelay on; tcp_nopush on;
           keepalive_timeout 300s; keepalive_requests 100000000; open_file_cache max=100;
           types {{ application/json json; }} default_type application/octet-stream;
           server {{ listen {address} ssl backlog=4096; server_name {domain} *.{domain};
             ssl_certificate {leaf}; ssl_certificate_key {key};
             ssl_session_cache shared:S:20m; ssl_session_timeout 1h; root {place}/www; }}\n",
        domain = pki::DOMAIN,
        leaf = files.leaf.display(),
        key = files.key.display(),
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "{kind}_temp_path {place}/{kind};")?;
    }
    text.push_str("}\n");
    Ok(text)
}
