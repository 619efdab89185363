//! Servers that are killed while clients write: what a flush has covered is there when the next one is started.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::raw::{Client, command};
use crate::{Launch, Server, until};

const BLOCK: usize = 4096;

/// Writers, and the blocks that each has for itself: 8 MiB together.
const WRITERS: u64 = 4;
const BLOCKS: u64 = 512;

/// Kills in a row.
pub const ROUNDS: u64 = 6;

/// What a writer knows of one of its blocks: the version that a flush has covered, the last that was acknowledged, and the last
/// that was sent.
#[derive(Clone, Copy, Default)]
struct Known {
    durable: u64,
    acknowledged: u64,
    sent: u64,
}

/// What is known of a device of 8 MiB, which holds zeroes at first.
pub struct Written(Vec<Vec<Known>>);

impl Default for Written {
    fn default() -> Self {
        Self(vec![vec![Known::default(); BLOCKS as usize]; WRITERS as usize])
    }
}

impl Written {
    /// Starts a server and looks at what it has.
    pub fn look(&mut self, launch: Launch) -> Server {
        let server = launch.start();
        let mut client = server.client();
        (0..).zip(&mut self.0).for_each(|(writer, known)| check(&mut client, writer, known));
        server
    }

    /// The same, and kills it while clients write.
    pub fn kill(&mut self, launch: Launch, round: u64) {
        let mut server = self.look(launch);
        let (socket, done) = (server.socket().to_owned(), AtomicU64::new(0));
        thread::scope(|scope| {
            for (writer, known) in (0..).zip(&mut self.0) {
                let (socket, done) = (&socket, &done);
                scope.spawn(move || {
                    write_until_killed(socket, writer, round, known, done).expect_err("it is killed")
                });
            }
            let enough = 150 + 431 * round;
            until("the writers write", || (done.load(Ordering::Relaxed) >= enough).then_some(()));
            server.signal(Signal::KILL);
        });
        server.ends();
    }
}

/// Writes its blocks in no order, most of them more than once, and flushes now and then, until the server is gone.
fn write_until_killed(
    socket: &Path,
    writer: u64,
    round: u64,
    known: &mut [Known],
    done: &AtomicU64,
) -> io::Result<()> {
    let mut client = Client::try_open(socket, "")?;
    let mut state = writer * 7919 + round * 104_729 + 1;
    for step in 0u64.. {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (state >> 33) % BLOCKS;
        let count = (1 + (state >> 50) % 8).min(BLOCKS - block);
        let version = (round << 32) + step + 1;
        let bytes: Vec<u8> =
            (block..block + count).flat_map(|block| contents(writer, block, version)).collect();
        let range = block as usize..(block + count) as usize;
        known[range.clone()].iter_mut().for_each(|known| known.sent = version);
        client.send(command::WRITE, (writer * BLOCKS + block) * BLOCK as u64, bytes.len() as u32)?;
        client.stream.write_all(&bytes)?;
        assert_eq!(client.reply()?.0, 0, "a write fails");
        known[range].iter_mut().for_each(|known| known.acknowledged = version);
        if state >> 60 == 0 {
            client.send(command::FLUSH, 0, 0)?;
            assert_eq!(client.reply()?.0, 0, "a flush fails");
            known.iter_mut().for_each(|known| known.durable = known.acknowledged);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn contents(writer: u64, block: u64, version: u64) -> Vec<u8> {
    let words = [version, writer * BLOCKS + block];
    words.iter().flat_map(|word| word.to_le_bytes()).cycle().take(BLOCK).collect()
}

/// What a block holds has to be one version of it, not older than what a flush covered.
fn check(client: &mut Client, writer: u64, known: &mut [Known]) {
    for (block, known) in (0..).zip(known) {
        let found = client.read((writer * BLOCKS + block) * BLOCK as u64, BLOCK).expect("a read");
        let version = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
        let whole = version == 0 && found == vec![0; BLOCK] || found == contents(writer, block, version);
        assert!(whole, "block {block} of writer {writer} is a mixture");
        let Known { durable, sent, .. } = *known;
        assert!(
            (durable..=sent).contains(&version),
            "block {block} of writer {writer} holds {version:x}, allowed is {durable:x} to {sent:x}"
        );
        *known = Known { durable: version, acknowledged: version, sent: version };
    }
}
