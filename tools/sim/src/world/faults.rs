//! What goes wrong with a disk, by what the layers above promise:
//!
//! - Calls fail and stop short, sectors become unreadable, and a disk loses its power alone: everywhere. Reads fail only for a reason,
//!   and what they show is true.
//! - What was not synced is lost, reported once: on the disk of a file, and on a write cache's origin. On the cache's own disk a block
//!   would go back to what it held before, which is another block's data: without checksums nothing can tell.
//! - Rot and misdirected writes: on the same disks, for the same reason. Neither has checksums, so that what was stored wrong is read
//!   as it is; but it stays where it is, and goes when it is written again.
//! - All of this on a disk that is spilled to, and reads that come from the wrong place: there each page has a checksum, and is read as it was written or not at all.
//! - A flush is ignored: on the disk of a file, on a write cache's origin and on a disk that is spilled to. What it was to cover may be
//!   gone after a power cut, and then alone.
//! - A call hangs for long, or until the power goes: everywhere. Nothing fails for it.
//! - A disk keeps its power when the machine stops, as after a kill, where nothing is planned to fail on it: what a failed sync
//!   forgot is lost without a word to the next process, whatever it does.

use spillway_core::Kind;
use spillway_core::random::Random;
use spillway_sim::disk::{Call, Effect, Fault, Latency, Plan};

/// `plain`: the device's sectors are the disk's, so that what is lost or stored wrong is known by its sector.
pub(crate) fn draw_plan(random: &mut Random, faulty: bool, steps: u64, plain: bool) -> Plan {
    let count = if faulty { random.below(4) } else { 0 };
    let faults: Vec<Fault> = (0..count).map(|_| draw_fault(random, plain)).collect();
    let cut_at = (random.below(4) > 0).then(|| random.below(8 + steps * 4));
    let latency = Latency::ALL[random.below(Latency::ALL.len() as u64) as usize];
    let alone = faulty && cut_at.is_some() && random.below(4) == 0;
    let buffered =
        faults.iter().any(|fault: &Fault| fault.effect == Effect::Lose && fault.nth.is_multiple_of(2));
    Plan { faults, cut_at, alone, buffered, latency }
}

/// Whether a read of the disk may fail.
pub(crate) fn fails_reads(plan: &Plan) -> bool {
    let fails = |fault: &Fault| {
        matches!(fault.call, None | Some(Call::Read))
            && matches!(fault.effect, Effect::Fail(_) | Effect::GoBad)
    };
    plan.alone || plan.faults.iter().any(fails)
}

fn draw_fault(random: &mut Random, plain: bool) -> Fault {
    let effect = [
        Effect::Fail(Kind::Io),
        Effect::Fail(Kind::NoSpace),
        Effect::Fail(Kind::NotSupported),
        Effect::Short,
        Effect::GoBad,
        Effect::Lose,
        Effect::Rot,
        Effect::Misdirect,
    ][random.below(if plain { 8 } else { 5 }) as usize];
    let call = match effect {
        Effect::GoBad => Some(Call::Read),
        Effect::Rot | Effect::Misdirect => Some(Call::Write),
        _ => [None, Some(Call::Read), Some(Call::Write), Some(Call::Sync), Some(Call::Zero)]
            [random.below(5) as usize],
    };
    let sticky = random.below(3) == 0 && !matches!(effect, Effect::Lose | Effect::GoBad);
    let nth_max = [4, 20][random.below(2) as usize];
    Fault { call, nth: random.below(nth_max), effect, sticky }
}
