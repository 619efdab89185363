//! What a stack may have of this process: its clock, its memory, its files.

use std::sync::Arc;

use spillway_core::sync::Mutex;
use spillway_core::{Aligned, Budget, Error, Storage};
use spillway_io::{DriverChoice, FileOptions, MmapRegions, Workers};
use spillway_layers::stack::{FileConfig, Stack, StackConfig, Surroundings};

use crate::background::wait_in_background;
use crate::server_options::Driver;

/// Builds stacks.
pub(crate) struct Opening {
    around: Surroundings,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Opening {
    /// Stacks that run on `workers` and charge `budget`.
    pub(crate) fn new(workers: &Workers, budget: &Arc<Budget>) -> Self {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let around = Surroundings {
            env: workers.env(),
            regions: Arc::new(MmapRegions),
            budget: budget.clone(),
            open_file: Box::new({
                let notes = notes.clone();
                move |config| open(config, &notes)
            }),
        };
        Self { around, notes }
    }

    /// A stack that is ready for clients, and what is worth knowing about what was opened.
    pub(crate) fn stack(&self, config: &StackConfig) -> Result<(Stack, Vec<String>), Error> {
        let stack = Stack::build(config, &self.around)?;
        let mut notes = std::mem::take(&mut *self.notes.lock());
        notes.dedup();
        for part in stack.lifecycles() {
            notes.push(wait_in_background(&*self.around.env, move || part.open())?);
        }
        Ok((stack, notes))
    }

    /// The device as exports see it.
    pub(crate) fn aligned(&self, stack: &Stack) -> Result<Aligned, Error> {
        Aligned::charged(stack.device.clone(), &self.around.budget)
    }
}

/// The driver as the io crate calls it.
pub(crate) fn driver_choice(driver: Driver) -> DriverChoice {
    match driver {
        Driver::Auto => DriverChoice::Auto,
        Driver::IoUring => DriverChoice::IoUring,
        Driver::Poll => DriverChoice::Poll,
    }
}

fn open(config: &FileConfig, notes: &Mutex<Vec<String>>) -> Result<Arc<dyn Storage>, Error> {
    let options = FileOptions {
        path: config.path.clone(),
        read_only: config.read_only,
        mapped: config.mapped,
        ..FileOptions::default()
    };
    let opened = spillway_io::open(&options)?;
    notes.lock().extend(opened.notes);
    Ok(opened.storage)
}
