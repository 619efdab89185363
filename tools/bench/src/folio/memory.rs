//! Memory that the cache takes beside what it caches: what the allocator counts and what is mapped, and what is charged.

use std::sync::Arc;

use anyhow::Result;
use spillway_core::random::Random;
use spillway_core::{Attributes, IoBuf, Request};
use spillway_layers::page_cache::{Config, attributes};

use super::store::{Rig, one_worker};
use crate::measure::allocator;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{once, row};

const CACHE: u64 = 256 << 20;

/// Folio sizes, and the percentage that is wanted.
const FOLIOS: [(u64, Option<f64>); 4] =
    [(4 << 10, Some(2.0)), (16 << 10, None), (64 << 10, None), (2 << 20, Some(0.1))];

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (folio, wanted) in FOLIOS {
        let [counted, charged] = beside(folio)?;
        let [counted, charged] = [counted, charged].map(|percent| once(percent, 2).unit(" %"));
        let counted = match wanted {
            Some(wanted) => counted.at_most(wanted),
            None => counted,
        };
        rows.push(row![format!("{} KiB", folio >> 10), counted, charged]);
    }
    let title = "Memory beside the content of a full cache of 256 MiB, without buffers as they are not in use, and charged with them";
    rounds.show_once(title, &["folio", "taken", "charged"], rows)
}

/// Percent of the content, counted and charged, once every folio is in use and was read in a drawn order.
fn beside(folio: u64) -> Result<[f64; 2]> {
    let config = Config {
        page_cache_bytes_max: Some(CACHE),
        folio_size: Some(folio),
        readahead_bytes_max: Some(0),
        ..Config::default()
    };
    // Here to the end: what was allocated before may not be freed while it is counted.
    let order: Arc<[usize]> = drawn_order((2 * CACHE / folio) as usize, Random(folio).draw() as usize).into();
    let workers = one_worker()?;
    allocator::count_from_now();
    let rig = Rig::on(workers, &config, 2 * CACHE, 4096, 1 << 30)?;
    let (len, drawn) = (folio.min(64 << 10), order.clone());
    rig.on_worker(move |seam| async move {
        let mut buf = IoBuf::new(len as usize);
        for &number in &*drawn {
            for at in (0..folio).step_by(len as usize) {
                let reply = seam.submit(Request::read(number as u64 * folio + at, buf)).await;
                assert_eq!(reply.result, Ok(()));
                buf = reply.buf;
            }
        }
    });
    let most = attributes(rig.cache.clone()).get("folio_bytes_max")?.number().unwrap_or(0);
    let (allocated, mapped) = (allocator::counted(), rig.mapped.bytes());
    // Frames that reclaim keeps free are not beside the content; a last slab of such may not have been made.
    let content = most.min(mapped);
    let taken = allocated + (mapped - content) as i64;
    let charged = rig.budget.used() - most;
    Ok([100.0 * taken as f64 / content as f64, 100.0 * charged as f64 / most as f64])
}
