//! The writer: one thread owns the log; whoever wants something recorded asks it, and waits.
//!
//! ```text
//!   record().await ──▶ queue ──▶ writer thread: append… write, one sync ──▶ answers
//!   outcome()      ──▶   ┘            │ what is durable
//!                                     ▼
//!                             keeper thread: index.redb, checkpoint file      at most a second behind
//! ```
//!
//! While a sync runs, requests gather; the next sync is for all of them (group commit). An outcome alone is written at
//! once, which a dead process survives, and synced with the next decision or checkpoint: after a power cut within that second
//! it may be `unknown_crash`.
//!
//! The first error of either thread is the last thing that happens: from then on every record is refused, none
//! acknowledged, and nothing is retried, since after a failed sync nobody knows what is on disk.
//!
//! This is the only module of the crate that knows tokio, and only its channels.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use wallgate_types::clock::Clock;
use wallgate_types::record::{OutcomeRecord, Recordable};

use crate::canonical::{self, CanonicalError};
use crate::journal::JournalError;
use crate::keeper::{self, Work};
use crate::limits::{GATHER, MAX_BATCH, MAX_WAITING};
use crate::log::{Log, LogError};
use crate::open::{self, LedgerOptions, OpenError, Opened, Recovered};
use crate::record::{ControlEvent, Kind};
use crate::recorded::{LeafIndex, Recorded};

/// Why something was not recorded: it must not go out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// The store failed, now or before. Nothing will be recorded until the ledger is opened anew.
    #[error("the ledger failed and records nothing more: {detail}")]
    Poisoned {
        /// What failed first: for the operator.
        detail: String,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
    /// A record that cannot be made short enough.
    #[error("a record of {bytes} bytes cannot be stored")]
    TooLarge {
        /// Its length with everything cut.
        bytes: usize,
    },
    /// A record that is no JSON.
    #[error("a record cannot be encoded: {detail}")]
    Encode {
        /// Why.
        detail: String,
    },
}

impl LedgerError {
    /// The reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Poisoned { .. } => "ledger_failed",
            Self::Closed => "ledger_closed",
            Self::TooLarge { .. } => "record_too_large",
            Self::Encode { .. } => "record_unencodable",
        }
    }
}

impl From<CanonicalError> for LedgerError {
    fn from(error: CanonicalError) -> Self {
        match error {
            CanonicalError::TooLarge { bytes } => Self::TooLarge { bytes },
            other @ (CanonicalError::TooDeep | CanonicalError::Json(_)) => Self::Encode {
                detail: other.to_string(),
            },
        }
    }
}

/// The first failure of either thread; set once.
#[derive(Debug, Default)]
pub(crate) struct Failure(OnceLock<LedgerError>);

impl Failure {
    pub(crate) fn set(&self, detail: String) {
        // A second failure follows from the first.
        let _first_stays = self.0.set(LedgerError::Poisoned { detail });
    }

    pub(crate) fn get(&self) -> Option<LedgerError> {
        self.0.get().cloned()
    }
}

/// What the writer is asked for.
#[derive(Debug)]
enum Command {
    Append {
        kind: Kind,
        body: Vec<u8>,
        request: Option<u128>,
        answer: Option<Answer>,
    },
    Checkpoint(oneshot::Sender<Result<String, LedgerError>>),
    Rotate(oneshot::Sender<Result<LeafIndex, LedgerError>>),
    Close(Sender<Result<String, LedgerError>>),
}

/// Somebody who waits for a record to be durable, and the place in the queue that is held for it.
#[derive(Debug)]
struct Answer {
    to: oneshot::Sender<Result<LeafIndex, LedgerError>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Answer {
    fn give(self, result: Result<LeafIndex, LedgerError>) {
        // Whoever no longer waits needs no answer.
        let _nobody_waits = self.to.send(result);
    }
}

#[derive(Debug)]
struct Inner {
    commands: Sender<Command>,
    places: Arc<Semaphore>,
    failure: Arc<Failure>,
    thread: Mutex<Option<JoinHandle<()>>>,
    id: String,
    recovered: Recovered,
}

/// A handle to the ledger. When the last one goes, the writer stops as by [`Ledger::close`], but nobody waits for it.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Inner>,
}

