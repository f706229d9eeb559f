//! Every bound of the data path, by name, in one place.
//!
//! A limit that is reached is a refusal with a code, never a silent truncation.

use std::time::Duration;

/// Bounds that an operator may change; the defaults are what the tests and the documentation speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Methods whose requests have no body (RFC 9110, section 9.3.1: its meaning is undefined, so some parser skips it).
    pub bodiless_methods: Vec<String>,
    /// Open connections of one sandbox.
    pub connections_per_sandbox: usize,
    /// A request line, in bytes.
    pub request_line_bytes: usize,
    /// A request head with its request line, in bytes; also the h2 header list.
    pub head_bytes: usize,
    /// Header fields of one request.
    pub header_fields: usize,
    /// A trailer section, in bytes.
    pub trailer_bytes: usize,
    /// A canonical path, in bytes.
    pub path_bytes: usize,
    /// Segments of a path.
    pub path_segments: usize,
    /// Keys of a query.
    pub query_keys: usize,
    /// From a connection's first byte to the end of its handshake.
    pub handshake: Duration,
    /// From a head's first byte to its last.
    pub head: Duration,
    /// A kept-alive connection without a request.
    pub idle: Duration,
    /// A body that a client owes without sending a byte, or a response that it does not take.
    pub client_stall: Duration,
    /// A request in which nothing moves in either direction.
    pub stream_stall: Duration,
    /// Resolving a name.
    pub resolve: Duration,
    /// Connecting upstream, handshakes included.
    pub dial: Duration,
    /// From the end of a request to the head of its response.
    pub response_head: Duration,
    /// Recording a decision.
    pub record: Duration,
    /// Fetching credentials.
    pub arm: Duration,
    /// Reading a body that policy asked to see.
    pub inspect: Duration,
    /// What policy may ask to see of a body, whatever a bundle says, in bytes.
    pub inspect_bytes: u64,
    /// Request and response bodies, whatever a ruling says, in bytes.
    pub body_bytes: u64,
    /// Concurrent streams of one h2 connection.
    pub h2_streams: u32,
    /// Streams that a client reset before they were served (CVE-2023-44487).
    pub h2_pending_resets: usize,
    /// Streams that we had to reset for a client's errors (CVE-2025-8671).
    pub h2_local_resets: usize,
    /// The flow-control window of one h2 stream, in bytes.
    pub h2_stream_window: u32,
    /// The flow-control window of one h2 connection, in bytes.
    pub h2_connection_window: u32,
    /// How often a silent h2 client is pinged, and how long it may take to answer.
    pub h2_ping: Duration,
    /// Idle upstream connections of one sandbox and destination.
    pub pool_idle_per_key: usize,
    /// Idle upstream connections of one sandbox.
    pub pool_idle_per_sandbox: usize,
    /// How long an upstream connection may lie idle.
    pub pool_idle: Duration,
    /// Streams on one upstream h2 connection before another is opened.
    pub pool_h2_streams: usize,
    /// The body of a request to `wallgate.internal`, in bytes.
    pub internal_body_bytes: usize,
    /// Requests to `wallgate.internal` of one sandbox and minute.
    pub internal_per_minute: u64,
    /// Asks, reports and quits of one sandbox and hour.
    pub asks_per_hour: u64,
    /// Denials that one sandbox can still ask about.
    pub remembered_decisions: usize,
    /// Distinct names remembered for the budget of one sandbox.
    pub distinct_names: usize,
    /// Taints of one sandbox.
    pub taints: usize,
    /// Refusals before policy of one sandbox and code are recorded at most once in this time, with exact counts.
    pub refusal_window: Duration,
    /// How long connections may finish what they are doing at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bodiless_methods: ["GET", "HEAD", "OPTIONS", "DELETE"].map(str::to_owned).to_vec(),
            connections_per_sandbox: 1024,
            request_line_bytes: 16 * 1024,
            head_bytes: 64 * 1024,
            header_fields: 100,
            trailer_bytes: 8 * 1024,
            path_bytes: 8 * 1024,
            path_segments: 256,
            query_keys: 1024,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(15),
            idle: Duration::from_secs(90),
            client_stall: Duration::from_mins(1),
            stream_stall: Duration::from_mins(10),
            resolve: Duration::from_secs(10),
            dial: Duration::from_secs(15),
            response_head: Duration::from_mins(5),
            record: Duration::from_secs(10),
            arm: Duration::from_secs(15),
            inspect: Duration::from_secs(30),
            inspect_bytes: 8 * 1024 * 1024,
            body_bytes: 1 << 40,
            h2_streams: 128,
            h2_pending_resets: 20,
            h2_local_resets: 64,
            h2_stream_window: 1 << 20,
            h2_connection_window: 2 << 20,
            h2_ping: Duration::from_secs(30),
            pool_idle_per_key: 32,
            pool_idle_per_sandbox: 256,
            pool_idle: Duration::from_mins(1),
            pool_h2_streams: 100,
            internal_body_bytes: 16 * 1024,
            internal_per_minute: 120,
            asks_per_hour: 60,
            remembered_decisions: 256,
            distinct_names: 4096,
            taints: 64,
            refusal_window: Duration::from_secs(10),
            drain: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Whether a request with this method may bring a body.
    pub(crate) fn may_have_body(&self, method: &[u8]) -> bool {
        !self
            .bodiless_methods
            .iter()
            .any(|bodiless| bodiless.as_bytes() == method)
    }
}
