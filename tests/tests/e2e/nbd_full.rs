//! A server of an origin whose file system is full, and has room again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_tests::raw::{Client, errno, flag};
use spillway_tests::{Launch, Scratch, Server, Upstream, pattern, text, tool, until};

use crate::nbd_outage::{MIB, SIZE, flush, lines};
use crate::rbd::{settle, stop};

/// Bytes that the file system has in the beginning, and what the origin holds of them.
const ROOM: usize = 5 * MIB / 4;
const HELD: usize = MIB;

/// Bytes that it has no room for, and where they go: twice as many may be dirty in a page cache.
const MORE: usize = MIB / 2;
const AT: usize = 8 * MIB;

/// A device over the export of that address, with whatever else it needs in that folder.
type Stack = fn(Arc<Scratch>, &Path) -> Launch;

/// A file system of its own, in which an origin lies.
struct Disk(Scratch);

impl Disk {
    fn new() -> Self {
        let disk = Self(Scratch::new());
        disk.mount(&format!("size={ROOM}"));
        disk
    }

    fn mount(&self, options: &str) {
        tool::run("mount", &["-t", "tmpfs", "-o", options, "none", text(self.0.path())]).well();
    }

    fn grow(&self) {
        self.mount("remount,size=64M");
    }

    /// A sparse origin that holds `content`.
    fn origin(&self, content: &[u8]) -> PathBuf {
        let path = self.0.write("origin", content);
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(SIZE as u64))
            .expect("a hole");
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        tool::run("umount", &["--lazy", text(self.0.path())]);
    }
}

fn disk(folder: Arc<Scratch>, uri: &Path) -> Launch {
    Launch::disk(folder, uri).with("--page-cache", "none")
}

/// The page cache is smaller than the origin.
fn paged(folder: Arc<Scratch>, uri: &Path) -> Launch {
    Launch::disk(folder, uri).with("--page-cache-bytes-max", "8M")
}

fn cached(folder: Arc<Scratch>, uri: &Path) -> Launch {
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    Launch::cache(folder, uri, &cache)
}

fn paged_and_cached(folder: Arc<Scratch>, uri: &Path) -> Launch {
    cached(folder, uri).with("--page-cache", "writeback").with("--page-cache-bytes-max", "4M")
}

/// A device of one kind over an origin of its own.
struct Device {
    name: &'static str,
    disk: Disk,
    origin: PathBuf,
    _upstream: Upstream,
    server: Server,
    client: Client,
    /// What it holds.
    model: Vec<u8>,
    /// What there is no room for.
    bytes: Vec<u8>,
}

