//! An origin that echoes, streams, takes uploads and waits, as a test asks by path.
//!
//! | path | answer |
//! |---|---|
//! | `/echo` | JSON of method, path, query, headers and body |
//! | `/echo/body` | the body, as it comes |
//! | `/echo/gzip`, `/echo/base64`, `/echo/percent`, `/echo/hex` | `/echo`, encoded |
//! | `/echo/header` | the `Authorization` and `X-Api-Key` that came, in headers of the answer |
//! | `/echo/chunks` | `/echo`, seven bytes at a time |
//! | `/echo/trailer` | the `Authorization` that came, in a trailer |
//! | `/bytes/N` | N bytes of [`crate::pattern`] |
//! | `/sink` | reads the body and answers with its length and digest |
//! | `/events` | server-sent events, as [`Events::emit`] says them |
//! | `/hold` | answers once [`Events::release`] was called |
//! | `/status/N` | the status N |
//! | `/redirect?to=…` | 302 to there |
//! | `/early` | `hello from the origin`, without reading the body |
//! | anything else | `hello from HOST` |

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
};
use hyper::{Response, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use tokio::sync::{Notify, broadcast};

use super::serve::{Answer, Answering, Arrived, Service, answer_text, body_of};
use crate::pattern;
use crate::process::wait_until;
use crate::wallgate::PATIENCE;

const HELLO: &str = "hello from the origin\n";

/// How many events may wait for a slow reader.
const EVENTS: usize = 64;

/// What the test tells the origin while a client is connected. Clones speak to the same origin.
#[derive(Clone, Debug)]
pub struct Events {
    sender: broadcast::Sender<String>,
    released: Arc<Notify>,
}

impl Events {
    /// Sends one event to every client that reads `/events`, and waits until there is one.
    ///
    /// # Errors
    ///
    /// When nobody reads in time.
    pub fn emit(&self, data: &str) -> Result<()> {
        // A request is in the journal a moment before its answer is subscribed to the events.
        wait_until("a reader of the events", PATIENCE, || {
            (self.sender.receiver_count() > 0).then_some(())
        })?;
        self.sender
            .send(data.to_owned())
            .map(drop)
            .context("nobody reads the events")
    }

    /// Lets one client of `/hold` go on; also one that comes later.
    pub fn release(&self) {
        self.released.notify_one();
    }
}

/// The origin.
#[derive(Debug)]
pub struct Origin {
    events: Events,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            events: Events {
                sender: broadcast::channel(EVENTS).0,
                released: Arc::default(),
            },
        }
    }
}

impl Origin {
    /// How the test speaks to it once it serves.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events.clone()
    }
}

impl Service for Origin {
    fn answer(&self, request: Arrived) -> Answering {
        Box::pin(answer(request, self.events.clone()))
    }
}

async fn answer(request: Arrived, events: Events) -> Result<Answer> {
    let path = request.uri().path().to_owned();
    let (first, rest) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path.trim_start_matches('/'), ""));
    match (first, rest) {
        ("echo", "body") => {
            let mut answer = Response::new(request.into_body().boxed_unsync());
            answer
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            Ok(answer)
        }
        ("echo", "header") => echo_in_headers(&request),
        ("echo", "trailer") => Ok(echo_in_a_trailer(&request)),
        ("echo", form) => {
            let form = form.to_owned();
            let text = echo(request).await?;
            echoed(&form, text)
        }
        ("bytes", length) => download(length.parse().context("/bytes/N wants a number")?),
        ("sink", _) => {
            let (length, sha256) = request.into_body().drain().await?;
            Ok(json_answer(&json!({"bytes": length, "sha256": sha256})))
        }
        ("events", _) => Ok(server_sent(&events)),
        ("hold", _) => {
            events.released.notified().await;
            Ok(answer_text(StatusCode::OK, "released\n"))
        }
        ("status", code) => Ok(answer_text(
            StatusCode::from_bytes(code.as_bytes())?,
            format!("{code}\n"),
        )),
        ("redirect", _) => {
            let to = request
                .uri()
                .query()
                .and_then(|query| query.strip_prefix("to="))
                .unwrap_or("/");
            let mut answer = answer_text(StatusCode::FOUND, "elsewhere\n");
            answer.headers_mut().insert(LOCATION, HeaderValue::from_str(to)?);
            Ok(answer)
        }
        ("early", _) => Ok(answer_text(StatusCode::OK, HELLO)),
        _ => {
            request.into_body().drain().await?;
            Ok(answer_text(StatusCode::OK, HELLO))
        }
    }
}

async fn echo(request: Arrived) -> Result<String> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let headers: serde_json::Map<String, serde_json::Value> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    Ok(json!({
        "method": head.method.as_str(),
        "path": head.uri.path(),
        "query": head.uri.query(),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    })
    .to_string())
}

fn echoed(form: &str, text: String) -> Result<Answer> {
    let encoded = match form {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(text.as_bytes()).context("cannot compress")?;
            let mut answer = answer_text(StatusCode::OK, encoder.finish().context("cannot compress")?);
            answer
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            return Ok(answer);
        }
        "chunks" => {
            let pieces: Vec<Bytes> = text.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
            let frames = stream::iter(pieces).then(|piece| async {
                // Each on its own way to the wire: the writer is polled in between.
                tokio::task::yield_now().await;
                Ok(Frame::data(piece))
            });
            return Ok(Response::new(StreamBody::new(frames).boxed_unsync()));
        }
        "base64" => STANDARD.encode(text),
        "percent" => utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string(),
        "hex" => hex::encode(text),
        _ => text,
    };
    Ok(answer_text(StatusCode::OK, encoded))
}

fn echo_in_headers(request: &Arrived) -> Result<Answer> {
    let mut answer = answer_text(StatusCode::OK, "see the headers\n");
    for name in ["authorization", "x-api-key"] {
        if let Some(value) = request.headers().get(name) {
            answer.headers_mut().insert(
                HeaderName::from_bytes(format!("x-echo-{name}").as_bytes())?,
                value.clone(),
            );
        }
    }
    Ok(answer)
}

fn echo_in_a_trailer(request: &Arrived) -> Answer {
    let mut trailers = HeaderMap::new();
    if let Some(value) = request.headers().get("authorization") {
        trailers.insert("x-echo-authorization", value.clone());
    }
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"see the trailer\n"))),
        Ok(Frame::trailers(trailers)),
    ];
    let mut answer = Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync());
    answer
        .headers_mut()
        .insert("trailer", HeaderValue::from_static("x-echo-authorization"));
    answer
}

fn download(length: u64) -> Result<Answer> {
    let frames = stream::iter(pattern::pieces(length).map(|piece| Ok(Frame::data(piece))));
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from_str(&length.to_string())?);
    Ok(answer)
}

fn server_sent(events: &Events) -> Answer {
    let receiver = events.sender.subscribe();
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let data = receiver.recv().await.ok()?;
        Some((Frame::data(Bytes::from(format!("data: {data}\n\n"))), receiver))
    });
    let body = StreamBody::new(frames.map(Ok::<_, Infallible>)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}

fn json_answer(value: &serde_json::Value) -> Answer {
    let mut answer = Response::new(body_of(value.to_string()));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
