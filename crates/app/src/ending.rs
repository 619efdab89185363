//! How devices and endpoints end. Each is waited for: a device that goes while others stay has a thread for that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use spillway_core::{Env, Error, Kind, Seam, Suspend};
use spillway_export::Reserved;
use spillway_io::{Limits, Serving};

use crate::background::{in_background, wait_for};
use crate::beside::Beside;
use crate::device::Device;
use crate::event::Promise;

/// A device that was taken out of a server which goes on.
pub(crate) struct Leaving {
    pub(crate) device: Arc<Device>,
    /// Its own socket, where it has one.
    pub(crate) own: Option<Serving>,
    pub(crate) control: Option<Serving>,
    pub(crate) env: Arc<dyn Env>,
    /// Where the server learns that its last flush failed.
    pub(crate) failures: Sender<Error>,
}

impl Leaving {
    /// Ends the device, and answers with how its last flush went. Its control socket goes last, so that the answer still travels over it.
    pub(crate) fn stop(self, promise: Promise) {
        let (control, flushed) = self.end();
        promise.keep(flushed);
        control.into_iter().for_each(Serving::stop);
    }

    /// The same for a device that is `unused` until then, with its name and its memory free again before the answer, which does not travel
    /// over its control socket.
    pub(crate) fn remove(self, unused: Reserved, promise: Promise) {
        let (control, flushed) = self.end();
        control.into_iter().for_each(Serving::stop);
        drop(unused);
        promise.keep(flushed);
    }

    /// Ends the device once changes of it that are under way are made, but not its control socket.
    fn end(self) -> (Option<Serving>, Result<(), Error>) {
        wind_down(&self.device);
        let device = self.device.clone();
        wait_for(&in_background(&*self.env, move || async move { device.changes.end().await }));
        match self.own {
            Some(serving) => serving.stop(),
            None => see_out(&self.device, &*self.env),
        }
        let flushed = ended(&end(&self.device, &*self.env));
        if let Err(error) = &flushed {
            // The server waits for this thread before it ends.
            let _ = self.failures.send(error.clone());
        }
        (self.control, flushed)
    }
}

/// Has commands of the device that take long end early.
pub(crate) fn wind_down(device: &Device) {
    device.stack.parts.iter().filter_map(|part| part.suspend.as_ref()).for_each(|part| part.wind_down());
}

