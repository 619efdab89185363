//! What the connections to a server and the calls to it share.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use spillway_core::health::{ROOM_AFTER, ServerHealth, ServerState};
use spillway_core::storage::ConnectionStatus;
use spillway_core::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Changes, HeldRange, Mutex, Ordering, RangeSet, StickyError, WaitList,
};
use spillway_core::{ByteRange, Env, Kind, mutant};

use super::call::{Answered, Body, JournalEffect, PendingCall};
use super::channel::Channel;
use super::journal::ReplayJournal;
use super::settings::Settings;

/// How long a request may be without answer before its connection counts as lost, where no timeout is shorter. Doubles each time: a server may
/// be as slow as that.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// How many times slower than its timeout a server may be.
pub(super) const SLOWER_MAX: u32 = 8;

/// The state of the whole.
#[derive(Default)]
pub(super) struct LinkState {
    /// Connections of one round are made together and closed together.
    pub(super) round: u64,
    /// Sessions that have not ended, of any round.
    pub(super) sessions: usize,
    /// Why the present round has ended.
    pub(super) lost: Option<String>,
    /// The last round whose connections were opened for calls.
    pub(super) opened: u64,
    /// From when on calls wait for a connection, by the clock of the world.
    pub(super) waits_since: Duration,
    /// How long they do, and since when that is so.
    timeout: Option<Duration>,
    pub(super) timeout_since: Duration,
}

/// See [the module](self).
pub(super) struct Link {
    pub(super) env: Arc<dyn Env>,
    pub(super) settings: Settings,
    pub(super) channels: Box<[Mutex<Channel>]>,
    /// Channels whose connections are open.
    pub(super) active: AtomicUsize,
    pub(super) state: Mutex<LinkState>,
    pub(super) changes: Changes,
    pub(super) journal: Mutex<ReplayJournal>,
    /// Tasks that look at the journal whenever calls were answered.
    pub(super) answers: WaitList,
    /// Ranges of changes that are not answered.
    changing: RangeSet,
    /// Something that was acknowledged may be lost: see [`Link::lose`].
    pub(super) failure: StickyError,
    /// The server cannot be reached for too long.
    pub(super) failing: AtomicBool,
    /// A call was answered since connections were lost that left one unanswered.
    pub(super) answered: AtomicBool,
    /// A call was answered since the last loss of connections.
    served: AtomicBool,
    health: ServerHealth,
    leaving: AtomicBool,
    deadline_ms: AtomicU64,
    /// When a request was last seen to take longer than the first deadline, or connections were opened.
    slow_ms: AtomicU64,
    size: AtomicU64,
}

impl Link {
    pub(super) fn new(env: Arc<dyn Env>, settings: Settings) -> Self {
        assert!(settings.connections > 0, "a link has a connection");
        let timeout = settings.timeout;
        let channels = (0..settings.connections).map(|_| Mutex::default()).collect();
        let journal = Mutex::new(ReplayJournal::new(settings.journal_bytes));
        Self {
            env,
            settings,
            channels,
            active: AtomicUsize::new(1),
            state: Mutex::new(LinkState { timeout, ..LinkState::default() }),
            changes: Changes::default(),
            journal,
            answers: WaitList::default(),
            changing: RangeSet::new(usize::MAX),
            failure: StickyError::default(),
            failing: AtomicBool::new(false),
            answered: AtomicBool::new(true),
            served: AtomicBool::new(true),
            health: ServerHealth::new(ServerState::Silent, Duration::ZERO),
            leaving: AtomicBool::new(false),
            deadline_ms: AtomicU64::new(first_deadline(timeout).as_millis() as u64),
            slow_ms: AtomicU64::new(0),
            size: AtomicU64::new(0),
        }
    }

    /// Bytes of the export, as the server said last.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// How it is, for people.
    pub(super) fn connection(&self) -> ConnectionStatus {
        let unflushed = self.journal.lock().bytes();
        let shown = self.health.connection(self.env.coarse_now());
        // How long that lasts counts from the loss on, also once calls fail.
        let fails =
            self.is_failing() && shown.state == ConnectionStatus::STATES[ServerState::Silent as usize];
        let state = if fails { ConnectionStatus::STATES[ServerState::Failing as usize] } else { shown.state };
        ConnectionStatus { state, unflushed, ..shown }
    }

