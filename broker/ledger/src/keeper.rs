//! The keeper: brings the index and the checkpoint file up to what is durable, behind the writer's back.
//!
//! It gathers for a second, or until many records wait, and then makes one transaction: the cost of an index row falls with
//! the number of rows that share a page. What it has not done when the process dies is read from the journal at the next start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use wallgate_types::clock::Clock;

use crate::fold::{Delta, State, Unanswered, answer};
use crate::index::Index;
use crate::limits::{INDEX_EVERY, INDEX_RECORDS};
use crate::open::publish_checkpoint;
use crate::writer::Failure;

/// What has become durable.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) delta: Delta,
    /// The state after it.
    pub(crate) state: State,
    /// The last checkpoint, if one was signed.
    pub(crate) note: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) index: Index,
    pub(crate) directory: PathBuf,
    pub(crate) failure: Arc<Failure>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) unanswered: Unanswered,
}

impl Keeper {
    /// Works until the writer drops its end, then finishes.
    pub(crate) fn run(mut self, inbox: &Receiver<Work>) {
        while let Ok(mut work) = inbox.recv() {
            let more = self.gather(&mut work, inbox);
            if let Err(detail) = self.keep(&work) {
                self.failure.set(detail);
                return;
            }
            if !more {
                return;
            }
        }
    }

    /// Adds what arrives while there is time; says whether more may come.
    fn gather(&self, work: &mut Work, inbox: &Receiver<Work>) -> bool {
        let until = self.clock.monotonic().saturating_add(INDEX_EVERY);
        while work.delta.leaves.len() < INDEX_RECORDS {
            let wait = until.saturating_sub(self.clock.monotonic());
            if wait.is_zero() {
                break;
            }
            match inbox.recv_timeout(wait) {
                Ok(later) => {
                    work.delta.append(later.delta);
                    work.state = later.state;
                    work.note = later.note.or(work.note.take());
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn keep(&mut self, work: &Work) -> Result<(), String> {
        if let Some(note) = &work.note {
            publish_checkpoint(&self.directory, note)
                .map_err(|error| format!("writing the checkpoint file: {error}"))?;
        }
        if work.delta.is_empty() {
            return Ok(());
        }
        for row in &work.delta.leaves {
            answer(&mut self.unanswered, row);
        }
        let mut state = work.state.clone();
        state.unanswered.clone_from(&self.unanswered);
        self.index
            .commit(&work.delta, &state)
            .map_err(|error| error.to_string())
    }
}
