//! The generator on a block device, past the page cache, by an io_uring whose file and buffers are
//! registered: one system call submits a batch and waits for the next completion.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use io_uring::{IoUring, opcode, types};
use spillway_core::IoBuf;

use super::cases::Case;
use super::generator::{Transport, uninterrupted};

pub(super) struct Ring {
    /// Ends before the memory that is registered in it.
    ring: IoUring,
    memory: IoBuf,
    case: Case,
}

impl Ring {
    /// To be used on the calling thread alone.
    pub(super) fn new(device: &File, case: Case) -> Result<Self> {
        let mut memory = IoBuf::new(case.depth * case.bytes);
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(case.depth as u32)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        let whole = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the memory lives as long as the ring, which ends before it.
        unsafe { ring.submitter().register_buffers(&[whole])? };
        Ok(Self { ring, memory, case })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The end of a ring leaves its files open for a moment, in which the device could not be removed.
        if let Err(why) = self.ring.submitter().unregister_files() {
            eprintln!("warning: a device stays open for a while: {why}");
        }
    }
}

impl Transport for Ring {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let (start, len) = (slot * self.case.bytes, self.case.bytes);
        let (device, buf) = (types::Fixed(0), self.memory[start..start + len].as_mut_ptr());
        let entry = if self.case.writes {
            opcode::WriteFixed::new(device, buf, len as u32, 0).offset(offset).build()
        } else {
            opcode::ReadFixed::new(device, buf, len as u32, 0).offset(offset).build()
        };
        // SAFETY: the range lies in the registered memory, and nobody looks at it while its slot is in
        // flight.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64))? };
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        uninterrupted(|| self.ring.submit_and_wait(1))?;
        for entry in self.ring.completion() {
            ensure!(
                entry.result() == self.case.bytes as i32,
                "a request is answered with {}",
                entry.result()
            );
            slots.push(entry.user_data() as usize);
        }
        Ok(())
    }
}