impl Ledger {
    /// Opens the ledger in `directory`, or makes one, and starts its threads. Blocks while it reads and checks what the
    /// index has not seen.
    ///
    /// # Errors
    /// See [`OpenError`]: in use, another version, an unsafe key, damage that no crash explains.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "options and clock are the ledger's from then on"
    )]
    pub fn open(directory: &Path, options: LedgerOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let opened = open::open(directory, &options, Arc::clone(&clock))?;
        let Opened {
            log,
            index,
            lock,
            recovered,
            unanswered,
            delta,
            state,
            note,
        } = opened;
        let id = log.author.ledger.clone();
        let failure = Arc::new(Failure::default());
        let (work, inbox) = mpsc::channel();
        let keeper = keeper::Keeper {
            index,
            directory: directory.to_owned(),
            failure: Arc::clone(&failure),
            clock: Arc::clone(&clock),
            unanswered,
        };
        let spawn_error = |source| OpenError::Io {
            doing: "starting the ledger's threads".to_owned(),
            source,
        };
        let keeper = std::thread::Builder::new()
            .name("ledger-keeper".to_owned())
            .spawn(move || keeper.run(&inbox))
            .map_err(spawn_error)?;
        // The keeper holds its end until the writer drops this one.
        let _received = work.send(Work {
            delta,
            state,
            note: Some(note),
        });
        let (commands, queue) = mpsc::channel();
        let writer = Writer {
            log,
            work: Some(work),
            keeper: Some(keeper),
            failure: Arc::clone(&failure),
            due: clock.monotonic().saturating_add(options.checkpoint_every),
            clock,
            every: options.checkpoint_every,
            records: options.checkpoint_records,
            unsynced: false,
            expected: 0,
        };
        let thread = std::thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || {
                writer.run(&queue);
                drop(lock);
            })
            .map_err(spawn_error)?;
        Ok(Self {
            inner: Arc::new(Inner {
                commands,
                places: Arc::new(Semaphore::new(MAX_WAITING)),
                failure,
                thread: Mutex::new(Some(thread)),
                id,
                recovered,
            }),
        })
    }

    /// Records a decision and returns when it is durable. A future that is dropped may have recorded it all the same.
    ///
    /// # Errors
    /// See [`LedgerError`]: whatever it is, the request must not go out.
    pub async fn record<T: Recordable>(&self, value: T) -> Result<Recorded<T>, LedgerError> {
        let decision = value.decision_record();
        let request = decision.request_id.0;
        let body = body(&decision)?;
        let index = self.append(Kind::Decision, body, Some(request)).await?;
        Ok(Recorded::new(value, index))
    }

    /// Records what became of a request. Never blocks and cannot fail: while the writer lives, it is written.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an outcome is recorded once: it is spent here"
    )]
    pub fn outcome(&self, outcome: OutcomeRecord) {
        let request = outcome.request_id.0;
        match body(&outcome) {
            Ok(body) => {
                // A writer that is gone has refused everything; the decision then has `unknown_crash`.
                let _writer_gone = self.inner.commands.send(Command::Append {
                    kind: Kind::Outcome,
                    body,
                    request: Some(request),
                    answer: None,
                });
            }
            // An outcome has no field that a sandbox could make so long; if it ever has, the ledger stops here.
            Err(error) => self.inner.failure.set(format!("an outcome: {error}")),
        }
    }

    /// Records something that happened to the wall itself, and returns when it is durable.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn control(&self, event: ControlEvent) -> Result<LeafIndex, LedgerError> {
        let body = event.into_body()?;
        self.append(Kind::Control, body, None).await
    }

    /// [`Ledger::control`] for threads that may block. Panics when called from asynchronous code, as tokio's channels do.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn control_blocking(&self, event: ControlEvent) -> Result<LeafIndex, LedgerError> {
        let (to, answer) = oneshot::channel();
        self.send(Command::Append {
            kind: Kind::Control,
            body: event.into_body()?,
            request: None,
            answer: Some(Answer { to, _place: None }),
        })?;
        answer.blocking_recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Signs a checkpoint of everything up to now; returns the note, durable.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn checkpoint(&self) -> Result<String, LedgerError> {
        let (to, answer) = oneshot::channel();
        self.send(Command::Checkpoint(to))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Begins a new key epoch: the old key signs the record that names the new one, and is destroyed.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn rotate_key(&self) -> Result<LeafIndex, LedgerError> {
        let (to, answer) = oneshot::channel();
        self.send(Command::Rotate(to))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// The failure after which nothing is recorded any more.
    #[must_use]
    pub fn failure(&self) -> Option<LedgerError> {
        self.inner.failure.get()
    }

    /// The ledger's random name, 32 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// What opening found.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        &self.inner.recovered
    }

    /// Records the stop, signs the last checkpoint and ends the threads; returns the note. Blocks. Other handles get
    /// [`LedgerError::Closed`] from then on.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn close(self) -> Result<String, LedgerError> {
        let (to, answer) = mpsc::channel();
        self.send(Command::Close(to))?;
        let result = answer.recv().unwrap_or_else(|_| Err(self.gone()));
        let thread = self
            .inner
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            return Err(LedgerError::Poisoned {
                detail: "the writer panicked".to_owned(),
            });
        }
        result
    }

    async fn append(
        &self,
        kind: Kind,
        body: Vec<u8>,
        request: Option<u128>,
    ) -> Result<LeafIndex, LedgerError> {
        let places = Arc::clone(&self.inner.places);
        let place = places
            .acquire_owned()
            .await
            .map_err(|_closed| LedgerError::Closed)?;
        let (to, answer) = oneshot::channel();
        self.send(Command::Append {
            kind,
            body,
            request,
            answer: Some(Answer {
                to,
                _place: Some(place),
            }),
        })?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn send(&self, command: Command) -> Result<(), LedgerError> {
        if let Some(failure) = self.failure() {
            // The writer may still run, to refuse; closing must reach it.
            if !matches!(command, Command::Close(_)) {
                return Err(failure);
            }
        }
        self.inner.commands.send(command).map_err(|_not_sent| self.gone())
    }

    /// Why there is no answer.
    fn gone(&self) -> LedgerError {
        self.failure().unwrap_or(LedgerError::Closed)
    }
}

