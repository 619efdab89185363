//! How devices and endpoints end. Each is waited for: a device that goes while others stay has a thread for that.

use std::sync::Arc;
use std::thread;

use spillway_core::{Env, Error, Kind, Request, Seam};
use spillway_io::{Limits, Serving};

use crate::background::{in_background, wait_for, wait_in_background};
use crate::device::Device;
use crate::event::Promise;

/// A device that was taken out of a server which goes on.
pub(crate) struct Leaving {
    pub(crate) device: Arc<Device>,
    /// Its own socket, where it has one.
    pub(crate) own: Option<Serving>,
    pub(crate) control: Option<Serving>,
    pub(crate) env: Arc<dyn Env>,
}

impl Leaving {
    /// Ends the device, and answers with how its last flush went. Its control socket goes last, so that the answer still travels over it.
    pub(crate) fn end(self, promise: Promise) {
        match self.own {
            Some(serving) => serving.stop(),
            None => see_out(&self.device, &*self.env),
        }
        promise.keep(flush(&self.device, &*self.env));
        if let Some(control) = self.control {
            control.stop();
        }
    }
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
    for part in device.stack.parts.iter().filter_map(|part| part.suspend.clone()) {
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
