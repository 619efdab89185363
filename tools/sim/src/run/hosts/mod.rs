//! Two hosts that have an image of a cluster one after the other, each with a cache device of its own.
//!
//! One has the image's lock and works, then the other takes the lock over, while the first is at work, cut off, without power, or done; and
//! either may come back. Each phase is about one of them ([`Turn`]). All of a story is one world: a host that has lost the
//! image goes on beside the other until its own next phase.
//!
//! There is a model for each host, and one for the image: a write to a host may show there until the cache is drained, and has to from then
//! on. Whenever the lock changes hands, the image's bytes are held against that, and what they are is what the next host begins with. What a
//! former holder changes later shows as what nobody may find. A cache that comes back after the other host has written is refused if it
//! holds anything; what it shows then is either the image alone, or with `recover` exactly what it had not written back, over the image.
//!
//! Nothing fails because something may: an error needs a cause that a client of the image, or a cache device, was told of
//! ([`Guest::may_fail`]). A call to a cache device that hangs is none.

mod ending;
mod guest;
mod host;
mod waiting;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::buffer::Buffers;
use spillway_core::{Env, Error, Kind};
use spillway_sim::image::Image;
use spillway_sim::model::{Loss, Violation};
use spillway_sim::workload::Step;
use spillway_sim::world::World;

use crate::stacks::row::Row;
use crate::stories::scenario::{Phase, Scenario};
use crate::stories::turn::{Ends, Refused, Turn};
use guest::{Guest, Shared, Site};
use host::{Host, How, Machine, Opening};

/// What a story came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tale {
    /// Times that a host took the lock, or lost its power.
    pub(crate) crashes: u64,
    /// Times that a host's link was cut.
    pub(crate) breaks: u64,
    pub(crate) answers: u64,
    /// A sum of all that happened.
    pub(crate) log: u64,
}

/// Runs the story of a row of hosts.
pub(crate) fn play(scenario: &Scenario) -> Result<Tale, Violation> {
    let buffers = Buffers::default();
    buffers.enter();
    let mut story = Story::new(scenario);
    for phase in &scenario.phases {
        story.live(phase)?;
    }
    let last = story.holder.unwrap_or(0);
    story.live(&Phase { turn: Turn { host: last, ..Turn::default() }, ..Phase::quiet() })?;
    let tale = story.leave()?;
    match buffers.bytes_held() {
        0 => Ok(tale),
        held => Err(Violation(format!("the hosts are gone, but {held} bytes are in buffers"))),
    }
}

struct Story {
    shared: Shared,
    image: Arc<Image>,
    hosts: [Host; 2],
    /// The host that opens its stack, or did so last.
    opening: usize,
    /// The host that has the lock, or had it last.
    holder: Option<usize>,
    /// Who had written to the image last when the lock was taken for the last time.
    last_writer: Option<u64>,
    seed: u64,
    crashes: u64,
}

impl Story {
    fn new(scenario: &Scenario) -> Self {
        let (row, world) = (scenario.row, World::new(scenario.seed));
        world.set_idle_workers(scenario.idle_workers);
        let image = Image::new(world.clone(), row.bytes, scenario.seed ^ 0x696d_6167_6500);
        let shared = Shared {
            row,
            cluster: image.clone(),
            image: Rc::new(RefCell::new(row.model(false).with_passing_failures())),
            reign: Rc::default(),
            numbers: Rc::default(),
            answers: Rc::default(),
            violation: Rc::default(),
            world,
        };
        let hosts = [Host::new(row), Host::new(row)];
        Self {
            shared,
            image,
            hosts,
            opening: 0,
            holder: None,
            last_writer: None,
            seed: scenario.seed,
            crashes: 0,
        }
    }

