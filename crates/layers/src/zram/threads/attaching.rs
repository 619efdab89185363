//! Spill files that are named and let go beside those who use the device.

use spillway_core::storage::Moved;
use spillway_core::sync::Unseen;
use spillway_core::sync::shuttle::future::yield_now;
use spillway_core::{Answer, FallocateMode, Geometry, OpenStorage, Storage, Works};

use super::spilling::{noise, on_thread, verify, write_back};
use super::*;
use crate::open_context::{BackingDevice, OpenContext};
use crate::zram::commands;
use crate::zram::config::Promotion;
use crate::zram::spill::gathered::Gathered;
use crate::zram::work::Slice;

/// Segments of which each takes three pages that do not compress.
const SHIFT: u32 = 14;
const SEGMENTS: usize = 7;

const SLOTS: u64 = 32;

/// A disk for one user at a time.
struct Disk {
    bytes: Unseen<Vec<u8>>,
    in_use: AtomicBool,
}

impl Disk {
    fn new() -> Arc<Self> {
        let bytes = Unseen::new(vec![0; (SEGMENTS + 1) << SHIFT]);
        Arc::new(Self { bytes, in_use: AtomicBool::new(false) })
    }

    /// Waits for its lock.
    async fn open(self: Arc<Self>) -> Arc<dyn Storage> {
        while self.in_use.swap(true, Ordering::SeqCst) {
            yield_now().await;
        }
        Arc::new(Open(self))
    }
}

/// A disk that is in use.
struct Open(Arc<Disk>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.in_use.store(false, Ordering::SeqCst);
    }
}

impl Storage for Open {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(self.0.bytes.lock().len() as u64)
    }

    fn read(&self, at: u64, mut buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        let disk = self.0.clone();
        Box::pin(async move {
            yield_now().await;
            let (at, count) = (at as usize, buf.len() - done);
            buf[done..].copy_from_slice(&disk.bytes.lock()[at..at + count]);
            (Ok(count), buf)
        })
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, _durable: bool) -> LocalFuture<Moved> {
        let disk = self.0.clone();
        Box::pin(async move {
            yield_now().await;
            let (at, count) = (at as usize, buf.len() - done);
            disk.bytes.lock()[at..at + count].copy_from_slice(&buf[done..]);
            (Ok(count), buf)
        })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(async { Ok(()) })
    }

    fn zero(&self, range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        let disk = self.0.clone();
        Box::pin(async move {
            yield_now().await;
            disk.bytes.lock()[range.offset as usize..][..range.len as usize].fill(0);
            Ok(())
        })
    }
}

/// A device without a size, which spills to `spill` if to anything; `/first` and `/second` are disks.
fn device(spill: Option<&str>) -> Arc<Zram> {
    let config = Config {
        disksize: SLOTS << 12,
        max_comp_streams: 1,
        spill: spill.map(Into::into),
        segment_shift: Some(SHIFT),
        writeback_depth: 2,
        bring_back: Promotion::Never,
        ..Config::default()
    };
    let disks = [("/first", Disk::new()), ("/second", Disk::new())];
    let open_file = move |backing: &BackingDevice| {
        let found = disks.iter().find(|(path, _)| backing.path.as_os_str() == *path);
        let disk = found.expect("one of these is named").1.clone();
        Answer::pending(async move { Ok(OpenStorage { storage: disk.open().await, notes: Vec::new() }) })
    };
    let context = OpenContext {
        name: "ram0".into(),
        env: Impatient::new(true),
        regions: Arc::new(VecRegions::new(256 << 20)),
        budget: Budget::new(64 << 20),
        memory_nodes: Vec::new(),
        works: Works::default(),
        open_file: Arc::new(open_file),
    };
    let (zram, _) = block_on(config.open_device(&context)).expect("its disks are blank");
    block_on(zram.core.reset()).expect("no other one runs");
    zram
}

fn attach(zram: &Arc<Zram>, path: &str) -> Result<(), Kind> {
    block_on(zram.core.attach(path.into())).map_err(|error| error.kind)
}

fn set_size(zram: &Arc<Zram>) {
    block_on(commands::set_size(zram, SLOTS << 12)).expect("it has none");
}

/// Writes a page back, as a device does by itself.
async fn spill_one(zram: &Arc<Zram>) {
    let Ok(backing) = zram.core.backing() else { return };
    let Some(mut gathered) = Gathered::new(&zram.core, &backing, PublishIf::Untouched).await else { return };
    gathered.add(SlotIndex(0), |_, _| true, &mut Slice::new());
    if gathered.len() > 0 {
        let _ = gathered.write().await;
    }
}

/// A file is named in place of another while the device gets a size. What is spilled then is in one of them, and stays there.
#[test]
fn a_device_with_a_size_keeps_its_file() {
    every_order(300, || {
        let zram = device(Some("/first"));
        let names = on_thread(&zram, |zram| {
            let attached = attach(zram, "/second");
            assert!(matches!(attached, Ok(()) | Err(Kind::Busy)), "{attached:?}");
        });
        set_size(&zram);
        write(&zram, 0, &noise(0));
        write_back(&zram, 0..1).expect("there is room");
        join([names]);
        read(&zram, 0, &noise(0));
        verify(&zram);
    });
}

/// A reset lets go of a file while pages are on their way to it. The next device takes it at once, and what is there then stays.
#[test]
fn a_file_that_is_let_go_is_free() {
    every_order(300, || {
        let zram = device(None);
        attach(&zram, "/first").expect("it is blank");
        set_size(&zram);
        (0..2).for_each(|slot| write(&zram, slot, &noise(slot)));
        let spillers = [
            on_thread(&zram, |zram| _ = write_back(zram, 0..SLOTS)),
            on_thread(&zram, |zram| block_on(spill_one(zram))),
        ];
        block_on(zram.core.reset()).expect("no other one runs");
        attach(&zram, "/first").expect("it is free");
        set_size(&zram);
        write(&zram, 0, &noise(10));
        let _ = write_back(&zram, 0..1);
        join(spillers);
        read(&zram, 0, &noise(10));
        verify(&zram);
    });
}

#[test]
fn a_model_of_attaching_finds_a_size_that_comes_while_a_file_is_opened() {
    finds("zram: set a size while a spill file is attached", a_device_with_a_size_keeps_its_file);
}

#[test]
fn a_model_of_attaching_finds_a_file_that_still_says_it_is_in_use() {
    finds("zram: let go of a spill file that says it is in use", a_file_that_is_let_go_is_free);
}
