//! Servers that are killed while clients write: what a flush has covered is there when the next one is started.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::raw::{Client, command};
use crate::versions::{Blocks, Disk, WRITERS, Written};
use crate::{Launch, Server, until};

/// 8 MiB together.
const BLOCKS: Blocks = Blocks { size: 4096, each: 512 };

/// Kills in a row.
pub const ROUNDS: u64 = 6;

/// What is known of a device that writers write to through servers.
pub struct Served {
    blocks: Blocks,
    writers: Vec<Written>,
}

impl Default for Served {
    fn default() -> Self {
        Self::new(BLOCKS)
    }
}

impl Served {
    /// A device that is shared out like this and holds zeroes.
    pub fn new(blocks: Blocks) -> Self {
        Self { blocks, writers: Written::all(blocks) }
    }

    /// What is known of the blocks of each writer.
    pub fn writers(&mut self) -> &mut [Written] {
        &mut self.writers
    }

    /// Looks at what the whole device holds.
    pub fn check(&mut self, device: &[u8]) {
        let checked = self.writers.iter_mut().try_for_each(|written| written.check(device));
        checked.unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// Starts a server and looks at what it has.
    pub fn look(&mut self, launch: Launch) -> Server {
        let server = launch.start();
        let mut client = server.client();
        let device = client.read(0, self.blocks.bytes() as usize).expect("a read");
        self.check(&device);
        server
    }

    /// The same, and kills it while clients write.
    pub fn kill(&mut self, launch: Launch, round: u64) {
        let mut server = self.look(launch);
        let (socket, done) = (server.socket().to_owned(), AtomicU64::new(0));
        thread::scope(|scope| {
            for written in &mut self.writers {
                let (socket, done) = (&socket, &done);
                scope.spawn(move || write(socket, written, round, u64::MAX, done).expect_err("it is killed"));
            }
            let enough = enough(round);
            until("the writers write", || (done.load(Ordering::Relaxed) >= enough).then_some(()));
            server.signal(Signal::KILL);
        });
        server.ends();
    }

    /// Has the writers write from before `work` begins until it has ended, without a flush at the end. What they have done counts as durable all
    /// the same. Says how many steps each has done.
    pub fn write_during(&mut self, server: &Server, round: u64, work: impl FnOnce()) -> Vec<u64> {
        let (begun, over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let writers: Vec<_> = self
                .writers
                .iter_mut()
                .map(|written| {
                    let (socket, begun, over) = (server.socket(), &begun, &over);
                    scope.spawn(move || {
                        let mut client = Client::try_open(socket, "").expect("the server negotiates");
                        let steps = written.steps(round).take_while(|_| !over.load(Ordering::Relaxed));
                        let done = (0..).zip(steps).map(|(number, step)| {
                            step.carry_out(&mut client).expect("a write");
                            written.done(&step);
                            begun.fetch_add(u64::from(number == 0), Ordering::Relaxed);
                        });
                        let done = done.count() as u64;
                        written.flushed();
                        done
                    })
                })
                .collect();
            until("the writers write", || (begun.load(Ordering::Relaxed) == WRITERS).then_some(()));
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // Also where it failed: otherwise they would go on for ever.
            over.store(true, Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| resume_unwind(panic));
            writers.into_iter().map(|writer| writer.join().expect("it writes")).collect()
        })
    }

    /// Has each writer do so many steps, and then a flush.
    pub fn write(&mut self, server: &Server, round: u64, count: u64) {
        thread::scope(|scope| {
            for written in &mut self.writers {
                let socket = server.socket();
                scope
                    .spawn(move || write(socket, written, round, count, &AtomicU64::new(0)).expect("writes"));
            }
        });
    }
}

/// Steps of all writers before a kill: another number in each round.
pub(crate) fn enough(round: u64) -> u64 {
    150 + 431 * round
}

/// Does steps of a writer, so many or until the server is gone, and then a flush.
fn write(socket: &Path, written: &mut Written, round: u64, count: u64, done: &AtomicU64) -> io::Result<()> {
    let mut client = Client::try_open(socket, "")?;
    let mut steps = written.steps(round);
    for _ in 0..count {
        let step = steps.next().expect("they have no end");
        step.carry_out(&mut client)?;
        written.done(&step);
        done.fetch_add(1, Ordering::Relaxed);
    }
    client.flush()?;
    written.flushed();
    Ok(())
}

impl Disk for Client {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.send(command::WRITE, offset, bytes.len() as u32)?;
        self.stream.write_all(bytes)?;
        assert_eq!(self.reply()?.0, 0, "a write fails");
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(command::FLUSH, 0, 0)?;
        assert_eq!(self.reply()?.0, 0, "a flush fails");
        Ok(())
    }
}
