//! A server that says anything to an NBD origin, over connections of the simulated world.
//!
//! Input: a byte of choices, a seed for the cuts and the calls, then a script. Each message of the server is an honest one, on which a step
//! of the script may act: it is changed, cut off, said twice, held back, or replaced by bytes of the script. So the fuzzer need not find a
//! handshake. Once the script is over the server is honest. Checked: no panic; every call comes to an end, and the origin with all its tasks;
//! what was charged is given back; and over a server that was honest from the start reads find what was written.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use spillway_core::random::Random;
use spillway_core::{Answer, Budget, ByteRange, Env, Error, FallocateMode, IoBuf, LocalFuture, Storage};
use spillway_export::nbd::client::{Dial, NbdOrigin, NewSession, Settings};
use spillway_export::nbd::wire::{
    self, ChunkHeader, HeaderStyle, OptionHeader, RequestHeader, chunk, cmd, flag, info, opt, rep,
};
use spillway_sim::pace::Pace;
use spillway_sim::stream::{Stream, StreamShape};
use spillway_sim::world::World;

/// Bytes of the export.
const SIZE: u64 = 128 << 10;

/// Calls to the origin.
const CALLS: u64 = 8;

/// Turns of tasks until an origin that nobody needs must have ended.
const TURNS_MAX: usize = 200_000;

const META_CONTEXT: u32 = 7;

/// What is left of the script.
struct Script(Vec<u8>);

impl Script {
    fn byte(&mut self) -> Option<u8> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        self.0.drain(..count).collect()
    }
}

/// What connections to the server share.
struct Liar {
    world: Arc<World>,
    script: Arc<Mutex<Script>>,
    choices: u8,
    seed: u64,
}

impl Dial for Liar {
    fn dial(&self, channel: usize, session: NewSession) -> LocalFuture<Result<(), Error>> {
        let (world, script, choices) = (self.world.clone(), self.script.clone(), self.choices);
        let seed = self.seed ^ world.random() ^ channel as u64;
        Box::pin(async move {
            let room = [40, 500, 5000, 1 << 20][(choices >> 4 & 3) as usize];
            let pace = Pace { turn: 2000, delay: Duration::from_millis(1) };
            let shape = StreamShape { room, pace };
            let stream = Stream::connect(&world, session(), shape, seed);
            let mut server =
                Server { stream, script, choices, came: Vec::new(), bytes: vec![0; SIZE as usize] };
            world.spawn_here(Box::pin(async move {
                server.serve().await;
                server.stream.close();
            }));
            Ok(())
        })
    }
}

