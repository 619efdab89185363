//! A system that reports a lost writeback once, to whichever sync or durable write looks first, and then shows what was
//! there before.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spillway_core::random::Random;
use spillway_core::storage::Moved;
use spillway_core::sync::{Mutex, WaitList};
use spillway_core::{
    Answer, BlockDevice, ByteRange, Extent, Geometry, Grow, IoBuf, Kind, LocalFuture, Op, Reply, Request,
    Room, Storage,
};
use spillway_sim::world::World;

use super::super::File;

const BLOCK: u64 = 4096;
const BLOCKS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write { at: usize, value: u8, durable: bool },
    Zero { at: usize },
    Sync,
}

/// A call that has begun looks at a moment of the test's choice, and is answered at another.
struct Running {
    call: Call,
    seen: Option<Result<(), Kind>>,
    answered: bool,
}

struct State {
    /// One value for each block: on the medium, and in the page cache.
    medium: [u8; BLOCKS],
    cache: [u8; BLOCKS],
    report: Option<Kind>,
    /// The next plain writes or zeroings fail.
    refuse: bool,
    /// Plain writes and zeroings are told of a loss, too, if they are the first to look.
    tells_all: bool,
    calls: Vec<Running>,
}

impl State {
    /// The kernel gives up on dirty blocks; reads show the old content again.
    fn lose(&mut self, lost: impl Fn(usize) -> bool) {
        let mut any = false;
        for block in 0..BLOCKS {
            if self.cache[block] != self.medium[block] && lost(block) {
                self.cache[block] = self.medium[block];
                any = true;
            }
        }
        if any {
            self.report = Some(Kind::Io);
        }
    }

    fn look(&mut self, index: usize) {
        let call = self.calls[index].call;
        let result = match call {
            Call::Write { durable: false, .. } | Call::Zero { .. } if self.refuse => Err(Kind::NoSpace),
            Call::Write { at, durable: true, .. } => {
                self.medium[at] = self.cache[at];
                self.report.take().map_or(Ok(()), Err)
            }
            Call::Write { .. } | Call::Zero { .. } if self.tells_all => {
                self.report.take().map_or(Ok(()), Err)
            }
            Call::Write { .. } | Call::Zero { .. } => Ok(()),
            Call::Sync => {
                self.medium = self.cache;
                self.report.take().map_or(Ok(()), Err)
            }
        };
        self.calls[index].seen = Some(result);
    }
}

struct Kernel {
    direct: bool,
    state: Mutex<State>,
    answers: WaitList,
}

impl Kernel {
    async fn run(self: Arc<Self>, call: Call) -> Result<(), Kind> {
        let index = {
            let mut state = self.state.lock();
            match call {
                Call::Write { at, value, .. } => state.cache[at] = value,
                Call::Zero { at } => state.cache[at] = 0,
                Call::Sync => {}
            }
            state.calls.push(Running { call, seen: None, answered: false });
            state.calls.len() - 1
        };
        let answer = || {
            let state = self.state.lock();
            let running = &state.calls[index];
            running.answered.then(|| running.seen.expect("it looks before it is answered"))
        };
        self.answers.until(answer).await
    }
}

/// The fake as the layer sees it.
struct Fake(Arc<Kernel>);

impl Storage for Fake {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, ..Geometry::in_memory(BLOCKS as u64 * BLOCK) }
    }

    fn memory_alignment(&self) -> usize {
        1
    }

    fn direct(&self) -> bool {
        self.0.direct
    }

    fn read(&self, _at: u64, _buf: IoBuf, _done: usize) -> LocalFuture<Moved> {
        unreachable!("nothing is read here")
    }

    fn write(&self, at: u64, buf: IoBuf, _done: usize, durable: bool) -> LocalFuture<Moved> {
        let call = Call::Write { at: (at / BLOCK) as usize, value: buf[0], durable };
        let run = self.0.clone().run(call);
        Box::pin(async move { (run.await.map(|()| buf.len()), buf) })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().run(Call::Sync))
    }

    fn zero(&self, range: ByteRange, _room: Room) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().run(Call::Zero { at: (range.offset / BLOCK) as usize }))
    }

    fn extents(&self, range: ByteRange, _count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(vec![Extent::stored(range.len)]))
    }
}

