//! Finds the forms of a set of secrets in bytes, fast where there are none.
//!
//! Two vectorised searches propose places, and an exact match decides:
//!
//! 1. *Literal windows*: the first four characters of each form as plain bytes (and of base64 the next four too, since
//!    a line break may stand in the first). One pass of packed string matching for all of them.
//! 2. *Escapes*: the three bytes that an escape begins with. One that decodes to an early character of a form may
//!    stand among the form's first four, so the form begins here or up to three bytes before.
//!
//! A form whose first four characters are plain is found by the first, any other by the second, and in the last bytes of a
//! buffer, where neither can see enough, every place is tried. So nothing that the exact match would find is missed.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind, Span, packed};
use memchr::memchr3_iter;
use wallgate_types::secret::Secret;

use super::escape::{self, Escape, MAX_ESCAPE_BYTES, STARTS};
use super::forms::{self, Class, Form};

/// How many characters a literal window has.
const WINDOW: usize = 4;
/// How many ignorable bytes may stand between two characters: a folded line's break and indentation.
const MAX_BETWEEN: usize = 16;
/// The last bytes of a buffer, in which every place is tried.
const TAIL: usize = 2 * WINDOW + MAX_BETWEEN + MAX_ESCAPE_BYTES;
/// Windows that one packed search takes without slowing down.
const WINDOWS_PER_SEARCH: usize = 48;

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Miss,
    /// Bytes are missing to say.
    Partial,
    /// A form, up to here.
    Match(usize),
}

/// What a scan found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Where forms stand, in order, without overlap.
    pub(super) spans: Vec<(usize, usize)>,
    /// Where something begins that the next bytes may make a form.
    pub(super) undecided: Option<usize>,
}

/// Everything to look for in one response. Made once for a set of secrets.
pub(super) struct Patterns {
    forms: Vec<Form>,
    /// What a window proposes: which form, and how many characters of it stand before the window.
    proposals: Vec<Vec<(usize, usize)>>,
    searches: Vec<(Search, usize)>,
    /// The first characters of all forms, by their place.
    early: [Class; WINDOW],
    /// Finds escapes that can stand for one of those.
    escapes: EscapeSearch,
    mask: u8,
}

/// Finds places where an escape begins that may be among a form's first characters. It may propose too many.
enum EscapeSearch {
    /// By the first two bytes of each such escape.
    Pairs(Box<packed::Searcher>),
    /// By the first byte, where that itself is among a form's first characters, or there is no packed search.
    Bytes,
}

impl EscapeSearch {
    fn new(early: &[Class; WINDOW]) -> Self {
        let wanted = |byte: u8| early.iter().any(|class| class.has(byte));
        if STARTS.into_iter().any(wanted) {
            return Self::Bytes;
        }
        // A percent sign that is encoded again is `%25`.
        let percent = (0..128).filter(|b| wanted(*b) || *b == b'%').flat_map(|value| {
            let digit = char::from_digit(u32::from(value >> 4), 16).map_or(b'0', |digit| digit as u8);
            [[b'%', digit], [b'%', digit.to_ascii_uppercase()]]
        });
        let backslash = (0..128).filter(|b| wanted(*b) || matches!(b, b'u' | b'x' | b'\\'));
        let reference = escape::initials_of(wanted).chain([b'#']);
        let mut pairs: Vec<[u8; 2]> = percent
            .chain(backslash.map(|next| [b'\\', next]))
            .chain(reference.map(|next| [b'&', next]))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        match packed::Config::new().builder().extend(pairs).build() {
            Some(searcher) => Self::Pairs(Box::new(searcher)),
            None => Self::Bytes,
        }
    }

    fn for_each(&self, bytes: &[u8], mut visit: impl FnMut(usize)) {
        match self {
            // Two pairs can overlap in a run of backslashes, so each is looked for from the byte after the last.
            Self::Pairs(searcher) => {
                let mut from = 0;
                while let Some(found) = searcher.find_in(
                    bytes,
                    Span {
                        start: from,
                        end: bytes.len(),
                    },
                ) {
                    visit(found.start());
                    from = found.start().saturating_add(1);
                }
            }
            Self::Bytes => {
                let [a, b, c] = STARTS;
                memchr3_iter(a, b, c, bytes).for_each(visit);
            }
        }
    }
}