    /// It is lost, or there again.
    pub(super) fn set_up(&self, up: bool) {
        let state = if up { ServerState::Up } else { ServerState::Silent };
        self.health.enter(state, self.env.coarse_now());
    }

    pub(super) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// The deadline that follows from the timeout and from the present one. With the lock, as the timeout may change meanwhile.
    fn change_deadline(&self, next: impl FnOnce(Option<Duration>, Duration) -> Duration) {
        let state = self.state.lock();
        let next = next(state.timeout, self.deadline());
        self.deadline_ms.store(next.as_millis() as u64, Ordering::Relaxed);
    }

    /// A server was slower than the deadline. Where calls wait for a limited time, so does that: it begins anew.
    pub(super) fn extend_deadline(&self) {
        self.change_deadline(|timeout, deadline| {
            let (first, twice) = (first_deadline(timeout), deadline * 2);
            // Where calls fail, nobody waits: what is sent again may take as long as it does.
            let is_limited = timeout.is_some() && !self.is_failing();
            if is_limited && twice > first * SLOWER_MAX { first } else { twice }
        });
    }

    /// Calls are sent from now on: where they wait for a limited time, they have no more than a server that is slow.
    pub(super) fn limit_deadline(&self) {
        self.change_deadline(|timeout, deadline| {
            timeout.map_or(deadline, |_| deadline.min(first_deadline(timeout) * SLOWER_MAX))
        });
    }

    /// Calls are sent from now on, or one was sent earlier than [`DEADLINE`] ago: nobody knows how slow the server is.
    pub(super) fn note_slow(&self) {
        self.slow_ms.store(self.env.coarse_now().as_millis() as u64, Ordering::Relaxed);
    }

    /// Begins the deadline anew once no request was slow for as long as it is. Where calls wait for a limited time, that limits it.
    pub(super) fn restore_deadline(&self) {
        let slow = Duration::from_millis(self.slow_ms.load(Ordering::Relaxed));
        let passed = self.env.coarse_now().saturating_sub(slow);
        self.change_deadline(|timeout, deadline| match timeout {
            None if passed > deadline => DEADLINE,
            _ => deadline,
        });
    }

