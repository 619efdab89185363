//! One connection, whatever is spoken over it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::exchange::Exchange;
use spillway_core::random::Random;
use spillway_core::{Reply, Request};
use spillway_export::fuse::{self as mounts, FuseSession, Tree};
use spillway_export::nbd::{Config, NbdSession};
use spillway_export::{Export, Exports};
use spillway_sim::stream::SessionOutcome;
use spillway_sim::world::World;

use super::fuse::{Gone, Served, Unasked};
use super::way::{Protocol, Way};
use super::{fuse, nbd, vhost};

/// Name of the export.
pub(super) const NAME: &str = "device";

/// One connection.
pub(crate) enum Link {
    /// A stream.
    Nbd(nbd::Link),
    /// A mount, and what it shows.
    Fuse(fuse::Link, Arc<Tree>),
    /// A machine.
    Vhost(Rc<vhost::Link>),
}

impl Link {
    /// Connects to a server of `exports`, or mounts the one of them that is `export`, or gives it to a machine.
    pub(super) fn new(
        world: &Arc<World>,
        way: &Way,
        exports: &Arc<Exports>,
        export: &Arc<Export>,
        seed: u64,
    ) -> Self {
        let Way { held_bytes_max, shape, .. } = *way;
        match way.protocol {
            Protocol::Nbd { style, requests_max } => {
                let config = Config { requests_max, held_bytes_max, ..Config::default() };
                let session = Box::new(NbdSession::new(exports.clone(), config));
                Link::Nbd(nbd::Link::new(world, session, style, shape, seed))
            }
            Protocol::Fuse { readers, habits } => {
                let tree = Arc::new(Tree::new(0, 0, 0));
                tree.add(export.clone(), Vec::new(), Arc::new(Unasked));
                let config = mounts::Config { held_bytes_max };
                let reader = |_| Box::new(FuseSession::new(tree.clone(), config)) as Box<dyn Exchange>;
                let served = Served { name: NAME, size: export.geometry().size };
                let readers = (0..readers).map(reader).collect();
                Link::Fuse(fuse::Link::new(world, readers, habits, shape.pace, served, seed), tree)
            }
            Protocol::Vhost { habits } => {
                Link::Vhost(vhost::Link::new(world, export, habits, shape.pace, held_bytes_max, seed))
            }
        }
    }

    /// Waits until its sessions are gone: none of its requests is carried out after that. Whether the server has ended it in order.
    pub(super) async fn over(&self) -> bool {
        match self {
            Link::Nbd(link) => link.over().await == SessionOutcome::Finished,
            Link::Fuse(link, tree) => {
                link.over().await;
                let open: Vec<_> = tree.volumes().iter().flat_map(|volume| volume.openers()).collect();
                assert!(open.is_empty(), "open in a mount that is gone: {open:?}");
                false
            }
            Link::Vhost(link) => link.over().await,
        }
    }

    /// Ends it in the midst of whatever is asked.
    pub(super) fn close(&self) {
        match self {
            Link::Nbd(link) => link.close(),
            Link::Fuse(link, _) => link.abort(),
            Link::Vhost(link) => link.close(),
        }
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Link::Nbd(link) => link.is_closed(),
            Link::Fuse(link, _) => link.is_aborted(),
            Link::Vhost(link) => link.is_closed(),
        }
    }

    /// The mount, where it is one.
    pub(super) fn mount(&self) -> Option<&fuse::Link> {
        match self {
            Link::Fuse(link, _) => Some(link),
            _ => None,
        }
    }

    /// The server stops, which a session over a stream hears of its export.
    pub(super) fn stop(&self) {
        if let Link::Vhost(link) = self {
            link.stop();
        }
    }

    /// Whether both sides have come as far as requests.
    pub(super) fn is_greeted(&self) -> bool {
        match self {
            Link::Nbd(link) => link.is_ready(),
            Link::Fuse(..) => true,
            Link::Vhost(link) => link.is_ready(),
        }
    }

    /// It is ready for requests; false where it has ended before.
    pub(super) async fn ready(&self) -> bool {
        match self {
            Link::Nbd(link) => link.ready(NAME).await,
            Link::Fuse(link, _) => link.ready().await,
            Link::Vhost(link) => link.ready().await,
        }
    }

    /// Takes what the server sends, until its sessions are gone.
    pub(super) async fn listen(&self) {
        match self {
            Link::Nbd(link) => link.listen().await,
            Link::Fuse(link, _) => link.listen().await,
            Link::Vhost(link) => link.listen().await,
        }
    }

    /// Carries out `request` of `client` with this payload.
    pub(super) async fn ask(&self, client: u8, request: Request, payload: Vec<u8>) -> Result<Reply, Gone> {
        match self {
            Link::Nbd(link) => link.ask(request, payload).await.ok_or(Gone::Connection),
            Link::Fuse(link, _) => link.ask(client, request, payload).await,
            Link::Vhost(link) => link.ask(request, payload).await.ok_or(Gone::Connection),
        }
    }

    /// `client` waits no longer. Whether its connection goes on, and it still hears what becomes of its request.
    pub(super) fn withdraw(&self, client: u8, random: &RefCell<Random>) -> bool {
        match self {
            Link::Fuse(link, _) if random.borrow_mut().below(3) > 0 => {
                link.kill(client);
                true
            }
            Link::Vhost(link) if random.borrow_mut().below(3) > 0 => {
                link.break_off();
                true
            }
            _ => false,
        }
    }
}