enum Search {
    Packed(packed::Searcher),
    /// Where there are no vectors to pack into.
    Automaton(AhoCorasick),
}

impl Search {
    fn new(windows: &[Vec<u8>]) -> Option<Self> {
        let packed = packed::Config::new().builder().extend(windows).build();
        match packed {
            Some(searcher) => Some(Self::Packed(searcher)),
            None => AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostFirst)
                .build(windows)
                .ok()
                .map(Self::Automaton),
        }
    }

    fn find(&self, bytes: &[u8], from: usize) -> Option<(usize, usize)> {
        let span = Span {
            start: from,
            end: bytes.len(),
        };
        let found = match self {
            Self::Packed(searcher) => searcher.find_in(bytes, span),
            Self::Automaton(automaton) => automaton.find(aho_corasick::Input::new(bytes).span(span)),
        };
        found.map(|found| (found.start(), found.pattern().as_usize()))
    }
}

impl Patterns {
    /// Prepares the search for these secrets. `None` when the search cannot be built, and nothing may be sent then.
    #[expect(
        clippy::disallowed_methods,
        reason = "here the scrubber learns what to look for"
    )]
    pub(super) fn new<'a>(needles: impl Iterator<Item = &'a Secret<Vec<u8>>>) -> Option<Arc<Self>> {
        let mut forms = Vec::new();
        let mut seen = Class::NONE;
        for needle in needles {
            for byte in needle.expose() {
                seen = seen.with(Class::one(*byte));
            }
            forms.extend(forms::of(needle.expose()));
        }
        let mut windows: Vec<Vec<u8>> = Vec::new();
        let mut proposals: Vec<Vec<(usize, usize)>> = Vec::new();
        for (index, form) in forms.iter().enumerate() {
            for (window, offset) in windows_of(form) {
                if let Some(known) = windows.iter().position(|known| *known == window) {
                    proposals.get_mut(known)?.push((index, offset));
                } else {
                    windows.push(window);
                    proposals.push(vec![(index, offset)]);
                }
            }
        }
        let mut searches = Vec::new();
        for (chunk, windows) in windows.chunks(WINDOWS_PER_SEARCH).enumerate() {
            searches.push((Search::new(windows)?, chunk.saturating_mul(WINDOWS_PER_SEARCH)));
        }
        let early: [Class; WINDOW] = std::array::from_fn(|place| {
            let units = forms.iter().filter_map(|form| form.units.get(place));
            units.fold(Class::NONE, |all, class| all.with(*class))
        });
        let mask = b"*#~!$^.,;|"
            .iter()
            .find(|b| !seen.has(**b))
            .copied()
            .unwrap_or(b'*');
        Some(Arc::new(Self {
            forms,
            proposals,
            searches,
            escapes: EscapeSearch::new(&early),
            early,
            mask,
        }))
    }

    /// What covers a secret: a byte that is in none.
    pub(super) const fn mask(&self) -> u8 {
        self.mask
    }

    /// Everything in `bytes`. With `last`, nothing follows them.
    pub(super) fn scan(&self, bytes: &[u8], last: bool) -> Found {
        let mut scan = Scan {
            patterns: self,
            bytes,
            last,
            spans: Vec::new(),
            undecided: usize::MAX,
        };
        scan.windows();
        scan.escapes();
        if !last {
            scan.tail();
        }
        let undecided = (!last && scan.undecided < bytes.len()).then_some(scan.undecided);
        Found {
            spans: merged(scan.spans),
            undecided,
        }
    }

    /// What the escape that begins here, or its first byte by itself, can stand for, if that can be among a form's
    /// first characters.
    fn read_early(&self, rest: &[u8]) -> Option<Class> {
        let first = rest.first()?;
        let read = match escape::read(rest) {
            Escape::Of(value, _) => Class::one(*first).with(Class::one(value)),
            Escape::No | Escape::Unfinished => Class::one(*first),
        };
        self.early.iter().any(|class| class.meets(read)).then_some(read)
    }

    /// Whether a field's name, which is lower case on the way, holds a secret as it is.
    pub(super) fn stands_in_name(&self, name: &str) -> bool {
        let lower = |class: &Class, byte: u8| class.has(byte) || class.has(byte.to_ascii_uppercase());
        self.forms.iter().any(|form| {
            name.as_bytes().windows(form.units.len()).any(|window| {
                window
                    .iter()
                    .zip(form.units.iter())
                    .all(|(byte, class)| lower(class, *byte))
            })
        })
    }

    fn match_form(form: &Form, bytes: &[u8], start: usize, last: bool) -> Outcome {
        let mut places = Places::at(start);
        let mut starved = false;
        let mut between = Class::NONE;
        for class in form.units.iter() {
            let mut next = Places::none();
            for place in places.iter() {
                starved |= step(bytes, place, *class, between, &mut next);
            }
            if next.is_empty() {
                return if starved { Outcome::Partial } else { Outcome::Miss };
            }
            places = next;
            between = form.between;
        }
        // Another reading may go on further, and is waited for.
        if starved && !last {
            Outcome::Partial
        } else {
            Outcome::Match(places.furthest())
        }
    }
}

