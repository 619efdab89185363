//! A second device in the server of the one that a story is about: it has disks, clients and a model of its own, and the memory and the
//! time of the other. It is blank in each phase, and nothing fails on it: so what is wrong with it comes of the other, or of its own use.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::{Aligned, Budget, Error};
use spillway_sim::disk::{Disk, Plan};
use spillway_sim::workload::Step;
use spillway_sim::world::World;

use crate::run::visitor::{Site, Visitor};
use crate::stacks::room::MemoryRoom;
use crate::stacks::row::Row;
use crate::stories::growing::Growth;
use crate::stories::spill::Spill;

/// Bytes of memory for regions.
const REGIONS_BYTES: u64 = 64 << 20;

/// The second device.
#[derive(Clone)]
pub(super) struct Neighbour {
    row: &'static Row,
    disks: Vec<Arc<Disk>>,
    pub(super) visitor: Visitor,
}

impl Neighbour {
    /// Beside the device of `first`, of which it shares what a server has once.
    pub(super) fn new(row: &'static Row, first: &Visitor, seed: u64) -> Self {
        let world = &first.world;
        let power_up = |(number, medium)| {
            let block = row.disk_block(number);
            let disk = Disk::new(world.clone(), medium, block, Plan::default(), seed ^ 0x6265_7369_6465);
            Arc::new(disk.named("beside"))
        };
        let visitor = Visitor {
            site: Rc::default(),
            model: Rc::new(RefCell::new(row.model(false))),
            knobs: row.knobs,
            setups: &[],
            resets: Rc::default(),
            growth: Rc::new(Growth::new(None)),
            looks: [(0, row.sectors())].into(),
            faulty: false,
            reads_fail: false,
            commits: row.commits,
            durable: row.is_durable(),
            spill: row.spill.map(|bytes| Rc::new(Spill::new(bytes, false, false))),
            client: None,
            ..first.clone()
        };
        Self { row, disks: row.media().into_iter().enumerate().map(power_up).collect(), visitor }
    }

    /// Opens it. Fails as the other does.
    pub(super) async fn open(self, world: &Arc<World>, budget: &Arc<Budget>) -> Result<(), Error> {
        let stack = self.row.open(world, &self.disks, budget, REGIONS_BYTES, false, None).await?;
        let device = Aligned::charged(stack.device.clone(), budget)?;
        let room = self.row.exact.then(|| MemoryRoom::new(budget, false));
        if self.row.exact {
            self.visitor.others.join(&self.visitor.model);
        }
        assert!(self.visitor.site.set(Site { stack, device, room, network: None }).is_ok(), "opened once");
        self.visitor.join_spilling();
        self.visitor.growth.told.set(self.row.sectors());
        Ok(())
    }

    /// What its clients do, each of them.
    pub(super) fn visits(&self, steps: &[Step]) -> impl Iterator<Item = impl Future<Output = ()> + 'static> {
        let clients = steps.iter().map(|step| step.client).max().map_or(0, |last| last + 1);
        (0..clients).map(|client| {
            let steps: Vec<Step> = steps.iter().filter(|step| step.client == client).copied().collect();
            self.visitor.clone().visit(steps)
        })
    }

    pub(super) fn verify(&self) {
        if let Some(site) = self.visitor.site.get() {
            site.stack.device.verify();
        }
    }

    /// Tells its model what the last step did to its disks.
    pub(super) fn tell_what_changed(&self) {
        let mut model = self.visitor.model.borrow_mut();
        let changed: Vec<_> = self.disks.iter().flat_map(|disk| disk.take_changed()).collect();
        match &self.visitor.spill {
            Some(spill) if !changed.is_empty() => spill.note_write(&mut model),
            Some(_) => {}
            None => model.changes_below(&changed),
        }
    }
}
