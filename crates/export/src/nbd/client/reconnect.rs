//! Making the connections of a link: at the start, and again whenever one is lost.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::session::Session;
use spillway_core::size::human;
use spillway_core::{Kind, mutant};

use super::call::{Body, JournalEffect, PendingCall};
use super::journal::Content;
use super::link::Link;
use super::negotiation::Described;
use super::rounds::RENEWED;
use super::session::ClientSession;
use super::settings::Dial;
use crate::nbd::wire::{cmd, flag};
use crate::tls::TlsSession;

/// How long one connection may take, from its address to the end of its handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Pauses between tries: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A connection of an idle device that lasted for less counts as a try.
const SHORT: Duration = Duration::from_secs(1);

/// What of an export is used where it was there at first.
const USED: u16 =
    flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;

/// How often requests without answer are looked for: at least so many times within the time that they have.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS: u32 = 4;

/// A set of connections that were made together.
pub(super) struct ConnectedRound {
    pub(super) described: Described,
    /// Channels that have one.
    pub(super) active: usize,
}

/// Makes as many connections as make sense; the error says in words why there is none.
pub(super) async fn connect(
    link: &Arc<Link>,
    dial: &Arc<dyn Dial>,
    patience: Duration,
) -> Result<ConnectedRound, String> {
    let round = looked_after(link, link.begin_round()).await;
    let described = connect_channel(link, dial, 0, round, patience).await?;
    let wanted = if described.has(flag::CAN_MULTI_CONN) { link.channels.len() } else { 1 };
    let mut active = 1;
    while active < wanted {
        match connect_channel(link, dial, active, round, patience).await {
            Ok(other) if other == described => active += 1,
            Ok(_) => return Err("it describes the export differently on each connection".to_owned()),
            // It may have a limit: what there is will do.
            Err(_) => break,
        }
    }
    Ok(ConnectedRound { described, active })
}

async fn connect_channel(
    link: &Arc<Link>,
    dial: &Arc<dyn Dial>,
    channel: usize,
    round: u64,
    patience: Duration,
) -> Result<Described, String> {
    let of = link.clone();
    let session = Box::new(move || {
        let tls = of.settings.tls.clone();
        let session = ClientSession::new(of, channel, round);
        match tls {
            None => Box::new(session) as Box<dyn Session>,
            Some((trust, host)) => Box::new(TlsSession::of_client(session, trust, host)),
        }
    });
    let connecting = async {
        dial.dial(channel, session).await.map_err(|error| error.message().to_owned())?;
        link.changes.until(|| link.outcome(channel, round)).await
    };
    let late = || Err(format!("it does not answer within {:.1} s", patience.as_secs_f64()));
    within(&*link.env, patience, connecting).await.unwrap_or_else(late)
}

/// Keeps the link connected until nobody needs it.
pub(super) async fn keep(link: Arc<Link>, dial: Arc<dyn Dial>, first: Described) {
    let (mut pause, mut opened) = (PAUSE, link.env.now());
    loop {
        let over = link.changes.until(|| (link.is_leaving() || link.lost().is_some()).then_some(()));
        if within(&*link.env, LOOK.min(link.deadline() / LOOKS), over).await.is_none() {
            link.wake_sessions();
            link.restore_deadline();
            link.look_for_room();
            continue;
        }
        // Calls that are left, of flushes that nobody waits for, end too.
        if link.lost().is_some() {
            let lasted = link.env.now().saturating_sub(opened);
            if link.is_leaving() || !Outage::begin(&link, first, lasted, &mut pause).end(&dial).await {
                return link.fail();
            }
            opened = link.env.now();
        }
        if link.is_leaving() {
            return;
        }
    }
}

/// From the loss of a connection until there is one again.
struct Outage<'a> {
    link: &'a Arc<Link>,
    first: Described,
    began: Duration,
    /// Before the next try. Connections that were of no use count as tries.
    pause: &'a mut Duration,
    /// The connection that was lost was short.
    short: bool,
    /// It was of no use: all that was asked was left unanswered; or it was short, and nothing was asked, or the oldest call was left
    /// unanswered as by the one before.
    futile: bool,
    /// Nothing was lost, and nothing is said, as long as no try has failed.
    quiet: bool,
    /// Why the last try failed, which is said once.
    said: String,
}

impl<'a> Outage<'a> {
    fn begin(link: &'a Arc<Link>, first: Described, lasted: Duration, pause: &'a mut Duration) -> Self {
        let reason = link.lost().unwrap_or_default();
        let quiet = reason == RENEWED;
        if !quiet {
            link.set_up(false);
            tracing::warn!("{}: {reason}; requests wait while it is connected again", link.settings.address);
        }
        let short = !quiet && lasted < SHORT;
        let futile = !link.takes_served() && short;
        Self { link, first, began: link.env.now(), pause, short, futile, quiet, said: String::new() }
    }

    /// Waits until there is a connection again. False where nobody needs one any more.
    async fn end(mut self, dial: &Arc<dyn Dial>) -> bool {
        // Each of them may have lost calls.
        looked_after(self.link, self.link.end_round()).await;
        let useful = self.link.wait_from_loss();
        // A server that breaks each connection at the same request, and answers others, would be asked without a pause.
        let stuck = self.link.is_stuck() && self.short;
        self.futile = !useful || stuck || self.futile && self.link.is_idle();
        if !self.futile {
            *self.pause = PAUSE;
        } else {
            self.quiet = false;
            self.link.set_up(false);
            self.give_up_in_time();
            // Calls that come now find a server that is there soon, and within their time.
            if useful {
                let left = self.link.remaining().map_or(SHORT, |left| left / 4);
                *self.pause = (*self.pause).min(SHORT).min(left);
            }
            if self.wait().await {
                return false;
            }
        }
        loop {
            match self.attempt(dial).await {
                Ok(active) => {
                    self.ended(active);
                    return true;
                }
                Err(why) => self.failed(why),
            }
            if self.wait().await {
                return false;
            }
        }
    }

