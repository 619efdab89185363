//! The workers' runtime on the calling thread: for tests, benches and tools.

use std::cell::OnceCell;
use std::future::Future;

use compio::runtime::Runtime;
use spillway_core::Error;

use crate::runtime::blocking::Blocking;
use crate::runtime::driver::{Driver, DriverChoice, RuntimeRecipe, kind_of};
use crate::runtime::env::yield_now;
use crate::runtime::pool::{close, detached};

/// A runtime of the thread that made it.
pub struct Local {
    // Taken only by drop.
    runtime: Option<Runtime>,
    driver: Driver,
    blocking: Blocking,
}

impl Local {
    /// A runtime with the chosen driver. [`Kind::NotSupported`](spillway_core::Kind::NotSupported) or what else the system says where
    /// it cannot be had.
    pub fn new(choice: DriverChoice) -> Result<Self, Error> {
        let recipe = RuntimeRecipe::choose(choice)?;
        let runtime = recipe.runtime(16).map_err(|error| {
            Error::new(
                kind_of(&error),
                format!("the {} driver could not be set up: {error}", recipe.driver.name()),
            )
        })?;
        let blocking = Blocking::default();
        recipe.start(&blocking)?;
        Ok(Self { runtime: Some(runtime), driver: recipe.driver, blocking })
    }

    /// What carries the I/O.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Runs `future` to its end. Other tasks of the runtime run only meanwhile. Panics inside another runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(Runtime::try_with_current(|_| ()).is_err(), "block_on inside a task would stop its thread");
        self.blocking.enter();
        self.runtime.as_ref().expect("present until drop").block_on(future)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let runtime = self.runtime.take().expect("dropped once");
        // What the kernel has in flight is finished first, as on a worker.
        if !std::thread::panicking() {
            runtime.block_on(async {
                while detached() > 0 {
                    yield_now().await;
                }
            });
        }
        close(runtime);
    }
}

thread_local! {
    static LOCAL: OnceCell<Local> = const { OnceCell::new() };
}

/// Runs `future` to its end on a runtime that this thread keeps for the next call.
pub fn block_on<F: Future>(future: F) -> F::Output {
    LOCAL.with(|local| {
        let local =
            local.get_or_init(|| Local::new(DriverChoice::Auto).expect("polling is always to be had"));
        local.block_on(future)
    })
}
