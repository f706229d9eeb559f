//! P5 under a disk that fails: every write and sync is made to fail, and every moment is made the last.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use wallgate_types::clock::ManualClock;

use crate::fold::State;
use crate::journal::{Journal, JournalError};
use crate::log::{Log, LogError};
use crate::open::{self, Begun, Format, LedgerOptions, OpenError};
use crate::record::{Envelope, Kind};
use crate::storage::Storage;

/// What happens at one of the disk's operations, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The system says no: nothing is written (`ENOSPC`, `EIO`).
    Refuse(i32),
    /// A write gets half-way, then the system says no.
    Half(i32),
    /// The machine stops before the operation.
    Stop,
    /// The machine stops after it.
    StopAfter,
}

#[derive(Debug, Default)]
struct Disk {
    /// What is on disk.
    durable: BTreeMap<u64, Vec<u8>>,
    /// What a reader sees.
    seen: BTreeMap<u64, Vec<u8>>,
    /// Writes since the last sync: (base, offset, bytes).
    pending: Vec<(u64, usize, Vec<u8>)>,
    operation: usize,
    fault: Option<(usize, Fault)>,
    stopped: bool,
}

impl Disk {
    /// Counts an operation, and fails it if it is the one.
    fn step(&mut self) -> io::Result<Option<Fault>> {
        if self.stopped {
            return Err(io::Error::other("the machine stopped"));
        }
        let now = self.operation;
        self.operation += 1;
        match self.fault {
            Some((at, fault)) if at == now => match fault {
                Fault::Refuse(code) => Err(io::Error::from_raw_os_error(code)),
                Fault::Stop => {
                    self.stopped = true;
                    Err(io::Error::other("the machine stopped"))
                }
                Fault::Half(_) | Fault::StopAfter => Ok(Some(fault)),
            },
            _ => Ok(None),
        }
    }

    fn after(&mut self, fault: Option<Fault>) -> io::Result<()> {
        match fault {
            Some(Fault::StopAfter) => {
                self.stopped = true;
                Err(io::Error::other("the machine stopped"))
            }
            Some(Fault::Half(code)) => Err(io::Error::from_raw_os_error(code)),
            Some(Fault::Refuse(_) | Fault::Stop) | None => Ok(()),
        }
    }

    /// What is there after the power came back: what was synced, and of each pending write, in pages of 512 bytes,
    /// whatever `seed` says.
    fn after_power_cut(&self, seed: u64) -> BTreeMap<u64, Vec<u8>> {
        let mut image = self.durable.clone();
        let mut state = seed | 1;
        for (base, offset, bytes) in &self.pending {
            let file = image.entry(*base).or_default();
            for (number, page) in bytes.chunks(512).enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let kept = match seed {
                    0 => false,
                    1 => true,
                    _ => (state >> 33) & 1 == 1,
                };
                let at = offset + number * 512;
                if kept {
                    if file.len() < at + page.len() {
                        file.resize(at + page.len(), 0);
                    }
                    file[at..at + page.len()].copy_from_slice(page);
                }
            }
        }
        image
    }
}

#[derive(Clone, Debug, Default)]
struct Faulty(Arc<Mutex<Disk>>);

impl Faulty {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    fn holding(files: BTreeMap<u64, Vec<u8>>) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            durable: files.clone(),
            seen: files,
            ..Disk::default()
        })))
    }
}

impl Storage for Faulty {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.disk().seen.keys().copied().collect())
    }

    fn read(&self, base: u64, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let disk = self.disk();
        let file = disk.seen.get(&base).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset).unwrap().min(file.len());
        let length = usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .min(file.len() - start);
        Ok(file[start..start + length].to_vec())
    }

    fn create(&mut self, base: u64, header: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        let fault = disk.step()?;
        if !matches!(fault, Some(Fault::Half(_))) {
            disk.seen.insert(base, header.to_vec());
            disk.durable.insert(base, header.to_vec());
        }
        disk.after(fault)
    }

    fn write(&mut self, base: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        let fault = disk.step()?;
        let bytes = match fault {
            Some(Fault::Half(_)) => &bytes[..bytes.len() / 2],
            _ => bytes,
        };
        let offset = usize::try_from(offset).unwrap();
        disk.pending.push((base, offset, bytes.to_vec()));
        let file = disk.seen.get_mut(&base).ok_or(io::ErrorKind::NotFound)?;
        if file.len() < offset + bytes.len() {
            file.resize(offset + bytes.len(), 0);
        }
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        disk.after(fault)
    }

    fn sync(&mut self, base: u64) -> io::Result<()> {
        let mut disk = self.disk();
        let fault = disk.step()?;
        if matches!(fault, Some(Fault::Half(_))) {
            // After a failed sync the kernel may call the pages clean, and they are gone.
            disk.pending.clear();
        } else {
            let file = disk.seen.get(&base).cloned().unwrap_or_default();
            disk.durable.insert(base, file);
            disk.pending.retain(|(at, _, _)| *at != base);
        }
        disk.after(fault)
    }

    fn set_len(&mut self, base: u64, length: u64) -> io::Result<()> {
        let mut disk = self.disk();
        let fault = disk.step()?;
        let length = usize::try_from(length).unwrap();
        if let Some(file) = disk.seen.get_mut(&base) {
            file.truncate(length);
        }
        disk.after(fault)
    }
}

fn format() -> Format {
    let text = r#"{"format":"wallgate-ledger","ledger":"00112233445566778899aabbccddeeff","origin":"log.test","version":1}"#;
    serde_json::from_str(text).unwrap()
}

