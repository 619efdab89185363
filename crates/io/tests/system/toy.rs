//! A toy protocol for the socket tests: a request is a header (`op`, `len`, little endian) and `len` bytes of payload; the
//! answer is the same header and, for `ECHO`, the payload.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};

use spillway_core::session::{Intake, Output, Session};
use spillway_core::sync::Mutex;
use spillway_core::{IoBuf, LocalFuture, task, work};
use spillway_io::{Driver, DriverChoice, Workers, WorkersOptions};

pub(crate) const ECHO: u32 = 1;
/// Answered with the header once the gate opens.
pub(crate) const GATED: u32 = 2;
/// Counted as `WORK_UNITS` of work, and not answered.
pub(crate) const WORK: u32 = 4;
/// Ends the conversation after what came before it is answered.
pub(crate) const BYE: u32 = 3;

/// A fifth of a turn.
pub(crate) const WORK_UNITS: u32 = work::TURN / 5;

/// Payloads from here on are received straight into their buffer.
pub(crate) const LARGE: usize = 64 << 10;

/// Unsent bytes above which the session reads nothing more.
pub(crate) const OUTPUT_MAX: usize = 4 << 20;

/// Both drivers; that io_uring is refused fails a test.
pub(crate) const BOTH: [DriverChoice; 2] = [DriverChoice::IoUring, DriverChoice::Poll];

/// Workers that run on the driver that was asked for.
pub(crate) fn workers(count: usize, driver: DriverChoice) -> Workers {
    let workers = Workers::start(WorkersOptions { count, driver, ..WorkersOptions::default() }).unwrap();
    match driver {
        DriverChoice::IoUring => assert_eq!(workers.driver(), &Driver::IoUring),
        DriverChoice::Poll => assert_eq!(workers.driver(), &Driver::Poll(None)),
        DriverChoice::Auto => {}
    }
    workers
}

/// What the tests see of all sessions.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) alive: AtomicUsize,
    pub(crate) hung_up: AtomicUsize,
    pub(crate) gated: AtomicUsize,
    pub(crate) open: AtomicBool,
    pub(crate) waiters: spillway_core::sync::WaitList,
    pub(crate) straight: AtomicUsize,
    /// The session of each `WORK`, in the order in which they were done.
    pub(crate) worked: Mutex<Vec<usize>>,
    sessions: AtomicUsize,
    /// Sessions are established by their first request only.
    pub(crate) shakes_hands: AtomicBool,
}

impl Watch {
    pub(crate) fn open_gate(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }
}

pub(crate) struct Toy {
    watch: Arc<Watch>,
    number: usize,
    header: Vec<u8>,
    payload: Option<(IoBuf, usize)>,
    waiting: Vec<LocalFuture<()>>,
    output: Output,
    ending: bool,
    began: bool,
}

impl Toy {
    pub(crate) fn new(watch: &Arc<Watch>) -> Self {
        watch.alive.fetch_add(1, Ordering::SeqCst);
        Self {
            watch: watch.clone(),
            number: watch.sessions.fetch_add(1, Ordering::SeqCst),
            header: Vec::new(),
            payload: None,
            waiting: Vec::new(),
            output: Output::default(),
            ending: false,
            began: false,
        }
    }

    fn begin(&mut self) {
        self.began = true;
        let op = u32::from_le_bytes(self.header[..4].try_into().unwrap());
        let len = u32::from_le_bytes(self.header[4..8].try_into().unwrap()) as usize;
        match op {
            ECHO => self.payload = Some((IoBuf::new(len), 0)),
            GATED => {
                let watch = self.watch.clone();
                watch.gated.fetch_add(1, Ordering::SeqCst);
                self.waiting.push(Box::pin(async move {
                    watch.waiters.until(|| watch.open.load(Ordering::SeqCst).then_some(())).await;
                }));
                self.header.clear();
            }
            WORK => {
                work::spend(WORK_UNITS);
                self.watch.worked.lock().push(self.number);
                self.header.clear();
            }
            _ => {
                self.ending = true;
                self.header.clear();
            }
        }
        self.complete();
    }