thread_local! {
    /// What the server stores.
    static STORED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One connection of the server.
struct Server {
    stream: Stream,
    script: Arc<Mutex<Script>>,
    choices: u8,
    came: Vec<u8>,
    bytes: Vec<u8>,
}

impl Server {
    fn structured(&self) -> bool {
        self.choices & 1 == 0
    }

    /// The next bytes of the client.
    async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.came.len() < count {
            if !self.stream.receive(&mut self.came).await {
                return None;
            }
        }
        Some(self.came.drain(..count).collect())
    }

    /// Says it, or what the script makes of it. `None` where the connection is over.
    async fn say(&self, mut honest: Vec<u8>) -> Option<()> {
        let (step, bytes) = {
            let mut script = self.script.lock().expect("nobody panics here");
            let step = script.byte();
            let bytes = if step.is_some_and(|step| step >= 96) { script.bytes() } else { Vec::new() };
            (step.unwrap_or(0), bytes)
        };
        match step {
            0..96 => {}
            96..160 => bytes.chunks_exact(2).for_each(|pair| {
                let at = usize::from(pair[0]) % honest.len().max(1);
                honest.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= pair[1]);
            }),
            160..176 => {
                honest.truncate(bytes.len());
                self.stream.send(&honest).await;
                return None;
            }
            176..192 => honest.extend(honest.clone()),
            192..208 => honest.clear(),
            208..232 => honest = bytes,
            232.. => honest.extend(bytes),
        }
        self.stream.send(&honest).await.then_some(())
    }

    async fn serve(&mut self) -> Option<()> {
        self.say(wire::greeting(3).to_vec()).await?;
        self.take(4).await?;
        while !self.option().await? {}
        loop {
            self.request().await?;
        }
    }

    /// Answers one option; true once it was GO.
    async fn option(&mut self) -> Option<bool> {
        let header = OptionHeader::decode(&self.take(OptionHeader::LEN).await?).expect("the client greets");
        self.take(header.len as usize).await?;
        let mut replies = Vec::new();
        let mut reply = |kind: u32, data: &[u8]| {
            replies.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
            [header.option, kind, data.len() as u32]
                .iter()
                .for_each(|word| replies.extend(word.to_be_bytes()));
            replies.extend(data);
        };
        match header.option {
            opt::STRUCTURED_REPLY if !self.structured() => reply(rep::ERR_UNSUP, &[]),
            opt::SET_META_CONTEXT => {
                reply(
                    rep::META_CONTEXT,
                    &[&META_CONTEXT.to_be_bytes(), wire::BASE_ALLOCATION.as_bytes()].concat(),
                );
                reply(rep::ACK, &[]);
            }
            opt::GO => {
                let mut flags =
                    flag::HAS_FLAGS | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::CAN_MULTI_CONN;
                flags |= if self.choices & 2 == 0 { flag::SEND_FLUSH } else { 0 };
                flags |= if self.choices & 4 == 0 { flag::SEND_FUA } else { 0 };
                reply(
                    rep::INFO,
                    &[&info::EXPORT.to_be_bytes()[..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat(),
                );
                let sizes = [1u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
                reply(rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat());
                reply(rep::ACK, &[]);
            }
            _ => reply(rep::ACK, &[]),
        }
        self.say(replies).await?;
        Some(header.option == opt::GO)
    }

    /// Carries out one request, and answers it.
    async fn request(&mut self) -> Option<()> {
        let style = HeaderStyle::Compact;
        let header =
            RequestHeader::decode(style, &self.take(style.request_len()).await?).expect("the client asks");
        let RequestHeader { command, cookie, offset, length, .. } = header;
        assert!(command == cmd::FLUSH || command == cmd::DISC || length > 0, "an empty request");
        let payload = if command == cmd::WRITE { self.take(length as usize).await? } else { Vec::new() };
        let range = offset.min(SIZE) as usize..(offset + length).min(SIZE) as usize;
        STORED.with_borrow_mut(|stored| match command {
            cmd::READ => self.bytes = stored[range.clone()].to_vec(),
            cmd::WRITE => stored[range.clone()].copy_from_slice(&payload[..range.len()]),
            cmd::WRITE_ZEROES => stored[range.clone()].fill(0),
            _ => {}
        });
        if command == cmd::DISC {
            return None;
        }
        let answer = match command {
            cmd::READ if self.structured() => {
                chunk_of(chunk::OFFSET_DATA, cookie, &[&offset.to_be_bytes()[..], &self.bytes].concat())
            }
            cmd::READ => [&wire::simple_reply(0, cookie)[..], &self.bytes].concat(),
            cmd::BLOCK_STATUS => chunk_of(
                chunk::BLOCK_STATUS,
                cookie,
                &[META_CONTEXT, length as u32, 3].map(u32::to_be_bytes).concat(),
            ),
            _ => wire::simple_reply(0, cookie).to_vec(),
        };
        self.say(answer).await
    }
}

fn chunk_of(kind: u16, cookie: u64, content: &[u8]) -> Vec<u8> {
    let header =
        ChunkHeader { flags: wire::REPLY_FLAG_DONE, kind, cookie, offset: 0, length: content.len() as u64 };
    [&header.structured()[..], content].concat()
}

/// A call, as `number` and `random` say. Reads are compared where the server is honest: each part of the export holds one byte.
fn call(origin: &Rc<NbdOrigin>, number: u64, random: &mut Random, honest: bool) -> Answer<()> {
    let origin = origin.clone();
    let (at, len) = (number * 8192, 512 * (1 + random.below(16)));
    let (kind, range, byte) = (random.below(7), ByteRange::new(at, len), number as u8 + 1);
    let written = IoBuf::copy_of(&vec![byte; len as usize]);
    Answer::pending(async move {
        match kind {
            0..3 => {
                let (result, _) = origin.write(at, written, 0, kind == 0).await;
                let (read, found) = origin.read(at, IoBuf::zeroed(len as usize), 0).await;
                if honest {
                    assert_eq!((result, read), (Ok(len as usize), Ok(len as usize)));
                    assert!(found.iter().all(|&found| found == byte), "a read finds something else");
                }
            }
            3 => drop(origin.sync().await),
            4 => drop(origin.zero(range, FallocateMode::Discard).await),
            5 => drop(origin.zero(range, FallocateMode::Zero).await),
            _ => {
                let extents = match origin.extents(range, 8) {
                    Answer::Done(extents) => extents,
                    Answer::Pending(extents) => extents.await,
                };
                let covered = extents.map(|extents| extents.iter().map(|extent| extent.len).sum::<u64>());
                assert!(covered.is_err() || covered.is_ok_and(|covered| (1..=len).contains(&covered)));
            }
        }
    })
}

fuzz_target!(|input: &[u8]| {
    let [choices, seed, script @ ..] = input else { return };
    let world = World::new(u64::from(*seed));
    let budget = Budget::new(8 << 20);
    STORED.set(vec![0; SIZE as usize]);
    let settings = Settings {
        tls: None,
        address: "nbd://liar".to_owned(),
        export: "disk".to_owned(),
        read_only: false,
        timeout: Some(Duration::from_secs(3)),
        connections: 1 + usize::from(choices >> 6),
        journal_bytes: 1 << 20,
    };
    let honest = script.is_empty();
    let script = Arc::new(Mutex::new(Script(script.to_vec())));
    let dial = Arc::new(Liar { world: world.clone(), script, choices: *choices, seed: u64::from(*seed) });
    let (env, charged) = (world.clone(), budget.clone());
    let opening = async move { NbdOrigin::open(settings, None, dial, env, &charged).await };
    match world.run(Answer::pending(opening)) {
        Ok(origin) => {
            let (origin, mut random) = (Rc::new(origin), Random(u64::from(*seed)));
            let calls = (0..CALLS).map(|number| call(&origin, number, &mut random, honest)).collect();
            world.run_all::<()>(calls);
            assert_eq!(Rc::strong_count(&origin), 1, "a call goes on");
        }
        Err(error) => assert!(!honest && error.message().starts_with("nbd://liar: "), "{error}"),
    }
    let mut turns = 0;
    while world.turn() > 0 {
        world.go_on();
        turns += 1;
        assert!(turns < TURNS_MAX, "an origin does not end");
    }
    assert_eq!(budget.used(), 0, "memory that is charged to nobody");
});
