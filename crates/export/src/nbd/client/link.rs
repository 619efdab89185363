//! What the connections to a server and the calls to it share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use spillway_core::storage::Connection;
use spillway_core::sync::{AtomicBool, AtomicU64, AtomicUsize, Changes, Mutex, Ordering, StickyError};
use spillway_core::{ByteRange, Env, Kind, mutant};

use super::call::{Answered, Body, Call, Effect};
use super::journal::Journal;
use super::negotiation::Described;
use super::settings::Settings;

/// How long a request may be without answer before its connection counts as lost, where no timeout is shorter. Doubles each time: a server may
/// be as slow as that.
const DEADLINE: Duration = Duration::from_secs(120);

/// What a connection is to do next.
pub(super) enum Taken {
    Call(Call),
    /// Wait.
    Nothing,
    /// Nobody needs the server any more: end once everything is answered.
    Leave,
    /// End at once.
    Close,
}

/// How far the connection of a channel is.
#[derive(Clone, Default)]
enum Progress {
    #[default]
    Begun,
    Established(Described),
    /// Why it is over.
    Ended(String),
}

/// The calls for one connection.
#[derive(Default)]
struct Channel {
    /// The round of its connection.
    round: u64,
    progress: Progress,
    /// Whether calls are sent, and not only what is replayed.
    open: bool,
    closing: bool,
    calls: VecDeque<Call>,
    replays: VecDeque<Call>,
    waker: Option<Waker>,
}

/// The state of the whole.
#[derive(Default)]
struct State {
    /// Connections of one round are made together and closed together.
    round: u64,
    /// Sessions that have not ended, of any round.
    sessions: usize,
    /// Why the present round has ended.
    lost: Option<String>,
    /// The last round whose connections were opened for calls.
    opened: u64,
}

/// Why connections are made again that are not lost.
pub(super) const RENEWED: &str = "its size is asked for";

/// See [the module](self).
pub(super) struct Link {
    pub(super) env: Arc<dyn Env>,
    pub(super) settings: Settings,
    channels: Box<[Mutex<Channel>]>,
    /// Channels whose connections are open.
    active: AtomicUsize,
    state: Mutex<State>,
    pub(super) changes: Changes,
    pub(super) journal: Mutex<Journal>,
    /// A change is over that others may wait for.
    pub(super) settled: Changes,
    /// Something that was acknowledged may be lost: see [`Link::lose`].
    pub(super) failure: StickyError,
    /// The server cannot be reached for too long.
    failing: AtomicBool,
    leaving: AtomicBool,
    deadline_ms: AtomicU64,
    size: AtomicU64,
    up: AtomicBool,
    /// When it came up or was lost, in milliseconds.
    since_ms: AtomicU64,
    /// Times that it was lost.
    losses: AtomicU64,
}

impl Link {
    pub(super) fn new(env: Arc<dyn Env>, settings: Settings) -> Self {
        assert!(settings.connections > 0, "a link has a connection");
        let deadline = settings.timeout.map_or(DEADLINE, |timeout| timeout.min(DEADLINE));
        let channels = (0..settings.connections).map(|_| Mutex::default()).collect();
        Self {
            env,
            settings,
            channels,
            active: AtomicUsize::new(1),
            state: Mutex::default(),
            changes: Changes::default(),
            journal: Mutex::default(),
            settled: Changes::default(),
            failure: StickyError::default(),
            failing: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            deadline_ms: AtomicU64::new(deadline.as_millis() as u64),
            size: AtomicU64::new(0),
            up: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        }
    }

    pub(super) fn export(&self) -> &str {
        &self.settings.export
    }

    pub(super) fn coarse_now(&self) -> Duration {
        self.env.coarse_now()
    }

    /// Bytes of the export, as the server said last.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// How it is, for people.
    pub(super) fn connection(&self) -> Connection {
        let state = match (self.up.load(Ordering::Relaxed), self.is_failing()) {
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 3,
        };
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        Connection {
            state: Connection::STATES[state],
            lasts: self.coarse_now().saturating_sub(since),
            lost: self.losses.load(Ordering::Relaxed),
            unflushed: self.journal.lock().bytes(),
        }
    }

