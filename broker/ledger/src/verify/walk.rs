//! From the first record to the last: the chain of keys, the order, the tree, the signatures.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Place, Report, VerifyError, VerifyOptions};
use crate::checkpoint::Checkpoint;
use crate::fold::{CREATED, ROTATED, STARTED, STOPPED};
use crate::frame::SegmentHeader;
use crate::log::rotation_message;
use crate::note::VerifierKey;
use crate::record::{Envelope, Kind};
use crate::tree::{Frontier, Hash, leaf_hash};

/// What is known after some number of records.
#[derive(Debug)]
pub(super) struct Walk {
    ledger: Option<String>,
    origin: Option<String>,
    frontier: Frontier,
    first_vkey: Option<String>,
    key: Option<VerifierKey>,
    retired: Vec<VerifierKey>,
    epoch: u64,
    boot: String,
    mono_us: u64,
    checkpoints: u64,
    signed: u64,
    wanted_vkey: Option<VerifierKey>,
    /// Notes from outside, and whether each was met: (size, note, code of failure).
    held: Option<(Checkpoint, String)>,
    held_met: bool,
    published: Option<(u64, String)>,
    published_met: bool,
    /// The last record, read.
    pub(super) last: Option<(Envelope, Hash)>,
    /// Full subtrees that the last record filled.
    pub(super) filled: Vec<(u8, u64, Hash)>,
    pub(super) requests: HashMap<u128, (u64, u64)>,
}