    async fn attempt(&self, dial: &Arc<dyn Dial>) -> Result<usize, String> {
        let patience = self.link.remaining().map_or(PATIENCE, |left| left.min(PATIENCE));
        let ConnectedRound { described, active } = connect(self.link, dial, patience).await?;
        if !mutant::on("nbd client: take a server that can do less") {
            check(&self.first, self.link.size(), self.link.settings.read_only, &described)?;
        }
        if mutant::on("nbd client: take requests before all is sent again") {
            self.link.open(active);
        }
        if !mutant::on("nbd client: send nothing again") {
            looked_after(self.link, replay(self.link)).await?;
        }
        self.link.set_size(described.size);
        // It may have taken the connection and closed it.
        match self.link.lost().filter(|reason| reason != RENEWED) {
            Some(reason) => Err(reason),
            None => Ok(active),
        }
    }

    fn failed(&mut self, why: String) {
        // An attempt that was given up.
        if self.link.is_leaving() {
            return;
        }
        if why != self.said {
            tracing::warn!("{}: {why}", self.link.settings.address);
            self.said = why;
        }
        self.quiet = false;
        self.link.set_up(false);
        self.give_up_in_time();
    }

    fn give_up_in_time(&self) {
        if self.link.fail_in_time() {
            tracing::error!(
                "{}: no answer within the origin's timeout: requests fail",
                self.link.settings.address
            );
        }
    }

    /// Waits before the next try, each time for longer, until calls begin to wait anew. True where nobody needs the server any more.
    async fn wait(&mut self) -> bool {
        let (link, since) = (self.link, self.link.waits_since());
        let pause = link.remaining().map_or(*self.pause, |left| left.min(*self.pause));
        let over = link.changes.until(|| (link.is_leaving() || link.waits_since() != since).then_some(()));
        let anew = within(&*link.env, pause.max(Duration::from_millis(1)), over).await.is_some();
        *self.pause = if anew { PAUSE } else { (*self.pause * 2).min(PAUSE_MAX) };
        link.is_leaving()
    }

    fn ended(self, active: usize) {
        if !self.futile {
            *self.pause = PAUSE;
        }
        let lasted = self.link.env.now().saturating_sub(self.began).as_secs_f64();
        if !self.quiet {
            tracing::warn!("{}: connected again after {lasted:.1} s", self.link.settings.address);
        }
        self.link.open(active);
    }
}

/// What may change of an export while it is in use: it may become larger, and able to do more. Without a flush at first, no write was kept
/// for one and none will be: a cache that it has now could lose them.
pub(super) fn check(
    first: &Described,
    size: u64,
    read_only: bool,
    described: &Described,
) -> Result<(), String> {
    if described.size < size {
        return Err(format!("the export has {} bytes now, it had {size}", described.size));
    }
    let (lost, gained) = (first.flags & !described.flags, described.flags & !first.flags);
    let narrower = described.block > first.block || described.payload_len_max < first.payload_len_max;
    if lost & USED != 0 || gained & flag::READ_ONLY != 0 || narrower {
        return Err("the export can do less than before".to_owned());
    }
    if gained & flag::SEND_FLUSH != 0 && !read_only {
        return Err(
            "the export has a volatile cache now, it had none: start Spillway again to accept it".to_owned()
        );
    }
    Ok(())
}

/// Has sessions look for requests without answer while `work` goes on.
async fn looked_after<T>(link: &Link, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Some(done) = within(&*link.env, LOOK.min(link.deadline() / LOOKS), work.as_mut()).await {
            return done;
        }
        link.wake_sessions();
    }
}

/// Sends again what the server may have lost. The error says why the connection did not last, or what the server refuses.
async fn replay(link: &Arc<Link>) -> Result<(), String> {
    let entries = link.journal.lock().entries();
    let mut bytes = 0;
    let mut calls = Vec::with_capacity(entries.len());
    let mut answers = Vec::with_capacity(entries.len());
    for (range, content) in entries {
        let (command, body) = match content {
            Content::Bytes(payload) => (cmd::WRITE, Body::Write(payload)),
            Content::Zeroes { .. } => (cmd::WRITE_ZEROES, Body::Nothing),
        };
        let (mut call, answer) = PendingCall::new(command, 0, range, body, JournalEffect::Nothing);
        call.replayed = true;
        bytes += range.len;
        calls.push(call);
        answers.push(answer);
    }
    link.replay(calls);
    // All of them: what is not answered could land after what is sent next.
    let mut result = Ok(());
    for answer in answers {
        result = result.and(answer.await.expect("a call that is dropped is answered").result);
    }
    match result {
        Ok(()) => {}
        // The session is about to say why it ended.
        Err(Kind::ShuttingDown) => return Err(link.changes.until(|| link.lost()).await),
        Err(_) if mutant::on("nbd client: go on without what is not written again") => {}
        // Until it can, nobody reads what was there before.
        Err(kind) => {
            if kind == Kind::Exhausted {
                link.refused();
            }
            return Err(format!("acknowledged data cannot be written again ({})", kind.errno_name()));
        }
    }
    if bytes > 0 {
        tracing::warn!(
            "{}: {} that no flush had covered were written again",
            link.settings.address,
            human(bytes)
        );
    }
    Ok(())
}