/// A file over the fake, and the requests that wait for an answer.
struct House {
    kernel: Arc<Kernel>,
    world: Arc<World>,
    file: File,
}

/// A request, polled by hand.
struct Asked(Option<LocalFuture<Reply>>, Option<Result<(), Kind>>);

impl Asked {
    fn poll(&mut self) -> Option<Result<(), Kind>> {
        if let Some(future) = &mut self.0
            && let Poll::Ready(reply) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            (self.0, self.1) = (None, Some(reply.result));
        }
        self.1
    }
}

impl House {
    fn new(direct: bool) -> Self {
        let state = State {
            medium: [0; BLOCKS],
            cache: [0; BLOCKS],
            report: None,
            refuse: false,
            tells_all: false,
            calls: Vec::new(),
        };
        let kernel = Arc::new(Kernel { direct, state: Mutex::new(state), answers: WaitList::default() });
        let world = World::new(1);
        let file = File::new(Arc::new(Fake(kernel.clone())), world.clone());
        Self { kernel, world, file }
    }

    fn submit(&self, request: Request) -> Asked {
        let Answer::Pending(future) = self.file.submit(request) else { panic!("a file takes its time") };
        let mut asked = Asked(Some(future), None);
        assert_eq!(asked.poll(), None, "nothing was answered yet");
        asked
    }

    fn write(&self, at: usize, fua: bool) -> Asked {
        let mut buf = IoBuf::new(BLOCK as usize);
        buf.fill(at as u8 + 1);
        let mut request = Request::write(at as u64 * BLOCK, buf);
        request.flags.fua = fua;
        self.submit(request)
    }

    fn flush(&self) -> Asked {
        self.submit(Request::flush())
    }

    fn bare(&self, op: Op, at: usize, fua: bool) -> Asked {
        let mut request = Request::bare(op, ByteRange::new(at as u64 * BLOCK, BLOCK));
        request.flags.fua = fua;
        self.submit(request)
    }

    /// Indices of the calls that have not looked, or not been answered.
    fn open(&self, looked: bool) -> Vec<usize> {
        let state = self.kernel.state.lock();
        let open = |running: &Running| running.seen.is_some() == looked && !running.answered;
        (0..state.calls.len()).filter(|&index| open(&state.calls[index])).collect()
    }

    fn look(&self, index: usize) {
        self.kernel.state.lock().look(index);
    }

    fn answer(&self, index: usize) {
        self.kernel.state.lock().calls[index].answered = true;
        self.kernel.answers.wake_all();
    }

    fn lose(&self) {
        self.kernel.state.lock().lose(|_| true);
    }

    fn syncs(&self) -> usize {
        self.kernel.state.lock().calls.iter().filter(|running| running.call == Call::Sync).count()
    }

    /// Lets the calls that are open look, the last first, then answers them, the first first.
    fn carry_out(&self) {
        self.open(false).into_iter().rev().for_each(|index| self.look(index));
        self.open(true).into_iter().for_each(|index| self.answer(index));
    }

    fn end(&self, asked: &mut Asked) -> Result<(), Kind> {
        for _ in 0..8 {
            if let Some(result) = asked.poll() {
                return result;
            }
            self.carry_out();
        }
        panic!("a request is never answered")
    }

    fn done(&self, mut asked: Asked) -> Result<(), Kind> {
        self.end(&mut asked)
    }
}

#[test]
fn a_durable_write_that_fails_fails_all_flushes_after_it() {
    for direct in [false, true] {
        let house = House::new(direct);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        house.lose();
        assert_eq!(house.done(house.write(1, true)), Err(Kind::Io), "it was told of the loss");
        assert_eq!(house.done(house.flush()), Err(Kind::Io), "direct: {direct}");
    }
}

#[test]
fn of_two_flushes_at_once_neither_succeeds_over_a_loss() {
    let house = House::new(true);
    assert_eq!(house.done(house.write(0, false)), Ok(()));
    let (mut first, mut second) = (house.flush(), house.flush());
    house.lose();
    house.carry_out();
    let answers = [house.end(&mut first), house.end(&mut second)];
    assert_eq!(answers, [Err(Kind::Io); 2], "the second call looked first");
}

