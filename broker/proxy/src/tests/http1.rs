//! What HTTP/1 two parsers could read differently is refused before policy, and what is not arrives as it was judged
//! (H01 to H11, T06). Every row is said to a real broker in front of an origin that writes down what it gets.

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Rows are written with `{H}` for the authority of the connection.
fn row(text: &str, door: SocketAddr) -> Vec<u8> {
    text.replace("{H}", &format!("api.test:{}", door.port()))
        .into_bytes()
}

/// What must be refused, by code. A row that ends with `|` is the beginning of a request that never ends.
const REFUSED: &[(&str, &str)] = &[
    // H01: two lengths.
    (
        "cl_te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /ok/smuggled HTTP/1.1\r\nHost: {H}\r\n\r\n",
    ),
    (
        "cl_te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET /ok/smuggled HTTP/1.1\r\nHost: {H}\r\n\r\n",
    ),
    (
        "cl_te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    // H02: Transfer-Encoding in disguise.
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked \r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding:  chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.0\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "ctl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "space_before_colon",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "te",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    ),
    // H03: lengths that are not one number.
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5, 5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5,6\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: +5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: -5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 0x5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 05\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5.0\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 18446744073709551621\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 9223372036854775808\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5 \r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length:  5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5 5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length:\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent_Length: 5\r\n\r\nhello",
    ),
    (
        "cl",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 00\r\n\r\n",
    ),
    // H04: line endings, folds, control bytes.
    ("line_ending", "GET /ok HTTP/1.1\nHost: {H}\r\n\r\n"),
    ("line_ending", "GET /ok HTTP/1.1\r\nHost: {H}\n\r\n"),
    ("line_ending", "GET /ok HTTP/1.1\nHost: {H}\n\n"),
    ("line_ending", "GET /ok HTTP/1.1\r\nHost: {H}\r\n\n"),
    ("line_ending", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: a\rb\r\n\r\n"),
    ("line_ending", "GET /ok HTTP/1.1\rHost: {H}\r\n\r\n"),
    ("line_ending", "GET /ok HTTP/1.1\r\r\nHost: {H}\r\n\r\n"),
    (
        "line_ending",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: a\n\rY: b\r\n\r\n",
    ),
    ("fold", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: a\r\n b\r\n\r\n"),
    ("fold", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: a\r\n\tb\r\n\r\n"),
    ("fold", "GET /ok HTTP/1.1\r\n Host: {H}\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost:\r\n {H}\r\n\r\n"),
    ("ctl", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: a\0b\r\n\r\n"),
    ("ctl", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX\0: a\r\n\r\n"),
    ("ctl", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: \x1b[2J\r\n\r\n"),
    ("ctl", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: \x7f\r\n\r\n"),
    ("ctl", "GET /ok\0 HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("space_before_colon", "GET /ok HTTP/1.1\r\nHost : {H}\r\n\r\n"),
    (
        "space_before_colon",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nX\t: a\r\n\r\n",
    ),
    ("header_name", "GET /ok HTTP/1.1\r\nHost: {H}\r\n: a\r\n\r\n"),
    ("header_name", "GET /ok HTTP/1.1\r\nHost: {H}\r\nnonsense\r\n\r\n"),
    ("header_name", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX Y: a\r\n\r\n"),
    ("header_name", "GET /ok HTTP/1.1\r\nHost: {H}\r\nX(Y): a\r\n\r\n"),
    (
        "header_name",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nX_Forwarded_For: a\r\n\r\n",
    ),
    (
        "header_value",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nX: caf\u{e9}\r\n\r\n",
    ),
    // H05: chunks.
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n05\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
    ),
    (
        "chunk",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    ),
    (
        "line_ending",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
    ),
    (
        "trailer",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    ),
    (
        "trailer",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: x\r\n\r\n",
    ),
    // H06: bodies where there are none, and expectations.
    (
        "body",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "body",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "body",
        "HEAD /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "body",
        "OPTIONS /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "body",
        "DELETE /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "expect",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nExpect: x\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "expect",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nExpect: 100-continue, x\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "expect",
        "POST /ok HTTP/1.0\r\nHost: {H}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "expect",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nExpect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    ),
    // H09: hosts.
    ("host", "GET /ok HTTP/1.1\r\n\r\n"),
    ("host", "GET /ok HTTP/1.0\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost:\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: {H}\r\nHost: {H}\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: {H}\r\nHost: evil.test\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: api.test@evil.test\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: api.test,evil.test\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: 127.1\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: api.test:0\r\n\r\n"),
    ("host", "GET /ok HTTP/1.1\r\nHost: api.test/x\r\n\r\n"),
    ("host", "GET http://evil.test/ok HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("misdirected", "GET /ok HTTP/1.1\r\nHost: api.test:1\r\n\r\n"),
    ("misdirected", "GET /ok HTTP/1.1\r\nHost: api.test\r\n\r\n"),
    ("target", "GET https://{H}/ok HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    // H10: paths.
    ("path", "GET /ok/../admin HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/..;/admin HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/%2e%2e/admin HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/%252e%252e/admin HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET //ok HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok//x HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/./x HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok\\..\\x HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/a%2fb HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/a%5cb HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/%00 HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("path", "GET /ok/%c0%ae HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("target", "GET /ok#x HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("target", "GET /o k HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("target", "OPTIONS * HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("target", "GET /ok\tHTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("target", "GET /ok HTTP/1.1 \r\nHost: {H}\r\n\r\n"),
    ("target", "GET /\u{e9} HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("version", "GET /ok HTTP/1.2\r\nHost: {H}\r\n\r\n"),
    ("version", "GET /ok HTTP/2.0\r\nHost: {H}\r\n\r\n"),
    ("version", "GET /ok http/1.1\r\nHost: {H}\r\n\r\n"),
    ("version", "GET /ok HTTP/1.10\r\nHost: {H}\r\n\r\n"),
    // H11: methods.
    ("method", "TRACE /ok HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("method", "TRACK /ok HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("method", "CONNECT {H} HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    ("method", "CONNECT evil.test:443 HTTP/1.1\r\nHost: {H}\r\n\r\n"),
    (
        "method_override",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nX-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "method_override",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nX-HTTP-Method: DELETE\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "method_override",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nX-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "method_override",
        "POST /ok?_method=DELETE HTTP/1.1\r\nHost: {H}\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "method_override",
        "POST /ok?%5fmethod=DELETE HTTP/1.1\r\nHost: {H}\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "method_override",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nX-Original-URL: /admin\r\n\r\n",
    ),
    // Upgrades.
    (
        "upgrade",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    ),
    (
        "upgrade",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nConnection: Upgrade\r\nUpgrade: tls/1.2\r\n\r\n",
    ),
    (
        "upgrade",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
    ),
    (
        "upgrade",
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nUpgrade: websocket\r\n\r\n",
    ),
    (
        "upgrade",
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_two_parsers_could_read_differently_never_reaches_the_origin() {
    let (address, seen, _task) = origin(OK).await;
    let world = World::new(address, Limits::default(), rustls::RootCertStore::empty()).await;
    assert!(REFUSED.len() >= 100, "{} rows", REFUSED.len());
    let mut wrong = Vec::new();
    for (code, text) in REFUSED {
        let answer = world.say(&row(text, world.door)).await;
        let origin = seen.take();
        // A body that breaks off after its request was judged is told as that; the record below says what broke it.
        let told = [*code, "client_body"]
            .iter()
            .any(|told| answer.contains(&format!("\"code\":\"{told}\"")));
        if !origin.is_empty() || !told || answer.contains("200 OK") {
            wrong.push(format!(
                "{code} {text:?}\n   got {answer:?}\n   origin got {origin:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let records = world.records("control").await;
    let refused: std::collections::BTreeMap<&str, u64> = records
        .iter()
        .filter(|record| record["event"] == "http_reject")
        .map(|record| {
            (
                record["detail"]["reason"].as_str().unwrap(),
                record["detail"]["count"].as_u64().unwrap(),
            )
        })
        .fold(std::collections::BTreeMap::new(), |mut all, (reason, count)| {
            *all.entry(reason).or_default() += count;
            all
        });
    for (code, _) in REFUSED {
        let rows = REFUSED.iter().filter(|(other, _)| other == code).count();
        assert_eq!(
            refused.get(code).copied(),
            u64::try_from(rows).ok(),
            "{code} is recorded with its count"
        );
    }
}

/// What passes, and the request line that the origin gets for it.
const PASSED: &[(&str, &str, &str)] = &[
    ("GET /ok HTTP/1.1\r\nHost: {H}\r\n\r\n", "GET /ok HTTP/1.1", ""),
    ("GET /ok HTTP/1.0\r\nHost: {H}\r\n\r\n", "GET /ok HTTP/1.1", ""),
    (
        "GET http://{H}/ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
        "GET /ok HTTP/1.1",
        "",
    ),
    ("GET /ok HTTP/1.1\r\nHOST: {H}\r\n\r\n", "GET /ok HTTP/1.1", ""),
    (
        "GET /ok?a=b&c=%20d HTTP/1.1\r\nHost:{H}\r\n\r\n",
        "GET /ok?a=b&c=%20d HTTP/1.1",
        "",
    ),
    ("GET /ok? HTTP/1.1\r\nHost: {H}\r\n\r\n", "GET /ok? HTTP/1.1", ""),
    (
        "GET /%6fk/%7ea%3a HTTP/1.1\r\nHost: {H}\r\n\r\n",
        "GET /ok/~a%3A HTTP/1.1",
        "",
    ),
    (
        "GET /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 0\r\n\r\n",
        "GET /ok HTTP/1.1",
        "",
    ),
    (
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length: 5\r\n\r\nhello",
        "POST /ok HTTP/1.1",
        "hello",
    ),
    (
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nContent-Length:5\r\n\r\nhello",
        "POST /ok HTTP/1.1",
        "hello",
    ),
    (
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        "POST /ok HTTP/1.1",
        "hello",
    ),
    (
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        "POST /ok HTTP/1.1",
        "hello",
    ),
    (
        "POST /ok HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
        "POST /ok HTTP/1.1",
        "hello",
    ),
    (
        "PROPFIND /ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
        "PROPFIND /ok HTTP/1.1",
        "",
    ),
    (
        "VERSION-CONTROL /ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
        "VERSION-CONTROL /ok HTTP/1.1",
        "",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_has_one_reading_arrives_as_it_was_judged() {
    let (address, seen, _task) = origin(OK).await;
    let world = World::new(address, Limits::default(), rustls::RootCertStore::empty()).await;
    for (text, line, body) in PASSED {
        let answer = world.say(&row(text, world.door)).await;
        let got = seen.take();
        assert!(
            answer.contains("HTTP/1.1 200 OK") || answer.contains("HTTP/1.0 200 OK"),
            "{text:?}: {answer:?}"
        );
        assert_eq!(got.len(), 1, "{text:?}");
        let (head, got_body) = got.first().unwrap();
        assert_eq!(head.lines().next(), Some(*line), "{text:?}");
        assert_eq!(String::from_utf8_lossy(got_body), *body, "{text:?}");
        let host = format!("\r\nhost: api.test:{}\r\n", world.door.port());
        assert_eq!(head.matches(&host).count(), 1, "{head:?}");
    }
    let decisions = world.records("decision").await;
    assert_eq!(
        decisions.len(),
        PASSED.len(),
        "one decision for each request that the origin got"
    );
}

/// Looks like HTTP to a lenient eye.
const NOT_HTTP: &[&str] = &[
    "GET ftp://{H}/ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
    "GET gopher://{H}/ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
    "GET ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
    "GET  /ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
    "G\"ET /ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
    "GeT /ok HTTP/1.1\r\nHost: {H}\r\n\r\n",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_first_line_that_no_client_sends_is_closed_without_an_answer() {
    let (address, seen, _task) = origin(OK).await;
    let world = World::new(address, Limits::default(), rustls::RootCertStore::empty()).await;
    for text in NOT_HTTP {
        let answer = world.say(&row(text, world.door)).await;
        assert_eq!(answer, "", "{text:?}");
        assert!(seen.take().is_empty(), "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_http_are_closed_without_an_answer() {
    let (address, seen, _task) = origin(OK).await;
    let world = World::new(address, Limits::default(), rustls::RootCertStore::empty()).await;
    let second = |bytes: &[u8]| {
        [
            row("GET /ok HTTP/1.1\r\nHost: {H}\r\n\r\n", world.door).as_slice(),
            bytes,
        ]
        .concat()
    };
    for bytes in [
        second(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        second(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n\r\n"),
        second(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        second(b"\0\0\0\0"),
        second(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    ] {
        let answer = world.say(&bytes).await;
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer:?}");
        assert_eq!(seen.take().len(), 1, "{bytes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_each_judged_and_answered_in_turn() {
    let (address, seen, _task) = origin(OK).await;
    let world = World::new(address, Limits::default(), rustls::RootCertStore::empty()).await;
    let text = "GET /ok/1 HTTP/1.1\r\nHost: {H}\r\n\r\nPOST /no HTTP/1.1\r\nHost: {H}\r\nContent-Length: 3\r\n\r\nabc\
                GET /ok/2 HTTP/1.1\r\nHost: {H}\r\n\r\nGET /ok/3 HTTP/1.1\nHost: {H}\r\n\r\n";
    let answer = world.say(&row(text, world.door)).await;
    let statuses: Vec<&str> = answer
        .split("HTTP/1.1 ")
        .skip(1)
        .filter_map(|part| part.get(..3))
        .collect();
    assert_eq!(statuses, ["200", "403", "200", "400"], "{answer:?}");
    let lines: Vec<String> = seen
        .take()
        .iter()
        .map(|(head, _)| head.lines().next().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["GET /ok/1 HTTP/1.1", "GET /ok/2 HTTP/1.1"]);
    let decisions = world.records("decision").await;
    assert_eq!(decisions.len(), 3);
}