    /// How long calls wait for a server that cannot be reached.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.state.lock().timeout
    }

    /// Calls wait for so long from now on, also those that wait already; requests without answer have the time that follows from it.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        {
            let (mut state, now) = (self.state.lock(), self.env.now());
            // Together: what they have waited before is none of it.
            (state.timeout, state.timeout_since, state.waits_since) = (timeout, now, now);
            self.deadline_ms.store(first_deadline(timeout).as_millis() as u64, Ordering::Relaxed);
        }
        self.wait_from_now();
        self.wake_sessions();
    }

    /// Whether the server cannot be reached for too long.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether calls that no connection has end by themselves: too long without one, or nobody waits for them.
    pub(super) fn gives_up(&self) -> bool {
        self.is_failing() || self.is_leaving()
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

    /// Begins a change of `range`, which is over when the result is dropped, once those are over that came before and overlap it.
    pub(super) async fn begin_change(&self, range: ByteRange) -> HeldRange {
        if mutant::on("nbd client: send changes that overlap beside each other") {
            return self.changing.hold(range);
        }
        self.changing.hold_alone(range).await
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn call(
        &self,
        command: u16,
        flags: u16,
        range: ByteRange,
        body: Body,
        effect: JournalEffect,
    ) -> Answered {
        let (call, answering) = PendingCall::new(command, flags, range, body, effect);
        self.submit(call);
        let answered = answering.await.expect("a call that is dropped is answered");
        if answered.result == Err(Kind::Exhausted) {
            self.refused();
        }
        answered
    }

    /// The server has no room for a change.
    pub(super) fn refused(&self) {
        if self.health.refused(self.env.coarse_now()) {
            tracing::error!(
                "{}: the server has no room: writes that need more fail (ENOSPC). Make room there; what is dirty in a cache is tried again \
                 until then",
                self.settings.address
            );
        }
    }

    /// Looks whether the server has not refused anything for long enough.
    pub(super) fn look_for_room(&self) {
        if self.health.regains_room(self.env.coarse_now()) {
            let (address, seconds) = (&self.settings.address, ROOM_AFTER.as_secs());
            tracing::warn!("{address}: the server has refused no write for {seconds} s");
        }
    }

    /// Whether the server has refused a change for lack of room a short while ago.
    pub(super) fn is_full(&self) -> bool {
        self.health.is_full()
    }

    fn submit(&self, call: PendingCall) {
        if self.gives_up() {
            return call.give_up(Kind::Unreachable);
        }
        let index = self.env.thread_number() % self.active.load(Ordering::Acquire);
        let waker = {
            let mut channel = self.channels[index].lock();
            channel.calls.push_back(call);
            channel.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
        // The link may have begun to fail, or have fewer channels by now: then it has looked before this one was there.
        if self.gives_up() {
            self.fail_calls();
        } else if index >= self.active.load(Ordering::Acquire) {
            self.gather_calls();
        }
    }

    /// Moves the calls of channels without a connection to the first.
    pub(super) fn gather_calls(&self) {
        let active = self.active.load(Ordering::Acquire);
        let stranded = |channel: &Mutex<Channel>| std::mem::take(&mut channel.lock().calls);
        let calls: Vec<PendingCall> = self.channels[active..].iter().flat_map(stranded).collect();
        let waker = {
            let mut first = self.channels[0].lock();
            first.calls.extend(calls);
            first.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// From when on calls wait.
    pub(super) fn waits_since(&self) -> Duration {
        self.state.lock().waits_since
    }

    /// What is left of the time for which calls wait: none without a limit, and where they fail.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.left(&self.state.lock())
    }

    fn left(&self, state: &LinkState) -> Option<Duration> {
        let timeout = state.timeout.filter(|_| !self.is_failing())?;
        Some((state.waits_since + timeout).saturating_sub(self.env.now()))
    }

    /// Calls wait from now on, where they fail too.
    pub(super) fn wait_from_now(&self) {
        {
            let mut state = self.state.lock();
            state.waits_since = self.env.now();
            self.failing.store(false, Ordering::Release);
        }
        self.changes.wake_all();
    }

    /// Calls were answered, and the journal has what they changed.
    pub(super) fn answered(&self) {
        for noted in [&self.answered, &self.served] {
            if !noted.load(Ordering::Relaxed) {
                noted.store(true, Ordering::Relaxed);
            }
        }
        self.answers.wake_all();
    }

    /// Whether nothing is asked, as far as no session has it.
    pub(super) fn is_idle(&self) -> bool {
        self.channels.iter().all(|channel| channel.lock().calls.is_empty())
    }

    /// Whether a call was answered since the last time that this was asked.
    pub(super) fn takes_served(&self) -> bool {
        self.served.swap(false, Ordering::Relaxed)
    }

    /// Has calls fail until there is a connection, once they have waited for long enough: whether that is now.
    pub(super) fn fail_in_time(&self) -> bool {
        {
            let state = self.state.lock();
            if !self.left(&state).is_some_and(|left| left.is_zero()) {
                return false;
            }
            // With the lock: who has calls wait comes before it, or after it.
            self.failing.store(true, Ordering::Release);
        }
        self.fail_calls();
        self.changes.wake_all();
        true
    }

    /// From now on calls fail.
    pub(super) fn fail(&self) {
        self.failing.store(true, Ordering::Release);
        self.fail_calls();
        self.changes.wake_all();
    }

    /// Has all calls fail that no connection has, unless they wait again.
    pub(super) fn fail_calls(&self) {
        let kind = if self.is_leaving() { Kind::ShuttingDown } else { Kind::Unreachable };
        let calls: Vec<PendingCall> = {
            // With the lock: a call that comes after they wait again is none of them.
            let _state = self.state.lock();
            if !self.gives_up() {
                return;
            }
            self.channels.iter().flat_map(|channel| std::mem::take(&mut channel.lock().calls)).collect()
        };
        calls.into_iter().for_each(|call| call.give_up(kind));
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
}

fn first_deadline(timeout: Option<Duration>) -> Duration {
    timeout.map_or(DEADLINE, |timeout| timeout.min(DEADLINE))
}
