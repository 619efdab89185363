//! The contract and the promises of the module's head, on real files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};

use spillway_core::buffer::Buffers;
use spillway_core::contract::{self, Subject};
use spillway_core::{
    Answer, BlockDevice, Budget, ByteRange, Env, Error, Extent, IoBuf, Kind, Op, Reply, Request, Seam,
    Storage, Submission,
};

use spillway_layers::file::File;

use super::claim::Claim;
use super::open_file::OpenFile;
use super::{Direct, FileOptions, open};
use crate::on_blocking_thread;
use crate::runtime::driver::{Driver, DriverChoice};
use crate::runtime::local::Local;
use crate::runtime::turns::Turns;
use crate::runtime::workers::{Workers, WorkersOptions};

mod claim;
mod locks;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The device over what was opened, and the notes.
struct Opened {
    device: Arc<dyn BlockDevice>,
    notes: Vec<String>,
}

fn open_device(options: &FileOptions) -> Result<Opened, Error> {
    let opened = open(options)?;
    let device = File::charged(opened.storage, env(), &Budget::new(1 << 20))?;
    Ok(Opened { device: Arc::new(device), notes: opened.notes })
}

/// Both drivers; that io_uring is refused fails a test.
const BOTH: [DriverChoice; 2] = [DriverChoice::IoUring, DriverChoice::Poll];

/// A runtime on the driver that was asked for.
fn local(driver: DriverChoice) -> Local {
    let local = Local::new(driver).unwrap();
    match driver {
        DriverChoice::IoUring => assert_eq!(local.driver(), &Driver::IoUring),
        DriverChoice::Poll => assert_eq!(local.driver(), &Driver::Poll(None)),
        DriverChoice::Auto => {}
    }
    local
}

/// The environment of workers that do nothing else.
fn env() -> Arc<dyn Env> {
    static WORKERS: LazyLock<Workers> =
        LazyLock::new(|| Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap());
    WORKERS.env()
}

