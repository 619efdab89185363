//! Devices through vhost-user as cloud-hypervisor and Firecracker take them: by the `vhost` crate, whose memory comes in slots, with every
//! message answered. The driver of the rings is the tests' own.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use spillway_tests::{Launch, Server, until};

const QUEUES: usize = 2;
const ENTRIES: u16 = 16;

/// The two slots: rings and headers are in the first, payload is in the second, which begins elsewhere for everybody.
const RINGS: Slot = Slot { guest: 0, user: 0x7f00_0000_0000, len: 64 << 10 };
const PAYLOAD: Slot = Slot { guest: 1 << 30, user: 0x7e00_0000_0000, len: 64 << 10 };

/// Places in the first slot, of each queue.
const QUEUE_LEN: u64 = 16 << 10;
const AVAILABLE: u64 = 4 << 10;
const USED: u64 = 8 << 10;
const HEADER: u64 = 12 << 10;

const IN: u32 = 0;
const OUT: u32 = 1;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

struct Slot {
    guest: u64,
    user: u64,
    len: u64,
}

impl Slot {
    fn file(&self) -> File {
        let file = File::from(memfd_create("slot", MemfdFlags::CLOEXEC).expect("memory of the test"));
        file.set_len(self.len).expect("memory of the test");
        file
    }

    fn region(&self, file: &File) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.guest,
            memory_size: self.len,
            userspace_addr: self.user,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }
    }
}

/// A monitor and the driver of its guest.
struct Monitor {
    front: Frontend,
    rings: File,
    payload: File,
    inflight: (VhostUserInflight, File),
    events: Vec<(EventFd, EventFd)>,
    added: [u16; QUEUES],
}

impl Monitor {
    fn memory() -> (File, File) {
        (RINGS.file(), PAYLOAD.file())
    }

    /// Connects with memory that a guest may have used before, and the memory of requests in flight that it was given.
    fn connect(
        path: &Path,
        (rings, payload): (File, File),
        inflight: Option<(VhostUserInflight, File)>,
    ) -> Self {
        let mut front = Frontend::connect(path, QUEUES as u64).expect("the server agrees");
        front.set_owner().expect("the server agrees");
        let offered = front.get_features().expect("the server agrees");
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let wanted = 1 << 32 | protocol;
        assert_eq!(offered & wanted, wanted, "{offered:#x}");
        let features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert!(front.get_protocol_features().expect("the server agrees").contains(features));
        front.set_protocol_features(features).expect("the server agrees");
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front.set_features(wanted).expect("the server agrees");
        let inflight = inflight.unwrap_or_else(|| {
            front
                .get_inflight_fd(&VhostUserInflight::new(0, 0, QUEUES as u16, ENTRIES))
                .expect("the server agrees")
        });
        front.set_inflight_fd(&inflight.0, inflight.1.as_raw_fd()).expect("the server agrees");
        assert!(front.get_max_mem_slots().expect("the server agrees") >= 2);
        front.add_mem_region(&RINGS.region(&rings)).expect("the server agrees");
        front.add_mem_region(&PAYLOAD.region(&payload)).expect("the server agrees");
        let event = || EventFd::new(EFD_NONBLOCK).expect("it can be had");
        let events = (0..QUEUES).map(|_| (event(), event())).collect();
        let mut monitor = Self { front, rings, payload, inflight, events, added: [0; QUEUES] };
        (0..QUEUES).for_each(|queue| monitor.start(queue));
        monitor
    }

    fn start(&mut self, queue: usize) {
        let at = |place: u64| RINGS.user + queue as u64 * QUEUE_LEN + place;
        let addresses = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            desc_table_addr: at(0),
            avail_ring_addr: at(AVAILABLE),
            used_ring_addr: at(USED),
            ..VringConfigData::default()
        };
        self.added[queue] = self.number(queue, USED + 2);
        self.front.set_vring_num(queue, ENTRIES).expect("the server agrees");
        self.front.set_vring_addr(queue, &addresses).expect("the server agrees");
        self.front.set_vring_base(queue, self.added[queue]).expect("the server agrees");
        let (kick, call) = &self.events[queue];
        self.front.set_vring_call(queue, call).expect("the server agrees");
        self.front.set_vring_kick(queue, kick).expect("the server agrees");
        self.front.set_vring_enable(queue, true).expect("the server agrees");
    }

    fn put(&self, queue: usize, place: u64, bytes: &[u8]) {
        self.rings.write_all_at(bytes, queue as u64 * QUEUE_LEN + place).expect("memory of the test");
    }

    fn number(&self, queue: usize, place: u64) -> u16 {
        let mut bytes = [0; 2];
        self.rings.read_exact_at(&mut bytes, queue as u64 * QUEUE_LEN + place).expect("memory of the test");
        u16::from_le_bytes(bytes)
    }

    /// Bytes of the device, as the guest reads them.
    fn size(&mut self) -> u64 {
        let (_, config) =
            self.front.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).expect("it can be had");
        u64::from_le_bytes(config.try_into().expect("it can be had")) * 512
    }

    /// A request of 4096 bytes at the start of the payload. Its answer is awaited by [`Monitor::status`].
    fn add(&mut self, queue: usize, kind: u32, sector: u64) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), &[0xff]].concat();
        self.put(queue, HEADER, &header);
        let header_at = RINGS.guest + queue as u64 * QUEUE_LEN + HEADER;
        let data_flags = if kind == IN { NEXT | WRITE } else { NEXT };
        let pieces =
            [(header_at, 16u32, NEXT), (PAYLOAD.guest, 4096, data_flags), (header_at + 16, 1, WRITE)];
        for (index, (at, len, flags)) in pieces.into_iter().enumerate() {
            let next = index as u16 + 1;
            let entry =
                [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
            self.put(queue, 16 * index as u64, &entry.concat());
        }
        let slot = u64::from(self.added[queue] % ENTRIES);
        self.put(queue, AVAILABLE + 4 + 2 * slot, &[0, 0]);
        self.added[queue] = self.added[queue].wrapping_add(1);
        self.put(queue, AVAILABLE + 2, &self.added[queue].to_le_bytes());
        self.events[queue].0.write(1).expect("it can be had");
    }

    /// The status of the request that was added last, once the device has called.
    fn status(&self, queue: usize) -> u8 {
        let call = &self.events[queue].1;
        while self.number(queue, USED + 2) != self.added[queue] {
            until("the device calls", || call.read().ok());
        }
        let mut status = [0];
        self.rings
            .read_exact_at(&mut status, queue as u64 * QUEUE_LEN + HEADER + 16)
            .expect("memory of the test");
        status[0]
    }

    fn ask(&mut self, queue: usize, kind: u32, sector: u64) -> u8 {
        self.add(queue, kind, sector);
        self.status(queue)
    }
}