/// One scan of one buffer.
struct Scan<'a> {
    patterns: &'a Patterns,
    bytes: &'a [u8],
    /// Nothing follows.
    last: bool,
    spans: Vec<(usize, usize)>,
    undecided: usize,
}

impl Scan<'_> {
    fn windows(&mut self) {
        for (search, first) in &self.patterns.searches {
            let mut from = 0;
            while let Some((at, pattern)) = search.find(self.bytes, from) {
                from = at.saturating_add(1);
                let proposals = self.patterns.proposals.get(first.saturating_add(pattern));
                for (form, offset) in proposals.into_iter().flatten() {
                    self.propose(*form, *offset, at);
                }
            }
        }
    }

    fn propose(&mut self, form: usize, offset: usize, at: usize) {
        let Some(start) = at.checked_sub(offset) else {
            return;
        };
        self.try_form(form, start);
        if offset > 0 {
            for earlier in 1..=MAX_BETWEEN.min(start) {
                self.try_form(form, start.saturating_sub(earlier));
            }
        }
    }

    /// The first escape of a form stands after as many plain characters as bytes.
    fn escapes(&mut self) {
        let (bytes, patterns) = (self.bytes, self.patterns);
        patterns.escapes.for_each(bytes, |at| {
            let read = bytes.get(at..).and_then(|rest| patterns.read_early(rest));
            if let Some(read) = read {
                self.try_around(at, read);
            }
        });
    }

    /// Tries the forms in which what was read here can be one of the first characters.
    fn try_around(&mut self, at: usize, read: Class) {
        let patterns = self.patterns;
        for (before, class) in patterns.early.iter().enumerate() {
            let Some(start) = at.checked_sub(before).filter(|_| class.meets(read)) else {
                continue;
            };
            let first = self.bytes.get(start).copied().map_or(Class::NONE, Class::one);
            for (index, form) in patterns.forms.iter().enumerate() {
                let begins = before == 0 || form.units.first().is_some_and(|unit| unit.meets(first));
                if begins && form.units.get(before).is_some_and(|unit| unit.meets(read)) {
                    self.try_form(index, start);
                }
            }
        }
    }

    fn tail(&mut self) {
        for start in self.bytes.len().saturating_sub(TAIL)..self.bytes.len() {
            self.try_all(start);
        }
    }

    fn try_all(&mut self, start: usize) {
        let Some(byte) = self.bytes.get(start) else {
            return;
        };
        let patterns = self.patterns;
        for (index, form) in patterns.forms.iter().enumerate() {
            if STARTS.contains(byte) || form.units.first().is_some_and(|unit| unit.has(*byte)) {
                self.try_form(index, start);
            }
        }
    }

    fn try_form(&mut self, form: usize, start: usize) {
        let Some(form) = self.patterns.forms.get(form) else {
            return;
        };
        match Patterns::match_form(form, self.bytes, start, self.last) {
            Outcome::Miss => {}
            Outcome::Partial => self.undecided = self.undecided.min(start),
            Outcome::Match(end) => self.spans.push((start, end)),
        }
    }
}

