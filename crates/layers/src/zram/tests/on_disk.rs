//! Devices that spill to a simulated disk.

use spillway_core::{BlockSize, OpenStorage, Registry};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};

use super::*;
use crate::file::File;
use crate::open_context::OpenBacking;

/// Segments of 64 KiB.
pub(super) const SHIFT: u32 = 16;

/// A device that spills, and the disk that it spills to.
pub(super) struct Spilling {
    pub(super) bench: Bench,
    pub(super) disk: Arc<Disk>,
    pub(super) registry: Arc<Registry>,
    suspend: Arc<dyn spillway_core::Suspend>,
    pub(super) notes: Vec<String>,
}

impl std::ops::Deref for Spilling {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

/// What is under way ends with the world.
impl Drop for Spilling {
    fn drop(&mut self) {
        self.disk.cut();
        self.bench.world.power_off();
    }
}

pub(super) fn config() -> Config {
    Config { spill: Some("disk".into()), segment_shift: Some(SHIFT), ..sized(4 << 20) }
}

pub(super) fn medium(segments: u64) -> Medium {
    Medium::new((segments + 1) << SHIFT)
}

pub(super) fn spilling(config: Config, medium: Medium) -> Spilling {
    spilling_by(Plan::default(), config, medium)
}

/// One that spills to such a disk.
pub(super) fn spilling_to(latency: Latency, config: Config, medium: Medium) -> Spilling {
    spilling_by(Plan { latency, ..Plan::default() }, config, medium)
}

/// One whose disk does as planned.
pub(super) fn spilling_by(plan: Plan, config: Config, medium: Medium) -> Spilling {
    open("ram0", config, medium, plan).expect("it is blank")
}

pub(super) fn open(name: &str, config: Config, medium: Medium, plan: Plan) -> Result<Spilling, Error> {
    let world = World::new(1);
    let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, plan, 1));
    let storage = disk.clone();
    let opened = move || OpenStorage { storage: storage.clone(), notes: Vec::new() };
    let open_file = Arc::new(move |_: &BackingDevice| Answer::Done(Ok(opened())));
    open_in(world.clone(), world, disk, name, config, open_file)
}

/// A device in `env`, which is about `world`, that opens files by `open_file`.
pub(super) fn open_in(
    env: Arc<dyn Env>,
    world: Arc<World>,
    disk: Arc<Disk>,
    name: &str,
    config: Config,
    open_file: OpenBacking,
) -> Result<Spilling, Error> {
    let (budget, registry) = (Budget::new(64 << 20), Registry::new(env.clone()));
    let context = OpenContext {
        name: name.into(),
        env,
        regions: Arc::new(VecRegions::new(128 << 20)),
        budget: budget.clone(),
        memory_nodes: Vec::new(),
        works: registry.of(name),
        open_file,
    };
    let open = async move { config.open_device(&context).await };
    let (zram, notes) = world.run(Answer::pending(open))?;
    let (seam, table) = (Seam::new(zram.clone()), attributes(zram.clone()));
    let suspend = zram.clone();
    Ok(Spilling { bench: Bench { world, budget, zram, seam, table }, disk, registry, suspend, notes })
}

impl Spilling {
    /// Writes pages that follow from their numbers and `version`, half of each compressible.
    pub(super) fn fill(&self, slots: impl IntoIterator<Item = u64>, version: u64) {
        slots.into_iter().for_each(|slot| self.write(slot, &content(slot, version)).unwrap());
    }

    pub(super) fn check(&self, slots: impl IntoIterator<Item = u64>, version: u64) {
        for slot in slots {
            assert!(self.read(slot, 1) == content(slot, version), "slot {slot}");
        }
    }

    pub(super) fn write_back_all(&self) {
        self.set("idle", "all");
        self.set("writeback", "idle");
    }

    /// Lets all that is under way end, and has table, pool and file agree.
    pub(super) fn settle(&self) {
        // The compactor goes on for ever; nothing else does. A slow disk may have much to do.
        let (backing, mut rests) = (self.zram.core.backing.get(), 0);
        self.world.turn_until(Duration::from_millis(1), 100_000, || {
            let at_work = backing.as_ref().is_some_and(|backing| backing.is_at_work());
            rests = if at_work { 0 } else { rests + 1 };
            rests > 200
        });
        self.seam.verify();
    }

    /// Changes a bit of the disk.
    pub(super) fn flip(&self, bit: u64) {
        let byte = bit / 8;
        let file = Seam::new(Arc::new(File::new(self.disk.clone(), self.world.clone())));
        let page = byte / 4096 * 4096;
        let reply = self.run(file.submit(Request::read(page, IoBuf::new(4096))));
        let mut buf = reply.buf;
        buf[(byte - page) as usize] ^= 1 << (bit % 8);
        assert_eq!(self.run(file.submit(Request::write(page, buf))).result, Ok(()));
    }

    pub(super) fn bd_stat(&self) -> [u64; 3] {
        self.columns("bd_stat").try_into().unwrap()
    }

    /// Stops it; what is on its disk then.
    pub(super) fn stop(self) -> Medium {
        self.run(Answer::pending(self.suspend.suspend())).unwrap();
        self.settle();
        self.cut()
    }

    /// The power goes; what is on its disk then.
    pub(super) fn cut(self) -> Medium {
        self.disk.cut();
        self.world.power_off();
        self.disk.survivors()
    }
}

pub(super) fn content(slot: u64, version: u64) -> Vec<u8> {
    page(&mut Random(slot << 20 | version), 50)
}
