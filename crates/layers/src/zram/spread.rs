//! A large write shared out to workers that have nothing to do.
//!
//! The writer and its assistants take pages of one request from a common counter until none is left. An assistant takes a
//! stream before it takes a page, so that it never holds a page without making progress; if no stream is idle it leaves.
//! The writer's answer waits until every assistant has left, and dropping it makes them leave after their present page.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, Watermark};
use spillway_core::{IoBuf, Kind, Place, Reply, Request, mutant, task};

use super::device::{Core, Count};
use super::page::{PAGE, slots};
use super::work::Slice;

/// Shortest write in pages that is shared out (64 KiB).
const PAGES_MIN: u64 = 16;

/// Pages of a write for each assistant that is called.
const PAGES_EACH: u64 = 16;

/// Whether sharing out a write of `pages` is a gain: it is large and to be compressed, a second stream exists and a worker is idle.
pub(super) fn pays(core: &Core, pages: u64) -> bool {
    let many = pages >= PAGES_MIN && core.streams.limit() > 1 && core.env.idle_workers() > 0;
    many && !core.defers(pages)
}

struct Shared {
    first: u64,
    count: usize,
    next: AtomicUsize,
    closed: AtomicBool,
    failed: Mutex<Option<Kind>>,
    /// Bytes by which assistants have made memory fuller: the writer pauses for them.
    grown: AtomicU64,
    /// Pages for which assistants found no memory: the writer waits for it.
    returned: Mutex<Vec<usize>>,
    joining: Mutex<JoinState>,
    /// Assistants that have left.
    left: Watermark,
}

/// Where assistants join.
struct JoinState {
    /// Absent once the writer has taken it back.
    buf: Option<Arc<IoBuf>>,
    /// Assistants that have joined.
    joined: u64,
}

impl Shared {
    /// The buffer, for an assistant that joins; `None` once the writer has closed.
    fn join(&self) -> Option<Arc<IoBuf>> {
        let mut joining = self.joining.lock();
        let buf = joining.buf.clone().filter(|_| !self.closed.load(Ordering::Relaxed))?;
        joining.joined += 1;
        Some(buf)
    }

    fn leave(&self, buf: Arc<IoBuf>) {
        drop(buf);
        assert!(self.left.step() <= self.joining.lock().joined, "an assistant leaves that has not joined");
    }

    fn take_page(&self) -> Option<usize> {
        let wanted = !self.closed.load(Ordering::Relaxed);
        let page = wanted.then(|| self.next.fetch_add(1, Ordering::Relaxed))?;
        (page < self.count).then_some(page)
    }

    fn fail(&self, kind: Kind) {
        self.closed.store(true, Ordering::Relaxed);
        self.failed.lock().get_or_insert(kind);
    }

    /// Lets no more assistants join; returns how many have.
    fn close(&self) -> u64 {
        let joining = self.joining.lock();
        self.closed.store(true, Ordering::Relaxed);
        joining.joined
    }
}

/// Closes the work when the writer's answer is dropped, and waits for the page that an assistant may be storing: nothing
/// of a withdrawn request may land after a later one.
struct Writer(Arc<Shared>);

impl Drop for Writer {
    fn drop(&mut self) {
        let joined = self.0.close();
        while self.0.left.current() < joined {
            std::thread::yield_now();
        }
    }
}

