//! Writers whose blocks say which write they are from, and what may be found in them after a crash.
//!
//! Each writer has blocks of its own, and its steps follow from its number and the round alone: who sees how far a writer came knows what it wrote.

use std::io;

/// Writers at work together.
pub const WRITERS: u64 = 4;

/// Longest write in bytes.
const LEN_MAX: u64 = 32 << 10;

/// How the blocks of a device are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of a block.
    pub size: usize,
    /// Blocks of each writer, which lie together.
    pub each: u64,
}

impl Blocks {
    /// Bytes of all writers' blocks.
    pub fn bytes(&self) -> u64 {
        WRITERS * self.each * self.size as u64
    }
}

/// What writers write to.
pub trait Disk {
    /// Writes `bytes`, whole blocks.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was written.
    fn flush(&mut self) -> io::Result<()>;
}

/// One write of a writer, with a flush after some.
#[derive(Clone, Debug)]
pub struct Step {
    writer: u64,
    blocks: Blocks,
    /// Of its blocks.
    first: u64,
    count: u64,
    /// Later ones are larger.
    version: u64,
    flushes: bool,
}

impl Step {
    /// Does it.
    pub fn carry_out(&self, disk: &mut impl Disk) -> io::Result<()> {
        let first = self.writer * self.blocks.each + self.first;
        let bytes: Vec<u8> = (first..first + self.count)
            .flat_map(|block| contents(block, self.version, self.blocks.size))
            .collect();
        disk.write(first * self.blocks.size as u64, &bytes)?;
        if self.flushes { disk.flush() } else { Ok(()) }
    }
}

/// What `writer` does in a round, in its order and without an end: its blocks in no order, most of them more than once, and flushes now and then.
pub fn steps(blocks: Blocks, writer: u64, round: u64) -> impl Iterator<Item = Step> {
    let mut state = writer * 7919 + round * 104_729 + 1;
    (1u64..).map(move |number| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = (state >> 33) % blocks.each;
        let count = (1 + (state >> 50) % (LEN_MAX / blocks.size as u64)).min(blocks.each - first);
        Step { writer, blocks, first, count, version: (round << 32) + number, flushes: state >> 60 == 0 }
    })
}

/// A block of the device as a version has it.
fn contents(block: u64, version: u64, size: usize) -> impl Iterator<Item = u8> {
    [version, block].into_iter().flat_map(u64::to_le_bytes).cycle().take(size)
}

/// What a writer knows of one of its blocks: the version that a flush has covered, and the last that was acknowledged.
#[derive(Clone, Copy, Default)]
struct Known {
    durable: u64,
    acknowledged: u64,
}

/// What is known of the blocks of one writer, which hold zeroes at first.
#[derive(Clone)]
pub struct Written {
    writer: u64,
    blocks: Blocks,
    known: Vec<Known>,
}

impl Written {
    /// Of every writer.
    pub fn all(blocks: Blocks) -> Vec<Self> {
        let known = vec![Known::default(); blocks.each as usize];
        (0..WRITERS).map(|writer| Self { writer, blocks, known: known.clone() }).collect()
    }

    /// What its writer does in a round.
    pub fn steps(&self, round: u64) -> impl Iterator<Item = Step> + use<> {
        steps(self.blocks, self.writer, round)
    }

    /// `step` was acknowledged.
    pub fn done(&mut self, step: &Step) {
        let range = step.first as usize..(step.first + step.count) as usize;
        self.known[range].iter_mut().for_each(|known| known.acknowledged = step.version);
        if step.flushes {
            self.flushed();
        }
    }

    /// A flush was acknowledged.
    pub fn flushed(&mut self) {
        self.known.iter_mut().for_each(|known| known.durable = known.acknowledged);
    }

    /// Every block of `device` has to be one version of it, whole, not older than what a flush covered; it counts as durable from now on. Versions
    /// that were never written have no way to be there. Says what is wrong.
    pub fn check(&mut self, device: &[u8]) -> Result<(), String> {
        let size = self.blocks.size;
        let first = self.writer * self.blocks.each;
        let found = device[first as usize * size..].chunks_exact(size);
        for (block, (known, found)) in (first..).zip(self.known.iter_mut().zip(found)) {
            let version = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
            let zeroes = version == 0 && found.iter().all(|&byte| byte == 0);
            if !zeroes && !contents(block, version, size).eq(found.iter().copied()) {
                return Err(format!("block {block} of {size} bytes is a mixture, or another block"));
            }
            let durable = known.durable;
            if version < durable {
                return Err(format!(
                    "block {block} of {size} bytes holds version {version:x}; flushed is {durable:x}"
                ));
            }
            *known = Known { durable: version, acknowledged: version };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks { size: 512, each: 16 };

    /// Keeps everything, and every flush that there was.
    #[derive(Default)]
    struct Memory(Vec<u8>, usize);

    impl Disk for Memory {
        fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.1 += 1;
            Ok(())
        }
    }

    fn work(count: usize) -> (Vec<Written>, Memory) {
        let (mut all, mut disk) = (Written::all(BLOCKS), Memory(vec![0; BLOCKS.bytes() as usize], 0));
        for written in &mut all {
            written.steps(1).take(count).for_each(|step| {
                step.carry_out(&mut disk).unwrap();
                written.done(&step);
            });
        }
        (all, disk)
    }

    fn refuses(all: &mut [Written], device: &[u8]) -> bool {
        all.iter_mut().any(|written| written.check(device).is_err())
    }

    #[test]
    fn what_was_written_is_accepted_and_every_lost_moved_or_torn_block_is_not() {
        let (mut all, disk) = work(200);
        assert!(disk.1 > 10 && !refuses(&mut all, &disk.0));
        all.iter_mut().for_each(Written::flushed);
        for block in 0..BLOCKS.bytes() as usize / BLOCKS.size {
            let at = block * BLOCKS.size;
            let refused = |change: &dyn Fn(&mut [u8])| {
                let mut device = disk.0.clone();
                change(&mut device[at..at + BLOCKS.size]);
                refuses(&mut all.clone(), &device)
            };
            assert!(refused(&|bytes| bytes.fill(0)), "block {block} is lost");
            assert!(refused(&|bytes| bytes[511] ^= 1), "block {block} is torn");
            assert!(refused(&|bytes| bytes[8] ^= 1), "block {block} is another");
        }
    }

    #[test]
    fn what_no_flush_covered_may_be_lost_and_what_nobody_acknowledged_may_be_there() {
        let (mut behind, _) = work(100);
        let (mut ahead, disk) = work(110);
        assert!(!refuses(&mut behind, &disk.0));
        let (_, old) = work(0);
        assert!(refuses(&mut ahead, &old.0), "flushes covered some of it");
        assert!(!refuses(&mut Written::all(BLOCKS), &disk.0));
    }
}
