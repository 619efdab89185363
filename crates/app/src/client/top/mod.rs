//! `spillway top`: the devices of all servers, what clients do with them, and what they hold, as it changes.
//!
//! It asks running servers over their control sockets, and changes nothing. A server that does not answer keeps no other from being shown.

mod figures;
#[cfg(feature = "top")]
mod live;
mod looks;
mod sample;
mod table;

use anyhow::Result;

use super::again::print_every;
use super::connection::Connection;
#[cfg(feature = "top")]
use super::screen::Screen;
use crate::cli::TopOptions;
use crate::runtime_folder::RuntimeFolder;
use figures::{figures, memories, sums};
use looks::{Looks, Picture};

/// See the head of this file.
pub(crate) fn top(folder: &RuntimeFolder, options: &TopOptions) -> Result<()> {
    if let Some(device) = &options.device {
        Connection::to_device(&folder.clone().of_device(device), device)?;
    }
    let mut looks = Looks::new(folder);
    #[cfg(feature = "top")]
    if Screen::is_possible() {
        return live::run(&mut looks, options);
    }
    print_every(options.interval, options.count, "\n", || Ok(text(looks.look()?, options)))
}

/// Sums, the servers' memory, and all columns of the table.
fn text(mut picture: Picture, options: &TopOptions) -> String {
    let is_wanted = |name: &String| options.device.as_ref().is_none_or(|device| device == name);
    picture.devices.retain(|device| is_wanted(&device.key.1));
    picture.servers.retain(|server| server.devices.iter().any(is_wanted));
    let mut rows: Vec<_> = picture.devices.iter().map(figures).collect();
    table::sort(&mut rows, options.sort, false);
    let heads = [sums(&picture, &rows).join("  "), format!("memory {}", memories(&picture).join("  "))];
    let lines = heads.into_iter().chain(table::lines(&rows, &table::COLUMNS));
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}
