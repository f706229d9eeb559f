//! `git http-backend`, the server that git itself ships, behind the smallest CGI that it needs.
//!
//! Pushing is switched on and everybody may, so that a push that does not arrive was stopped by the wall.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use tokio::io::AsyncWriteExt as _;

use super::Upstream;
use super::serve::{Answer, Answering, Arrived, Service, answer_text};
use crate::process::succeed;
use crate::room::Room;

/// A server of git repositories.
#[derive(Debug)]
pub struct Git {
    /// The server.
    pub upstream: Upstream,
    repositories: PathBuf,
}

impl Git {
    /// Serves repositories as `https://HOST/NAME.git`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(room: &Room, host: &str) -> Result<Self> {
        let repositories = room.new_directory("git")?;
        let upstream = Upstream::https(
            room,
            host,
            Backend {
                repositories: repositories.clone(),
            },
        )?;
        Ok(Self {
            upstream,
            repositories,
        })
    }

    /// Makes a repository with one commit that holds one file.
    ///
    /// # Errors
    ///
    /// When git does not.
    pub fn add(&self, room: &Room, name: &str, file: &str, content: &str) -> Result<()> {
        let bare = self.repository(name);
        succeed(
            git(&self.repositories)
                .args(["init", "--quiet", "--bare", "--initial-branch=main"])
                .arg(&bare),
        )?;
        succeed(git(&bare).args(["config", "http.receivepack", "true"]))?;
        let work = room.new_directory("git-work")?;
        succeed(git(&work).args(["init", "--quiet", "--initial-branch=main"]))?;
        std::fs::write(work.join(file), content).context("cannot write the file")?;
        succeed(git(&work).args(["add", file]))?;
        succeed(git(&work).args(["commit", "--quiet", "--message", "first"]))?;
        succeed(git(&work).args(["push", "--quiet"]).arg(&bare).arg("main"))?;
        Ok(())
    }

    /// What a branch of a repository points to.
    ///
    /// # Errors
    ///
    /// When there is no such branch.
    pub fn head(&self, name: &str, branch: &str) -> Result<String> {
        let head = succeed(git(&self.repository(name)).args(["rev-parse", "--verify", branch]))?;
        Ok(head.trim().to_owned())
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.repositories.join(format!("{name}.git"))
    }
}

fn git(directory: &Path) -> Command {
    let mut command = Command::new("/usr/bin/git");
    command
        .current_dir(directory)
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args([
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@git.test",
            "-c",
            "safe.directory=*",
        ]);
    command
}

#[derive(Debug)]
struct Backend {
    repositories: PathBuf,
}

impl Service for Backend {
    fn answer(&self, request: Arrived) -> Answering {
        Box::pin(run(request, self.repositories.clone()))
    }
}

/// One request through the program, as RFC 3875 has it.
async fn run(request: Arrived, repositories: PathBuf) -> Result<Answer> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .unwrap_or_default()
    };
    let mut command = tokio::process::Command::new("/usr/lib/git-core/git-http-backend");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &repositories)
        .env("GIT_PROJECT_ROOT", &repositories)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REMOTE_USER", "anybody")
        .env("REMOTE_ADDR", "127.0.0.1")
        .env("REQUEST_METHOD", request.method().as_str())
        .env("PATH_INFO", request.uri().path())
        .env("QUERY_STRING", request.uri().query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let body = request.into_body().collect().await?.to_bytes();
    command.env("CONTENT_LENGTH", body.len().to_string());
    let mut child = command.spawn().context("cannot start git http-backend")?;
    let mut input = child.stdin.take().context("no standard input")?;
    let feed = tokio::spawn(async move {
        // It may answer without reading everything.
        let _fed = input.write_all(&body).await;
    });
    let output = child.wait_with_output().await.context("git http-backend")?;
    feed.await.context("feeding git http-backend")?;
    from_cgi(&output.stdout)
}

fn from_cgi(output: &[u8]) -> Result<Answer> {
    let end = output
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("git http-backend sent no head")?;
    let (head, body) = output.split_at(end + 4);
    let mut answer = answer_text(StatusCode::OK, body.to_vec());
    for line in String::from_utf8_lossy(head).lines() {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        if name.eq_ignore_ascii_case("status") {
            *answer.status_mut() = value.get(..3).unwrap_or_default().parse()?;
        } else {
            answer.headers_mut().append(
                HeaderName::from_bytes(name.as_bytes())?,
                HeaderValue::from_str(value)?,
            );
        }
    }
    Ok(answer)
}
