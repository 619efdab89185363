//! How devices and endpoints end, from the server's own thread, which waits for each.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use spillway_core::{Env, Error, Kind, Place, Request, Seam};
use spillway_io::{Limits, Serving};

use crate::devices::Device;

/// Has the clients of one device leave a socket that goes on serving others.
pub(crate) fn see_out(device: &Device, env: &dyn Env) {
    let export = &device.export;
    export.close();
    let patient = export.clone();
    let left = in_background(env, move || async move { patient.emptied().await });
    if left.recv_timeout(Limits::default().stop_grace).is_err() {
        let (name, clients) = (device.name(), export.clients());
        tracing::warn!("device {name}: {clients} clients do not leave and are disconnected");
        export.hang_up();
        wait_for(&left);
    }
}

/// Stops all at once: each may have to wait for its clients.
pub(crate) fn stop_all(services: impl Iterator<Item = Serving>) {
    let threads: Vec<_> = services.map(|serving| thread::spawn(move || serving.stop())).collect();
    for thread in threads {
        thread.join().expect("stopping does not panic");
    }
}

/// Has the layers end, and makes everything that was acknowledged as durable as the device can.
pub(crate) fn flush(device: &Device, env: &dyn Env) -> Result<(), Error> {
    if device.export.geometry().size == 0 {
        return Ok(());
    }
    let name = device.name();
    for part in device.stack.lifecycles().into_iter().rev() {
        wait_in_background(env, move || part.suspend()).map_err(|error| {
            Error::new(error.kind, format!("device {name} did not end as asked for: {}", error.message()))
        })?;
    }
    let below = Seam::new(Arc::clone(&device.stack.device));
    let answer = in_background(env, move || async move { below.submit(Request::flush()).await.result });
    wait_for(&answer).unwrap_or(Err(Kind::ShuttingDown)).map_err(|kind| {
        Error::new(kind, format!("the last flush of device {name} failed: acknowledged writes may be lost"))
    })
}

/// Runs `work` on the background thread, and waits for it.
pub(crate) fn wait_in_background<T, F>(
    env: &dyn Env,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + 'static,
{
    let outcome = wait_for(&in_background(env, work));
    outcome.unwrap_or_else(|| Err(Error::new(Kind::ShuttingDown, "the server ends")))
}

/// Runs `work` on the background thread; its outcome arrives once.
fn in_background<T, F>(env: &dyn Env, work: impl FnOnce() -> F + Send + 'static) -> Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, outcome) = mpsc::channel();
    let task = move || async move {
        // Nobody waits any more only where the server's thread is gone.
        let _ = sender.send(work().await);
    };
    env.spawn(Place::Background, Box::new(move || Box::pin(task())));
    outcome
}

/// The outcome, or `None` where the background thread dropped the work.
fn wait_for<T>(outcome: &Receiver<T>) -> Option<T> {
    outcome.recv().ok()
}
