//! The format against bytes that were written down by hand, and against itself.

use proptest::collection::vec;
use proptest::prelude::*;

use super::superblock::CRC_AT;
use super::*;

fn superblock() -> Superblock {
    let mut codecs = [[0; CODEC_NAME_LEN]; CODECS];
    codecs[0][..3].copy_from_slice(b"lz4");
    codecs[1][..4].copy_from_slice(b"zstd");
    Superblock {
        layout: Layout { shift: 22, segments: 0x0102 },
        uuid: *b"0123456789abcdef",
        slots: 0x0304_0506,
        state: FileState::Stopped,
        checkpoint: CheckpointSpan { seq: 77, segments: 2 },
        codecs,
        name: "ram0".into(),
    }
}

#[test]
fn a_superblock_has_the_bytes_of_the_documented_layout() {
    let mut golden = [0; UNIT];
    golden[..8].copy_from_slice(b"SpillFil");
    (golden[8], golden[12]) = (2, 22);
    golden[16..32].copy_from_slice(b"0123456789abcdef");
    golden[32..36].copy_from_slice(&[6, 5, 4, 3]);
    golden[40..42].copy_from_slice(&[2, 1]);
    (golden[44], golden[48], golden[56], golden[60]) = (2, 77, 2, 4);
    golden[64..67].copy_from_slice(b"lz4");
    golden[80..84].copy_from_slice(b"zstd");
    golden[192..196].copy_from_slice(b"ram0");
    let encoded = superblock().encode();
    assert_eq!(encoded[..CRC_AT], golden[..CRC_AT]);
    assert_eq!(encoded[CRC_AT..], bitwise_crc32c(&golden[..CRC_AT]).to_le_bytes());
    assert_eq!(Superblock::decode(&encoded), Found::Superblock(Box::new(superblock())));
}

/// The polynomial of iSCSI (RFC 3720, appendix B.4), a bit at a time.
fn bitwise_crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

