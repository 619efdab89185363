//! The generator as a guest: queues in shared memory, driven by a front end that Spillway did not write.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use spillway_front_end::{FrontEnd, Request, Without};

use super::cases::Case;
use super::generator::Transport;

/// Entries of a queue: a request takes three.
const ENTRIES: u16 = 256;

/// A device calls within this time, or is broken.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Guest {
    front_end: FrontEnd,
    case: Case,
    queues: usize,
    answers: Vec<(usize, i32)>,
}

impl Guest {
    /// Slots are spread over so many queues.
    pub(super) fn connect(socket: &Path, case: Case, queues: usize) -> Result<Self> {
        let slots = case.depth * queues;
        let front_end = FrontEnd::connect(socket, queues, ENTRIES, slots * case.bytes, Without::default());
        let front_end = front_end.with_context(|| socket.display().to_string())?;
        Ok(Self { front_end, case, queues, answers: Vec::with_capacity(slots) })
    }
}

impl Transport for Guest {
    fn memory(&mut self) -> &mut [u8] {
        self.front_end.memory()
    }

    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let range = slot * self.case.bytes..(slot + 1) * self.case.bytes;
        let request =
            if self.case.writes { Request::Write(offset, range) } else { Request::Read(offset, range) };
        Ok(self.front_end.add(slot / self.case.depth, request, slot)?)
    }

    fn kick(&mut self) -> Result<()> {
        (0..self.queues).try_for_each(|queue| Ok(self.front_end.kick(queue)?))
    }

    fn reap(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        loop {
            (0..self.queues).for_each(|queue| self.front_end.reap(queue, &mut self.answers));
            if !self.answers.is_empty() {
                break;
            }
            self.front_end.sleep(PATIENCE)?;
        }
        for (slot, result) in self.answers.drain(..) {
            ensure!(result == 0, "a request is answered with {result}");
            slots.push(slot);
        }
        Ok(())
    }
}