    fn row(&self) -> &'static Row {
        self.shared.row
    }

    fn machine(&self, host: usize) -> &Machine {
        self.hosts[host].machine.as_ref().expect("it has power")
    }

    fn guest(&self, host: usize) -> &Guest {
        self.machine(host).guest.as_ref().expect("its stack is open")
    }

    fn is_cut(&self, host: usize) -> bool {
        self.hosts[host].machine.as_ref().is_none_or(Machine::is_cut)
    }

    /// One phase. The power of its host may go at any time.
    fn live(&mut self, phase: &Phase) -> Result<(), Violation> {
        let host = phase.turn.host;
        tracing::debug!("{}", phase.turn);
        self.power_off(host)?;
        self.shared.world.set_order(phase.order);
        self.seed = self.seed.wrapping_add(0x9e37_79b9);
        let machine =
            Machine::start(self.row(), &self.shared.world, &self.hosts[host].medium, phase, self.seed);
        self.hosts[host].machine = Some(machine);
        if !self.open(phase.turn)? {
            return self.power_off(host);
        }
        self.work(phase)?;
        match phase.turn.ends {
            Ends::TakenOver if !self.is_cut(host) => Ok(()),
            Ends::HandOver | Ends::Stop if !self.is_cut(host) => self.hand_over(host, phase.turn.ends),
            _ => self.power_off(host),
        }
    }

    /// Opens the stack of a host that has power; false where it is not to come back, or its power goes.
    fn open(&mut self, turn: Turn) -> Result<bool, Violation> {
        let mut how = self.hosts[turn.host].began.unwrap_or(How::Open);
        if turn.asks && self.image.owner().is_some() && self.is_held() {
            let refused = self.try_open(turn.host, how, false)?;
            match refused {
                Some(Err(error)) if error.kind == Kind::Busy => {}
                Some(Err(error)) => return Err(Violation(format!("a locked image is refused with {error}"))),
                Some(Ok(_)) => return Err(Violation("two hosts have the image at once".into())),
                None => return Ok(false),
            }
        }
        loop {
            let begun = self.shared.world.now();
            let opened = self.try_open(turn.host, how, true)?;
            let behind = self.hosts[turn.host].is_behind(self.last_writer);
            let error = match opened {
                None => return Ok(false),
                Some(Ok(site)) => {
                    self.begin_reign(turn.host, site, how, behind)?;
                    return Ok(true);
                }
                Some(Err(error)) => error,
            };
            if how != How::Open || !behind || !error.message().contains("another host") {
                if self.may_fail_to_open(turn.host, error.kind, begun) {
                    return Ok(false);
                }
                return Err(Violation(format!("the stack cannot be opened for no reason: {error}")));
            }
            how = match turn.refused {
                Refused::GiveUp => return Ok(false),
                Refused::Recover => How::Recover,
                Refused::Destroy => How::Destroy,
            };
            self.hosts[turn.host].began = Some(how);
        }
    }

    /// Whether there is a reason for a stack whose opening began at `begun` to fail so.
    fn may_fail_to_open(&self, host: usize, kind: Kind, begun: Duration) -> bool {
        let machine = self.machine(host);
        match kind.passes() {
            true => self.image.has_failed_since(machine.client(), kind, begun),
            false => machine.disk.answers().has_error_since(None, begun),
        }
    }

    /// Whether the client that has the lock has power.
    fn is_held(&self) -> bool {
        let owner = self.image.owner();
        self.hosts
            .iter()
            .filter_map(|host| host.machine.as_ref())
            .any(|machine| owner == Some(machine.client()))
    }

    /// What comes of opening the stack; nothing where the power goes.
    fn try_open(
        &mut self,
        host: usize,
        how: How,
        take_over: bool,
    ) -> Result<Option<Result<Site, Error>>, Violation> {
        self.opening = host;
        let (row, held) = (self.row(), self.is_held());
        let opening: Opening = self.machine(host).open(row, &self.image, how, take_over, held);
        self.until(|story| opening.get().is_some() || story.is_cut(host))?;
        let client = self.machine(host).client();
        if !self.hosts[host].clients.contains(&client) {
            self.hosts[host].clients.push(client);
        }
        if self.is_cut(host) {
            return Ok(None);
        }
        Ok(Rc::into_inner(opening).and_then(|opening| opening.into_inner()))
    }

    /// A host has the device: what it may show follows from what it has kept, and from the image.
    fn begin_reign(&mut self, number: usize, site: Site, how: How, behind: bool) -> Result<(), Violation> {
        let (shared, host) = (self.shared.clone(), &mut self.hosts[number]);
        let (mut own, mut image) = (host.kept.model.borrow_mut(), shared.image.borrow_mut());
        let mut sectors = host.kept.sectors.borrow_mut();
        let keeps = shared.row.cache.is_some()
            && host.known
            && how != How::Destroy
            && (how == How::Recover || !behind);
        match (keeps, &host.had) {
            (true, Some(had)) if behind => own.lie_over(&image, had, &sectors),
            (true, _) => {}
            (false, _) => {
                *own = image.clone();
                sectors.clear();
            }
        }
        image.admit(&own, &sectors);
        drop((own, sectors));
        (host.had, host.began, host.known) = (None, None, true);
        host.seen = self.last_writer;
        let machine = host.machine.as_mut().expect("it has power");
        machine.guest = Some(Guest {
            kept: host.kept.clone(),
            site: Rc::new(site),
            reign: shared.reign.get(),
            client: machine.client(),
            disk: machine.disk.clone(),
            shared: shared.clone(),
        });
        Ok(())
    }

    /// What clients of the host do, up to the moment at which it is to lose the device, or to their end.
    fn work(&mut self, phase: &Phase) -> Result<(), Violation> {
        let Turn { host, ends, after, cut_off, full, .. } = phase.turn;
        let (guest, knobs) = (self.guest(host).clone(), phase.knobs.clone());
        let set = self.machine(host).spawn(async move {
            for (attribute, value) in knobs {
                guest.set(attribute, value).await;
            }
        });
        self.until(|story| set.get() || story.is_cut(host))?;
        self.look(host)?;
        if self.is_cut(host) {
            return Ok(());
        }
        let clients = phase.steps.iter().map(|step| step.client).max().map_or(0, |last| last + 1);
        let visits: Vec<_> = (0..clients)
            .map(|client| {
                let steps: Vec<Step> =
                    phase.steps.iter().filter(|step| step.client == client).copied().collect();
                self.machine(host).spawn(self.guest(host).clone().visit(steps))
            })
            .collect();
        let (link, image) = (self.machine(host).link.clone(), self.image.clone());
        if let Some(times) = cut_off {
            let world = self.shared.world.clone();
            self.for_a_while(times, move |cut| {
                world.count_breaks(cut.into());
                link.set_cut(cut);
            });
        }
        if let Some(times) = full {
            self.for_a_while(times, move |full| image.set_full(full));
        }
        if matches!(ends, Ends::Cut | Ends::TakenOver) {
            let due = self.shared.world.now() + Duration::from_micros(after);
            let alarm = self.sleep_until(due);
            return self.until(|story| alarm.get() || story.is_cut(host));
        }
        self.until(|story| visits.iter().all(|visit| visit.get()) || story.is_cut(host))?;
        self.look(host)
    }

    fn look(&mut self, host: usize) -> Result<(), Violation> {
        if self.is_cut(host) {
            return Ok(());
        }
        let look = self.machine(host).spawn(self.guest(host).clone().look_at_everything());
        self.until(|story| look.get() || story.is_cut(host))
    }

    /// Sets something from some microseconds on, for so many.
    fn for_a_while(&self, (at, len): (u64, u64), set: impl Fn(bool) + 'static) {
        let world = self.shared.world.clone();
        self.shared.world.spawn_here(Box::pin(async move {
            world.sleep(Duration::from_micros(at)).await;
            set(true);
            world.sleep(Duration::from_micros(len)).await;
            set(false);
        }));
    }

    fn sleep_until(&self, due: Duration) -> Rc<Cell<bool>> {
        let (world, over) = (self.shared.world.clone(), Rc::new(Cell::new(false)));
        let seen = over.clone();
        self.shared.world.spawn_here(Box::pin(async move {
            world.sleep(due.saturating_sub(world.now())).await;
            seen.set(true);
        }));
        over
    }

    /// Takes the power of a host that has some.
    fn power_off(&mut self, host: usize) -> Result<(), Violation> {
        let Some(machine) = &mut self.hosts[host].machine else { return Ok(()) };
        machine.cut();
        self.until(|story| story.machine(host).is_off())?;
        let machine = self.hosts[host].machine.take().expect("it had power");
        let (medium, kept) = machine.survivors();
        let loss = if kept { Loss::Some } else { Loss::All };
        self.hosts[host].kept.model.borrow_mut().crash(loss);
        self.hosts[host].medium = medium;
        self.crashes += 1;
        match machine.budget.used() {
            0 => Ok(()),
            used => Err(Violation(format!("a host is gone, but {used} bytes are still charged"))),
        }
    }

    /// Where the last step has taken the lock: what the image holds now is what its new holder begins with.
    fn notice_reign(&mut self) -> Result<(), Violation> {
        let reigns = self.image.reigns();
        if reigns == self.shared.reign.get() {
            return Ok(());
        }
        assert_eq!(reigns, self.shared.reign.get() + 1, "a step takes a lock once");
        self.crashes += 1;
        self.shared.reign.set(reigns);
        self.last_writer = self.image.last_signature();
        let before = self.holder.replace(self.opening).filter(|before| *before != self.opening);
        if let Some(before) = before {
            self.hosts[before].had.get_or_insert_with(|| self.image.content());
        }
        self.find_image()
    }

    fn find_image(&self) -> Result<(), Violation> {
        let found = self.shared.image.borrow_mut().change_hands(&self.image.content());
        found.map_err(|Violation(words)| Violation(format!("on the image, as it changes hands: {words}")))
    }

    fn leave(mut self) -> Result<Tale, Violation> {
        self.power_off(0)?;
        self.power_off(1)?;
        let Self { shared, crashes, .. } = self;
        shared.world.power_off();
        let (breaks, answers, log) = (shared.world.breaks(), shared.answers.get(), shared.world.log());
        Ok(Tale { crashes, breaks, answers, log })
    }
}
