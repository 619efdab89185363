//! `spillway top` on a terminal: pages that keys move through.

mod columns;
mod detail;
mod flows;
mod grid;
mod pages;
mod view;

use std::time::Instant;

use anyhow::Result;

use crate::cli::TopOptions;
use crate::client::screen::{Screen, ScreenEvent};
use crate::client::top::looks::Looks;
use view::View;

/// Looks and shows what was found, until a key ends it.
pub(super) fn run(looks: &mut Looks, options: &TopOptions) -> Result<()> {
    let mut screen = Screen::open()?;
    let mut view = View::new(options);
    for number in 1.. {
        let due = Instant::now() + options.interval;
        view.update(looks.look()?);
        loop {
            screen.show(|width, height| view.compose(width, height))?;
            match screen.wait(due)? {
                ScreenEvent::Due => break,
                ScreenEvent::Key(key) if !view.press(key) => return Ok(()),
                ScreenEvent::Key(_) | ScreenEvent::Redraw => {}
            }
        }
        if options.count == Some(number) {
            break;
        }
    }
    Ok(())
}