fn begin(directory: &Path, storage: &Faulty, published: Option<&str>) -> Result<Begun, OpenError> {
    let read = open::replay(
        Box::new(storage.clone()),
        &format(),
        None,
        State::default(),
        published,
    )?;
    let clock = Arc::new(ManualClock::at(1));
    open::begin(directory, &LedgerOptions::default(), clock, &format(), read)
}

fn body(n: u64) -> Vec<u8> {
    format!(r#"{{"request_id":"{n:032x}","sandbox":"agent"}}"#).into_bytes()
}

/// Writes batches of records until something fails; returns what was acknowledged.
fn work(directory: &Path, storage: &Faulty) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let Ok(begun) = begin(directory, storage, None) else {
        return acknowledged;
    };
    let mut log = begun.log;
    // Several segments, so that rolling is among the moments.
    log.journal.set_segment_bytes(4096);
    for batch in 0..8_u64 {
        match one_batch(&mut log, batch) {
            Ok(mut indices) => acknowledged.append(&mut indices),
            Err(_failed) => {
                // Nothing after a failure is ever acknowledged.
                for later in 0..3 {
                    assert!(
                        one_batch(&mut log, 100 + later).is_err(),
                        "acknowledged after a failure"
                    );
                }
                return acknowledged;
            }
        }
    }
    acknowledged
}

fn one_batch(log: &mut Log, batch: u64) -> Result<Vec<u64>, LogError> {
    let mut indices = Vec::new();
    for n in 0..4 {
        let request = batch * 4 + n;
        indices.push(log.append(Kind::Decision, &body(request), Some(request.into()))?);
    }
    if batch % 2 == 1 {
        log.checkpoint()?;
    }
    log.write()?;
    // An outcome that nobody waits for, between a write and its sync.
    log.append(Kind::Outcome, &body(batch * 4), Some((batch * 4).into()))?;
    log.sync()?;
    Ok(indices)
}

/// Opens what is left, and checks that it is whole and has what was acknowledged.
fn check(directory: &Path, image: BTreeMap<u64, Vec<u8>>, acknowledged: &[u64], what: &str) {
    let storage = Faulty::holding(image);
    let begun = begin(directory, &storage, None).unwrap_or_else(|error| panic!("{what}: {error}"));
    let size = begun.log.size();
    let mut kinds = Vec::new();
    let mut unanswered = std::collections::BTreeSet::new();
    Journal::open::<JournalError>(Box::new(storage), format().ledger_id().unwrap(), 0, |frame| {
        if let Ok(record) = Envelope::parse(frame.payload) {
            assert_eq!(record.seq, kinds.len() as u64, "{what}");
            match record.kind {
                Kind::Decision => assert!(unanswered.insert(record.request_id())),
                Kind::Outcome => assert!(unanswered.remove(&record.request_id())),
                Kind::Control => {}
            }
            kinds.push(record.kind);
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(kinds.len() as u64, size, "{what}");
    assert!(unanswered.is_empty(), "{what}: a decision without an outcome");
    for index in acknowledged {
        let at = usize::try_from(*index).unwrap();
        assert_eq!(
            kinds.get(at),
            Some(&Kind::Decision),
            "{what}: record {index} was acknowledged and is gone"
        );
    }
}

fn operations() -> usize {
    let directory = tempfile::tempdir().unwrap();
    let storage = Faulty::default();
    assert_eq!(work(directory.path(), &storage).len(), 32);
    let operations = storage.disk().operation;
    assert!(operations > 20, "{operations}");
    operations
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    for at in 0..operations() {
        for fault in [Fault::Stop, Fault::StopAfter] {
            let directory = tempfile::tempdir().unwrap();
            let storage = Faulty::default();
            storage.disk().fault = Some((at, fault));
            let acknowledged = work(directory.path(), &storage);
            for seed in 0..12 {
                let image = storage.disk().after_power_cut(seed);
                check(
                    directory.path(),
                    image,
                    &acknowledged,
                    &format!("{fault:?} at {at}, seed {seed}"),
                );
            }
        }
    }
}

#[test]
fn after_an_error_of_the_disk_nothing_is_acknowledged_and_nothing_lost() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    for at in 0..operations() {
        for fault in [
            Fault::Refuse(ENOSPC),
            Fault::Refuse(EIO),
            Fault::Half(ENOSPC),
            Fault::Half(EIO),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let storage = Faulty::default();
            storage.disk().fault = Some((at, fault));
            let acknowledged = work(directory.path(), &storage);
            assert!(acknowledged.len() < 32, "{fault:?} at {at} went unnoticed");
            // The process ends: what the system has taken stays.
            let image = storage.disk().seen.clone();
            check(
                directory.path(),
                image,
                &acknowledged,
                &format!("{fault:?} at {at}"),
            );
            // Or the power goes as well.
            let image = storage.disk().after_power_cut(at as u64 + 2);
            check(
                directory.path(),
                image,
                &acknowledged,
                &format!("{fault:?} at {at}, power cut"),
            );
        }
    }
}

#[test]
fn an_acknowledged_record_that_was_altered_is_damage_not_a_torn_write() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Faulty::default();
    work(directory.path(), &storage);
    let files = storage.disk().durable.clone();
    let (base, last) = files.last_key_value().unwrap();
    for at in (64..last.len() - 2000).step_by(97) {
        let mut image = files.clone();
        let file = image.get_mut(base).unwrap();
        if file[at] == 0 && file[at..].iter().all(|byte| *byte == 0) {
            break;
        }
        file[at] ^= 0x40;
        let storage = Faulty::holding(image.clone());
        match begin(directory.path(), &storage, None) {
            Err(OpenError::Damaged { .. }) => assert_eq!(storage.disk().seen, image, "byte {at}: changed"),
            // The last batch: nothing later proves that it was synced, so the checkpoint file must.
            Ok(_) => {}
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
}