fn socket(server: &Server) -> PathBuf {
    server.folder().join("guest.sock")
}

fn with_guest(launch: Launch) -> Launch {
    let path = launch.folder().join("guest.sock");
    launch.with("--vhost-user", &path)
}

#[test]
fn a_monitor_of_rust_vmm_has_the_device_by_two_queues() {
    let server = with_guest(Launch::ram("16M")).start();
    let mut monitor = Monitor::connect(&socket(&server), Monitor::memory(), None);
    assert_eq!((monitor.size(), monitor.front.get_queue_num().unwrap() >= 2), (16 << 20, true));
    monitor.payload.write_all_at(&[7; 4096], 0).unwrap();
    assert_eq!(monitor.ask(1, OUT, 8), 0);
    assert_eq!(server.client().read(4096, 4096), Ok(vec![7; 4096]));
    monitor.payload.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(monitor.ask(0, IN, 8), 0);
    let mut read = [0; 4096];
    monitor.payload.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [7; 4096]);
    // A slot goes, and what names it breaks its queue alone.
    monitor.front.remove_mem_region(&PAYLOAD.region(&monitor.payload)).unwrap();
    monitor.add(0, IN, 8);
    until("the queue is broken", || server.log().contains("memory that is not shared").then_some(()));
    assert_eq!(monitor.front.get_vring_base(1).unwrap(), 1, "the other queue has taken one request");
}

/// A server that had the monitor's own end of their connection would wait for ever for that to be closed.
#[test]
fn a_monitor_that_gives_its_own_end_away_is_refused_and_its_place_is_free() {
    let server = with_guest(Launch::ram("16M")).start();
    let stream = UnixStream::connect(socket(&server)).unwrap();
    let mut front = Frontend::from_stream(stream.try_clone().unwrap(), QUEUES as u64);
    front.set_owner().unwrap();
    front.get_features().unwrap();
    front.set_features(1 << 32 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()).unwrap();
    front.get_protocol_features().unwrap();
    let features = VhostUserProtocolFeatures::BACKEND_REQ | VhostUserProtocolFeatures::REPLY_ACK;
    front.set_protocol_features(features).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let (channel, _other_end) = UnixStream::pair().unwrap();
    front.set_backend_request_fd(&channel).expect("a channel of its own");
    front.set_backend_request_fd(&stream).expect_err("the server would keep its own connection open");
    drop((front, stream));
    Monitor::connect(&socket(&server), Monitor::memory(), None);
}

/// The server is killed before it has answered, and the next one goes on with the rings and the memory of requests in flight.
#[test]
fn a_monitor_of_rust_vmm_goes_on_with_the_next_server() {
    let (launch, origin) = Launch::disk_with(vec![0; 16 << 20]);
    let launch = with_guest(launch.with("--page-cache", "none"));
    let mut server = launch.clone().start();
    let mut monitor = Monitor::connect(&socket(&server), Monitor::memory(), None);
    assert_eq!(monitor.ask(1, OUT, 8), 0);
    server.signal(Signal::STOP);
    monitor.payload.write_all_at(&[9; 4096], 0).unwrap();
    monitor.add(1, OUT, 16);
    server.signal(Signal::KILL);
    server.ends();
    let next = launch.start();
    let Monitor { rings, payload, inflight, added, .. } = monitor;
    let monitor = Monitor::connect(&socket(&next), (rings, payload), Some(inflight));
    let monitor = Monitor { added, ..monitor };
    assert_eq!(monitor.status(1), 0);
    let mut written = [0; 4096];
    File::open(origin).unwrap().read_exact_at(&mut written, 16 * 512).unwrap();
    assert_eq!(written, [9; 4096]);
}
