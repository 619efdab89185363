//! Reads the live records of a spill file that was stopped, as docs/spill.md describes it.

use std::collections::BTreeMap;

/// What a file says of itself, and its live records.
#[derive(Debug)]
pub(crate) struct File {
    /// The device's name.
    pub(crate) name: String,
    /// Names of codecs by number.
    pub(crate) codecs: Vec<String>,
    /// Slots of the device.
    pub(crate) slots: u64,
    /// Live records.
    pub(crate) live: Vec<Page>,
}

/// A live record.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its slot.
    pub(crate) slot: u32,
    /// Its codec: a number of `File::codecs`, or 13 for a raw page.
    pub(crate) codec: u8,
    /// Its bytes, still compressed.
    pub(crate) bytes: Vec<u8>,
}

/// The polynomial of iSCSI (RFC 3720), a byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let table: Vec<u32> = (0..256u32)
        .map(|byte| (0..8).fold(byte, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }))
        .collect();
    !bytes.iter().fold(u32::MAX, |crc, &byte| table[(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

fn superblock(file: &[u8], at: usize) -> Option<&[u8]> {
    let bytes = file.get(at..at + 4096)?;
    let sound = &bytes[..8] == b"SpillFil" && u64::from(crc32c(&bytes[..4092])) == number(bytes, 4092, 4);
    sound.then_some(bytes)
}

/// The footer of a segment, by its fields: sequence number, records, data bytes, kind, crc of the summary.
type Footer = (u64, usize, usize, u64, u64);

fn footer(segment: &[u8], low_uuid: u64, index: usize) -> Option<Footer> {
    let bytes = &segment[segment.len() - 64..];
    let sound = &bytes[..8] == b"SpillSeg"
        && u64::from(crc32c(&bytes[..60])) == number(bytes, 60, 4)
        && number(bytes, 8, 8) == low_uuid
        && number(bytes, 36, 4) == index as u64;
    let field = |at, len| number(bytes, at, len);
    sound.then(|| (field(16, 8), field(24, 4) as usize, field(28, 4) as usize, field(32, 4), field(56, 4)))
}

/// What a stopped file holds, or why it cannot be told.
pub(crate) fn read(file: &[u8]) -> Result<File, String> {
    let head = superblock(file, 0).ok_or("there is no superblock")?;
    if number(head, 8, 4) != 2 || number(head, 44, 4) != 2 {
        return Err("it was not stopped, or is of another version".into());
    }
    let bytes = 1usize << number(head, 12, 4);
    if superblock(file, bytes / 4) != Some(head) {
        return Err("the superblock's copy differs".into());
    }
    let segments: Vec<&[u8]> = file.chunks_exact(bytes).skip(1).take(number(head, 40, 4) as usize).collect();
    let low_uuid = number(head, 16, 8);
    let footers: BTreeMap<u64, (usize, Footer)> = segments
        .iter()
        .enumerate()
        .filter_map(|(index, segment)| {
            footer(segment, low_uuid, index).map(|found| (found.0, (index, found)))
        })
        .collect();
    let (first, count) = (number(head, 48, 8), number(head, 56, 4));
    let mut live = Vec::new();
    for seq in first..first + count {
        let &(index, (_, entries, len, kind, crc)) =
            footers.get(&seq).ok_or("the checkpoint is not whole")?;
        let data = &segments[index][..len];
        if kind != 2 || u64::from(crc32c(data)) != crc {
            return Err(format!("the checkpoint in segment {index} is damaged"));
        }
        read_entries(data, entries, &segments, &footers, &mut live)?;
    }
    let codecs = head[64..192].chunks_exact(16).map(text).collect();
    let name = String::from_utf8_lossy(&head[192..192 + number(head, 60, 4) as usize]).into_owned();
    Ok(File { name, codecs, slots: number(head, 32, 8), live })
}

fn read_entries(
    mut data: &[u8],
    entries: usize,
    segments: &[&[u8]],
    footers: &BTreeMap<u64, (usize, Footer)>,
    live: &mut Vec<Page>,
) -> Result<(), String> {
    for _ in 0..entries {
        let (index, records, seq) =
            (number(data, 0, 4) as usize, number(data, 4, 4) as usize, number(data, 8, 8));
        let words = records.div_ceil(64) * 8;
        let bits = &data[16..16 + words];
        data = &data[16 + words..];
        let found =
            footers.get(&seq).filter(|(at, footer)| *at == index && footer.1 == records && footer.3 == 1);
        let Some(&(_, (_, _, len, _, crc))) = found else {
            return Err(format!("segment {index} is not the one of the checkpoint"));
        };
        let segment = segments[index];
        let end = segment.len() - 64;
        let summary = &segment[end - 12 * records..end];
        if u64::from(crc32c(summary)) != crc {
            return Err(format!("the summary of segment {index} is damaged"));
        }
        let is_live = |record: usize| bits[record / 8] >> (record % 8) & 1 == 1;
        let last = read_records(segment, summary, seq, is_live, live)?;
        if last != len {
            return Err(format!("the records of segment {index} are not its data"));
        }
    }
    if data.is_empty() { Ok(()) } else { Err("the checkpoint has more bytes than entries".into()) }
}

/// Adds the live records of a segment; returns where its data ends.
fn read_records(
    segment: &[u8],
    summary: &[u8],
    seq: u64,
    is_live: impl Fn(usize) -> bool,
    live: &mut Vec<Page>,
) -> Result<usize, String> {
    let mut at = 0;
    for (index, record) in summary.chunks_exact(12).enumerate() {
        let (len, codec) = (number(record, 8, 2) as usize, record[10]);
        let bytes = &segment[at..at + len];
        at += len;
        if !is_live(index) {
            continue;
        }
        let covered = [&seq.to_le_bytes()[..], &record[..4], &[codec], bytes].concat();
        let sound = u64::from(crc32c(&covered)) == number(record, 4, 4);
        if !sound || codec == 12 {
            return Err(format!("record {index} of segment {seq} is not as it was written"));
        }
        live.push(Page { slot: number(record, 0, 4) as u32, codec, bytes: bytes.to_vec() });
    }
    Ok(at)
}
