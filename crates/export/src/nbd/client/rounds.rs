//! The connections of a link: rounds of them, as their sessions and those who make them see them.
//!
//! Locks: the state of the link, then a channel.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::sync::{Mutex, Ordering};
use spillway_core::{Kind, mutant};

use super::call::PendingCall;
use super::channel::{Channel, ChannelWork, Closing, ConnectionState};
use super::link::{Link, SLOWER_MAX};
use super::negotiation::Described;

/// Why connections are made again that are not lost.
pub(super) const RENEWED: &str = "its size is asked for";

/// What the server has at the end for what it was asked, where no timeout is shorter.
const PARTING: Duration = Duration::from_secs(10);

impl Link {
    /// What the session of a channel is to do next.
    pub(super) fn take(&self, index: usize, round: u64) -> ChannelWork {
        let mut channel = self.channels[index].lock();
        if channel.round != round || channel.closing == Closing::AtOnce {
            return ChannelWork::Close;
        }
        let ends = channel.closing == Closing::Answered;
        let next = match channel.replays.pop_front() {
            None if channel.open && !ends => channel.calls.pop_front(),
            next => next,
        };
        match next {
            Some(call) => ChannelWork::Call(call),
            None if ends || self.is_leaving() => ChannelWork::Leave,
            None => ChannelWork::Nothing,
        }
    }

    /// Calls that a session took and that were not answered: to be sent again before what came later.
    pub(super) fn put_back(&self, index: usize, calls: Vec<PendingCall>) {
        let ends =
            |call: &PendingCall| call.replayed || mutant::on("nbd client: forget what was not answered");
        let (replays, calls): (Vec<PendingCall>, Vec<PendingCall>) = calls.into_iter().partition(ends);
        {
            let mut channel = self.channels[index].lock();
            calls.into_iter().rev().for_each(|call| channel.calls.push_front(call));
        }
        drop(replays);
        if self.gives_up() {
            self.fail_calls();
        }
    }