/// A file that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn in_folder(folder: PathBuf) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(folder.join(format!("spillway-file-{}-{number}", std::process::id())))
    }

    fn new() -> Self {
        Self::in_folder(std::env::temp_dir())
    }

    fn options(&self) -> FileOptions {
        FileOptions { path: self.0.clone(), create: Some(4 << 20), ..FileOptions::default() }
    }

    fn open(&self, direct: Direct) -> Opened {
        once_free(|| open_device(&FileOptions { direct, ..self.options() }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens what may have been open before: a program that another test starts meanwhile has it too, until it is another program.
fn once_free<T>(open: impl Fn() -> Result<T, Error>) -> T {
    loop {
        match open() {
            Err(error) if error.kind == Kind::Busy => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn check(device: Arc<dyn BlockDevice>, driver: DriverChoice) {
    let local = local(driver);
    let run = |submission: Submission| local.block_on(submission);
    contract::check(&Subject { device, run: &run, stores: true });
}

#[test]
fn keeps_the_contract_with_both_drivers_direct_and_buffered() {
    for driver in BOTH {
        for direct in [Direct::Auto, Direct::Off] {
            let scratch = Scratch::new();
            check(scratch.open(direct).device, driver);
        }
    }
}

#[test]
fn keeps_the_contract_where_zeroing_calls_are_unknown() {
    let scratch = Scratch::in_folder(PathBuf::from("/dev/shm"));
    check(scratch.open(Direct::Off).device, DriverChoice::Auto);
}

/// A loop device over a sparse file of 4 MiB. These tests need the right to have one.
pub(super) struct Loop {
    pub(super) path: PathBuf,
    backing: Scratch,
}

impl Loop {
    pub(super) fn new() -> Self {
        Self::over(Scratch::new())
    }

    fn over(backing: Scratch) -> Self {
        std::fs::File::create(&backing.0).unwrap().set_len(4 << 20).unwrap();
        let path = must("losetup", &["--find".as_ref(), "--show".as_ref(), backing.0.as_os_str()]);
        Self { path: PathBuf::from(path.trim()), backing }
    }

    /// One that cannot discard: its file lies in RAM without holes, which is there as long as the device.
    fn without_discards() -> Self {
        Self::over_a_mount("ramfs", "mode=0700")
    }

    /// Over a file on a file system of its own, which is there as long as the device.
    fn over_a_mount(kind: &str, options: &str) -> Self {
        let mounted = Mounted::of(kind, options);
        Self::over(Scratch::in_folder(mounted.0.0.clone()))
    }

    /// What has reached the medium: nothing of the device's page cache is in here.
    pub(super) fn medium(&self) -> Vec<u8> {
        std::fs::read(&self.backing.0).unwrap()
    }

    /// Bytes that the medium takes.
    fn taken(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::File::open(&self.backing.0).unwrap().sync_all().unwrap();
        std::fs::metadata(&self.backing.0).unwrap().blocks() * 512
    }

    fn open(&self) -> Opened {
        once_free(|| open_device(&FileOptions { path: self.path.clone(), ..FileOptions::default() }))
    }
}

/// Runs what prepares a test as root; returns what it says.
fn must(program: &str, arguments: &[&OsStr]) -> String {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("this test needs {program} (package mount): {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "this test needs root and loop devices; {program}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn keeps_the_contract_on_a_block_device() {
    let device = Loop::new();
    for driver in BOTH {
        let options = FileOptions { path: device.path.clone(), ..FileOptions::default() };
        let opened = once_free(|| open_device(&options));
        assert_eq!(opened.device.geometry().size, 4 << 20);
        let error = open_device(&options).err().expect("a second writer is refused");
        assert_eq!(error.kind, Kind::Busy, "{error}");
        let zero = Request::bare(Op::WriteZeroes, ByteRange::new(0, 4 << 20));
        let local = local(driver);
        assert_eq!(local.block_on(opened.device.submit(zero)).result, Ok(()));
        drop(local);
        check(opened.device, driver);
    }
}

/// The kernel tells each open file once of a writeback that failed: who was told by another one takes nothing from a sync.
#[test]
fn a_lost_writeback_is_told_to_a_sync_whatever_other_calls_were_told() {
    let full = Loop::over_a_mount("tmpfs", "size=1m");
    for (direct, count) in [(Direct::On, 1), (Direct::Off, 2)] {
        let options = FileOptions { path: full.path.clone(), direct, ..FileOptions::default() };
        let _opened = once_free(|| open(&options));
        assert_eq!(openings(&full.path), count, "{direct:?}");
    }
    let options = FileOptions { path: full.path.clone(), direct: Direct::Off, ..FileOptions::default() };
    let claim = once_free(|| Claim::take(&options));
    let (fd, durable) = (claim.fd.clone(), claim.again(&options).unwrap());
    let geometry = spillway_core::Geometry::in_memory(4 << 20);
    let file = OpenFile {
        fd,
        durable,
        geometry,
        block_device: true,
        direct: false,
        memory_alignment: 1,
        turns: Turns::new(),
    };
    let local = local(DriverChoice::Auto);
    let mut buf = IoBuf::new(3 << 20);
    buf.fill(1);
    assert_eq!(local.block_on(file.write(0, buf, 0, false)).0, Ok(3 << 20), "it is in the page cache");
    assert!(rustix::fs::fsync(&claim.fd).is_err(), "a call on the first one is told of it");
    assert!(local.block_on(file.sync()).is_err());
    assert_eq!(local.block_on(file.sync()), Ok(()), "once");
}

/// Descriptors of this process on a file.
fn openings(path: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.filter(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == path)).count()
}

/// A file system that goes out of sight with this.
struct Mounted(Scratch);

impl Mounted {
    /// One without a device.
    fn of(kind: &str, options: &str) -> Self {
        Self::by(&["-t", kind, "-o", options, "none"].map(OsStr::new))
    }

    /// ext4 on that device.
    fn on(device: &Loop) -> Self {
        must("mkfs.ext4", &["-q".as_ref(), "-O".as_ref(), "^has_journal".as_ref(), device.path.as_os_str()]);
        Self::by(&[device.path.as_os_str()])
    }

    fn by(words: &[&OsStr]) -> Self {
        let folder = Scratch::new();
        std::fs::create_dir(&folder.0).unwrap();
        must("mount", &[words, &[folder.0.as_os_str()]].concat());
        Self(folder)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0.0).status();
        let _ = std::fs::remove_dir(&self.0.0);
    }
}

/// The kernel keeps such pages, as if they were written, and tells nobody twice.
#[test]
fn what_could_not_be_written_out_is_not_there_for_the_next_process() {
    let full = Loop::over_a_mount("tmpfs", "size=1m");
    let folder = Mounted::on(&full);
    let options = FileOptions {
        path: folder.0.0.join("file"),
        create: Some(2 << 20),
        direct: Direct::Off,
        ..FileOptions::default()
    };
    let local = local(DriverChoice::Auto);
    let first = open(&options).unwrap().storage;
    let mut buf = IoBuf::new(2 << 20);
    buf.fill(1);
    assert_eq!(local.block_on(first.write(0, buf, 0, false)).0, Ok(2 << 20), "it is in the page cache");
    assert!(local.block_on(first.sync()).is_err(), "there is no room for it below");
    drop(first);
    let second = once_free(|| open(&options)).storage;
    let (_, read) = local.block_on(second.read(0, IoBuf::new(2 << 20), 0));
    assert!(read.iter().any(|&byte| byte != 1), "it is read as if it were there");
    let mut buf = IoBuf::new(2 << 20);
    buf.fill(2);
    assert_eq!(local.block_on(second.write(0, buf, 0, false)).0, Ok(2 << 20), "in the page cache");
    drop(second);
    let third = once_free(|| open(&options));
    assert!(third.notes.iter().any(|note| note.contains("could not be written out")), "{:?}", third.notes);
    assert!(local.block_on(third.storage.sync()).is_err(), "nobody was told of it");
}

#[test]
fn a_discard_of_a_block_device_frees_room_and_takes_none() {
    for driver in BOTH {
        let device = Loop::new();
        let opened = device.open();
        let geometry = opened.device.geometry();
        assert!(geometry.discards && geometry.fast_zeroes, "loop devices over a file with holes do both");
        let local = local(driver);
        let seam = Seam::new(opened.device);
        let ask = |request| assert_eq!(local.block_on(seam.submit(request)).result, Ok(()));
        let mut buf = IoBuf::new(1 << 20);
        buf.fill(3);
        ask(Request::write(1 << 20, buf).with_fua());
        assert!(device.taken() >= 1 << 20);
        for op in [Op::Discard, Op::WriteZeroes] {
            ask(Request::bare(op, ByteRange::new(0, 4 << 20)).with_fua());
            assert!(device.taken() < 1 << 16, "{op:?}: {} bytes are taken", device.taken());
        }
    }
}

#[test]
fn a_block_device_that_cannot_discard_says_so_and_is_left_alone_by_a_discard() {
    let device = Loop::without_discards();
    let opened = device.open();
    let geometry = opened.device.geometry();
    assert!(!geometry.discards && !geometry.fast_zeroes, "{geometry:?}");
    assert!(opened.notes.iter().any(|note| note.contains("frees no room")), "{:?}", opened.notes);
    let local = local(DriverChoice::Auto);
    let ask = |request| local.block_on(opened.device.submit(request));
    let mut buf = IoBuf::new(1 << 20);
    buf.fill(3);
    assert_eq!(ask(Request::write(1 << 20, buf).with_fua()).result, Ok(()));
    assert_eq!(ask(Request::bare(Op::Discard, ByteRange::new(0, 4 << 20)).with_fua()).result, Ok(()));
    assert!(ask(Request::read(1 << 20, IoBuf::new(1 << 20))).buf.iter().all(|&byte| byte == 3));
    let zero = Request::bare(Op::WriteZeroes, ByteRange::new(1 << 20, 1 << 20));
    assert_eq!(ask(zero).result, Ok(()));
    assert!(ask(Request::read(1 << 20, IoBuf::new(1 << 20))).buf.iter().all(|&byte| byte == 0));
}

#[test]
fn a_second_writer_is_refused_and_readers_share() {
    let scratch = Scratch::new();
    let writer = scratch.open(Direct::Auto);
    for read_only in [false, true] {
        let options = FileOptions { read_only, ..scratch.options() };
        let error = open_device(&options).err().expect("locked");
        assert_eq!(error.kind, Kind::Busy);
        assert!(error.message().contains("stop that program"), "{error}");
    }
    drop(writer);
    let options = FileOptions { read_only: true, ..scratch.options() };
    let readers = [open_device(&options).unwrap(), open_device(&options).unwrap()];
    assert!(readers[0].device.geometry().read_only);
    assert_eq!(open_device(&scratch.options()).err().unwrap().kind, Kind::Busy);
}

#[test]
fn refusals_name_the_path_and_the_way_out() {
    let scratch = Scratch::new();
    let missing = FileOptions { create: None, ..scratch.options() };
    let error = open_device(&missing).err().unwrap();
    assert!(error.kind == Kind::NotFound && error.message().contains("truncate"), "{error}");
    let folder = FileOptions { path: std::env::temp_dir(), ..FileOptions::default() };
    assert!(open_device(&folder).err().unwrap().message().contains("neither a file nor"));
    std::fs::write(&scratch.0, [1; 100]).unwrap();
    let error = open_device(&scratch.options()).err().unwrap();
    assert!(error.message().contains("has 100 bytes"), "{error}");
}

#[test]
fn an_odd_tail_is_reported_and_not_shown() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, vec![5; 65536 + 700]).unwrap();
    let opened = scratch.open(Direct::Auto);
    assert_eq!(opened.device.geometry().size, 65536 + 512);
    assert!(opened.notes.iter().any(|note| note.contains("188 bytes")), "{:?}", opened.notes);
}

#[test]
fn content_is_never_resized() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, vec![5; 65536]).unwrap();
    assert_eq!(scratch.open(Direct::Off).device.geometry().size, 65536);
}

#[test]
fn misaligned_memory_goes_through_a_buffer() {
    let scratch = Scratch::new();
    let device = scratch.open(Direct::Auto).device;
    let local = local(DriverChoice::Auto);
    let block = device.geometry().block_size.bytes() as usize;
    for (shift, len) in [(512, block), (3, block), (3, 600 * block), (4095, 1024 * block)] {
        let mut source = IoBuf::new(len + shift);
        source.narrow(shift, len);
        source.iter_mut().zip(0u8..=255).for_each(|(byte, value)| *byte = value ^ shift as u8);
        let expected = source.to_vec();
        let reply = local.block_on(device.submit(Request::write(0, source)));
        assert_eq!((reply.result, &reply.buf[..]), (Ok(()), &expected[..]), "the buffer comes back");
        let mut target = IoBuf::new(len + shift);
        target.narrow(shift, len);
        let reply = local.block_on(device.submit(Request::read(0, target)));
        assert_eq!((reply.result, &reply.buf[..]), (Ok(()), &expected[..]), "shift {shift}, {len} bytes");
    }
}

#[test]
fn a_dropped_write_lands_before_a_later_one() {
    for driver in BOTH {
        let scratch = Scratch::new();
        let backing = scratch.open(Direct::Auto).device;
        let local = local(driver);
        let len = 1 << 20;
        let mut dropped = 0;
        for round in (0..=u8::MAX).cycle().take(4000) {
            dropped += u32::from(local.block_on(async {
                let mut first = IoBuf::new(len);
                first.fill(!round);
                let Answer::Pending(mut write) = backing.submit(Request::write(0, first)) else { panic!() };
                let mut context = Context::from_waker(Waker::noop());
                let in_the_kernel = write.as_mut().poll(&mut context).is_pending();
                drop(write);
                let mut second = IoBuf::new(len / 2);
                second.fill(round);
                assert_eq!(backing.submit(Request::write(4096, second)).await.result, Ok(()));
                let reply: Reply = backing.submit(Request::read(4096, IoBuf::new(len / 2))).await;
                assert!(
                    reply.buf.iter().all(|&byte| byte == round),
                    "round {round}: the dropped write came later"
                );
                in_the_kernel
            }));
            if dropped == 40 {
                break;
            }
        }
        assert_eq!(dropped, 40, "a write that is over when it is first polled shows nothing");
    }
}

#[test]
fn a_write_that_has_not_begun_never_begins() {
    let scratch = Scratch::new();
    let opened = scratch.open(Direct::Off);
    let local = local(DriverChoice::Auto);
    local.block_on(async {
        let mut buf = IoBuf::new(4096);
        buf.fill(1);
        drop(opened.device.submit(Request::write(0, buf)));
        let reply = opened.device.submit(Request::read(0, IoBuf::new(4096))).await;
        assert!(reply.buf.iter().all(|&byte| byte == 0));
    });
}

#[test]
fn detached_ranges_are_forgotten_when_done() {
    let scratch = Scratch::new();
    let options = scratch.options();
    drop(open_device(&options).unwrap());
    let local = local(DriverChoice::Auto);
    let opened = once_free(|| open_device(&options));
    local.block_on(async {
        for _ in 0..8 {
            let Answer::Pending(mut write) = opened.device.submit(Request::write(0, IoBuf::zeroed(65536)))
            else {
                panic!()
            };
            let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        assert_eq!(opened.device.submit(Request::read(0, IoBuf::new(65536))).await.result, Ok(()));
    });
    assert_eq!(crate::runtime::pool::detached(), 0, "the read waited for all of them");
}

#[test]
fn extents_tell_holes_from_data() {
    let scratch = Scratch::new();
    let device = scratch.open(Direct::Off).device;
    let local = local(DriverChoice::Auto);
    let whole = ByteRange::new(0, 4 << 20);
    let ask = |count| local.block_on(device.extents(whole, count)).unwrap();
    assert_eq!(ask(10), [Extent::hole(4 << 20)]);
    local.block_on(device.submit(Request::write(1 << 20, IoBuf::zeroed(65536))));
    let list = ask(10);
    let lens: Vec<_> = list.iter().map(|extent| (extent.len, extent.hole)).collect();
    assert_eq!(lens, [(1 << 20, true), (65536, false), ((3 << 20) - 65536, true)]);
    assert_eq!(ask(2).len(), 2);
    assert_eq!(ask(1), [Extent::hole(1 << 20)]);
}

#[test]
fn discard_frees_room() {
    let scratch = Scratch::new();
    let device = scratch.open(Direct::Auto).device;
    assert!(device.geometry().discards, "TMPDIR has to be on a file system with holes for this test");
    let local = local(DriverChoice::Auto);
    let mut buf = IoBuf::new(1 << 20);
    buf.fill(3);
    let seam = Seam::new(device);
    local.block_on(seam.submit(Request::write(0, buf).with_fua()));
    let used = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&scratch.0).unwrap());
    let before = used();
    let reply = local.block_on(seam.submit(Request::bare(Op::Discard, ByteRange::new(0, 1 << 20))));
    assert_eq!(reply.result, Ok(()));
    assert!(used() + 1024 <= before, "{} sectors before, {} after", before, used());
}

#[test]
fn a_file_cut_behind_our_back_is_an_error_and_not_a_hang() {
    let scratch = Scratch::new();
    let device = scratch.open(Direct::Off).device;
    std::fs::File::options().write(true).open(&scratch.0).unwrap().set_len(4096).unwrap();
    let local = local(DriverChoice::Auto);
    let reply = local.block_on(device.submit(Request::read(0, IoBuf::new(65536))));
    assert_eq!(reply.result, Err(Kind::Io));
    assert_eq!(reply.buf.len(), 65536);
}

#[test]
fn a_file_takes_no_share_of_the_memory_that_workers_keep() {
    let buffers = Buffers::new(512 << 10);
    buffers.enter();
    let keeps = || {
        drop((0..64).map(|_| IoBuf::new(4096)).collect::<Vec<_>>());
        buffers.bytes_in_use() - buffers.bytes_held()
    };
    let (device, local) = (Scratch::new().open(Direct::Off).device, local(DriverChoice::Poll));
    let before = keeps();
    let reply = local.block_on(device.submit(Request::read(0, IoBuf::new(4096))));
    reply.result.unwrap();
    assert!(0 < before && before < 64 * 4096, "the limit decides: {before}");
    assert_eq!(keeps(), before);
}

#[test]
fn what_can_only_block_does_so_on_a_thread_of_its_own_and_its_buffers_count() {
    let buffers = Buffers::default();
    buffers.enter();
    for driver in BOTH {
        let there =
            local(driver).block_on(on_blocking_thread(|| (std::thread::current().id(), IoBuf::new(1 << 20))));
        assert_ne!(there.0, std::thread::current().id());
        assert!(buffers.bytes_in_use() >= 1 << 20, "{} bytes", buffers.bytes_in_use());
    }
}

/// Of a disk that is gone the kernel says that it has no room, and zeroes what it has of a range: nothing.
#[test]
fn a_block_device_that_has_shrunk_fails_and_is_not_full() {
    for driver in BOTH {
        let device = Loop::new();
        let opened = device.open();
        std::fs::File::options().write(true).open(&device.backing.0).unwrap().set_len(1 << 20).unwrap();
        must("losetup", &["--set-capacity".as_ref(), device.path.as_os_str()]);
        let local = local(driver);
        let ask = |request| local.block_on(opened.device.submit(request)).result;
        assert_eq!(ask(Request::write(2 << 20, IoBuf::zeroed(4096))), Err(Kind::Io));
        let zero = |at, len| Request::bare(Op::WriteZeroes, ByteRange::new(at, len));
        assert_eq!(ask(zero(2 << 20, 4096)), Err(Kind::Io));
        assert_eq!(ask(zero(0, 4 << 20)), Err(Kind::Io));
        assert_eq!(ask(zero(0, 4096)), Ok(()));
    }
}