impl Walk {
    pub(super) fn new(options: &VerifyOptions) -> Result<Self, VerifyError> {
        let bad = |error: String| VerifyError::Options(error);
        let wanted_vkey = options
            .vkey
            .as_deref()
            .map(|vkey| VerifierKey::parse(vkey.trim()))
            .transpose()
            .map_err(|error| bad(error.to_string()))?;
        let held = options
            .checkpoint
            .as_ref()
            .map(|note| Checkpoint::unverified(note).map(|checkpoint| (checkpoint, note.clone())))
            .transpose()
            .map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            ledger: None,
            origin: None,
            frontier: Frontier::new(),
            first_vkey: None,
            key: None,
            retired: Vec::new(),
            epoch: 0,
            boot: String::new(),
            mono_us: 0,
            checkpoints: 0,
            signed: 0,
            wanted_vkey,
            held,
            held_met: false,
            published: None,
            published_met: false,
            last: None,
            filled: Vec::new(),
            requests: HashMap::new(),
        })
    }

    pub(super) const fn size(&self) -> u64 {
        self.frontier.size()
    }

    pub(super) fn root(&self) -> Hash {
        self.frontier.root()
    }

    pub(super) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    pub(super) fn belongs_to(&mut self, ledger: &str, origin: &str) {
        self.ledger = Some(ledger.to_owned());
        self.origin = Some(origin.to_owned());
    }

    /// The checkpoint file, which must be one of the journal's.
    pub(super) fn published(&mut self, note: Option<String>, live: bool) -> Result<(), Place> {
        let Some(note) = note else {
            // A new ledger has none for a moment.
            return if live {
                Ok(())
            } else {
                Err(Place::new(
                    0,
                    "checkpoint_file_missing",
                    "the checkpoint file is missing",
                ))
            };
        };
        let checkpoint = Checkpoint::unverified(&note)
            .map_err(|error| Place::new(0, "checkpoint_file_damaged", error.to_string()))?;
        self.published = Some((checkpoint.size, note));
        Ok(())
    }

    pub(super) fn segment(&self, header: &SegmentHeader) -> Result<(), Place> {
        let ledger = hex::encode(header.ledger);
        if self.ledger.as_ref().is_none_or(|ours| *ours == ledger) {
            Ok(())
        } else {
            Err(Place::new(
                self.size(),
                "segment_foreign",
                format!("a segment of ledger {ledger}"),
            ))
        }
    }

    /// The next record.
    pub(super) fn record(&mut self, bytes: &[u8]) -> Result<(), Place> {
        let at = self.size();
        let bad = |code, what: String| Place::new(at, code, what);
        let record = Envelope::parse(bytes).map_err(|error| bad("record_damaged", error.to_string()))?;
        if record.seq != at {
            return Err(bad(
                "record_order",
                format!("record {} stands where record {at} belongs", record.seq),
            ));
        }
        let ledger = self.ledger.get_or_insert_with(|| record.ledger.clone());
        if *ledger != record.ledger {
            return Err(bad(
                "record_foreign",
                format!("it is of ledger {}", record.ledger),
            ));
        }
        if record.epoch != self.epoch {
            return Err(bad(
                "record_epoch",
                format!("it says epoch {}, the log is in {}", record.epoch, self.epoch),
            ));
        }
        self.run(&record)?;
        self.events(&record)?;
        match (record.kind, record.request_id()) {
            (Kind::Decision, Some(request)) => {
                self.requests.insert(request, (at, u64::MAX));
            }
            (Kind::Outcome, Some(request)) => {
                if let Some(places @ (_, u64::MAX)) = self.requests.get_mut(&request) {
                    places.1 = at;
                }
            }
            (Kind::Control, _) => {}
            (Kind::Decision | Kind::Outcome, None) => {
                return Err(bad("record_damaged", "it has no request id".to_owned()));
            }
        }
        let hash = leaf_hash(bytes);
        self.filled.clear();
        let filled = &mut self.filled;
        self.frontier.append_with(hash, |level, index, hash| {
            if let (0, Ok(level)) = (level % 8, u8::try_from(level)) {
                filled.push((level, index, hash));
            }
        });
        self.last = Some((record, hash));
        self.meet_held()
    }

    /// One run's records stand together, in the order of its own clock.
    fn run(&mut self, record: &Envelope) -> Result<(), Place> {
        if record.boot != self.boot {
            let first = record.seq == 0 || record.event() == Some(STARTED);
            if !first {
                return Err(Place::new(
                    record.seq,
                    "record_run",
                    "it is of another run than the record before it, and no start record",
                ));
            }
            self.boot.clone_from(&record.boot);
            self.mono_us = 0;
        }
        if record.mono_us < self.mono_us {
            return Err(Place::new(
                record.seq,
                "record_run",
                "its monotonic time is before that of the record before it",
            ));
        }
        self.mono_us = record.mono_us;
        Ok(())
    }

    fn events(&mut self, record: &Envelope) -> Result<(), Place> {
        let detail = record.body.get("detail").unwrap_or(&Value::Null);
        let text = |key: &str| detail.get(key).and_then(Value::as_str).unwrap_or_default();
        let bad = |what: &str| Err(Place::new(record.seq, "record_content", what));
        match (record.seq, record.event()) {
            (0, Some(CREATED)) => self.created(text("vkey"), text("origin")),
            (0, _) => bad("the first record is not the ledger's own"),
            (_, Some(CREATED)) => bad("a second beginning"),
            (_, Some(STARTED | STOPPED)) => {
                let previous = detail.get("previous").unwrap_or(&Value::Null);
                let size = previous.get("size").and_then(Value::as_u64);
                let root = previous.get("root").and_then(Value::as_str);
                if size == Some(record.seq) && root == Some(hex::encode(self.root()).as_str()) {
                    Ok(())
                } else {
                    bad("it names another previous head than the records before it have")
                }
            }
            (_, Some(ROTATED)) => {
                let index = detail.get("index").and_then(Value::as_u64);
                if index == Some(record.seq) {
                    self.rotated(record.seq, text("old_vkey"), text("new_vkey"), text("signature"))
                } else {
                    bad("a key rotation of another place")
                }
            }
            (_, Some(_) | None) => Ok(()),
        }
    }

    fn created(&mut self, vkey: &str, origin: &str) -> Result<(), Place> {
        let bad = |code, what: String| Place::new(0, code, what);
        let key = VerifierKey::parse(vkey).map_err(|error| bad("record_content", error.to_string()))?;
        let ours = self.origin.get_or_insert_with(|| origin.to_owned());
        if ours != origin || key.name() != origin {
            return Err(bad(
                "record_content",
                format!("it is of log {origin}, not {ours}"),
            ));
        }
        if self.wanted_vkey.as_ref().is_some_and(|wanted| *wanted != key) {
            return Err(bad(
                "key_foreign",
                format!("the ledger's first key is {key}, not the one that was given"),
            ));
        }
        self.first_vkey = Some(vkey.to_owned());
        self.key = Some(key);
        Ok(())
    }

    fn rotated(&mut self, at: u64, old_vkey: &str, new_vkey: &str, signature: &str) -> Result<(), Place> {
        let bad = |what: &str| Place::new(at, "key_rotation", what);
        let old = self
            .key
            .take()
            .filter(|key| key.to_string() == old_vkey)
            .ok_or_else(|| bad("it retires a key that is not in force"))?;
        let new = VerifierKey::parse(new_vkey).map_err(|_none| bad("the new key is none"))?;
        if new.name() != old.name() {
            return Err(bad("the new key has another name"));
        }
        let signature: [u8; 64] = STANDARD
            .decode(signature)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| bad("its signature is none"))?;
        let ledger = self.ledger.as_deref().unwrap_or_default();
        let message = rotation_message(ledger, at, old_vkey, new_vkey);
        if !old.accepts(message.as_bytes(), &signature) {
            return Err(bad("the old key did not sign it"));
        }
        self.retired.push(old);
        self.key = Some(new);
        self.epoch = self.epoch.saturating_add(1);
        Ok(())
    }

    /// A checkpoint that stands after as many records as it says.
    pub(super) fn note(&mut self, bytes: &[u8]) -> Result<(), Place> {
        let at = self.size();
        let bad = |code, what: String| Place::new(at, code, what);
        let note =
            std::str::from_utf8(bytes).map_err(|error| bad("checkpoint_damaged", error.to_string()))?;
        let checkpoint = self.open_note(note, at)?;
        if checkpoint.size != at {
            return Err(bad(
                "checkpoint_order",
                format!("a checkpoint of {} records stands after {at}", checkpoint.size),
            ));
        }
        if checkpoint.root != self.root() {
            return Err(bad(
                "checkpoint_root",
                format!(
                    "the records {} to {at} do not have the root that was signed",
                    self.signed
                ),
            ));
        }
        self.checkpoints = self.checkpoints.saturating_add(1);
        self.signed = at;
        if self
            .published
            .as_ref()
            .is_some_and(|(_, published)| published == note)
        {
            self.published_met = true;
        }
        Ok(())
    }

    /// Opens a note with the key that is in force now.
    fn open_note(&self, note: &str, at: u64) -> Result<Checkpoint, Place> {
        let key = self
            .key
            .as_ref()
            .ok_or_else(|| Place::new(at, "checkpoint_signature", "no key is known yet"))?;
        Checkpoint::open(note, key).map_err(|error| {
            let retired = self.retired.iter().any(|key| Checkpoint::open(note, key).is_ok());
            let code = if retired {
                "key_outside_epoch"
            } else {
                "checkpoint_signature"
            };
            Place::new(at, code, error.to_string())
        })
    }

    /// Compares the checkpoint from outside when its size is reached.
    fn meet_held(&mut self) -> Result<(), Place> {
        let Some((held, note)) = &self.held else {
            return Ok(());
        };
        if held.size != self.size() || self.held_met {
            return Ok(());
        }
        let opened = self.open_note(note, held.size)?;
        if opened.root != self.root() {
            return Err(Place::new(
                held.size,
                "external_fork",
                format!(
                    "the checkpoint from outside has another root at {} records: this is another history",
                    held.size
                ),
            ));
        }
        self.held_met = true;
        Ok(())
    }

    /// The end: what should have been met was.
    pub(super) fn finish(&mut self, live: bool) -> Result<(), Place> {
        let at = self.size();
        if at == 0 {
            return Err(Place::new(0, "empty", "there are no records"));
        }
        if let Some((size, _)) = &self.published
            && !self.published_met
        {
            let what =
                format!("the checkpoint file is of {size} records, and no checkpoint here is the same");
            let code = if *size > at {
                "truncated"
            } else {
                "checkpoint_file"
            };
            return Err(Place::new(at.min(*size), code, what));
        }
        if let Some((held, _)) = &self.held
            && !self.held_met
            && held.size > 0
        {
            return Err(Place::new(
                at,
                "external_rollback",
                format!(
                    "the checkpoint from outside is of {} records, there are {at}",
                    held.size
                ),
            ));
        }
        if !live && self.signed < at {
            let what = format!("no checkpoint covers records {} and after", self.signed);
            return Err(Place::new(self.signed, "unsigned_tail", what));
        }
        Ok(())
    }

    pub(super) fn report(self, first_bad: Option<Place>, live: bool, index_checked: bool) -> Report {
        Report {
            records: self.size(),
            checkpoints: self.checkpoints,
            signed_records: self.signed,
            root: hex::encode(self.root()),
            vkey: self.first_vkey.unwrap_or_default(),
            live,
            index_checked,
            first_bad,
        }
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) const fn signed(&self) -> u64 {
        self.signed
    }

    pub(super) fn vkey(&self) -> Option<String> {
        self.key.as_ref().map(ToString::to_string)
    }
}
