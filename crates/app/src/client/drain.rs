//! `spillway drain`: starts to empty a write cache, shows how far that is, and waits for its end.

use std::io::{IsTerminal, stderr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spillway_export::control::{Operation, Reply};

use super::{Connection, print, unexpected};
use crate::exit::{Exit, Failure};
use crate::runtime_folder::RuntimeFolder;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(200);

const BAR: &str = "{bar:40} {pos} of {len} blocks copied, {elapsed} so far, {eta} left";

/// What the attribute `drain` says.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Running { left: u64, total: u64 },
    Complete,
    Ended(String),
}

impl Progress {
    fn of(text: &str) -> Self {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["complete"] => Progress::Complete,
            ["running", left, total] => match (left.parse(), total.parse()) {
                (Ok(left), Ok(total)) => Progress::Running { left, total },
                _ => Progress::Ended(text.to_owned()),
            },
            _ => Progress::Ended(text.to_owned()),
        }
    }
}

/// See the head of this file.
pub(crate) fn drain(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    let attribute = "drain".to_owned();
    let rows = match connection.ask(&Operation::Attributes { device: device.clone() })? {
        Reply::Attributes(rows) => rows,
        other => return Err(unexpected(&other)),
    };
    if rows.iter().all(|row| row.name != attribute) {
        let message = format!("device {device} has no write cache: there is nothing to drain");
        return Err(Failure::new(Exit::Missing, message).into());
    }
    let start = Operation::Set { device: device.clone(), attribute: attribute.clone(), value: "1".into() };
    match connection.ask(&start)? {
        Reply::Done => {}
        other => return Err(unexpected(&other)),
    }
    let bar = bar();
    loop {
        let get = Operation::Get { device: device.clone(), attribute: Some(attribute.clone()) };
        let values = match connection.ask(&get)? {
            Reply::Values(values) => values,
            other => return Err(unexpected(&other)),
        };
        match Progress::of(values.first().map_or("", |value| &value.value)) {
            Progress::Running { left, total } => {
                // Writes over cached blocks may make them more for a while.
                bar.set_length(total.max(left));
                bar.set_position(total.saturating_sub(left));
                sleep(EVERY);
            }
            Progress::Complete => {
                bar.finish_and_clear();
                return print(&format!("{device}: origin is complete, the cache may be removed\n"));
            }
            Progress::Ended(how) => {
                bar.abandon();
                let message = format!(
                    "the drain of {device} has ended: {how}; see spillway get {device} error, restart its server, drain again"
                );
                return Err(Failure::new(Exit::Failed, message).into());
            }
        }
    }
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
    fn what_the_attribute_says_is_understood() {
        assert_eq!(Progress::of("complete"), Progress::Complete);
        assert_eq!(Progress::of("running 3 10"), Progress::Running { left: 3, total: 10 });
        assert_eq!(Progress::of("failed EIO"), Progress::Ended("failed EIO".into()));
        assert_eq!(Progress::of("running x y"), Progress::Ended("running x y".into()));
        let bar = bar();
        bar.set_length(10);
        bar.set_position(7);
        assert_eq!(bar.position(), 7);
    }
}
