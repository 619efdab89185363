//! Memory that the cache takes beside what it caches: what the allocator counts, and what is charged.

use anyhow::Result;
use spillway_core::random::Random;
use spillway_core::{Attributes, IoBuf, Request};
use spillway_layers::page_cache::{Config, attributes};

use super::store::{Rig, one_worker};
use crate::allocator;
use crate::rounds::{Rounds, drawn_order};
use crate::table::{once, row};

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
    let order = drawn_order((2 * CACHE / folio) as usize, Random(folio).draw() as usize);
    let workers = one_worker()?;
    allocator::count_from_now();
    let rig = Rig::on(workers, &config, 2 * CACHE, 4096, 1 << 30)?;
    let len = folio.min(64 << 10);
    rig.on_worker(move |seam| async move {
        let mut buf = IoBuf::new(len as usize);
        for number in order {
            for at in (0..folio).step_by(len as usize) {
                let reply = seam.submit(Request::read(number as u64 * folio + at, buf)).await;
                assert_eq!(reply.result, Ok(()));
                buf = reply.buf;
            }
        }
    });
    // Frames that reclaim keeps free are not beside the content.
    let content = attributes(rig.cache.clone()).get("folio_bytes_max")?.number().unwrap_or(0);
    let charged = rig.budget.used() - content;
    let counted = allocator::counted() - content as i64;
    Ok([counted as f64, charged as f64].map(|bytes| 100.0 * bytes / content as f64))
}