    /// It is lost, or there again.
    pub(super) fn set_up(&self, up: bool) {
        if self.up.swap(up, Ordering::Relaxed) != up {
            self.since_ms.store(self.coarse_now().as_millis() as u64, Ordering::Relaxed);
            self.losses.fetch_add(u64::from(!up), Ordering::Relaxed);
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// A server was slower than the deadline.
    pub(super) fn extend_deadline(&self) {
        let twice = self.deadline().as_millis() as u64 * 2;
        self.deadline_ms.store(twice, Ordering::Relaxed);
    }

    /// Whether the server cannot be reached for too long.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Nobody calls any more.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.changes.wake_all();
        self.wake_sessions();
    }

    /// Has every session look around.
    pub(super) fn wake_sessions(&self) {
        let wakers: Vec<Waker> =
            self.channels.iter().filter_map(|channel| channel.lock().waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn call(
        &self,
        command: u16,
        flags: u16,
        range: ByteRange,
        body: Body,
        effect: Effect,
    ) -> Answered {
        let (call, answering) = Call::new(command, flags, range, body, effect);
        self.submit(call);
        answering.await
    }

    fn submit(&self, call: Call) {
        if self.is_failing() {
            return call.give_up(Kind::Io);
        }
        let index = self.env.thread_number() % self.active.load(Ordering::Acquire);
        let waker = {
            let mut channel = self.channels[index].lock();
            channel.calls.push_back(call);
            channel.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
        // The link may have begun to fail, or have fewer channels by now: then it has looked before this one was there.
        if self.is_failing() {
            self.fail_calls();
        } else if index >= self.active.load(Ordering::Acquire) {
            self.gather_calls();
        }
    }

    /// Moves the calls of channels without a connection to the first.
    fn gather_calls(&self) {
        let active = self.active.load(Ordering::Acquire);
        let stranded = |channel: &Mutex<Channel>| std::mem::take(&mut channel.lock().calls);
        let calls: Vec<Call> = self.channels[active..].iter().flat_map(stranded).collect();
        let waker = {
            let mut first = self.channels[0].lock();
            first.calls.extend(calls);
            first.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// From now on calls fail until there is a connection.
    pub(super) fn fail(&self) {
        self.failing.store(true, Ordering::Release);
        self.fail_calls();
        self.changes.wake_all();
    }

    fn fail_calls(&self) {
        let kind = if self.is_leaving() { Kind::ShuttingDown } else { Kind::Io };
        for channel in &self.channels {
            let calls = std::mem::take(&mut channel.lock().calls);
            calls.into_iter().for_each(|call| call.give_up(kind));
        }
    }

    /// Acknowledged data may be lost, for that reason: no flush succeeds any more.
    pub(super) fn lose(&self, kind: Kind, why: &str) {
        if mutant::on("nbd client: forget that a flush failed") {
            return;
        }
        if self.failure.set(kind) {
            let (address, errno) = (&self.settings.address, kind.errno_name());
            tracing::error!("{address}: {why} ({errno}): data may be lost, all further flushes fail");
        }
    }

    /// What the session of a channel is to do next.
    pub(super) fn take(&self, index: usize, round: u64) -> Taken {
        let mut channel = self.channels[index].lock();
        if channel.round != round || channel.closing {
            return Taken::Close;
        }
        let next = match channel.replays.pop_front() {
            None if channel.open => channel.calls.pop_front(),
            next => next,
        };
        match next {
            Some(call) => Taken::Call(call),
            None if self.is_leaving() => Taken::Leave,
            None => Taken::Nothing,
        }
    }

    /// Calls that a session took and that were not answered: to be sent again before what came later.
    pub(super) fn put_back(&self, index: usize, calls: Vec<Call>) {
        let (replays, calls): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(|call| call.replayed);
        {
            let mut channel = self.channels[index].lock();
            calls.into_iter().rev().for_each(|call| channel.calls.push_front(call));
        }
        drop(replays);
        if self.is_failing() {
            self.fail_calls();
        }
    }

    /// This task is woken for calls of the channel. False where it is to end at once.
    pub(super) fn watch(&self, index: usize, round: u64, waker: &Waker) -> bool {
        let mut channel = self.channels[index].lock();
        let present = channel.round == round && !channel.closing;
        if present && !channel.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            channel.waker = Some(waker.clone());
        }
        present
    }

    pub(super) fn session_begins(&self, index: usize, round: u64) {
        let mut state = self.state.lock();
        state.sessions += 1;
        // One that comes too late finds that its channel is of another round.
        if state.round == round {
            let mut channel = self.channels[index].lock();
            *channel = Channel { round, calls: std::mem::take(&mut channel.calls), ..Channel::default() };
        }
    }

    pub(super) fn session_established(&self, index: usize, round: u64, described: Described) {
        let mut channel = self.channels[index].lock();
        if channel.round == round {
            channel.progress = Progress::Established(described);
        }
        drop(channel);
        self.changes.wake_all();
    }

    pub(super) fn session_ends(&self, index: usize, round: u64, reason: String) {
        let replays = {
            let mut state = self.state.lock();
            assert!(state.sessions > 0, "a session ends that has not begun");
            state.sessions -= 1;
            let mut channel = self.channels[index].lock();
            let present = channel.round == round;
            if present {
                (channel.waker, channel.open) = (None, false);
                let before = std::mem::replace(&mut channel.progress, Progress::Ended(reason.clone()));
                // One that was never established may be one more than the server takes.
                if matches!(before, Progress::Established(_)) {
                    state.lost.get_or_insert(reason);
                }
            }
            present.then(|| std::mem::take(&mut channel.replays))
        };
        drop(replays);
        self.changes.wake_all();
    }

    /// Why the present round of connections has ended, if it has.
    pub(super) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }

    /// Makes all connections again, so that the server says how large the export is now. [`Kind::Io`] where it cannot be reached.
    pub(super) async fn renew(&self) -> Result<(), Kind> {
        let round = {
            let mut state = self.state.lock();
            state.lost.get_or_insert(RENEWED.to_owned());
            state.round
        };
        self.changes.wake_all();
        let outcome = || match self.is_failing() || self.is_leaving() {
            true => Some(Err(Kind::Io)),
            false => (self.state.lock().opened > round).then_some(Ok(())),
        };
        self.changes.until(outcome).await
    }

    /// Closes what is left of a round, and begins another once all its sessions are gone.
    pub(super) async fn begin_round(&self) -> u64 {
        for channel in &self.channels {
            channel.lock().closing = true;
        }
        self.wake_sessions();
        self.changes
            .until(|| {
                let mut state = self.state.lock();
                (state.sessions == 0).then(|| {
                    state.round += 1;
                    state.lost = None;
                    state.round
                })
            })
            .await
    }

    /// What the server has said to that channel in the round, or why it says nothing more.
    pub(super) fn outcome(&self, index: usize, round: u64) -> Option<Result<Described, String>> {
        if let Some(reason) = self.lost() {
            return Some(Err(reason));
        }
        let channel = self.channels[index].lock();
        match &channel.progress {
            _ if channel.round != round => None,
            Progress::Begun => None,
            Progress::Established(described) => Some(Ok(*described)),
            Progress::Ended(reason) => Some(Err(reason.clone())),
        }
    }

    /// Sends entries of the journal again by the first channel; drops them where its connection is lost.
    pub(super) fn replay(&self, calls: Vec<Call>) {
        let (waker, _dropped) = {
            let mut channel = self.channels[0].lock();
            match channel.progress {
                Progress::Established(_) => {
                    channel.replays.extend(calls);
                    (channel.waker.clone(), Vec::new())
                }
                _ => (None, calls),
            }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// The first so many channels send calls from now on.
    pub(super) fn open(&self, active: usize) {
        assert!((1..=self.channels.len()).contains(&active), "{active} of {} channels", self.channels.len());
        self.active.store(active, Ordering::Release);
        self.failing.store(false, Ordering::Release);
        self.set_up(true);
        {
            let mut state = self.state.lock();
            state.opened = state.round;
        }
        for channel in &self.channels[..active] {
            channel.lock().open = true;
        }
        self.gather_calls();
        self.wake_sessions();
        self.changes.wake_all();
    }

    /// Connections that are open.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Connections that may be made.
    pub(super) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Waits until no other change of `range` is under way, and begins this one.
    pub(super) async fn begin_change(self: &Arc<Self>, range: ByteRange) -> Change {
        self.settled.until(|| self.journal.lock().begin(range).then_some(())).await;
        Change { link: self.clone(), range }
    }
}

/// A change of a range that others wait for; over when dropped.
pub(super) struct Change {
    link: Arc<Link>,
    range: ByteRange,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.link.journal.lock().end(self.range);
        self.link.settled.wake_all();
    }
}
