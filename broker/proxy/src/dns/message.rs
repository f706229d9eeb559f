//! DNS messages, as far as a resolver needs them that never resolves (RFC 1035, section 4; EDNS: RFC 6891).
//!
//! A query has one shape that is answered: a header, one question, at most one OPT record, and nothing behind it. That
//! shape is read here by hand, byte for byte, so that everything else meets a rule and the question can be echoed
//! exactly as it came (its case is the client's protection against forgery). A general decoder would accept more.
//!
//! ```text
//!  header    u16 id, u16 flags, u16 questions = 1, u16 answers = 0, u16 authorities = 0, u16 additionals ≤ 1
//!  flags     QR(1) opcode(4) AA TC RD RA Z AD CD rcode(4)
//!  question  labels, each u8 length 1-63 + bytes; 0; u16 type; u16 class
//!  OPT       0, u16 41, u16 UDP payload, u8 high rcode, u8 version, u16 flags, u16+{u16 code, u16+value}*
//!
//!  what is wrong                                         answer
//!  shorter than a header; a response                     dropped
//!  longer than MAX_DNS_QUERY_BYTES; TC; other counts;    FORMERR
//!    a compressed or cut name; another record than OPT;
//!    malformed options; bytes behind the end
//!  an opcode other than QUERY                            NOTIMP
//!  an EDNS version other than 0                          BADVERS
//!  a class other than IN; ANY, transfers, meta types     REFUSED
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use wallgate_types::authority::{AuthorityError, MAX_NAME_BYTES, Name};

use crate::edge_limits::{MAX_DNS_QUERY_BYTES, MAX_DNS_UDP_ANSWER_BYTES};

const HEADER_BYTES: usize = 12;
const FLAG_RESPONSE: u16 = 0x8000;
const OPCODE_MASK: u16 = 0x7800;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;
const OPTION_EXTENDED_ERROR: u16 = 15;
/// The least that every client can take over UDP (RFC 1035, section 4.2.1).
const MIN_UDP_ANSWER_BYTES: u16 = 512;
/// A pointer to the question's name, which always stands right behind the header (RFC 1035, section 4.1.4).
const POINTER_TO_QUESTION: u16 = 0xc00c;
/// The longest extended error text that is sent.
const MAX_ERROR_TEXT_BYTES: usize = 160;

/// A response code (RFC 1035, section 4.1.1; RFC 6891, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rcode {
    NoError,
    FormErr,
    ServFail,
    NxDomain,
    NotImp,
    Refused,
    BadVers,
}