#[test]
fn a_flush_waits_for_what_a_durable_write_beside_it_was_told() {
    for direct in [false, true] {
        let house = House::new(direct);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        let (mut flush, mut write) = (house.flush(), house.write(1, true));
        house.lose();
        house.look(2);
        house.look(1);
        house.answer(1);
        assert_eq!(flush.poll(), None, "the write may have taken the report");
        house.answer(2);
        assert_eq!((write.poll(), flush.poll()), (Some(Err(Kind::Io)), Some(Err(Kind::Io))));
    }
}

#[test]
fn without_o_direct_durable_writes_wait_for_what_the_others_were_told() {
    let house = House::new(false);
    let (mut first, mut second) = (house.write(0, true), house.write(1, true));
    house.lose();
    house.look(1);
    house.look(0);
    house.answer(0);
    assert_eq!(first.poll(), None, "the report about it may have gone to the other");
    house.answer(1);
    assert_eq!((second.poll(), first.poll()), (Some(Err(Kind::Io)), Some(Err(Kind::Io))));
}

#[test]
fn without_o_direct_who_promises_waits_for_what_plain_writes_were_told() {
    let beside: [fn(&House) -> Asked; 3] = [
        |house| house.write(1, false),
        |house| house.bare(Op::WriteZeroes, 1, false),
        |house| house.bare(Op::Discard, 1, false),
    ];
    let promises: [fn(&House) -> Asked; 2] = [|house| house.flush(), |house| house.write(2, true)];
    for (plain, promise) in beside.into_iter().flat_map(|plain| promises.map(|promise| (plain, promise))) {
        let house = House::new(false);
        house.kernel.state.lock().tells_all = true;
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        let (mut promise, mut plain) = (promise(&house), plain(&house));
        house.lose();
        house.look(2);
        house.look(1);
        house.answer(1);
        assert_eq!(promise.poll(), None, "the plain write may have taken the report");
        house.answer(2);
        assert_eq!((plain.poll(), promise.poll()), (Some(Err(Kind::Io)), Some(Err(Kind::Io))));
    }
}

#[test]
fn with_o_direct_a_durable_write_waits_for_no_other() {
    let house = House::new(true);
    let (mut first, _second) = (house.write(0, true), house.write(1, true));
    house.look(0);
    house.answer(0);
    assert_eq!(first.poll(), Some(Ok(())));
}

#[test]
fn without_o_direct_a_write_of_any_kind_that_fails_fails_all_flushes() {
    let failures: [fn(&House) -> Asked; 3] = [
        |house| house.write(0, false),
        |house| house.bare(Op::WriteZeroes, 0, false),
        |house| house.bare(Op::Discard, 0, false),
    ];
    for (direct, expected) in [(false, Err(Kind::NoSpace)), (true, Ok(()))] {
        for ask in failures {
            let house = House::new(direct);
            house.kernel.state.lock().refuse = true;
            assert_eq!(house.done(ask(&house)), Err(Kind::NoSpace));
            house.kernel.state.lock().refuse = false;
            assert_eq!(house.done(house.flush()), expected, "direct: {direct}");
        }
    }
}

#[test]
fn a_zeroing_with_fua_answers_for_what_its_sync_was_told() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let house = House::new(true);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        let mut zero = house.bare(op, 1, true);
        house.carry_out();
        assert_eq!(zero.poll(), None, "it is made durable by a sync");
        house.lose();
        assert_eq!(house.end(&mut zero), Err(Kind::Io));
        assert_eq!(house.done(house.flush()), Err(Kind::Io), "the zeroing took the report");
    }
}

#[test]
fn flushes_share_one_sync_that_begins_after_they_were_asked() {
    let house = House::new(true);
    let mut first = house.flush();
    let mut others: Vec<Asked> = (0..5).map(|_| house.flush()).collect();
    assert_eq!(house.syncs(), 1, "one at a time");
    house.carry_out();
    assert_eq!(first.poll(), Some(Ok(())));
    assert!(others.iter_mut().all(|other| other.poll().is_none()), "asked after the sync had begun");
    house.carry_out();
    assert!(others.iter_mut().all(|other| other.poll() == Some(Ok(()))));
    assert_eq!(house.syncs(), 2);
}

#[test]
fn a_dropped_flush_ends_its_sync_and_what_it_was_told_is_remembered() {
    let house = House::new(true);
    assert_eq!(house.done(house.write(0, false)), Ok(()));
    let (first, mut second) = (house.flush(), house.flush());
    drop(first);
    assert_eq!((second.poll(), house.syncs()), (None, 1), "the kernel still has the first");
    house.lose();
    house.carry_out();
    while house.world.go_on() {}
    assert_eq!(house.end(&mut second), Err(Kind::Io));
}

