//! Records of a stream, by their headers: type, version and length (RFC 8446, 5.1), which are never enciphered.

/// Bytes of a header.
const HEADER_LEN: usize = 5;

/// Counts records as their bytes come, in any pieces.
#[derive(Default)]
pub(super) struct RecordCount {
    /// Bytes of the present header so far, and the last two of them as a number.
    seen: usize,
    len: u16,
    /// Bytes until the next header.
    left: usize,
}

impl RecordCount {
    /// How many headers end in these bytes, which follow those before.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> u32 {
        let mut records = 0;
        while !bytes.is_empty() {
            let (within, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= within.len();
            let (header, rest) = rest.split_at((HEADER_LEN - self.seen).min(rest.len()));
            self.len = header.iter().fold(self.len, |len, &byte| len << 8 | u16::from(byte));
            self.seen += header.len();
            if self.seen == HEADER_LEN {
                (self.seen, self.left) = (0, self.len.into());
                records += 1;
            }
            bytes = rest;
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_in_whatever_pieces_they_come() {
        let record =
            |len: u16| [&[23, 3, 3][..], &len.to_be_bytes(), &vec![255; usize::from(len)][..]].concat();
        let stream = [0, 1, 300, 0, 16640, 17].map(record).concat();
        for step in [1, 2, 3, 5, 7, 1000, stream.len()] {
            let mut count = RecordCount::default();
            let records: u32 = stream.chunks(step).map(|part| count.count(part)).sum();
            assert_eq!(records, 6, "in steps of {step}");
        }
    }
}