impl Rcode {
    const fn value(self) -> u16 {
        match self {
            Self::NoError => 0,
            Self::FormErr => 1,
            Self::ServFail => 2,
            Self::NxDomain => 3,
            Self::NotImp => 4,
            Self::Refused => 5,
            Self::BadVers => 16,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RecordType {
    A,
    Aaaa,
    Ptr,
    /// Any other ordinary type: there is none of it.
    Other(u16),
}

impl RecordType {
    /// How policy and the ledger call it (RFC 3597, section 5, for those without a name here).
    pub(super) fn name(self) -> String {
        let name = match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Ptr => "PTR",
            Self::Other(value) => match value {
                2 => "NS",
                5 => "CNAME",
                6 => "SOA",
                10 => "NULL",
                13 => "HINFO",
                15 => "MX",
                16 => "TXT",
                33 => "SRV",
                35 => "NAPTR",
                43 => "DS",
                48 => "DNSKEY",
                64 => "SVCB",
                65 => "HTTPS",
                257 => "CAA",
                _ => return format!("TYPE{value}"),
            },
        };
        name.to_owned()
    }

    /// `None` for what is no type of a record: queries about everything, transfers, and the protocol's own records.
    const fn of(value: u16) -> Option<Self> {
        match value {
            1 => Some(Self::A),
            28 => Some(Self::Aaaa),
            12 => Some(Self::Ptr),
            0 | TYPE_OPT | 128..=255 => None,
            other => Some(Self::Other(other)),
        }
    }
}

/// How an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// A query in the one shape that is answered.
#[derive(Debug)]
pub(super) struct Query<'a> {
    header: Header,
    /// The question as it came.
    question: &'a [u8],
    /// The canonical name, or why it is none.
    pub(super) name: Result<Name, AuthorityError>,
    pub(super) record_type: RecordType,
    edns: Option<Edns>,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    id: u16,
    flags: u16,
}

#[derive(Clone, Copy, Debug)]
struct Edns {
    payload: u16,
}

/// What becomes of a message.
#[derive(Debug)]
pub(super) enum Reading<'a> {
    /// It is a query.
    Query(Query<'a>),
    /// It is refused with this message.
    Refused { reason: &'static str, answer: Vec<u8> },
    /// It is not answered.
    Dropped { reason: &'static str },
}

/// An extended error (RFC 8914).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExtendedError {
    pub(super) code: u16,
    pub(super) text: String,
}

impl ExtendedError {
    /// Policy denies it (RFC 8914, section 4.16).
    pub(super) const BLOCKED: u16 = 15;
    /// It is not a question for here, or one too many (RFC 8914, section 4.19).
    pub(super) const PROHIBITED: u16 = 18;
    /// Something here does not work (RFC 8914, section 4.1).
    pub(super) const OTHER: u16 = 0;

    /// An error with as much of `text` as is plain and fits.
    pub(super) fn new(code: u16, text: &str) -> Self {
        let plain = text
            .chars()
            .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
        Self {
            code,
            text: plain.take(MAX_ERROR_TEXT_BYTES).collect(),
        }
    }
}

/// What an answer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Pointer(Name),
}

/// Reads one message.
pub(super) fn read(message: &[u8]) -> Reading<'_> {
    let Some((header, body)) = message.split_first_chunk::<HEADER_BYTES>() else {
        return Reading::Dropped { reason: "short" };
    };
    let (words, _) = header.as_chunks::<2>();
    let mut words = words.iter().map(|word| u16::from_be_bytes(*word));
    let mut word = || words.next().unwrap_or_default();
    let header = Header {
        id: word(),
        flags: word(),
    };
    let counts = [word(), word(), word(), word()];
    if header.flags & FLAG_RESPONSE != 0 {
        return Reading::Dropped { reason: "response" };
    }
    let refused = |reason, rcode| Reading::Refused {
        reason,
        answer: header.bare(rcode),
    };
    if message.len() > MAX_DNS_QUERY_BYTES {
        return refused("oversize", Rcode::FormErr);
    }
    if header.flags & OPCODE_MASK != 0 {
        return refused("opcode", Rcode::NotImp);
    }
    if header.flags & FLAG_TRUNCATED != 0 {
        return refused("truncated", Rcode::FormErr);
    }
    let has_additional = match counts {
        [1, 0, 0, 0] => false,
        [1, 0, 0, 1] => true,
        _ => return refused("counts", Rcode::FormErr),
    };
    let Some(question) = read_question(body) else {
        return refused("question", Rcode::FormErr);
    };
    let edns = match (has_additional, question.rest) {
        (false, []) => None,
        (true, additional) => match read_opt(additional) {
            Some(opt) => Some(opt),
            None => return refused("additional", Rcode::FormErr),
        },
        (false, _) => return refused("trailing_bytes", Rcode::FormErr),
    };
    let query = Query {
        header,
        question: question.bytes,
        name: question.name,
        record_type: RecordType::A,
        edns: edns.map(|opt| Edns { payload: opt.payload }),
    };
    if edns.is_some_and(|opt| opt.version != 0) {
        return Reading::Refused {
            reason: "edns_version",
            answer: query.answer(Rcode::BadVers, &[], None, Transport::Udp),
        };
    }
    let refused = |reason, text| Reading::Refused {
        reason,
        answer: query.refusal(ExtendedError::new(ExtendedError::PROHIBITED, text)),
    };
    if question.class != CLASS_IN {
        return refused("class", "only class IN is answered here");
    }
    let Some(record_type) = RecordType::of(question.record_type) else {
        return refused("type", "this type is not answered here");
    };
    Reading::Query(Query { record_type, ..query })
}

impl Header {
    /// An answer that echoes no question, since there is none that could be echoed.
    fn bare(self, rcode: Rcode) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        self.emit(&mut out, rcode, 0, 0, 0);
        out
    }

    fn emit(self, out: &mut Vec<u8>, rcode: Rcode, questions: u16, answers: u16, additionals: u16) {
        let kept = self.flags & (OPCODE_MASK | FLAG_RECURSION_DESIRED);
        let flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | kept | (rcode.value() & 0xf);
        for word in [self.id, flags, questions, answers, 0, additionals] {
            out.extend(word.to_be_bytes());
        }
    }
}

