//! Reads a spill file as docs/spill.md describes it, and nothing of the layer that wrote it.

#[path = "../../../crates/layers/tests/spill_reader/reader.rs"]
mod reader;

use std::collections::BTreeMap;

/// The live pages of a file that was stopped, by slot, decompressed.
pub(crate) fn pages(file: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let found = reader::read(file).expect("it was stopped");
    assert_eq!((found.name.as_str(), found.slots), ("ram0", 1 << 32));
    let mut pages = BTreeMap::new();
    for page in found.live {
        let bytes = match page.codec {
            13 => page.bytes,
            codec => {
                assert_eq!(found.codecs[usize::from(codec)], "lz4", "the codec of slot {}", page.slot);
                unlz4(&page.bytes)
            }
        };
        assert_eq!(bytes.len(), 4096, "slot {}", page.slot);
        assert!(pages.insert(page.slot, bytes).is_none(), "slot {} is live twice", page.slot);
    }
    pages
}

/// Decompresses a block of lz4: sequences of literals and matches, of which the last has literals alone.
fn unlz4(mut block: &[u8]) -> Vec<u8> {
    let mut page = Vec::with_capacity(4096);
    loop {
        let token = take(&mut block, 1)[0];
        let literals = length(token >> 4, &mut block);
        page.extend_from_slice(take(&mut block, literals));
        if block.is_empty() {
            return page;
        }
        let offset = take(&mut block, 2);
        let from = page.len() - usize::from(u16::from_le_bytes([offset[0], offset[1]]));
        let matched = 4 + length(token & 15, &mut block);
        // It may overlap what it makes.
        (from..from + matched).for_each(|at| page.push(page[at]));
    }
}

fn length(nibble: u8, block: &mut &[u8]) -> usize {
    let mut sum = usize::from(nibble);
    let mut more = nibble == 15;
    while more {
        let byte = take(block, 1)[0];
        sum += usize::from(byte);
        more = byte == 255;
    }
    sum
}

fn take<'a>(block: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = block.split_at(len);
    *block = rest;
    taken
}