fn body(value: &impl serde::Serialize) -> Result<Vec<u8>, LedgerError> {
    let value = serde_json::to_value(value).map_err(CanonicalError::from)?;
    Ok(canonical::body(value)?)
}

/// The writer thread.
struct Writer {
    log: Log,
    work: Option<Sender<Work>>,
    keeper: Option<JoinHandle<()>>,
    failure: Arc<Failure>,
    clock: Arc<dyn Clock>,
    every: Duration,
    records: u64,
    /// When the next checkpoint is due, in monotonic time.
    due: Duration,
    unsynced: bool,
    /// How many waited for the last batch.
    expected: usize,
}

/// Who waits for one batch.
#[derive(Default)]
struct Batch {
    taken: usize,
    appended: Vec<(LeafIndex, Answer)>,
    checkpoints: Vec<oneshot::Sender<Result<String, LedgerError>>>,
    rotations: Vec<(LeafIndex, oneshot::Sender<Result<LeafIndex, LedgerError>>)>,
    close: Option<Sender<Result<String, LedgerError>>>,
    /// The checkpoint that was signed with it.
    note: Option<String>,
}

impl Batch {
    fn refuse(self, error: &LedgerError) {
        for (_, answer) in self.appended {
            answer.give(Err(error.clone()));
        }
        for to in self.checkpoints {
            let _nobody_waits = to.send(Err(error.clone()));
        }
        for (_, to) in self.rotations {
            let _nobody_waits = to.send(Err(error.clone()));
        }
        if let Some(to) = self.close {
            let _nobody_waits = to.send(Err(error.clone()));
        }
    }
}

impl Writer {
    fn run(mut self, queue: &Receiver<Command>) {
        loop {
            let first = match self.next(queue) {
                Next::Command(command) => Some(command),
                Next::Due => None,
                Next::Gone => break,
            };
            let mut batch = Batch::default();
            let result = self.batch(first, queue, &mut batch);
            let result = result.and_then(|()| self.failure.get().map_or(Ok(()), Err));
            if let Err(error) = result {
                batch.refuse(&error);
                return self.refuse_all(queue);
            }
            for (index, answer) in batch.appended {
                answer.give(Ok(index));
            }
            for (index, to) in batch.rotations {
                let _nobody_waits = to.send(Ok(index));
            }
            for to in batch.checkpoints {
                let _nobody_waits = to.send(Ok(batch.note.clone().unwrap_or_default()));
            }
            if let Some(to) = batch.close {
                let result = self.stop();
                let _nobody_waits = to.send(result);
                return;
            }
        }
        // Every handle is gone: nobody is left to tell.
        let _nobody_waits = self.stop();
    }

    /// Waits for a command, or until a checkpoint is due.
    fn next(&self, queue: &Receiver<Command>) -> Next {
        if self.log.unsigned() == 0 && !self.unsynced {
            return queue.recv().map_or(Next::Gone, Next::Command);
        }
        let wait = self.due.saturating_sub(self.clock.monotonic());
        match queue.recv_timeout(wait) {
            Ok(command) => Next::Command(command),
            Err(RecvTimeoutError::Timeout) => Next::Due,
            Err(RecvTimeoutError::Disconnected) => Next::Gone,
        }
    }

