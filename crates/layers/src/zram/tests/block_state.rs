//! `block_state`: a line for each page, an excerpt at a time.

use super::on_disk::{config, medium, spilling};
use super::*;

const LINE_LEN: usize = 40;

/// Every line, and how many excerpts they came in.
fn lines(bench: &Bench) -> (Vec<String>, usize) {
    let (mut lines, mut excerpts, mut from) = (Vec::new(), 0, Some(0));
    while let Some(at) = from {
        let Excerpt { value, next } = bench.table.excerpt("block_state", at).unwrap();
        let Value::Text(text) = value else { panic!("{value:?} is no text") };
        assert!(text.len() <= 1024 * LINE_LEN, "{} bytes at once", text.len());
        assert!(next.is_none_or(|next| next > at && !text.is_empty()), "it goes on");
        lines.extend(text.lines().map(str::to_owned));
        (excerpts, from) = (excerpts + 1, next);
    }
    (lines, excerpts)
}

#[test]
fn a_line_says_what_the_kernels_says() {
    let recomp_algorithm = Some("algo=zstd".into());
    let device = spilling(Config { recomp_algorithm, bring_back: Promotion::Never, ..config() }, medium(100));
    let text = b"0123456789abcdef".repeat(PAGE / 16);
    let half = |slot: u64| page(&mut Random(slot), 50);
    device.write(0, &[7; PAGE]).unwrap();
    device.write(2, &text).unwrap();
    (3..=6).for_each(|slot| device.write(slot, &half(slot)).unwrap());
    (7..=8).for_each(|slot| device.write(slot, &page(&mut Random(slot), 100)).unwrap());
    device.world.advance(Duration::from_secs(100));
    device.set("recompress", "type=huge");
    device.set("idle", "all");
    device.set("writeback", "page_index=5 page_index=7");
    let start = device.zram.core.env.coarse_now().as_secs();
    device.read(4, 1);
    device.write(1, &half(1)).unwrap();
    device.settle();
    let (lines, excerpts) = lines(&device);
    assert_eq!(excerpts, 1);
    let expected = ["s.....", "......", "...i..", "...i..", "......", ".w....", "...i..", ".wh..n", "..hi.n"];
    for ((slot, line), flags) in (0..).zip(&lines).zip(expected) {
        assert_eq!(line.len() + 1, LINE_LEN, "{line:?}");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[0], words[2]), (slot.to_string().as_str(), flags), "{lines:#?}");
        let (seconds, micros) = words[1].split_once('.').unwrap();
        let late = seconds.parse::<u64>().unwrap() >= start;
        assert_eq!((late, micros), (slot == 1 || slot == 4, "000000"), "{line:?} since {start}");
    }
    assert_eq!(lines.len(), expected.len());
    device.set("recompress", "");
    let line = |slot: usize| self::lines(&device).0[slot].clone();
    assert!(line(3).ends_with("....r.") || line(3).ends_with(".....n"), "{:?}", line(3));
    assert!(line(5).ends_with(".w...."), "what is away is not recompressed");
}

#[test]
fn a_device_of_any_size_is_read_to_its_end_while_it_is_written() {
    let bench = bench(sized(1 << 40));
    let last = (1 << 28) - 1;
    // Whole pages of slots, parts of them, single ones far apart, and the last.
    let slots: Vec<u64> = (0..3000)
        .chain((5000..40_000).step_by(7))
        .chain((1 << 20..last).step_by(1 << 23))
        .chain([last])
        .collect();
    slots.iter().for_each(|&slot| bench.write(slot, &[1; PAGE]).unwrap());
    let (lines, excerpts) = lines(&bench);
    let numbers: Vec<u64> =
        lines.iter().map(|line| line[..12].trim_start().parse().expect("a number")).collect();
    assert_eq!(numbers, slots);
    assert!(excerpts > 8, "{excerpts} excerpts of {} lines", lines.len());
    let next = bench.table.excerpt("block_state", 0).unwrap().next.expect("there is more");
    bench.discard(0, last * PAGE as u64);
    let rest = bench.table.excerpt("block_state", next).unwrap();
    assert!(matches!(rest.value, Value::Text(text) if text.lines().count() == 1) && rest.next.is_none());
    bench.set("reset", "1");
    assert_eq!(bench.table.excerpt("block_state", 0).unwrap_err().kind, Kind::Invalid);
    bench.set("disksize", "1M");
    let nothing = Excerpt { value: Value::Text(String::new()), next: None };
    assert_eq!(
        [0, 255, 256, u64::MAX].map(|from| bench.table.excerpt("block_state", from)),
        [(); 4].map(|()| Ok(nothing.clone()))
    );
}
