//! A cache device that holds anything, opened as a write cache.
//!
//! Input: bytes of the device in sectors, block size, start sector, a byte of choices, then what the device begins with; all else is
//! zero. So that the fuzzer need not find magic numbers, what follows may be the fields of a valid superblock's seq_count and of its
//! entries instead, two bytes for each. Checked: it is refused with words, or it serves: everything can be read, what is written and
//! flushed reads back, and is there when the device is opened again.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use spillway_core::{Answer, BlockDevice, BlockSize, Budget, IoBuf, Request, SECTOR, Seam, Works};
use spillway_layers::small::memory::{self, Memory};
use spillway_layers::write_cache::format::{ENTRY_LEN, Entry, Layout, SUPERBLOCK_LEN, Superblock};
use spillway_layers::write_cache::{Config, OldCache, WriteCache};
use spillway_sim::world::World;

const ORIGIN_BYTES: u64 = 128 << 10;
const HEAD: usize = 4;

struct House {
    world: Arc<World>,
    cache: Arc<Memory>,
    origin: Arc<Memory>,
    config: Config,
}

fn memory(bytes: u64) -> Arc<Memory> {
    let config = memory::Config { size: bytes, block_size: SECTOR };
    Memory::new(&config, Budget::new(Budget::UNLIMITED)).expect("a valid size")
}

impl House {
    fn ask(&self, device: Arc<dyn BlockDevice>, request: Request) -> IoBuf {
        let reply = self.world.run(Seam::new(device).submit(request));
        assert_eq!(reply.result, Ok(()));
        reply.buf
    }

    fn open(&self) -> Option<Arc<WriteCache>> {
        let (origin, cache) = (self.origin.clone(), self.cache.clone());
        let (config, env, budget) = (self.config.clone(), self.world.clone(), Budget::new(64 << 20));
        let open = async move { WriteCache::open(&config, origin, cache, env, budget, Works::default()).await };
        match self.world.run(Answer::pending(open)) {
            Ok((device, _)) => Some(device),
            Err(error) => {
                assert!(!error.message().is_empty());
                None
            }
        }
    }

    fn read_all(&self, device: &Arc<WriteCache>) -> Vec<u8> {
        let len = device.geometry().size as usize;
        self.ask(device.clone(), Request::read(0, IoBuf::new(len))).to_vec()
    }
}

/// A device with a superblock and entries made of small numbers; 255 is none.
fn small_cache(head: &[u8], bytes: &[u8], content: &mut [u8]) {
    let block = BlockSize::new(512 << (head[1] % 8)).expect("a power of two");
    let Ok(layout) = Layout::largest(content.len() as u64, u64::from(head[2] % 4), block) else { return };
    let Some((seq_count, entries)) = bytes.split_first() else { return };
    let superblock = Superblock { seq_count: u64::from(*seq_count), ..Superblock::fresh(&layout) };
    let at = layout.start as usize;
    content[at..at + SUPERBLOCK_LEN].copy_from_slice(&superblock.encode(true));
    for index in 0..layout.n_blocks as usize {
        let (origin, seq) =
            (entries.get(2 * index).unwrap_or(&255), entries.get(2 * index + 1).unwrap_or(&255));
        let number = |byte: u8, unit: u64| if byte == 255 { u64::MAX } else { u64::from(byte) * unit };
        let entry =
            Entry { original_sector: number(*origin, layout.block_sectors()), seq_count: number(*seq, 1) };
        let at = layout.entry_offset(index as u64) as usize;
        content[at..at + ENTRY_LEN].copy_from_slice(&entry.encode());
    }
}

fuzz_target!(|input: &[u8]| {
    if input.len() < HEAD {
        return;
    }
    let (head, bytes) = input.split_at(HEAD);
    let sectors = 1 + u64::from(head[0]);
    let config = Config {
        block_size: 512 << (head[1] % 8),
        start_sector: u64::from(head[2] % 4),
        old_cache: match head[3] & 3 {
            0 => OldCache::Open,
            1 => OldCache::Create,
            _ => OldCache::Recover,
        },
        ..Config::default()
    };
    let house =
        House { world: World::new(1), cache: memory(sectors * SECTOR), origin: memory(ORIGIN_BYTES), config };
    let mut content = if head[3] & 4 == 4 { vec![] } else { bytes.to_vec() };
    content.resize((sectors * SECTOR) as usize, 0);
    if head[3] & 4 == 4 {
        small_cache(head, bytes, &mut content);
    }
    house.ask(house.cache.clone(), Request::write(0, IoBuf::copy_of(&content)));
    if let Some(device) = house.open() {
        let mut wanted = house.read_all(&device);
        let block = device.geometry().block_size.bytes() as usize;
        let at = block * (usize::from(head[3] >> 3) % (wanted.len() / block));
        wanted[at..at + block].fill(0x5a);
        house.ask(device.clone(), Request::write(at as u64, IoBuf::copy_of(&wanted[at..at + block])));
        house.ask(device.clone(), Request::flush());
        assert!(house.read_all(&device) == wanted);
        drop(device);
        house.world.power_off();
        let old_cache = match house.config.old_cache {
            OldCache::Create => OldCache::Open,
            other => other,
        };
        let config = Config { old_cache, ..house.config.clone() };
        let again = House { world: World::new(2), config, ..house };
        let device = again.open().expect("what was served is accepted");
        assert!(again.read_all(&device) == wanted);
        drop(device);
        again.world.power_off();
    } else {
        house.world.power_off();
    }
});
