//! `spillway attach --reconnect`: a device of the kernel's NBD client gets a connection to a server that was started again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use spillway_core::size::human;
use spillway_export::control::{DeviceRow, Operation};
use spillway_io::nbd_device::NbdDevice;

use super::link::{self, KernelLink};
use super::row::expect_root;
use crate::client::connection::change;
use crate::client::listing::expect_row;
use crate::exit::{Exit, Failure, code_of};
use crate::runtime_folder::RuntimeFolder;

/// See the head of this file. Where the block device is; other clients are refused from now on unless it is `shared`.
pub(super) fn reconnect(
    folder: &RuntimeFolder,
    name: &str,
    timeout: Option<Duration>,
    shared: bool,
) -> Result<PathBuf> {
    let row = expect_row(folder, name)?;
    let devices = NbdDevice::all_of(&folder.backend(name));
    let Some(device) = devices.first() else {
        let text =
            format!("{name} is not attached by the kernel's NBD client: spillway attach {name} attaches it");
        return Err(Failure::new(Exit::Missing, text).into());
    };
    expect_root("attach")?;
    let uri = link::uri_of(&row)?;
    let path = device.path().display().to_string();
    let attached = device.size().with_context(|| path.clone())?;
    expect_content(&row, &path, attached)?;
    // While the connection works, the device has a client, and is kept for no other.
    let keep = Operation::Keep { device: name.to_owned(), shared };
    match change(folder, name, &keep) {
        Err(busy) if shared && code_of(&busy) == Exit::Busy => {}
        kept => kept.with_context(|| format!("{path} is not reconnected"))?,
    }
    let link = KernelLink::open(folder, &uri)?;
    let reconnected = device.reconnect(link.transmitting(timeout));
    reconnected.with_context(|| format!("{path} cannot be reconnected"))?;
    Ok(device.path().to_owned())
}

/// Refuses a server that has visibly lost the content of the block device at `path`, of `attached` bytes.
fn expect_content(row: &DeviceRow, path: &str, attached: u64) -> Result<()> {
    let (name, size) = (&row.name, row.disksize);
    let remedy = format!("spillway detach {name}, then attach it anew");
    let (now, before) = (human(size), human(attached));
    ensure!(size >= attached, "{name}: smaller ({now}) than {path} ({before}): {remedy}");
    let is_empty = row.data == Some(0) && row.spilled.unwrap_or(0) == 0;
    ensure!(!is_empty, "{name}: holds nothing, so the content of {path} is lost: {remedy}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_the_content_is_refused() {
        let row = |data, spilled| DeviceRow { name: "d".into(), data, spilled, ..DeviceRow::default() };
        let refusal = |row: DeviceRow, disksize| {
            let row = DeviceRow { disksize, ..row };
            expect_content(&row, "/dev/nbd0", 4 << 20).err().map(|error| error.to_string())
        };
        for held in [row(Some(4096), None), row(Some(0), Some(4096)), row(None, None)] {
            assert_eq!(refusal(held.clone(), 4 << 20), None);
            assert_eq!(refusal(held.clone(), 8 << 20), None);
            assert!(refusal(held, 2 << 20).expect("smaller").contains("smaller (2M) than /dev/nbd0 (4M)"));
        }
        for empty in [row(Some(0), None), row(Some(0), Some(0))] {
            assert!(refusal(empty, 4 << 20).expect("empty").contains("holds nothing"));
        }
    }
}
