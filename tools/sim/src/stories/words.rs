//! A story's steps and disks in words.

use std::fmt;

use spillway_sim::disk::Plan;
use spillway_sim::workload::{Act, Step};

use crate::stacks::row::Row;

/// Writes what goes wrong with a disk.
pub(crate) fn write_plan(f: &mut fmt::Formatter<'_>, disk: &str, plan: &Plan) -> fmt::Result {
    let cut = plan.cut_at.map_or("when all is done".into(), |at| format!("at boundary {at}"));
    let alone = if plan.alone { ", for this disk alone" } else { "" };
    writeln!(f, "  {disk}: latency {:?}, power cut {cut}{alone}", plan.latency)?;
    for fault in &plan.faults {
        let which = fault.call.map_or("call".into(), |call| format!("{call:?}"));
        let often = if fault.sticky { "from then on" } else { "once" };
        writeln!(f, "  {disk}: fault at {which} {}: {:?}, {often}", fault.nth, fault.effect)?;
    }
    Ok(())
}

/// A step in words.
pub(crate) fn words(step: &Step, row: &Row) -> String {
    let range = format!("{}+{}", step.first, step.count);
    let act = match step.act {
        Act::Read => format!("read {range}"),
        Act::Extents => format!("extents of {range}"),
        Act::Write { look, fua } => format!("write {range}, look {look}{}", if fua { ", FUA" } else { "" }),
        Act::Zero { fua, no_hole } => {
            let (fua, no_hole) = (if fua { ", FUA" } else { "" }, if no_hole { ", NO_HOLE" } else { "" });
            format!("zero {range}{fua}{no_hole}")
        }
        Act::Discard { fua } => format!("discard {range}{}", if fua { ", FUA" } else { "" }),
        Act::Flush => "flush".into(),
        Act::Set { attribute, value } => {
            let (name, values) = row.knobs[attribute];
            format!("set {name} {}", values[value])
        }
        Act::Reset { setup } => {
            let set = row.setups[setup].iter().map(|(name, value)| format!(", {name} {value}"));
            format!("reset{}", set.collect::<String>())
        }
        Act::Grow { sectors } => format!("grow to {sectors} sectors"),
        Act::Sleep(micros) => format!("sleep {micros} us"),
    };
    let dropped = step.withdraw.map_or(String::new(), |polls| format!(", dropped after {polls} polls"));
    format!("client {}: {act}{dropped}", step.client)
}
