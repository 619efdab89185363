//! What writes in the emulated machines of `cargo xtask kernel` and `cargo xtask guest`.
//!
//! `spillway-guest DEVICE BLOCK EACH ROUND COUNT`: all writers at once, each so many steps and then a flush; says "step WRITER" and "flushed
//! WRITER" once that was acknowledged. `spillway-guest exercise FILE BYTES SEED COUNT`: so many operations on a file that is made.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;

use rustix::fs::OFlags;
use spillway_tests::exerciser::{Exerciser, Part};
use spillway_tests::versions::{Blocks, Disk, WRITERS, steps};

/// What a device may want of the place of a buffer in memory.
const ALIGNMENT: usize = 4096;

struct Device(File);

impl Disk for Device {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut room = vec![0; bytes.len() + ALIGNMENT];
        let start = room.as_ptr().align_offset(ALIGNMENT);
        let aligned = &mut room[start..start + bytes.len()];
        aligned.copy_from_slice(bytes);
        self.0.write_all_at(aligned, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    if words[0] == "exercise" {
        let part = Part::File(number(2));
        Exerciser::new(words[1].as_ref(), part, number(3)).run(number(4) as usize).check_anew();
        return;
    }
    let blocks = Blocks { size: number(1) as usize, each: number(2) };
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (path, round, count) = (&words[0], number(3), number(4));
            scope.spawn(move || write(path, blocks, writer, round, count));
        }
    });
}

fn write(path: &str, blocks: Blocks, writer: u64, round: u64, count: u64) {
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("flags are small");
    let mut device =
        Device(OpenOptions::new().write(true).custom_flags(direct).open(path).expect("a device"));
    for step in steps(blocks, writer, round).take(count as usize) {
        step.carry_out(&mut device).expect("a write");
        println!("step {writer}");
    }
    device.flush().expect("a flush");
    println!("flushed {writer}");
}
