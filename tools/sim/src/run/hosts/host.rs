//! A host: its cache device, and its machine while that has power.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{Aligned, Answer, Budget, Env, Error, OpenStorage, Works};
use spillway_layers::open_context::{BackingDevice, OpenContext};
use spillway_layers::stack::{LayerConfig, OriginConfig, Stack, StackConfig};
use spillway_layers::write_cache::OldCache;
use spillway_sim::disk::{Disk, Medium};
use spillway_sim::image::{Client, Image, Link};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

use super::guest::{Guest, Kept, Site};
use crate::stacks::row::{CACHE, Row};
use crate::stories::scenario::Phase;
use crate::world::power::{Power, Powered};

/// Bytes of memory for regions.
const REGIONS_BYTES: u64 = 64 << 20;

/// How a cache is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Open,
    /// What it holds counts.
    Recover,
    /// What it holds is destroyed.
    Destroy,
}

/// A host, from the begin of a story to its end.
pub(super) struct Host {
    /// What its cache device holds while nothing uses it.
    pub(super) medium: Medium,
    pub(super) kept: Kept,
    /// What the image held when this host last had it, where another has had it since.
    pub(super) had: Option<Vec<u8>>,
    /// Clients of the image that it has been.
    pub(super) clients: Vec<u64>,
    /// Who had written to the image last when it last opened its cache.
    pub(super) seen: Option<u64>,
    /// Its cache was opened before.
    pub(super) known: bool,
    /// How it was opening its cache when the power went.
    pub(super) began: Option<How>,
    pub(super) machine: Option<Machine>,
}

impl Host {
    pub(super) fn new(row: &Row) -> Self {
        Self {
            medium: Medium::new(row.cache.map_or(0, |cache| cache.bytes)),
            kept: Kept {
                model: Rc::new(RefCell::new(row.model(false).with_passing_failures())),
                sectors: Rc::default(),
            },
            had: None,
            clients: Vec::new(),
            seen: None,
            known: false,
            began: None,
            machine: None,
        }
    }

    /// Whether `last`, who has written to the image last, is another host that has done so since.
    pub(super) fn is_behind(&self, last: Option<u64>) -> bool {
        last != self.seen && !last.is_some_and(|client| self.clients.contains(&client))
    }
}

/// A host that has power.
pub(super) struct Machine {
    power: Arc<Power>,
    env: Arc<dyn Env>,
    pub(super) link: Arc<Link>,
    pub(super) disk: Arc<Disk>,
    pub(super) budget: Arc<Budget>,
    /// Its client of the image; 0 before it is one.
    client: Arc<AtomicU64>,
    /// Its cache device keeps its power when it stops.
    keeps: bool,
    pub(super) guest: Option<Guest>,
}

/// What comes of opening a stack.
pub(super) type Opening = Rc<OnceCell<Result<Site, Error>>>;

impl Machine {
    /// Has power from now on.
    pub(super) fn start(row: &Row, world: &Arc<World>, medium: &Medium, phase: &Phase, seed: u64) -> Self {
        let (power, plan) = (Power::on(world), phase.cache_plan.clone());
        let disk = Disk::new(
            world.clone(),
            medium.clone(),
            row.disk_block(usize::from(row.cache.is_some())),
            plan,
            seed,
        );
        Self {
            env: Arc::new(Powered(power.clone())),
            power,
            link: Arc::new(Link::new(phase.turn.patience.map(Duration::from_micros))),
            disk: Arc::new(disk.named("cache").tearing(row.tear(1, false))),
            budget: row.budget(false),
            client: Arc::default(),
            keeps: phase.keeps_power[1],
            guest: None,
        }
    }

    /// Opens the stack.
    pub(super) fn open(
        &self,
        row: &Row,
        image: &Arc<Image>,
        how: How,
        take_over: bool,
        held: bool,
    ) -> Opening {
        let opening = Opening::default();
        let (config, context, told) =
            (config(row, how, take_over), self.context(image, held), opening.clone());
        self.env.spawn_here(Box::pin(async move {
            let opened = Stack::open(&config, &[], &context).await.and_then(|stack| {
                let device = Aligned::charged(stack.device.clone(), &context.budget)?;
                Ok(Site { stack, device })
            });
            assert!(told.set(opened).is_ok(), "it is opened once");
        }));
        opening
    }

    fn context(&self, image: &Arc<Image>, held: bool) -> OpenContext {
        let (image, link, disk) = (image.clone(), self.link.clone(), self.disk.clone());
        let number = self.client.clone();
        OpenContext {
            name: "device".into(),
            env: self.env.clone(),
            regions: Arc::new(VecRegions::new(REGIONS_BYTES)),
            budget: self.budget.clone(),
            memory_nodes: Vec::new(),
            works: Works::default(),
            open_file: Arc::new(move |backing: &BackingDevice| {
                if backing.role == CACHE {
                    return Answer::Done(Ok(OpenStorage { storage: disk.clone(), notes: Vec::new() }));
                }
                let (image, link, number) = (image.clone(), link.clone(), number.clone());
                let take_over = backing.remote.ceph.take_over;
                Answer::pending(async move {
                    let client = Client::open(&image, &link, take_over, held).await?;
                    number.store(client.number(), Ordering::SeqCst);
                    Ok(OpenStorage { storage: Arc::new(client), notes: Vec::new() })
                })
            }),
        }
    }

    pub(super) fn client(&self) -> u64 {
        self.client.load(Ordering::SeqCst)
    }

    /// Runs a task as long as it has power.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) -> Rc<Cell<bool>> {
        let done: Rc<Cell<bool>> = Rc::default();
        let seen = done.clone();
        self.env.spawn_here(Box::pin(async move {
            task.await;
            seen.set(true);
        }));
        done
    }

    /// Whether its cache device has lost its power, and so the host.
    pub(super) fn is_cut(&self) -> bool {
        self.disk.is_cut()
    }

    /// Its power goes. Its tasks end with the next steps.
    pub(super) fn cut(&mut self) {
        self.disk.cut();
        self.guest = None;
        self.power.switch_off();
    }

    /// Whether its tasks have ended.
    pub(super) fn is_off(&self) -> bool {
        self.power.is_idle()
    }

    /// What is left on its cache device, and whether that has kept its power.
    pub(super) fn survivors(&self) -> (Medium, bool) {
        assert!(self.is_off(), "its tasks have ended");
        (if self.keeps { self.disk.kept() } else { self.disk.survivors() }, self.keeps)
    }
}

/// The configuration of the row, for a host that opens it so.
fn config(row: &Row, how: How, take_over: bool) -> StackConfig {
    let mut config = (row.config)(row.bytes);
    if let OriginConfig::File(file) = &mut config.origin {
        file.take_over = take_over;
    }
    for layer in &mut config.layers {
        if let LayerConfig::WriteCache(cache) = layer {
            cache.old_cache = match how {
                How::Open => OldCache::Open,
                How::Recover => OldCache::Recover,
                How::Destroy => OldCache::Create,
            };
            cache.force = how == How::Destroy;
        }
    }
    config
}