/// Goes over one character of a form: what may stand between, then the character itself or an escape of it. Returns
/// whether the bytes ended too early to say.
fn step(bytes: &[u8], from: usize, class: Class, between: Class, next: &mut Places) -> bool {
    let mut place = from;
    loop {
        let Some(byte) = bytes.get(place) else {
            return true;
        };
        if class.has(*byte) {
            next.add(place.saturating_add(1));
            if *byte == b'\\' {
                add_backslashes(bytes, place, next);
            }
        }
        let skipped = if between.has(*byte) {
            place.saturating_add(1)
        } else if STARTS.contains(byte) {
            match escape::read(bytes.get(place..).unwrap_or_default()) {
                Escape::No => return false,
                Escape::Unfinished => return true,
                Escape::Of(value, length) => {
                    let end = place.saturating_add(length);
                    if class.has(b'%') {
                        add_percents(bytes, place, next);
                    }
                    if class.has(value) {
                        next.add(end);
                    }
                    if !between.has(value) {
                        return false;
                    }
                    end
                }
            }
        } else {
            return false;
        };
        if skipped.saturating_sub(from) > MAX_BETWEEN {
            return false;
        }
        place = skipped;
    }
}

/// `%252541` is an `A` that was encoded three times, or a `%` before `2541` or, encoded twice, before `41`.
fn add_percents(bytes: &[u8], place: usize, next: &mut Places) {
    let mut end = place.saturating_add(1);
    while bytes.get(place) == Some(&b'%') && bytes.get(end..end.saturating_add(2)) == Some(b"25") {
        end = end.saturating_add(2);
        next.add(end);
    }
}

/// A backslash that was escaped once, twice or three times.
fn add_backslashes(bytes: &[u8], place: usize, next: &mut Places) {
    for length in [2, 4, 8] {
        let end = place.saturating_add(length);
        if bytes
            .get(place..end)
            .is_some_and(|run| run.iter().all(|b| *b == b'\\'))
        {
            next.add(end);
        }
    }
}

/// The first windows of a form, and how many of its characters stand before each.
fn windows_of(form: &Form) -> Vec<(Vec<u8>, usize)> {
    let mut windows = Vec::new();
    let offsets = if form.breakable { 0..=1 } else { 0..=0 };
    for offset in offsets.map(|window| WINDOW.saturating_mul(window)) {
        let Some(units) = form.units.get(offset..offset.saturating_add(WINDOW)) else {
            continue;
        };
        for text in spellings(units) {
            windows.push((text, offset));
        }
    }
    if form.between.has(0) {
        // UTF-16, where every other byte is zero, and UTF-32, where three of four are.
        let [first, second, ..] = form.units.as_slice() else {
            return windows;
        };
        for text in spellings(&[*first, *second]) {
            let wide = text.iter().flat_map(|b| [*b, 0]).collect();
            windows.push((wide, 0));
        }
        windows.extend(first.members().map(|b| (vec![b, 0, 0, 0], 0)));
    }
    windows
}

/// Every text that these classes can be: few, since few characters have a second spelling.
fn spellings(units: &[Class]) -> Vec<Vec<u8>> {
    units.iter().fold(vec![Vec::new()], |texts, class| {
        texts
            .iter()
            .flat_map(|text| {
                class.members().map(|byte| {
                    let mut longer = text.clone();
                    longer.push(byte);
                    longer
                })
            })
            .collect()
    })
}

fn merged(mut spans: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    spans.sort_unstable();
    let mut merged: Vec<(usize, usize)> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match merged.last_mut() {
            Some((_, last_end)) if start < *last_end => *last_end = end.max(*last_end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Where a match can stand after some characters: mostly one place, several when an escape can be read in two ways.
struct Places {
    places: [usize; Places::MOST],
    count: usize,
}

impl Places {
    const MOST: usize = 8;

    const fn none() -> Self {
        Self {
            places: [0; Self::MOST],
            count: 0,
        }
    }

    fn at(place: usize) -> Self {
        let mut places = Self::none();
        places.add(place);
        places
    }

    fn add(&mut self, place: usize) {
        if self.iter().any(|known| known == place) {
            return;
        }
        if let Some(free) = self.places.get_mut(self.count) {
            *free = place;
            self.count = self.count.saturating_add(1);
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.places.iter().take(self.count).copied()
    }

    const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn furthest(&self) -> usize {
        self.iter().max().unwrap_or(0)
    }
}