#[test]
fn records_footers_and_entries_have_the_bytes_of_the_documented_layout() {
    let record = Record { slot: 0x0a0b_0c0d, crc: 0x1234_5678, len: 0x1001, codec: RecordCodec::RAW };
    let golden = [0x0d, 0x0c, 0x0b, 0x0a, 0x78, 0x56, 0x34, 0x12, 1, 0x10, 13, 0];
    assert_eq!((record.encode(), Record::decode(&golden)), (golden, record));
    let covered = [9, 0, 0, 0, 0, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 13, 1, 2, 3];
    assert_eq!(record_crc(9, record.slot, RecordCodec::RAW, &[1, 2, 3]), bitwise_crc32c(&covered));

    let contents = Contents::Checkpoint;
    let footer =
        Footer { low_uuid: 1, seq: 2, records: 3, data_bytes: 4, contents, segment: 5, summary_crc: 6 };
    let mut golden = [0; FOOTER_LEN];
    golden[..8].copy_from_slice(b"SpillSeg");
    for (at, value) in [(8, 1), (16, 2), (24, 3), (28, 4), (32, 2), (36, 5), (56, 6)] {
        golden[at] = value;
    }
    let crc = bitwise_crc32c(&golden[..60]);
    golden[60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!((footer.encode(), Footer::decode(&golden)), (golden, Some(footer)));

    let mut entry = CheckpointEntry::new(3, 9, 70);
    [0, 69].into_iter().for_each(|record| entry.set(record));
    let mut golden = [0; 32];
    (golden[0], golden[4], golden[8], golden[16], golden[24]) = (3, 70, 9, 1, 1 << 5);
    let mut encoded = [0xff; 32];
    assert_eq!((entry.encode(&mut encoded), encoded), (32, golden));
    assert_eq!(CheckpointEntry::decode(&golden), Some((entry, &[][..])));
}

#[test]
fn a_tail_is_summary_and_footer_at_the_end() {
    let contents = Contents::Pages;
    let footer =
        Footer { low_uuid: 1, seq: 2, records: 2, data_bytes: 4096, contents, segment: 5, summary_crc: 0 };
    let records = [Record::pad(96), Record { slot: 9, codec: RecordCodec::RAW, ..Record::pad(4000) }];
    let mut tail = vec![0xee; UNIT];
    for (at, record) in tail.chunks_exact_mut(RECORD_LEN).zip(&records) {
        at.copy_from_slice(&record.encode());
    }
    assert_eq!(finish_tail(&mut tail, &footer), UNIT - FOOTER_LEN - 2 * RECORD_LEN);
    assert!(tail[..UNIT - FOOTER_LEN - 2 * RECORD_LEN].iter().all(|&byte| byte == 0));
    let (found, summary) = read_tail(&tail).expect("as it was written");
    assert_eq!(Footer { summary_crc: 0, ..found }, footer);
    assert_eq!(summary.collect::<Vec<_>>(), records);
    for byte in UNIT - FOOTER_LEN - 2 * RECORD_LEN..UNIT {
        tail[byte] ^= 4;
        assert!(read_tail(&tail).is_none(), "byte {byte} is not as it was written");
        tail[byte] ^= 4;
    }
}

#[test]
fn files_of_any_size_have_a_layout_or_a_reason() {
    let of = |bytes| Layout::largest(bytes, SEGMENT_SHIFT, 7).map_err(|error| error.to_string());
    assert_eq!(of(32 << 20).map(|layout| layout.segments), Ok(7));
    assert!(of((32 << 20) - 1).is_err_and(|words| words.contains("at least 33554432")));
    assert_eq!(of(((1 << 24) + 1) << 22).map(|layout| layout.segments), Ok(1 << 24));
    assert!(of(((1 << 24) + 2) << 22).is_err_and(|words| words.contains("too large")));
    let layout = Layout { shift: SEGMENT_SHIFT, segments: 7 };
    assert_eq!(
        (layout.copy_offset(), layout.segment_offset(0), layout.records_max()),
        (1 << 20, 4 << 20, 16384)
    );
    for shift in SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT {
        assert!(copy_offset(shift) >= UNIT as u64 && copy_offset(shift) + UNIT as u64 <= 1 << shift);
    }
}

proptest! {
    #[test]
    fn superblocks_come_back(
        (shift, segments, slots) in (SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT, 0u32..1 << 24, any::<u64>()),
        (uuid, codecs) in (any::<[u8; 16]>(), any::<[[u8; CODEC_NAME_LEN]; CODECS]>()),
        (stopped, seq, more, name) in (any::<bool>(), any::<u64>(), any::<u32>(), "\\PC{0,64}"),
        flip in 0..UNIT * 8,
    ) {
        let state = if stopped { FileState::Stopped } else { FileState::InUse };
        let checkpoint = CheckpointSpan { seq, segments: more % (segments + 1) };
        let superblock =
            Superblock { layout: Layout { shift, segments }, uuid, slots, state, checkpoint, codecs, name };
        let beyond = CheckpointSpan { segments: (segments + 1).max(more), ..checkpoint };
        let impossible = Superblock { checkpoint: beyond, ..superblock.clone() };
        prop_assert_eq!(Superblock::decode(&impossible.encode()), Found::Damaged);
        let mut bytes = superblock.encode();
        prop_assert_eq!(Superblock::decode(&bytes), Found::Superblock(Box::new(superblock)));
        bytes[flip / 8] ^= 1 << (flip % 8);
        let expected = if flip < 64 { Found::Foreign } else { Found::Damaged };
        prop_assert_eq!(Superblock::decode(&bytes), expected);
    }

    #[test]
    fn any_bytes_are_a_record_that_comes_back(bytes in any::<[u8; RECORD_LEN]>()) {
        let record = Record::decode(&bytes);
        prop_assert_eq!(Record::decode(&record.encode()), record);
    }

    #[test]
    fn footers_come_back(low_uuid: u64, seq: u64, numbers: [u32; 4], checkpoint: bool, flip in 0..FOOTER_LEN * 8) {
        let contents = if checkpoint { Contents::Checkpoint } else { Contents::Pages };
        let [records, data_bytes, segment, summary_crc] = numbers;
        let footer = Footer { low_uuid, seq, records, data_bytes, contents, segment, summary_crc };
        let mut bytes = footer.encode();
        prop_assert_eq!(Footer::decode(&bytes), Some(footer));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert_eq!(Footer::decode(&bytes), None);
    }

    #[test]
    fn entries_come_back(segment: u32, seq: u64, records in 0u32..3000, set in vec(0usize..3000, 0..20), cut: u16) {
        let mut entry = CheckpointEntry::new(segment, seq, records);
        let set: Vec<_> = set.into_iter().filter(|&record| record < records as usize).collect();
        set.iter().for_each(|&record| entry.set(record));
        prop_assert!(set.iter().all(|&record| entry.has(record)) && entry.is_empty() == set.is_empty());
        let mut bytes = vec![7; CheckpointEntry::bytes(records) + 5];
        let len = entry.encode(&mut bytes);
        prop_assert_eq!(CheckpointEntry::decode(&bytes), Some((entry, &[7; 5][..])));
        prop_assert_eq!(CheckpointEntry::decode(&bytes[..usize::from(cut) % len]), None);
    }

    #[test]
    fn any_bytes_are_a_tail_or_none(tail in vec(any::<u8>(), 0..300)) {
        prop_assert!(read_tail(&tail).is_none());
    }
}
