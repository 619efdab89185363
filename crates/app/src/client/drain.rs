//! `spillway drain`: starts to empty a write cache, once it has what a page cache over it had, shows how far that is, and waits for its end.
//! `spillway hand-over` does that, and stops the device: the cache stays empty in between.

use std::io::{IsTerminal, stderr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spillway_export::control::{Operation, Reply};

use super::connection::{Connection, print, unexpected};
use super::stop_one;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::RuntimeFolder;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(200);

const BAR: &str = "{bar:40} {pos} of {len} blocks copied, {elapsed} so far, {eta} left";

/// The attributes that say how far a drain is.
const STATE: &str = "drain_state";
const LEFT: &str = "drain_left";
const TOTAL: &str = "drain_total";

/// See the head of this file.
pub(crate) fn drain(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    if !has_cache(&mut connection, &device)? {
        let message = format!("device {device} has no write cache: there is nothing to drain");
        return Err(Failure::new(Exit::Missing, message).into());
    }
    run(connection, device)
}

/// See the head of this file.
pub(crate) fn hand_over(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    if has_cache(&mut connection, &device)? {
        run(connection, device.clone())?;
    }
    stop_one(folder, &device)
}

fn run(mut connection: Connection, device: String) -> Result<()> {
    begin(&mut connection, &device)?;
    let bar = bar();
    loop {
        let state = connection.get(&device, STATE)?;
        match state.as_str() {
            Some("running") => {
                show(&bar, &mut connection, &device)?;
                sleep(EVERY);
            }
            Some("complete") => {
                bar.finish_and_clear();
                return print(&format!("{device}: origin is complete, the cache may be removed\n"));
            }
            _ => {
                bar.abandon();
                let message = format!(
                    "the drain of {device} has ended ({state}): see spillway get {device} error, restart its server, drain again"
                );
                return Err(Failure::new(Exit::Failed, message).into());
            }
        }
    }
}

fn has_cache(connection: &mut Connection, device: &str) -> Result<bool> {
    match connection.ask(&Operation::Attributes { device: device.to_owned() })? {
        Reply::Attributes(rows) => Ok(rows.iter().any(|row| row.name == STATE)),
        other => Err(unexpected(&other)),
    }
}

fn begin(connection: &mut Connection, device: &str) -> Result<()> {
    let attribute = "drain".to_owned();
    match connection.ask(&Operation::Set { device: device.to_owned(), attribute, value: 1.into() })? {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn show(bar: &ProgressBar, connection: &mut Connection, device: &str) -> Result<()> {
    let mut number = |name: &str| -> Result<u64> { Ok(connection.get(device, name)?.as_u64().unwrap_or(0)) };
    let (left, total) = (number(LEFT)?, number(TOTAL)?);
    // Writes over cached blocks may make them more for a while.
    bar.set_length(total.max(left));
    bar.set_position(total.saturating_sub(left));
    Ok(())
}

/// A bar on a terminal, nothing elsewhere.
fn bar() -> ProgressBar {
    let target = match stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(BAR).expect("the template is sound");
    ProgressBar::with_draw_target(None, target).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_takes_what_it_is_given() {
        let bar = bar();
        bar.set_length(10);
        bar.set_position(7);
        assert_eq!(bar.position(), 7);
    }
}
