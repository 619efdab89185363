//! What a page cache has dirty in each zone while a run is under way; and the chart of that.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use spillway_core::{Attributes, Value};

use crate::measure::svg::{Chart, Line};

/// Between two looks.
const STEP: Duration = Duration::from_millis(125);

/// Columns of the attribute `zones`.
const BLOCKS: usize = 1;
const DIRTY: usize = 4;
const MOVING: usize = 5;

/// What was found at one time.
pub(super) struct Look {
    seconds: f64,
    /// Of each zone, the percentage of blocks that are dirty or being written back.
    unsaved: Vec<f64>,
}

/// Carries out `work`, and looks at a page cache meanwhile.
pub(super) fn watch<T>(cache: &impl Attributes, work: impl FnOnce() -> T) -> Result<(T, Vec<Look>)> {
    let (over, ended) = mpsc::channel();
    thread::scope(|scope| {
        let looks = scope.spawn(move || looks(cache, &ended));
        let done = work();
        drop(over);
        Ok((done, looks.join().expect("looking does not panic")?))
    })
}

fn looks(cache: &impl Attributes, ended: &Receiver<()>) -> Result<Vec<Look>> {
    let (begun, mut looks) = (Instant::now(), Vec::new());
    loop {
        looks.push(look(cache, begun)?);
        if ended.recv_timeout(STEP) == Err(RecvTimeoutError::Disconnected) {
            return Ok(looks);
        }
    }
}

fn look(cache: &impl Attributes, begun: Instant) -> Result<Look> {
    let Value::Rows(zones) = cache.get("zones")? else { bail!("zones are rows") };
    let number = |value: &Value| value.number().context("a number").map(|number| number as f64);
    let percent = |zone: &Vec<Value>| -> Result<f64> {
        let unsaved = number(&zone[DIRTY])? + number(&zone[MOVING])?;
        Ok(100.0 * unsaved / number(&zone[BLOCKS])?)
    };
    Ok(Look {
        seconds: begun.elapsed().as_secs_f64(),
        unsaved: zones.iter().map(percent).collect::<Result<_>>()?,
    })
}

/// What is unsaved of each of `zones`, which has a name, a place among the zones, and a colour.
pub(super) fn chart(title: &str, looks: &[Look], zones: &[(&str, usize, &str)]) -> Chart {
    let zone = |&(name, zone, colour): &(&str, usize, &str)| Line {
        name: format!("{name} unsaved"),
        colour: colour.into(),
        points: looks.iter().map(|look| (look.seconds, look.unsaved[zone])).collect(),
    };
    Chart {
        title: title.into(),
        x: "seconds".into(),
        y: "percent".into(),
        y_max: 100.0,
        lines: zones.iter().map(zone).collect(),
    }
}
