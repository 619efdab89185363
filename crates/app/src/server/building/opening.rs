//! What a stack may have of this process: its clock, its memory, its files.

use std::path::Path;
use std::sync::Arc;

use spillway_core::{Aligned, Answer, Budget, Env, Error, OpenStorage, Registry, Works};
use spillway_io::{Dialer, FileOptions, MmapRegions, Workers, memory_nodes, on_blocking_thread};
use spillway_layers::open_context::{BackingDevice, OpenContext};
use spillway_layers::stack::{Stack, StackConfig};

use crate::address::Scheme;
use crate::cli::distinct::InUse;
use crate::server::building::remote;
use crate::trust::Trusts;

/// Opens stacks.
#[derive(Clone)]
pub(crate) struct StackOpener {
    context: OpenContext,
    registry: Arc<Registry>,
    in_use: Arc<InUse>,
    dialer: Dialer,
    trusts: Trusts,
}

impl StackOpener {
    /// Stacks that run on `workers` and charge `budget`; `trusts` has the certificates of their origins.
    pub(crate) fn new(workers: &Workers, budget: &Arc<Budget>, trusts: Trusts) -> Self {
        let context = OpenContext {
            name: String::new(),
            env: workers.env(),
            regions: Arc::new(MmapRegions),
            budget: budget.clone(),
            memory_nodes: memory_nodes(),
            works: Works::default(),
            open_file: Arc::new(|backing| Answer::Done(open(backing))),
        };
        let registry = Registry::new(workers.env());
        Self { context, registry, in_use: Arc::default(), dialer: Dialer::new(workers), trusts }
    }

    /// What stacks run on.
    pub(crate) fn env(&self) -> Arc<dyn Env> {
        self.context.env.clone()
    }

    /// The long work of devices, also of those that begin or end.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The devices are files below `mount` from now on.
    pub(crate) fn mounted(&self, mount: &Path) {
        self.in_use.mounted(mount);
    }

    /// What the stack of device `name` may have, at any time.
    fn context(&self, name: &str) -> OpenContext {
        let (in_use, device) = (self.in_use.clone(), name.to_owned());
        // A lock is waited for, and a file system may take its time.
        let (dialer, trusts) = (self.dialer.clone(), self.trusts.clone());
        let (env, budget) = (self.context.env.clone(), self.context.budget.clone());
        let open_file = Arc::new(move |backing: &BackingDevice| {
            let (backing, env, budget) = (backing.clone(), env.clone(), budget.clone());
            match Scheme::of(&backing.path) {
                Scheme::Nbd => {
                    let (dialer, trusts) = (dialer.clone(), trusts.clone());
                    Answer::pending(remote::open_nbd(backing, dialer, trusts, env, budget))
                }
                Scheme::Rbd => Answer::pending(remote::open_rbd(backing, env, budget)),
                Scheme::Path => {
                    let (in_use, device) = (in_use.clone(), device.clone());
                    Answer::pending(on_blocking_thread(move || in_use.open(&device, &backing, open)))
                }
            }
        });
        let works = self.registry.of(name);
        OpenContext { name: name.to_owned(), open_file, works, ..self.context.clone() }
    }

    /// The memory of the server.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.context.budget
    }

    /// The stack of device `name` that is ready for clients, whose parts are called by their `names` in errors.
    pub(crate) async fn stack(
        &self,
        name: &str,
        config: &StackConfig,
        names: &'static [&'static str],
    ) -> Result<Stack, Error> {
        Stack::open(config, names, &self.context(name)).await
    }

    /// The device as exports see it; one that is shown as a file takes bytes.
    pub(crate) fn aligned(&self, stack: &Stack, as_file: bool) -> Result<Aligned, Error> {
        let open = if as_file { Aligned::to_bytes } else { Aligned::charged };
        open(stack.device.clone(), &self.context.budget)
    }
}

fn open(backing: &BackingDevice) -> Result<OpenStorage, Error> {
    let options = FileOptions {
        path: backing.path.clone(),
        create: backing.create,
        read_only: backing.read_only,
        mapped: backing.mapped,
        ..FileOptions::default()
    };
    spillway_io::open(&options)
}

#[cfg(test)]
mod tests {
    use spillway_io::WorkersOptions;

    use super::*;
    use crate::scratch::Scratch;

    /// The call alone opens nothing: nobody waits for what may take long.
    #[test]
    fn a_backing_device_is_opened_while_its_device_goes_on() {
        let scratch = Scratch::new("opening-later");
        let path = scratch.path().join("spill");
        let backing =
            BackingDevice { role: "spill", path, create: Some(1 << 20), ..BackingDevice::default() };
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let opener = StackOpener::new(&workers, &Budget::new(64 << 20), Trusts::default());
        let answer = (opener.context("x").open_file)(&backing);
        assert!(matches!(answer, Answer::Pending(_)) && !backing.path.exists());
        assert_eq!(spillway_io::block_on(answer).unwrap().storage.geometry().size, 1 << 20);
    }

    #[test]
    fn a_backing_device_that_may_be_made_is_made_and_another_is_not() {
        let scratch = Scratch::new("opening");
        let path = scratch.path().join("spill");
        let backing = BackingDevice { role: "spill", path, ..BackingDevice::default() };
        let refusal = open(&backing).err().expect("it does not exist");
        assert!(refusal.message().contains("does not exist") && !backing.path.exists(), "{refusal}");
        let made = open(&BackingDevice { create: Some(1 << 20), ..backing.clone() }).unwrap();
        assert_eq!(made.storage.geometry().size, 1 << 20);
        assert!(made.notes.iter().any(|note| note.contains("was created")), "{:?}", made.notes);
        drop(made);
        let found = open(&BackingDevice { create: Some(2 << 20), ..backing.clone() }).unwrap();
        assert_eq!(found.storage.geometry().size, 1 << 20, "it is opened as it is");
        drop(found);
        open(&backing).expect("it stays");
    }
}
