//! What a device promises of whole blocks: holes, and contents after a crash.

use spillway_core::SECTOR;

use super::{Allowed, Said, Sector, Version, Violation};
use crate::payload;

/// What is said of a block, sector by sector from `first` on: a hole only where all of it may have been freed, and data only where
/// some of it may not.
pub(super) fn judge_hole(first: u64, allowed: &[Allowed], said: &[Said]) -> Result<(), Violation> {
    let may_be =
        |allowed: &Allowed, wanted| allowed.holes.iter().any(|hole| hole.is_none_or(|hole| hole == wanted));
    let hole = said[0].hole;
    let right = match hole {
        true => allowed.iter().all(|allowed| may_be(allowed, true)),
        false => allowed.iter().any(|allowed| may_be(allowed, false)),
    };
    if right && said.iter().all(|sector| sector.hole == hole) {
        return Ok(());
    }
    let words = if hole { "a hole, and holds something" } else { "no hole, and was freed" };
    Err(Violation(format!("the block at sector {first} is said to be {words}")))
}

/// Whether a block, read from sector `first` on, is what it was at one moment.
pub(super) fn judge_block(first: u64, sectors: &[&Sector], bytes: &[u8]) -> Result<(), Violation> {
    let seen: Vec<Vec<&Version>> = (first..)
        .zip(sectors)
        .zip(bytes.chunks_exact(SECTOR as usize))
        .map(|((at, sector), chunk)| {
            let holds = |version: &&Version| version.wrong || payload::holds(version.value, at, chunk);
            sector.now.iter().filter(holds).collect()
        })
        .collect();
    // A sector that holds what it must not is told of elsewhere.
    if seen.iter().any(Vec::is_empty) {
        return Ok(());
    }
    for (at, new) in (first..).zip(&seen) {
        for ((other, old), sector) in (first..).zip(&seen).zip(sectors) {
            if new.iter().all(|new| old.iter().all(|old| missed(new, old, sector).is_some())) {
                let between = missed(new[0], old[0], sector).expect("just found");
                let [new, old, between] =
                    [new[0], old[0], between].map(|version| payload::name(version.value));
                return Err(Violation(format!(
                    "a mixture: sector {at} holds {new}, and sector {other} of its block {old}, which {between} had replaced"
                )));
            }
        }
    }
    Ok(())
}

/// The version of a sector that was there before `new`, or with it, and after `old` had ended.
fn missed<'a>(new: &Version, old: &Version, sector: &'a Sector) -> Option<&'a Version> {
    let between = |version: &&Version| {
        let before_new = version.write == new.write || version.ended_before(new.begin);
        version.done && before_new && old.ended_before(version.begin)
    };
    sector.now.iter().filter(|_| old.done).find(between)
}
