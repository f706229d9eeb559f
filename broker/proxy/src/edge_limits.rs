//! The named limits of the edge: names, handshakes, resolution and dialling.
//!
//! Each bounds something that a sandbox could otherwise grow or hold. They are constants, since a limit that differs
//! between hosts is a limit that nobody tested.

use std::time::Duration;

/// The largest ClientHello, in bytes, after reassembly. Post-quantum hellos take about 2 KiB.
pub const MAX_CLIENT_HELLO_BYTES: usize = 64 * 1024;
/// The most that a ClientHello may take on the wire, record headers and bytes after it included.
pub const MAX_CLIENT_HELLO_WIRE_BYTES: usize = 128 * 1024;
/// The most that is read before a first request line is recognised as HTTP or not.
pub const MAX_SNIFF_BYTES: usize = 64;
/// How long a sandbox may take to send its first byte.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take from the first byte to the end of the handshake, or to a recognisable request line.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many leaves a sandbox's minter keeps.
pub const MAX_LEAVES: usize = 1024;
/// How many leaves a sandbox may have minted at once before it has to wait.
pub const MINT_BURST: u32 = 256;
/// How many leaves a second a sandbox may have minted, on average.
pub const MINTS_PER_SECOND: u32 = 32;
/// How long a leaf is valid.
pub const LEAF_LIFETIME: Duration = Duration::from_hours(20);
/// By how much every certificate is dated back, for sandboxes whose clock is behind.
pub const BACKDATING: Duration = Duration::from_hours(1);
/// How long before its end a leaf is minted anew.
pub const LEAF_RENEWAL: Duration = Duration::from_hours(4);
/// How many stateful TLS sessions a sandbox's server side remembers.
pub const MAX_SERVER_SESSIONS: usize = 256;
/// How many upstream names a sandbox's client side remembers sessions for.
pub const MAX_UPSTREAM_SESSIONS: usize = 256;

/// How many names a sandbox's table of synthetic addresses holds.
pub const MAX_NAMES: usize = 4096;
/// The TTL of a synthetic address, in seconds.
pub const SYNTHETIC_TTL_SECS: u32 = 30;
/// How long after the last answer an address stands for its name, although its TTL is over.
pub const NAME_GRACE: Duration = Duration::from_hours(1);

/// How many answers a sandbox's resolver keeps.
pub const MAX_RESOLVED: usize = 1024;
/// How many lookups of one sandbox may be under way.
pub const MAX_LOOKUPS_IN_FLIGHT: usize = 64;
/// The most addresses that an answer may have.
pub const MAX_ADDRESSES: usize = 64;
/// How many of the checked addresses are tried before a dial gives up.
pub const MAX_DIALLED_ADDRESSES: usize = 8;
/// How long an answer is believed at most, whatever its TTL says.
pub const MAX_POSITIVE_TTL: Duration = Duration::from_mins(1);
/// How long it is believed that a name does not exist.
pub const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(10);
/// How long a lookup may take.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection attempt runs alone before the next address is tried beside it (RFC 8305, section 5).
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);
/// How long it may take to connect to any of the addresses.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the upstream handshake may take.
pub const UPSTREAM_TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest DNS query, in bytes. A question takes at most 271; the rest is room for EDNS padding.
pub const MAX_DNS_QUERY_BYTES: usize = 1232;
/// The largest DNS answer over UDP, in bytes, whatever the sandbox says that it can take (DNS flag day 2020).
pub const MAX_DNS_UDP_ANSWER_BYTES: u16 = 1232;
/// How many DNS queries a sandbox may send at once.
pub const DNS_BURST: u32 = 500;
/// How many DNS queries a second a sandbox may send, on average.
pub const DNS_QUERIES_PER_SECOND: u32 = 200;
/// How many different names a sandbox may ask for in one [`DNS_NAME_WINDOW`].
pub const MAX_DISTINCT_NAMES: usize = 1024;
/// The window of [`MAX_DISTINCT_NAMES`].
pub const DNS_NAME_WINDOW: Duration = Duration::from_mins(1);
/// How many UDP queries of one sandbox may be under way.
pub const MAX_DNS_IN_FLIGHT: usize = 64;
/// How many DNS connections over TCP a sandbox may hold open.
pub const MAX_DNS_CONNECTIONS: usize = 16;
/// How many queries one DNS connection may carry.
pub const MAX_QUERIES_PER_CONNECTION: usize = 1024;
/// How long a DNS connection may be silent, or take over one message.
pub const DNS_CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How often repeated lookups are reported.
pub const DNS_REPORT_INTERVAL: Duration = Duration::from_secs(5);
