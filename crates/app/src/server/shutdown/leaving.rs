//! What is in use when a server is to end: files below its mount, block devices, and swap.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use spillway_core::{Error, Kind};

use crate::server::Server;
use crate::server::device::Device;
use crate::server::device::occupants::{expect_detached, is_swap_of};
use crate::server::event::Event;
use crate::system::service;

/// Pause between two looks whether something is still in use, once a signal has asked the server to stop.
const FREE_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    pub(in crate::server) fn unmount(&mut self) -> Result<(), Error> {
        if let Some(mounting) = &self.mounting {
            mounting.end()?;
        }
        self.mounting = None;
        Ok(())
    }

    /// Unmounts once nothing below the mount is in use any more. A second signal ends the process; `signal` is the first, if there was one.
    pub(in crate::server) fn unmount_in_time(&mut self, signal: Option<i32>) {
        let mut said = false;
        while let Err(error) = self.unmount() {
            if error.kind != Kind::Busy {
                tracing::warn!("{}", error.message());
                // Dropped, it goes out of sight at least.
                self.mounting = None;
                return;
            }
            if !std::mem::replace(&mut said, true) {
                let (why, at_once) = (error.message(), at_once(signal));
                service::warn(&format!("{why}; the server ends after that, or at once by {at_once}"));
            }
            sleep(FREE_PAUSE);
        }
    }

    /// Unmounts; [`Kind::Busy`] while a device is attached.
    pub(in crate::server) fn close_files(&mut self) -> Result<(), Error> {
        self.devices.all().iter().try_for_each(|device| expect_detached(device, &self.builder.folder))?;
        self.unmount()
    }

    /// Takes the file of a device away, and the mount with the last one; [`Kind::Busy`] while it is open, or the device is attached.
    pub(in crate::server) fn close_file(&mut self, name: &str) -> Result<(), Error> {
        expect_detached(&*self.devices.find(name)?, &self.builder.folder)?;
        match &self.mounting {
            Some(mounting) if self.devices.all().len() > 1 => mounting.remove(name),
            _ => self.unmount(),
        }
    }

    /// Devices that the kernel swaps to.
    pub(in crate::server) fn swap(&self) -> Vec<Arc<Device>> {
        let folder = &self.builder.folder;
        self.devices.all().into_iter().filter(|device| is_swap_of(device, folder)).collect()
    }

    /// Puts the end off until the devices are detached that the kernel swaps to: what is swapped out would be lost. A second signal ends the
    /// process.
    pub(in crate::server) fn wait_for_swapoff(&mut self, signal: Option<i32>, swap: Vec<Arc<Device>>) {
        if std::mem::replace(&mut self.leaves, true) {
            return;
        }
        let names: Vec<_> = swap.iter().map(|device| device.name()).collect();
        let (names, at_once) = (names.join(", "), at_once(signal));
        service::waiting();
        service::warn(&format!(
            "{names}: the kernel swaps to it; the server ends after spillway detach, or at once by {at_once}"
        ));
        self.look_again(signal, swap);
    }

    /// Looks again after a pause whether it may leave.
    pub(in crate::server) fn look_again(&mut self, signal: Option<i32>, swap: Vec<Arc<Device>>) {
        assert!(!swap.is_empty(), "the end is put off for nothing");
        let (env, to_self) = (self.workers.env(), self.to_self.clone());
        self.spawn(move || async move {
            env.sleep(FREE_PAUSE).await;
            let _ = to_self.send(Event::Leave(signal, swap));
            Ok(())
        });
    }
}

/// What ends a server at once that waits, after the first `signal` or without one.
fn at_once(signal: Option<i32>) -> &'static str {
    if signal.is_some() { "a second signal" } else { "two signals" }
}