    /// This task is woken for calls of the channel. False where it is to end at once.
    pub(super) fn watch(&self, index: usize, round: u64, waker: &Waker) -> bool {
        let mut channel = self.channels[index].lock();
        let ends = match channel.closing {
            Closing::No => false,
            Closing::Answered => !matches!(channel.progress, ConnectionState::Established(_)),
            Closing::AtOnce => true,
        };
        let present = channel.round == round && !ends;
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
            let calls = std::mem::take(&mut channel.calls);
            // The round may be over already: its connections are waited for.
            *channel = Channel { round, calls, closing: channel.closing, ..Channel::default() };
        }
    }

    pub(super) fn session_established(&self, index: usize, round: u64, described: Described) {
        let mut channel = self.channels[index].lock();
        if channel.round == round {
            channel.progress = ConnectionState::Established(described);
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
                let before = std::mem::replace(&mut channel.progress, ConnectionState::Ended(reason.clone()));
                // One that was never established may be one more than the server takes.
                if matches!(before, ConnectionState::Established(_)) {
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

    /// Makes all connections again, so that the server says how large the export is now. [`Kind::Unreachable`] where it cannot be reached.
    pub(super) async fn renew(&self) -> Result<(), Kind> {
        let round = {
            let mut state = self.state.lock();
            state.lost.get_or_insert(RENEWED.to_owned());
            state.round
        };
        self.changes.wake_all();
        let outcome = || match self.is_failing() || self.is_leaving() {
            true => Some(Err(Kind::Unreachable)),
            false => (self.state.lock().opened > round).then_some(Ok(())),
        };
        self.changes.until(outcome).await
    }

    /// Closes what is left of a round, and begins another once all its sessions are gone. Connections that are not lost get their answers
    /// first.
    pub(super) async fn begin_round(&self) -> u64 {
        self.close_round();
        self.changes
            .until(|| {
                let mut state = self.state.lock();
                (state.sessions == 0).then(|| {
                    state.round += 1;
                    state.lost = None;
                    self.channels.iter().for_each(|channel| channel.lock().closing = Closing::No);
                    state.round
                })
            })
            .await
    }

    /// Closes what is left of a round, and waits until all its sessions are gone.
    pub(super) async fn end_round(&self) {
        self.close_round();
        self.changes.until(|| (self.state.lock().sessions == 0).then_some(())).await;
    }

    /// Calls wait from the loss of connections on. False where the last ones have answered nothing that was asked: then the time counts on,
    /// as a server that takes each connection is to answer in the end. Calls that all of them left unanswered for too long fail, whatever else
    /// the server answers.
    pub(super) fn wait_from_loss(&self) -> bool {
        self.fail_old_calls();
        if let Some(since) = self.oldest_since()
            && !self.answered.swap(false, Ordering::Relaxed)
        {
            let mut state = self.state.lock();
            state.waits_since = state.waits_since.max(since);
            return false;
        }
        self.wait_from_now();
        true
    }

    /// When the oldest call that no connection has was first sent.
    fn oldest_since(&self) -> Option<Duration> {
        self.channels.iter().filter_map(|channel| channel.lock().first_sent()).min()
    }

    /// Whether the last connections have left the same call unanswered as those before them, the oldest of all. Within a tick of the clock
    /// that of each channel may be it.
    pub(super) fn is_stuck(&self) -> bool {
        let Some(since) = self.oldest_since() else { return false };
        let was_left = |channel: &Mutex<Channel>| {
            let mut channel = channel.lock();
            let oldest = channel.calls.iter_mut().find(|call| call.first_sent == Some(since));
            oldest.is_some_and(|call| std::mem::replace(&mut call.left, true))
        };
        self.channels.iter().filter(|channel| was_left(channel)).count() > 0
    }

    fn fail_old_calls(&self) {
        let Some(timeout) = self.timeout() else { return };
        let before = self.env.now().saturating_sub(timeout * SLOWER_MAX);
        let set = self.state.lock().timeout_since;
        for channel in &self.channels {
            let is_old = |call: &PendingCall| call.first_sent.is_some_and(|since| since.max(set) < before);
            let old: VecDeque<PendingCall>;
            {
                let mut channel = channel.lock();
                (old, channel.calls) = std::mem::take(&mut channel.calls).into_iter().partition(is_old);
            }
            old.into_iter().for_each(|call| call.give_up(Kind::Unreachable));
        }
    }

    /// Nobody calls any more: connections end once all is answered, and otherwise with calls that no server has answered, which fail.
    pub(super) async fn close(&self) {
        self.leave();
        let patience = self.timeout().map_or(PARTING, |timeout| timeout.min(PARTING));
        let ended = self.changes.until(|| (self.state.lock().sessions == 0).then_some(()));
        if within(&*self.env, patience, ended).await.is_none() {
            self.channels.iter().for_each(|channel| channel.lock().closing = Closing::AtOnce);
            self.wake_sessions();
        }
        self.fail_calls();
    }

    fn close_round(&self) {
        let renewed = self.lost().is_some_and(|reason| reason == RENEWED);
        let closing = if renewed { Closing::Answered } else { Closing::AtOnce };
        for channel in &self.channels {
            channel.lock().closing = closing;
        }
        self.wake_sessions();
    }

    /// What the server has said to that channel in the round, or why it says nothing more.
    pub(super) fn outcome(&self, index: usize, round: u64) -> Option<Result<Described, String>> {
        if let Some(reason) = self.lost() {
            return Some(Err(reason));
        }
        let channel = self.channels[index].lock();
        match &channel.progress {
            _ if channel.round != round => None,
            ConnectionState::Begun => None,
            ConnectionState::Established(described) => Some(Ok(*described)),
            ConnectionState::Ended(reason) => Some(Err(reason.clone())),
        }
    }

    /// Sends entries of the journal again by the first channel; drops them where its connection is lost.
    pub(super) fn replay(&self, calls: Vec<PendingCall>) {
        let (waker, _dropped) = {
            let mut channel = self.channels[0].lock();
            match channel.progress {
                ConnectionState::Established(_) => {
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
        self.limit_deadline();
        self.note_slow();
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
}