    /// One group commit: takes what waits, appends it, and syncs once if anybody waits for that.
    fn batch(
        &mut self,
        first: Option<Command>,
        queue: &Receiver<Command>,
        batch: &mut Batch,
    ) -> Result<(), LedgerError> {
        if let Some(command) = first {
            self.take(command, batch)?;
            let until = self.clock.monotonic().saturating_add(GATHER);
            while batch.close.is_none()
                && batch.taken < MAX_BATCH
                && let Some(command) = self.more(queue, batch, until)
            {
                self.take(command, batch)?;
            }
            self.expected = batch.appended.len();
        }
        let now = self.clock.monotonic();
        let unsigned = self.log.unsigned();
        let due = unsigned >= self.records || (unsigned > 0 && now >= self.due);
        if due || !batch.checkpoints.is_empty() {
            self.due = now.saturating_add(self.every);
            batch.note = Some(self.log.checkpoint().map_err(|error| self.fail(&error))?);
        } else if unsigned == 0 && batch.appended.is_empty() {
            self.due = now.saturating_add(self.every);
        }
        self.log.write().map_err(|error| self.fail(&error))?;
        self.unsynced = true;
        let somebody_waits = !batch.appended.is_empty() || !batch.rotations.is_empty();
        if somebody_waits || batch.note.is_some() {
            let (delta, state) = self.log.sync().map_err(|error| self.fail(&error))?;
            self.unsynced = false;
            if let Some(work) = &self.work {
                // The keeper ends early only when it failed, which is looked at before anything is acknowledged.
                let _received = work.send(Work {
                    delta,
                    state,
                    note: batch.note.clone(),
                });
            }
        }
        Ok(())
    }

    /// What else belongs to this batch: all that waits, and, where the last batch was of several, what is about to come.
    /// They were answered together, so they ask again together; a sync for the first of them alone would keep the rest waiting.
    fn more(&self, queue: &Receiver<Command>, batch: &Batch, until: Duration) -> Option<Command> {
        if let Ok(command) = queue.try_recv() {
            return Some(command);
        }
        let wait = until.saturating_sub(self.clock.monotonic());
        if batch.appended.is_empty() || batch.appended.len() >= self.expected || wait.is_zero() {
            return None;
        }
        queue.recv_timeout(wait).ok()
    }

    fn take(&mut self, command: Command, batch: &mut Batch) -> Result<(), LedgerError> {
        batch.taken = batch.taken.saturating_add(1);
        match command {
            Command::Append {
                kind,
                body,
                request,
                answer,
            } => match (self.log.append(kind, &body, request), answer) {
                (Ok(index), Some(answer)) => batch.appended.push((LeafIndex(index), answer)),
                (Ok(_), None) => {}
                (Err(LogError::Journal(JournalError::Length(bytes))), Some(answer)) => {
                    answer.give(Err(LedgerError::TooLarge { bytes }));
                }
                (Err(error), answer) => {
                    let failure = self.fail(&error);
                    if let Some(answer) = answer {
                        answer.give(Err(failure.clone()));
                    }
                    return Err(failure);
                }
            },
            Command::Checkpoint(to) => batch.checkpoints.push(to),
            Command::Rotate(to) => match self.log.rotate() {
                Ok(index) => batch.rotations.push((LeafIndex(index), to)),
                Err(error) => {
                    let failure = self.fail(&error);
                    let _nobody_waits = to.send(Err(failure.clone()));
                    return Err(failure);
                }
            },
            Command::Close(to) => batch.close = Some(to),
        }
        Ok(())
    }

    fn fail(&self, error: &LogError) -> LedgerError {
        self.failure.set(error.to_string());
        self.failure.get().unwrap_or(LedgerError::Closed)
    }

    fn stop(&mut self) -> Result<String, LedgerError> {
        let stopped = self.log.stop().map_err(|error| self.fail(&error));
        let result = stopped.map(|(note, delta, state)| {
            if let Some(work) = &self.work {
                let _received = work.send(Work {
                    delta,
                    state,
                    note: Some(note.clone()),
                });
            }
            note
        });
        self.join_keeper();
        self.failure.get().map_or(result, Err)
    }

    fn join_keeper(&mut self) {
        drop(self.work.take());
        if let Some(keeper) = self.keeper.take()
            && keeper.join().is_err()
        {
            self.failure.set("the keeper panicked".to_owned());
        }
    }

    /// After a failure: everybody is refused, until the last handle goes.
    fn refuse_all(mut self, queue: &Receiver<Command>) {
        self.join_keeper();
        let error = self.failure.get().unwrap_or(LedgerError::Closed);
        for command in queue {
            match command {
                Command::Append {
                    answer: Some(answer), ..
                } => answer.give(Err(error.clone())),
                Command::Append { answer: None, .. } => {}
                Command::Checkpoint(to) => {
                    let _nobody_waits = to.send(Err(error.clone()));
                }
                Command::Rotate(to) => {
                    let _nobody_waits = to.send(Err(error.clone()));
                }
                Command::Close(to) => {
                    let _nobody_waits = to.send(Err(error.clone()));
                    return;
                }
            }
        }
    }
}

enum Next {
    Command(Command),
    /// A checkpoint is due.
    Due,
    /// Nobody holds a handle any more.
    Gone,
}