#[test]
fn a_growth_that_is_dropped_breaks_no_flush() {
    let house = House::new(true);
    let mut grow = house.file.grow(None);
    assert!(grow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(house.syncs(), 1);
    drop(grow);
    house.carry_out();
    while house.world.go_on() {}
    assert_eq!(house.done(house.flush()), Ok(()));
}

#[test]
fn a_call_whose_end_nobody_saw_counts_as_failed() {
    let house = House::new(true);
    let (first, mut second) = (house.flush(), house.flush());
    drop(first);
    house.world.power_off();
    assert_eq!(house.end(&mut second), Err(Kind::Io), "it may have taken a report");
}

/// What was asked in a drawn story, and when what it promises had been acknowledged.
struct Promise {
    asked: Asked,
    blocks: Vec<usize>,
    judged: bool,
}

/// Blocks are written once each, flushed, lost and reported in any order: what a flush or a durable write that succeeded had
/// to cover is on the medium at that moment.
fn play(seed: u64) {
    let mut random = Random(seed);
    let house = House::new(random.below(2) == 0);
    house.kernel.state.lock().tells_all = !house.kernel.direct && random.below(2) == 0;
    let (mut next, mut acked, mut promises) = (0, Vec::new(), Vec::<Promise>::new());
    let mut plain: Vec<(usize, Asked)> = Vec::new();
    for _ in 0..80 {
        match random.below(9) {
            0 | 1 if next < BLOCKS => {
                plain.push((next, house.write(next, false)));
                next += 1;
            }
            2 if next < BLOCKS => {
                promises.push(Promise { asked: house.write(next, true), blocks: vec![next], judged: false });
                next += 1;
            }
            3 => promises.push(Promise { asked: house.flush(), blocks: acked.clone(), judged: false }),
            4 => {
                let mask = random.draw();
                // With O_DIRECT only what has ended lies in a cache, and a durable write answers for itself.
                let spared = |block: usize| house.kernel.direct && !acked.contains(&block);
                let lost = |block: usize| mask >> block & 1 == 1 && !spared(block);
                house.kernel.state.lock().lose(lost);
            }
            5 | 6 => draw(&mut random, house.open(false)).into_iter().for_each(|index| house.look(index)),
            _ => draw(&mut random, house.open(true)).into_iter().for_each(|index| house.answer(index)),
        }
        acked.extend(ended(&house, &mut plain));
        promises.iter_mut().for_each(|promise| judge(&house, promise, seed));
    }
    for _ in 0..100 {
        house.carry_out();
        ended(&house, &mut plain);
        promises.iter_mut().for_each(|promise| judge(&house, promise, seed));
    }
    assert!(promises.iter().all(|promise| promise.judged), "seed {seed}: a request is never answered");
}

/// Blocks of the plain writes that have succeeded; the rest is still to end.
fn ended(house: &House, plain: &mut Vec<(usize, Asked)>) -> Vec<usize> {
    let mut succeeded = Vec::new();
    plain.retain_mut(|(block, asked)| match asked.poll() {
        Some(Ok(())) => {
            succeeded.push(*block);
            false
        }
        Some(Err(kind)) => {
            assert!(house.kernel.state.lock().tells_all, "a plain write fails with {kind:?}");
            false
        }
        None => true,
    });
    succeeded
}

fn judge(house: &House, promise: &mut Promise, seed: u64) {
    if promise.judged {
        return;
    }
    let Some(result) = promise.asked.poll() else { return };
    promise.judged = true;
    let medium = house.kernel.state.lock().medium;
    let lost: Vec<_> = promise.blocks.iter().filter(|&&block| medium[block] != block as u8 + 1).collect();
    assert!(result.is_err() || lost.is_empty(), "seed {seed}: success, but blocks {lost:?} are lost");
}

fn draw(random: &mut Random, from: Vec<usize>) -> Option<usize> {
    (!from.is_empty()).then(|| from[random.below(from.len() as u64) as usize])
}

#[test]
fn no_success_covers_a_loss_in_any_order() {
    (0..4000).for_each(play);
}
