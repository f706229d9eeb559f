//! Whether a stapled OCSP response (RFC 6960) says that a certificate is revoked.
//!
//! rustls asks for a staple and ignores it. A staple can only make things worse for whoever presents it, so its
//! signature does not matter here: a server that staples "revoked" is believed. A missing, unreadable or "good" staple
//! changes nothing, as in every client that does not insist on one.
//!
//! ```text
//!  OCSPResponse  SEQUENCE { ENUMERATED status, [0] { SEQUENCE { OID, OCTET STRING BasicOCSPResponse } } }
//!  BasicOCSPResponse SEQUENCE { SEQUENCE ResponseData { [0] version?, [1|2] responder, producedAt,
//!                               SEQUENCE OF SingleResponse, … }, … }
//!  SingleResponse SEQUENCE { SEQUENCE CertID { algorithm, nameHash, keyHash, INTEGER serial }, status, … }
//!  status         [0] good, [1] revoked, [2] unknown
//! ```

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_REVOKED: u8 = 0xa1;

/// Whether `staple` holds a response that says "revoked" for the certificate of this serial number (the bytes of the
/// INTEGER, as they stand in the certificate).
pub(super) fn says_revoked(staple: &[u8], serial: &[u8]) -> bool {
    responses(staple).is_some_and(|mut responses| {
        std::iter::from_fn(|| element(&mut responses))
            .any(|(tag, single)| tag == SEQUENCE && revokes(single, serial) == Some(true))
    })
}

fn responses(mut staple: &[u8]) -> Option<&[u8]> {
    let mut response = expect(&mut staple, SEQUENCE)?;
    element(&mut response)?;
    let mut explicit = expect(&mut response, CONTEXT_0)?;
    let mut bytes = expect(&mut explicit, SEQUENCE)?;
    element(&mut bytes)?;
    let mut octets = expect(&mut bytes, OCTET_STRING)?;
    let mut basic = expect(&mut octets, SEQUENCE)?;
    let mut data = expect(&mut basic, SEQUENCE)?;
    let (first, _) = element(&mut data)?;
    if first == CONTEXT_0 {
        element(&mut data)?;
    }
    element(&mut data)?;
    expect(&mut data, SEQUENCE)
}

fn revokes(mut single: &[u8], serial: &[u8]) -> Option<bool> {
    let mut id = expect(&mut single, SEQUENCE)?;
    for _ in 0..3 {
        element(&mut id)?;
    }
    let about = expect(&mut id, INTEGER)?;
    let (status, _) = element(&mut single)?;
    Some(about == serial && status == CONTEXT_REVOKED)
}

fn expect<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, content) = element(input)?;
    (found == tag).then_some(content)
}

/// Splits one DER element off: its tag and its content. Definite lengths of at most two bytes, as a staple has.
fn element<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => {
            let (&low, rest) = rest.split_first()?;
            (usize::from(low), rest)
        }
        0x82 => {
            let (bytes, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*bytes)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *input = rest;
    Some((tag, content))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match u8::try_from(content.len()) {
            Ok(short) if short < 0x80 => out.push(short),
            Ok(long) => out.extend([0x81, long]),
            Err(_) => {
                out.push(0x82);
                out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        out.extend(content);
        out
    }

    /// A staple that gives each serial its status tag.
    pub(crate) fn staple(statuses: &[(&[u8], u8)]) -> Vec<u8> {
        let singles: Vec<u8> = statuses
            .iter()
            .flat_map(|(serial, status)| {
                let id = [
                    der(SEQUENCE, &[6, 1, 42]),
                    der(OCTET_STRING, &[1; 20]),
                    der(OCTET_STRING, &[2; 20]),
                    der(INTEGER, serial),
                ]
                .concat();
                let time = der(0x18, b"20260101000000Z");
                der(
                    SEQUENCE,
                    &[der(SEQUENCE, &id), der(*status, &time), time].concat(),
                )
            })
            .collect();
        let data = [
            der(0xa1, &der(SEQUENCE, &[])),
            der(0x18, b"20260101000000Z"),
            der(SEQUENCE, &singles),
        ]
        .concat();
        let basic = der(SEQUENCE, &der(SEQUENCE, &data));
        let bytes = [der(6, &[43, 6, 1, 5, 5, 7, 48, 1, 1]), der(OCTET_STRING, &basic)].concat();
        let response = [der(10, &[0]), der(CONTEXT_0, &der(SEQUENCE, &bytes))].concat();
        der(SEQUENCE, &response)
    }

    #[test]
    fn only_a_revoked_status_for_this_serial_counts() {
        assert!(says_revoked(&staple(&[(&[5], 0xa1)]), &[5]));
        assert!(says_revoked(&staple(&[(&[4], 0x80), (&[5], 0xa1)]), &[5]));
        assert!(!says_revoked(&staple(&[(&[5], 0x80)]), &[5]));
        assert!(!says_revoked(&staple(&[(&[5], 0x82)]), &[5]));
        assert!(!says_revoked(&staple(&[(&[6], 0xa1)]), &[5]));
        assert!(!says_revoked(&[], &[5]));
    }

    #[test]
    fn a_cut_staple_is_no_staple_and_no_panic() {
        let whole = staple(&[(&[5], 0xa1)]);
        for end in 0..whole.len() {
            assert!(!says_revoked(&whole[..end], &[5]), "{end}");
        }
    }
}