pub(super) async fn write(core: Arc<Core>, mut request: Request) -> Reply {
    let (first, count) = slots(request.range);
    assert_eq!(request.buf.len() as u64, count * PAGE as u64, "a write brings its pages");
    let buf = Arc::new(std::mem::take(&mut request.buf));
    let shared = Arc::new(Shared {
        first,
        count: count as usize,
        next: AtomicUsize::new(0),
        closed: AtomicBool::new(false),
        failed: Mutex::new(None),
        grown: AtomicU64::new(0),
        returned: Mutex::new(Vec::new()),
        joining: Mutex::new(JoinState { buf: Some(buf.clone()), joined: 0 }),
        left: Watermark::default(),
    });
    let writer = Writer(shared.clone());
    call_assistants(&core, &shared, count);
    write_pages(&core, &shared, &buf).await;
    shared.left.reached(shared.close()).await;
    write_returned(&core, &shared, &buf).await;
    let grown = shared.grown.load(Ordering::Relaxed);
    if core.grew(grown) {
        core.throttle(grown).await;
    }
    drop(writer);
    drop(buf);
    let buf = shared.joining.lock().buf.take().expect("only the writer takes it");
    request.buf = Arc::try_unwrap(buf).expect("assistants drop their share before they leave");
    let failed = *shared.failed.lock();
    if failed.is_some() {
        core.count(Count::FailedWrites, 1);
    }
    request.answer(failed.map_or(Ok(()), Err))
}

fn call_assistants(core: &Arc<Core>, shared: &Arc<Shared>, count: u64) {
    let wanted = (count / PAGES_EACH).min(core.streams.limit() as u64 - 1) as usize;
    for _ in 0..wanted.min(core.env.idle_workers()) {
        let (core_there, shared) = (core.clone(), shared.clone());
        core.env.spawn(Place::Assist, task(move || assist(core_there, shared)));
    }
}

/// Stores pages of a large write, a slice at a time. It leaves before it yields: withdrawing the write waits for those that
/// have joined, and must not wait for one that waits for its turn.
async fn assist(core: Arc<Core>, shared: Arc<Shared>) {
    while let Some(buf) = shared.join() {
        let goes_on = assist_for_a_slice(&core, &shared, &buf);
        shared.leave(buf);
        if !goes_on {
            return;
        }
        core.env.sleep(Duration::ZERO).await;
    }
}

/// False once there is nothing left to do here.
fn assist_for_a_slice(core: &Core, shared: &Shared, buf: &IoBuf) -> bool {
    let mut slice = Slice::new();
    let goes_on = assist_with(core, shared, buf, &mut slice);
    if !mutant::on("zram: what assistants store is not throttled") {
        shared.grown.fetch_add(slice.take_growth(), Ordering::Relaxed);
    }
    goes_on
}

fn assist_with(core: &Core, shared: &Shared, buf: &IoBuf, slice: &mut Slice) -> bool {
    let now = core.seconds();
    while !slice.is_over() {
        let mut stream = core.streams.try_take();
        if stream.is_none() {
            return false;
        }
        let Some(page) = shared.take_page() else { return false };
        let bytes = &buf[page * PAGE..(page + 1) * PAGE];
        match core.store_page(shared.first + page as u64, bytes, now, &mut stream, slice) {
            Ok(stored) => assert!(stored, "it has a stream"),
            Err(Kind::NoSpace) if !mutant::on("zram: refuse what an assistant found no memory for") => {
                shared.returned.lock().push(page);
                return false;
            }
            Err(kind) => shared.fail(kind),
        }
    }
    true
}

async fn write_pages(core: &Core, shared: &Shared, buf: &IoBuf) {
    let mut slice = Slice::new();
    while let Some(page) = shared.take_page() {
        write_page(core, shared, buf, page, &mut slice).await;
    }
}

async fn write_page(core: &Core, shared: &Shared, buf: &IoBuf, page: usize, slice: &mut Slice) {
    let bytes = &buf[page * PAGE..(page + 1) * PAGE];
    if let Err(kind) = core.store(shared.first + page as u64, bytes, slice).await {
        shared.fail(kind);
    }
}

/// Waits for memory for what assistants had to leave.
async fn write_returned(core: &Core, shared: &Shared, buf: &IoBuf) {
    let (returned, mut slice) = (std::mem::take(&mut *shared.returned.lock()), Slice::new());
    for page in returned {
        if shared.failed.lock().is_none() {
            write_page(core, shared, buf, page, &mut slice).await;
        }
    }
}
