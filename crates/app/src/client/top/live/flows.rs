//! What flows between the parts of a device, as far as their counters tell.

use crate::client::top::sample::{Sample, number};

/// The parts of a device from the top to the origin.
pub(super) fn parts(sample: &Sample) -> Vec<&str> {
    let mut parts: Vec<_> = sample.attributes.iter().map(|row| row.part.as_str()).collect();
    parts.dedup();
    parts
}

/// The kind of a part: of several of one kind all but the first have a number.
pub(super) fn kind_of(part: &str) -> &str {
    part.trim_end_matches(|last: char| last.is_ascii_digit())
}

/// Bytes that a part has written to what is below it, and read from there, as far as its counters tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flow {
    pub(super) written: f64,
    pub(super) read: f64,
}

/// What has flowed from a part to the one below it; of a RAM disk to its spill file. None of parts that count nothing of it.
pub(super) fn flow(sample: &Sample, part: &str) -> Option<Flow> {
    let of = |name: &str| sample.number_of(part, name);
    match kind_of(part) {
        "write_cache" => {
            let written = of("writes_around")? + of("writeback_ios")? * of("blocks_per_writeback_io")?;
            let (block, read) = (of("block_size")?, of("reads")? - of("read_hits")?);
            Some(Flow { written: written * block, read: read * block })
        }
        "page_cache" => {
            let read = of("read_bytes")? - of("read_hit_bytes")? + of("readahead_bytes")?;
            Some(Flow { written: of("written_back_bytes")?, read })
        }
        "zram" if sample.row.spill_size.is_some() => {
            let pages = sample.every("bd_stat").find(|(row, _)| row.part == part)?.1.value.get("bd_reads")?;
            Some(Flow { written: of("spill_written_bytes")?, read: number(pages)? * 4096.0 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::top::sample::tests::sample;
    use serde_json::{Value as Json, json};
    use spillway_export::control::DeviceRow;

    #[test]
    fn parts_keep_their_order() {
        let values = [("b", "x", json!(1)), ("b", "y", json!(1)), ("a", "z", json!(1))];
        assert_eq!(parts(&sample(0, DeviceRow::default(), &values)), ["b", "a"]);
    }

    #[test]
    fn flows_are_what_a_part_wrote_and_read_below_it() {
        let of = |part: &str, row: DeviceRow, values: &[(&str, Json)]| {
            let values: Vec<_> = values.iter().map(|(name, value)| (part, *name, value.clone())).collect();
            flow(&sample(0, row, &values), part)
        };
        let cache = [
            ("writes_around", json!(10)),
            ("writeback_ios", json!(4)),
            ("blocks_per_writeback_io", json!(2.5)),
            ("block_size", json!(4096)),
            ("reads", json!(9)),
            ("read_hits", json!(6)),
        ];
        let blocks = |written, read| Some(Flow { written: written * 4096.0, read: read * 4096.0 });
        assert_eq!(of("write_cache2", DeviceRow::default(), &cache), blocks(20.0, 3.0));
        let cache = [
            ("read_bytes", json!(100)),
            ("read_hit_bytes", json!(40)),
            ("readahead_bytes", json!(5)),
            ("written_back_bytes", json!(8)),
        ];
        assert_eq!(of("page_cache", DeviceRow::default(), &cache), Some(Flow { written: 8.0, read: 65.0 }));
        let zram = [("spill_written_bytes", json!(8192)), ("bd_stat", json!({"bd_reads": 3}))];
        let spills = DeviceRow { spill_size: Some(1 << 20), ..Default::default() };
        assert_eq!(of("zram", spills, &zram), blocks(2.0, 3.0));
        assert_eq!(of("zram", DeviceRow::default(), &zram), None, "without a spill file nothing flows");
        assert_eq!(of("file", DeviceRow::default(), &[]), None);
    }
}