/// Has the clients of one device leave a socket that goes on serving others.
fn see_out(device: &Device, env: &dyn Env) {
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

/// Stops all at once, as far as there are threads for it: each may have to wait for its clients.
pub(crate) fn stop_all(services: impl Iterator<Item = Serving>) {
    let mut beside = Beside::default();
    for serving in services {
        match beside.thread() {
            Ok(thread) => thread.run(move || serving.stop()),
            Err(_) => serving.stop(),
        }
    }
    beside.join();
}

/// Begins the end of a device that has no clients any more: once the change under way is made, its layers end, and what was acknowledged
/// becomes as durable as the device can make it. Devices end side by side; see [`ended`].
pub(crate) fn end(device: &Arc<Device>, env: &dyn Env) -> Receiver<Result<(), Error>> {
    let device = device.clone();
    in_background(env, move || async move {
        device.changes.end().await;
        flush(&device).await
    })
}

/// How the end of a device went.
pub(crate) fn ended(end: &Receiver<Result<(), Error>>) -> Result<(), Error> {
    wait_for(end).unwrap_or_else(|| Err(Error::new(Kind::ShuttingDown, "the server ends")))
}

/// Has every layer end, from the top down, and makes what was acknowledged as durable as the device can, whatever of this fails: a layer
/// that cannot write costs those below nothing. The log has every error; the first is returned.
async fn flush(device: &Device) -> Result<(), Error> {
    let logged = |error: &Error| tracing::error!("{}", error.message());
    let mut flushed = Ok(());
    for part in device.stack.parts.iter().filter_map(|part| part.suspend.as_ref()) {
        flushed = flushed.and(suspend(device.name(), &**part).await.inspect_err(logged));
    }
    flushed.and(last_flush(device).await.inspect_err(logged))
}

async fn suspend(name: &str, part: &dyn Suspend) -> Result<(), Error> {
    part.suspend().await.map_err(|error| {
        Error::new(error.kind, format!("device {name} did not end as asked for: {}", error.message()))
    })
}

async fn last_flush(device: &Device) -> Result<(), Error> {
    if device.export.geometry().size == 0 {
        return Ok(());
    }
    let name = device.name();
    Seam::new(Arc::clone(&device.stack.device)).flush().await.map_err(|kind| {
        Error::new(kind, format!("the last flush of device {name} failed: acknowledged writes may be lost"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::device::Changes;
    use crate::event::{Event, request_change};
    use crate::opening::StackOpener;
    use spillway_core::sync::{AtomicBool, Mutex, Ordering};
    use spillway_core::{Budget, LocalFuture, contract};
    use spillway_export::Export;
    use spillway_export::control::Change;
    use spillway_io::{Workers, WorkersOptions};
    use spillway_layers::null;
    use spillway_layers::stack::{OriginConfig, StackConfig};
    use std::sync::mpsc;

    fn device(workers: &Workers) -> Arc<Device> {
        let opening = StackOpener::new(workers, &Budget::new(Budget::UNLIMITED));
        let origin = OriginConfig::Null(null::Config { size: 1 << 20 });
        let stack = opening.stack("d", &StackConfig { origin, layers: Vec::new() }, &[]).unwrap();
        let export = Arc::new(Export::new("a", opening.aligned(&stack, false).unwrap()).unwrap());
        let address = Address::Unix("/s".into());
        Arc::new(Device { stack, changes: Changes::new(), export, address, file: None, _connections: None })
    }

    /// Ends with an error, and notes that it did.
    struct Failing(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Suspend for Failing {
        fn suspend(&self) -> LocalFuture<Result<(), Error>> {
            self.1.lock().push(self.0);
            Box::pin(std::future::ready(Err(Error::new(Kind::Io, self.0))))
        }
    }

    #[test]
    fn every_layer_ends_whatever_another_came_to() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let names = Arc::new(Mutex::new(Vec::new()));
        let mut device = device(&workers);
        let parts = &mut Arc::get_mut(&mut device).unwrap().stack.parts;
        for (part, name) in parts.iter_mut().zip(["upper", "lower"]) {
            part.suspend = Some(Arc::new(Failing(name, names.clone())));
        }
        let error = ended(&end(&device, &*workers.env())).expect_err("both have failed");
        assert!(error.message().contains("upper"), "{error}");
        assert_eq!(*names.lock(), ["upper", "lower"]);
    }

    #[test]
    fn a_device_ends_once_the_change_under_way_is_made_and_is_not_changed_after_that() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let (device, env) = (device(&workers), workers.env());
        let (sender, events) = mpsc::channel();
        let answer = request_change(&sender, Change::Stop { device: "a".into() });
        let Ok(Event::Change(_, promise)) = events.recv() else { panic!("it was sent") };
        let (failures, _) = mpsc::channel();
        let leaving =
            Leaving { device: device.clone(), own: None, control: None, env: env.clone(), failures };
        let (made, begun) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let (finish, finished) = futures_channel::oneshot::channel::<()>();
        let (changed, noted) = (device.clone(), made.clone());
        let change = in_background(&*env, move || async move {
            let change = async {
                begun.0.send(()).unwrap();
                finished.await.unwrap();
                noted.store(true, Ordering::SeqCst);
                Ok(())
            };
            changed.changes.make(change).await
        });
        begun.1.recv().unwrap();
        let end = std::thread::spawn(move || {
            leaving.stop(promise);
            assert!(made.load(Ordering::SeqCst), "it ended in the middle of a change");
        });
        // The end has every chance to go ahead.
        (0..1000).for_each(|_| std::thread::yield_now());
        finish.send(()).unwrap();
        end.join().unwrap();
        assert_eq!((wait_for(&change), contract::block_on(answer)), (Some(Ok(())), Ok(())));
        let late = contract::block_on(device.changes.make(async { Ok(()) }));
        assert_eq!(late.map_err(|error| error.kind), Err(Kind::ShuttingDown));
    }
}
