//! The generator on a block device, past the page cache, by a system call for each request: one is in flight, whatever the depth.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use spillway_core::IoBuf;

use super::cases::Case;
use super::generator::Transport;

pub(super) struct Calls {
    device: File,
    memory: IoBuf,
    case: Case,
    complete: Vec<usize>,
}

impl Calls {
    pub(super) fn new(device: &File, case: Case) -> Result<Self> {
        let (memory, complete) = (IoBuf::new(case.depth * case.bytes), Vec::with_capacity(case.depth));
        Ok(Self { device: device.try_clone()?, memory, case, complete })
    }
}

impl Transport for Calls {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let buf = &mut self.memory[slot * self.case.bytes..][..self.case.bytes];
        match self.case.writes {
            true => self.device.write_all_at(buf, offset)?,
            false => self.device.read_exact_at(buf, offset)?,
        }
        self.complete.push(slot);
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        slots.append(&mut self.complete);
        Ok(())
    }
}