impl Device {
    fn start((name, stack): (&'static str, Stack)) -> Self {
        let mut model = pattern::random(1, 0, HELD);
        let disk = Disk::new();
        let origin = disk.origin(&model);
        model.resize(SIZE, 0);
        let upstream = Upstream::nbdkit_file(&origin);
        let server = stack(Arc::default(), Path::new(&upstream.uri())).with("--name", "d").start();
        // The first flush of a start covers what may have bypassed a cache before.
        flush(&server).expect("a flush");
        let client = server.client();
        Self {
            name,
            disk,
            origin,
            _upstream: upstream,
            server,
            client,
            model,
            bytes: pattern::random(2, 0, MORE),
        }
    }

    fn is_shown(&self, state: &str) {
        until("it is shown", || (self.server.value("d", "connection") == state).then_some(()));
    }

    fn write_more(&mut self) -> Result<(), u32> {
        self.client.write(AT as u64, &self.bytes)
    }

    fn write_over(&mut self, seed: u64) {
        let bytes = pattern::random(seed, 0, 4096);
        self.client.write(4096, &bytes).expect("a write over an older one");
        self.model[4096..8192].copy_from_slice(&bytes);
    }

    fn meets_the_end(&mut self) {
        let fails = |whether| if whether { Err(errno::ENOSPC) } else { Ok(()) };
        for seed in [3, 4] {
            assert_eq!(self.write_more(), fails(self.name == "disk"), "{}", self.name);
            assert_eq!(flush(&self.server), fails(self.name == "page cache"), "{}", self.name);
            self.write_over(seed);
            assert!(self.client.read(0, HELD).as_deref() == Ok(&self.model[..HELD]), "{}", self.name);
        }
        if self.name.contains("write cache") {
            assert_ne!(self.server.spillway(&["drain", "d"]).code, Some(0), "{}", self.server.log());
        }
        self.is_shown("full");
    }

    /// A client's own writes with FUA fail, and no more than these.
    fn refuses_what_is_to_be_durable(&mut self) {
        let bytes = vec![5; MIB];
        let written = self.client.write_with(flag::FUA, (SIZE - MIB) as u64, &bytes);
        assert_eq!(written, Err(errno::ENOSPC), "{}", self.server.log());
        assert_eq!(flush(&self.server), Ok(()), "{}", self.server.log());
    }

    /// What is dirty is written back.
    fn goes_on(&mut self) {
        self.disk.grow();
        until("writes go on", || self.write_more().ok());
        until("what is dirty is durable", || flush(&self.server).ok());
        self.model[AT..AT + MORE].copy_from_slice(&self.bytes);
        settle(&self.server, self.name);
    }

    /// The end is said.
    fn is_up_again(&self) {
        self.is_shown("up");
        self.server.says("refused no write");
        let told = ["the server has no room", "refused no write"].map(|words| lines(&self.server, words));
        assert_eq!(told, [1, 1], "{}: {}", self.name, self.server.log());
    }

    /// Everything has reached the origin. Of the last MiB nobody knows: a write there has failed.
    fn ends(&mut self) {
        stop(&mut self.server);
        let found = fs::read(&self.origin).expect("it exists");
        let known = ..SIZE - MIB;
        assert!(found[known] == self.model[known], "{}: a write is lost", self.name);
    }
}

/// Nothing that was acknowledged is lost, and no error sticks.
#[test]
fn a_server_that_is_full_fails_what_needs_room_and_goes_on_with_more() {
    let stacks: [(&str, Stack); 4] = [
        ("disk", disk),
        ("page cache", paged),
        ("write cache", cached),
        ("page cache and write cache", paged_and_cached),
    ];
    let mut devices = stacks.map(Device::start);
    devices.iter_mut().for_each(Device::meets_the_end);
    devices[0].refuses_what_is_to_be_durable();
    devices.iter_mut().for_each(Device::goes_on);
    devices.iter().for_each(Device::is_up_again);
    devices.iter_mut().for_each(Device::ends);
}

/// It keeps nothing back, so there is nothing to flush that could have been lost.
#[test]
fn a_server_without_flush_that_is_full_goes_on_with_more() {
    let folder = Arc::new(Scratch::new());
    let (full, content) = (folder.join("full"), folder.write("content", vec![0; 1 << 20]));
    let write = format!(
        "pwrite=test -e {} && {{ cat > /dev/null; echo ENOSPC no room >&2; exit 1; }}; dd of={} conv=notrunc oflag=seek_bytes seek=$4 status=none",
        full.display(),
        content.display()
    );
    let read = format!(
        "pread=dd if={} iflag=skip_bytes,count_bytes,fullblock skip=$4 count=$3 status=none",
        content.display()
    );
    let upstream = Upstream::nbdkit(&["eval", "get_size=echo 1M", "can_write=exit 0", &read, &write]);
    let server = disk(folder.clone(), Path::new(&upstream.uri())).start();
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("there is room");
    fs::write(&full, "").expect("there is room for that");
    assert_eq!(client.write(4096, &[2; 4096]), Err(errno::ENOSPC));
    assert_eq!(flush(&server), Ok(()), "{}", server.log());
    fs::remove_file(&full).expect("it is there");
    client.write(4096, &[3; 4096]).expect("there is room again");
    assert_eq!(flush(&server), Ok(()), "{}", server.log());
    assert_eq!(client.read(4096, 4096), Ok(vec![3; 4096]));
}
