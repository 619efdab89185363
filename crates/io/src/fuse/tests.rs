//! Readers on a socket that keeps messages apart, as a mount does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::io::write;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spillway_core::exchange::{Exchange, Message, MessageBuffers, MessageFormat};
use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{Budget, IoBuf};

use super::reader::FuseReader;
use super::readers::Readers;
use crate::runtime::workers::{Workers, WorkersOptions};

/// A busy machine is no defect.
const PATIENCE: Duration = Duration::from_secs(60);

const COUNT: usize = 2;
const FORMAT: MessageFormat = MessageFormat { len_max: 8192, payload_offset: 80, kept_len_min: 4096 };

/// First byte of a message that the exchange keeps for itself.
const PARKED: u8 = 255;

/// In place of a first byte: the exchange has hung up.
const GONE: u8 = 254;

/// What a test asks of an exchange.
#[derive(Default)]
struct Wishes {
    refuses: AtomicBool,
    /// Messages that a device keeps.
    kept: Mutex<Vec<IoBuf>>,
    /// A message that the exchange keeps for itself, while it refuses.
    parked: Mutex<Option<IoBuf>>,
    task: Mutex<Option<Waker>>,
}

impl Wishes {
    fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
        let task = self.task.lock().clone();
        task.into_iter().for_each(Waker::wake);
    }
}

/// An exchange that reports the first byte of each message.
struct Toy {
    wishes: Arc<Wishes>,
    got: Sender<u8>,
}

impl Exchange for Toy {
    fn takes(&mut self) -> bool {
        !self.wishes.refuses.load(Ordering::SeqCst)
    }

    fn receive(&mut self, message: IoBuf, last: bool) -> Option<IoBuf> {
        let first = message[0];
        let back = match first {
            PARKED => {
                self.wishes.refuses.store(true, Ordering::SeqCst);
                *self.wishes.parked.lock() = Some(message);
                None
            }
            _ if message.len() >= FORMAT.kept_len_min && !last => {
                self.wishes.kept.lock().push(message);
                None
            }
            _ => Some(message),
        };
        // Last: the test goes on then.
        self.got.send(first).unwrap();
        back
    }

    fn returned(&mut self) -> Option<IoBuf> {
        if self.takes() { self.wishes.parked.lock().take() } else { None }
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        *self.wishes.task.lock() = Some(context.waker().clone());
    }

    fn next_reply(&mut self) -> Option<Message> {
        None
    }

    fn hang_up(&mut self) {
        // At the end of another test nobody listens.
        let _ = self.got.send(GONE);
    }

    fn pending(&self) -> usize {
        0
    }
}

/// Readers at work, and what they hear.
struct House {
    _workers: Workers,
    socket: OwnedFd,
    wishes: Vec<Arc<Wishes>>,
    got: Receiver<u8>,
}

impl House {
    fn new() -> Self {
        let workers = Workers::start(WorkersOptions { count: COUNT, ..WorkersOptions::default() }).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, fd) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let buffers = MessageBuffers::new(FORMAT, COUNT, &Budget::new(Budget::UNLIMITED)).unwrap();
        let ((sender, got), fd) = (mpsc::channel(), Arc::new(fd));
        let wishes: Vec<_> = (0..COUNT).map(|_| Arc::<Wishes>::default()).collect();
        for (index, guard) in Readers::new(COUNT).1.into_iter().enumerate() {
            let toy = Toy { wishes: wishes[index].clone(), got: sender.clone() };
            let (fd, inbox) = (fd.clone(), buffers.inbox());
            let task = move || Box::pin(FuseReader::new(fd, Box::new(toy), inbox, guard)) as _;
            workers.run_on(index, Box::new(task));
        }
        Self { _workers: workers, socket, wishes, got }
    }

    fn send(&self, byte: u8, len: usize) {
        assert_eq!(write(&self.socket, &vec![byte; len]), Ok(len));
    }

    fn next(&self) -> u8 {
        self.got.recv_timeout(PATIENCE).expect("a reader hears it")
    }
}

/// The kernel wakes one reader for each message, in turn.
#[test]
fn what_a_reader_hears_that_takes_nothing_is_read_by_another() {
    let house = House::new();
    for round in 0..32 {
        let deaf = usize::from(round / 2 % 2);
        house.wishes[deaf].refuse(true);
        // The other one has every chance to go to sleep.
        std::thread::sleep(Duration::from_millis(2));
        house.send(round, 100);
        assert_eq!(house.next(), round);
        house.wishes[deaf].refuse(false);
    }
}

/// Devices that never answer keep a buffer for each reader, and no more.
#[test]
fn a_reader_reads_on_whatever_devices_keep() {
    let house = House::new();
    for byte in 0..20 {
        house.send(byte, FORMAT.len_max - 100 * usize::from(byte));
        assert_eq!(house.next(), byte);
    }
    let kept: usize = house.wishes.iter().map(|wishes| wishes.kept.lock().len()).sum();
    assert_eq!(kept, COUNT);
    for _ in 0..COUNT {
        house.send(PARKED, FORMAT.len_max);
        assert_eq!(house.next(), PARKED);
    }
    house.wishes[0].refuse(false);
    for byte in 0..20 {
        house.send(byte, FORMAT.len_max);
        assert_eq!(house.next(), byte);
    }
}

/// A device that hangs keeps nobody in a mount that is gone.
#[test]
fn a_reader_that_takes_nothing_ends_with_its_mount() {
    let House { _workers, socket, wishes, got } = House::new();
    wishes.iter().for_each(|wishes| wishes.refuse(true));
    drop(socket);
    for _ in 0..COUNT {
        assert_eq!(got.recv_timeout(PATIENCE), Ok(GONE));
    }
}