impl Query<'_> {
    /// A refusal that fits every transport.
    pub(super) fn refusal(&self, error: ExtendedError) -> Vec<u8> {
        self.answer(Rcode::Refused, &[], Some(error), Transport::Udp)
    }

    /// The answer of these records, all for the name that was asked for.
    ///
    /// Over UDP, what does not fit loses first the error's text and then its records (TC set, RFC 2181, section 9).
    pub(super) fn answer(
        &self,
        rcode: Rcode,
        data: &[(Data, u32)],
        error: Option<ExtendedError>,
        transport: Transport,
    ) -> Vec<u8> {
        let limit = match (transport, self.edns) {
            (Transport::Tcp, _) => usize::from(u16::MAX),
            (Transport::Udp, None) => usize::from(MIN_UDP_ANSWER_BYTES),
            (Transport::Udp, Some(edns)) => {
                usize::from(edns.payload.clamp(MIN_UDP_ANSWER_BYTES, MAX_DNS_UDP_ANSWER_BYTES))
            }
        };
        let whole = self.emit(rcode, data, error.as_ref());
        if whole.len() <= limit {
            return whole;
        }
        let short = error.map(|error| ExtendedError {
            text: String::new(),
            ..error
        });
        let shortened = self.emit(rcode, data, short.as_ref());
        if shortened.len() <= limit {
            return shortened;
        }
        let mut truncated = self.emit(rcode, &[], None);
        if let Some(high) = truncated.get_mut(2) {
            *high |= FLAG_TRUNCATED.to_be_bytes()[0];
        }
        truncated
    }

    fn emit(&self, rcode: Rcode, data: &[(Data, u32)], error: Option<&ExtendedError>) -> Vec<u8> {
        let mut out = Vec::with_capacity(MIN_UDP_ANSWER_BYTES.into());
        let answers = u16::try_from(data.len()).unwrap_or(u16::MAX);
        self.header
            .emit(&mut out, rcode, 1, answers, u16::from(self.edns.is_some()));
        out.extend_from_slice(self.question);
        for (data, ttl) in data {
            let (record_type, bytes): (u16, Vec<u8>) = match data {
                Data::V4(address) => (1, address.octets().to_vec()),
                Data::V6(address) => (28, address.octets().to_vec()),
                Data::Pointer(name) => (12, wire_name(name)),
            };
            out.extend(POINTER_TO_QUESTION.to_be_bytes());
            out.extend(record_type.to_be_bytes());
            out.extend(CLASS_IN.to_be_bytes());
            out.extend(ttl.to_be_bytes());
            put_counted(&mut out, &bytes);
        }
        if self.edns.is_some() {
            out.push(0);
            out.extend(TYPE_OPT.to_be_bytes());
            out.extend(MAX_DNS_UDP_ANSWER_BYTES.to_be_bytes());
            let [_, high_rcode] = (rcode.value() >> 4).to_be_bytes();
            out.extend([high_rcode, 0, 0, 0]);
            let mut options = Vec::new();
            if let Some(error) = error {
                options.extend(OPTION_EXTENDED_ERROR.to_be_bytes());
                let value = [&error.code.to_be_bytes()[..], error.text.as_bytes()].concat();
                put_counted(&mut options, &value);
            }
            put_counted(&mut out, &options);
        }
        out
    }
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    // Nothing that is written here comes near the limit: names, addresses and a short text.
    let length = u16::try_from(bytes.len()).unwrap_or_default();
    out.extend(length.to_be_bytes());
    out.extend_from_slice(bytes.get(..length.into()).unwrap_or_default());
}

fn wire_name(name: &Name) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_NAME_BYTES.saturating_add(2));
    for label in name.as_str().split('.') {
        // A canonical name's labels have at most 63 bytes.
        out.push(u8::try_from(label.len()).unwrap_or_default());
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

struct Question<'a> {
    bytes: &'a [u8],
    name: Result<Name, AuthorityError>,
    record_type: u16,
    class: u16,
    rest: &'a [u8],
}

fn read_question(body: &[u8]) -> Option<Question<'_>> {
    let mut input = body;
    let mut text = String::new();
    let mut is_ldh = true;
    loop {
        let (&length, rest) = input.split_first()?;
        if length == 0 {
            input = rest;
            break;
        }
        // The two high bits are a compression pointer or a label type that never came to be (RFC 6891, section 5).
        if length > 63 {
            return None;
        }
        let (label, rest) = rest.split_at_checked(length.into())?;
        // A dot inside a label is not the dot between labels.
        is_ldh &= label
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.iter().map(|byte| char::from(*byte)));
        input = rest;
        if body.len().saturating_sub(input.len()) > MAX_NAME_BYTES.saturating_add(1) {
            return None;
        }
    }
    let record_type = take_u16(&mut input)?;
    let class = take_u16(&mut input)?;
    let bytes = body.get(..body.len().saturating_sub(input.len()))?;
    Some(Question {
        bytes,
        name: if is_ldh {
            Name::parse(&text)
        } else {
            Err(AuthorityError::Character)
        },
        record_type,
        class,
        rest: input,
    })
}

#[derive(Clone, Copy)]
struct Opt {
    payload: u16,
    version: u8,
}

/// An OPT record, and nothing behind it.
fn read_opt(additional: &[u8]) -> Option<Opt> {
    let (0, mut input) = additional.split_first()? else {
        return None;
    };
    if take_u16(&mut input)? != TYPE_OPT {
        return None;
    }
    let payload = take_u16(&mut input)?;
    let [_, version] = take_u16(&mut input)?.to_be_bytes();
    take_u16(&mut input)?;
    let length = take_u16(&mut input)?;
    if input.len() != usize::from(length) {
        return None;
    }
    while !input.is_empty() {
        take_u16(&mut input)?;
        let length = take_u16(&mut input)?;
        (_, input) = input.split_at_checked(length.into())?;
    }
    Some(Opt { payload, version })
}

fn take_u16(input: &mut &[u8]) -> Option<u16> {
    let (bytes, rest) = input.split_first_chunk::<2>()?;
    *input = rest;
    Some(u16::from_be_bytes(*bytes))
}