    fn complete(&mut self) {
        if self.payload.as_ref().is_some_and(|(buf, filled)| *filled == buf.len()) {
            let (buf, _) = self.payload.take().unwrap();
            self.output.push(&self.header);
            self.output.push_buffer(buf);
            self.header.clear();
        }
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.watch.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session for Toy {
    fn intake(&mut self) -> Intake {
        if self.output.len() > OUTPUT_MAX || self.ending {
            return Intake::Pause;
        }
        match &mut self.payload {
            Some((buf, filled)) if buf.len() >= LARGE => {
                let mut window = std::mem::take(buf);
                let (at, left) = (*filled, window.len() - *filled);
                window.narrow(at, left);
                Intake::Payload(window)
            }
            _ => Intake::Bytes,
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.ending && self.output.len() <= OUTPUT_MAX && !work::spent() {
            match &mut self.payload {
                Some((buf, _)) if buf.len() >= LARGE => return used,
                Some((buf, filled)) => {
                    let count = (buf.len() - *filled).min(bytes.len() - used);
                    buf[*filled..*filled + count].copy_from_slice(&bytes[used..used + count]);
                    *filled += count;
                    used += count;
                    self.complete();
                }
                None => {
                    let count = (8 - self.header.len()).min(bytes.len() - used);
                    self.header.extend(&bytes[used..used + count]);
                    used += count;
                    if self.header.len() == 8 {
                        self.begin();
                    }
                }
            }
        }
        used
    }

    fn returned(&mut self, mut buf: IoBuf, filled: usize) {
        self.watch.straight.fetch_add(filled, Ordering::SeqCst);
        let len = u32::from_le_bytes(self.header[4..8].try_into().unwrap()) as usize;
        buf.widen(len);
        let (slot, count) = self.payload.as_mut().expect("a payload was lent");
        *slot = buf;
        *count += filled;
        self.complete();
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let before = self.waiting.len();
        self.waiting.retain_mut(|future| future.as_mut().poll(context) == Poll::Pending);
        for _ in self.waiting.len()..before {
            self.output.push(&GATED.to_le_bytes());
            self.output.push(&0u32.to_le_bytes());
        }
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.ending && self.waiting.is_empty()
    }

    fn hang_up(&mut self) {
        self.watch.hung_up.fetch_add(1, Ordering::SeqCst);
        self.waiting.clear();
        self.ending = true;
    }

    fn wind_down(&mut self) {
        self.ending = true;
    }

    fn pending(&self) -> usize {
        self.waiting.len()
    }

    fn established(&self) -> bool {
        self.began || !self.watch.shakes_hands.load(Ordering::SeqCst)
    }

    fn owed(&self) -> bool {
        self.payload.is_some()
    }
}

/// Writes one request.
pub(crate) fn request(stream: &mut impl Write, op: u32, payload: &[u8]) {
    let mut message = Vec::with_capacity(8 + payload.len());
    message.extend(op.to_le_bytes());
    message.extend((payload.len() as u32).to_le_bytes());
    message.extend(payload);
    stream.write_all(&message).unwrap();
}

/// Reads one answer.
pub(crate) fn answer(stream: &mut impl Read) -> (u32, Vec<u8>) {
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let op = u32::from_le_bytes(header[..4].try_into().unwrap());
    let mut payload = vec![0; u32::from_le_bytes(header[4..].try_into().unwrap()) as usize];
    stream.read_exact(&mut payload).unwrap();
    (op, payload)
}

/// Has a payload echoed.
pub(crate) fn echo<S: Read + Write>(stream: &mut S, payload: &[u8]) {
    request(stream, ECHO, payload);
    assert_eq!(answer(stream), (ECHO, payload.to_vec()));
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = std::time::Instant::now();
    while !condition() {
        assert!(patience.elapsed().as_secs() < 120, "still waiting: {what}");
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Keeps a worker from everything until the result is used or dropped.
pub(crate) fn hold(workers: &Workers, index: usize) -> mpsc::Sender<()> {
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let holding = move || async move {
        held.send(()).unwrap();
        let _ = released.recv();
    };
    workers.run_on(index, task(holding));
    is_held.recv().unwrap();
    release
}
