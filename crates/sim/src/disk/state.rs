//! A disk's state, and what its plan makes of each call.

use spillway_core::random::Random;
use spillway_core::{ByteRange, Kind, SECTOR};

use super::answers::Answers;
use super::cache::Cache;
use super::fault::{Call, Effect, Fault};
use super::latency::Latency;

/// What is to go wrong with a disk while it has power.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Planned faults.
    pub faults: Vec<Fault>,
    /// Boundary at which the power is cut; never if `None`.
    pub cut_at: Option<u64>,
    /// The power is cut for this disk alone: its calls fail from then on.
    pub alone: bool,
    /// Writes go through the system's page cache: the failure of a durable one may be told to another.
    pub buffered: bool,
    /// How long calls take.
    pub latency: Latency,
}

impl Plan {
    /// Whether the disk is to fail. One that is slow, or ignores a flush, does not.
    pub fn fails(&self) -> bool {
        let fails = |fault: &Fault| !matches!(fault.effect, Effect::Hang(_) | Effect::Ignore);
        self.alone || self.faults.iter().any(fails)
    }

    /// Whether some of its calls take long.
    pub fn hangs(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.effect, Effect::Hang(_)))
    }

    /// Whether some of its calls find no room.
    pub fn lacks_room(&self) -> bool {
        self.faults.iter().any(|fault| fault.effect == Effect::Fail(Kind::NoSpace))
    }
}

pub(super) struct DiskState {
    pub(super) cache: Cache,
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) counts: [u64; 4],
    pub(super) calls: u64,
    pub(super) boundaries: u64,
    pub(super) cut: bool,
    /// This disk alone has no power.
    pub(super) gone: bool,
    /// A loss that no call has reported yet.
    pub(super) unreported: bool,
    /// Sectors that hold what nobody wrote there, since they were last asked for: first and count.
    pub(super) wrong: Vec<(u64, u64)>,
    /// Sectors that calls have begun to change, since they were last asked for: first and count.
    pub(super) changed: Vec<(u64, u64)>,
    /// A sync was ignored, and what it was to cover, below this number, is not known to be durable by a later one.
    pub(super) ignored: Option<u64>,
    /// A sync has failed.
    pub(super) forgot: bool,
    /// Calls that never end.
    pub(super) hung: Vec<(Call, ByteRange)>,
    pub(super) answers: Answers,
    pub(super) head: u64,
}

impl DiskState {
    /// Passes a boundary; false once the power is gone.
    pub(super) fn pass(&mut self) -> bool {
        if self.plan.cut_at == Some(self.boundaries) {
            *(if self.plan.alone { &mut self.gone } else { &mut self.cut }) = true;
        }
        self.boundaries += 1;
        if !self.cut {
            self.cache.ghosts_pass(&mut self.random);
        }
        !self.cut
    }

    /// Counts a call and tells what strikes it.
    pub(super) fn strike(&mut self, call: Call) -> Option<Effect> {
        let (of_kind, of_all) = (self.counts[call as usize], self.calls);
        self.counts[call as usize] += 1;
        self.calls += 1;
        let strikes = |fault: &&Fault| {
            let count = match fault.call {
                None => of_all,
                Some(wanted) if wanted == call => of_kind,
                Some(_) => return false,
            };
            if fault.sticky { count >= fault.nth } else { count == fault.nth }
        };
        let effect = self.plan.faults.iter().find(strikes).map(|fault| fault.effect);
        if self.gone {
            return Some(Effect::Fail(Kind::Io));
        }
        if effect == Some(Effect::Lose) {
            self.cache.lose();
            self.unreported = true;
        }
        effect
    }

    /// A write ends.
    pub(super) fn write(
        &mut self,
        at: u64,
        bytes: &[u8],
        durable: bool,
        effect: Option<Effect>,
        block: u64,
    ) -> Result<usize, Kind> {
        let len = bytes.len() as u64;
        let failed = match effect {
            Some(Effect::Fail(kind)) => Err(kind),
            _ if durable => self.report_loss(),
            _ => Ok(()),
        };
        if let Err(kind) = failed {
            let stored = self.cache.torn_len(len, &mut self.random);
            self.cache.write(at, &bytes[..stored as usize], false);
            return Err(kind);
        }
        match effect {
            Some(Effect::Short) => {
                let len = len.min(block);
                self.cache.write(at, &bytes[..len as usize], durable);
                return Ok(len as usize);
            }
            Some(Effect::Rot) => {
                let mut rotten = bytes.to_vec();
                rotten[self.random.below(SECTOR) as usize] ^= 1 << self.random.below(8);
                self.cache.write(at, &rotten, durable);
                self.wrong.push((at / SECTOR, 1));
            }
            Some(Effect::Misdirect) => {
                let last = self.cache.bytes() - len;
                let elsewhere = ((at + block) % (last + block)).min(last);
                self.cache.write(elsewhere, bytes, durable);
                self.wrong.extend([at, elsewhere].map(|at| (at / SECTOR, len / SECTOR)));
            }
            _ => self.cache.write(at, bytes, durable),
        }
        Ok(len as usize)
    }

    /// A sync of what is below `covered` ends.
    pub(super) fn sync(&mut self, covered: u64, effect: Option<Effect>) -> Result<(), Kind> {
        match effect {
            Some(Effect::Fail(kind)) => {
                self.cache.forget(covered);
                self.forgot = true;
                // What was forgotten no later one covers.
                self.ignored = self.ignored.map(|_| u64::MAX);
                Err(kind)
            }
            Some(Effect::Ignore) => {
                self.ignored = self.ignored.max(Some(covered));
                // But where a file ends, its file system knows.
                self.cache.keep_length(covered);
                Ok(())
            }
            _ => {
                self.cache.sync(covered);
                self.ignored = self.ignored.filter(|ignored| *ignored > covered);
                self.report_loss()
            }
        }
    }

    /// Reports a loss, once.
    pub(super) fn report_loss(&mut self) -> Result<(), Kind> {
        if std::mem::take(&mut self.unreported) { Err(Kind::Io) } else { Ok(()) }
    }
}
