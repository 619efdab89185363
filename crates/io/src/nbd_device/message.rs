//! Messages of generic netlink: requests as bytes, and the answers to them. Nothing here makes a system call.
//!
//! A message is a header of 16 bytes, one of 4 for its family, and attributes, each with a header of 4 bytes; all begin at multiples of 4
//! and have the byte order of the machine. Sources: netlink(7); `linux/netlink.h`, `linux/genetlink.h`.

/// Flags of a request: it is one, and its end is acknowledged.
const REQUEST_AND_ACK: u16 = 1 | 4;

/// The type of a message with the outcome of a request: 0, or a negative errno.
const OUTCOME: u16 = 2;

/// Bytes of the two headers, and of the first of them.
const HEADERS_LEN: usize = 20;
const HEADER_LEN: usize = 16;

/// Bytes of the header of an attribute.
const ATTRIBUTE_LEN: usize = 4;

/// Flag in the type of an attribute that has attributes, and all flags there.
const NESTED: u16 = 1 << 15;
const FLAGS: u16 = NESTED | 1 << 14;

/// A request that is being written.
pub(super) struct NetlinkRequest(Vec<u8>);

impl NetlinkRequest {
    /// A command of a family, in a version of that; the answers have the same `sequence`.
    pub(super) fn new(family: u16, command: u8, version: u8, sequence: u32) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend([0; 4]);
        bytes.extend(family.to_ne_bytes());
        bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The kernel knows who asks.
        bytes.extend([0; 4]);
        bytes.extend([command, version, 0, 0]);
        assert_eq!(bytes.len(), HEADERS_LEN, "attributes begin there");
        Self(bytes)
    }

    /// With a number of 32 bits.
    pub(super) fn u32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// With a number of 64 bits.
    pub(super) fn u64(self, kind: u16, value: u64) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// With a text.
    pub(super) fn text(self, kind: u16, text: &str) -> Self {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// With an attribute that has those which `write` adds.
    pub(super) fn nested(mut self, kind: u16, write: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.0.extend([0; ATTRIBUTE_LEN]);
        let mut whole = write(self);
        let len = whole.0.len() - start;
        whole.head(start, len, kind | NESTED);
        whole
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let start = self.0.len();
        self.0.extend([0; ATTRIBUTE_LEN]);
        self.0.extend(value);
        self.head(start, ATTRIBUTE_LEN + value.len(), kind);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn head(&mut self, start: usize, len: usize, kind: u16) {
        let len = u16::try_from(len).expect("what is sent to the kernel here is short");
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    }

    /// The bytes to send.
    pub(super) fn bytes(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NetlinkReply<'a> {
    /// The request was carried out, or is refused with that errno.
    Outcome(Result<(), i32>),
    /// What was asked for, by its attributes.
    Content(NetlinkAttributes<'a>),
}

/// The attributes of a message, or of an attribute. Bytes behind the last whole one are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetlinkAttributes<'a>(&'a [u8]);

impl<'a> NetlinkAttributes<'a> {
    /// The value of the first one of that kind.
    pub(super) fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter().find_map(|(found, value)| (found == kind).then_some(value))
    }

    /// The same, of 16 bits.
    pub(super) fn u16(self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(self.find(kind)?.try_into().ok()?))
    }

    /// The same, of 32 bits.
    pub(super) fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.find(kind)?.try_into().ok()?))
    }
}

impl<'a> Iterator for NetlinkAttributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16::from_ne_bytes(word(self.0, 0)?));
        let kind = u16::from_ne_bytes(word(self.0, 2)?) & !FLAGS;
        let value = self.0.get(ATTRIBUTE_LEN..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// The answers to the request of that `sequence` among received bytes, in order. What is no whole message ends them.
pub(super) fn answers(mut bytes: &[u8], sequence: u32) -> Vec<NetlinkReply<'_>> {
    let mut found = Vec::new();
    while let Some((message, behind)) = message(bytes) {
        bytes = behind;
        if word(message, 8).map(u32::from_ne_bytes) == Some(sequence) {
            found.extend(answer(message));
        }
    }
    found
}

/// The first message, as long as it says, and the bytes behind it.
fn message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(word(bytes, 0)?) as usize;
    let message = bytes.get(..len).filter(|message| message.len() >= HEADER_LEN)?;
    Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn answer(message: &[u8]) -> Option<NetlinkReply<'_>> {
    if u16::from_ne_bytes(word(message, 4)?) == OUTCOME {
        let outcome = i32::from_ne_bytes(word(message, HEADER_LEN)?);
        return Some(NetlinkReply::Outcome(if outcome == 0 {
            Ok(())
        } else {
            Err(outcome.saturating_abs())
        }));
    }
    Some(NetlinkReply::Content(NetlinkAttributes(message.get(HEADERS_LEN..)?)))
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of numbers of 16 bits, as this machine has them.
    fn shorts(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    fn message_of(kind: u16, sequence: u32, rest: &[u8]) -> Vec<u8> {
        let len = (HEADER_LEN + rest.len()) as u32;
        let head = [&len.to_ne_bytes()[..], &shorts(&[kind, 0]), &sequence.to_ne_bytes(), &[0; 4]].concat();
        [&head, rest].concat()
    }

    #[test]
    fn a_request_has_the_bytes_of_the_kernels_headers() {
        let bytes = NetlinkRequest::new(0x21, 1, 1, 0x0102_0304).u32(1, 7).text(10, "a.ctl").bytes();
        let sequence = 0x0102_0304u32.to_ne_bytes();
        let expected = [
            &40u32.to_ne_bytes()[..],
            &shorts(&[0x21, 5]),
            &sequence,
            &[0; 4],
            &[1, 1, 0, 0],
            &shorts(&[8, 1]),
            &7u32.to_ne_bytes(),
            &shorts(&[10, 10]),
            b"a.ctl\0",
            &[0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn nested_attributes_count_for_those_around_them() {
        let bytes = NetlinkRequest::new(9, 1, 1, 1)
            .u64(2, 1 << 40)
            .nested(7, |sockets| sockets.nested(1, |item| item.u32(1, 3)))
            .bytes();
        let expected = [
            &shorts(&[12, 2])[..],
            &(1u64 << 40).to_ne_bytes(),
            &shorts(&[16, 7 | 1 << 15, 12, 1 | 1 << 15, 8, 1]),
            &3u32.to_ne_bytes(),
        ];
        assert_eq!(bytes[HEADERS_LEN..], expected.concat());
    }

    #[test]
    fn what_was_written_is_read_back() {
        let bytes = NetlinkRequest::new(77, 1, 1, 5).u32(1, 16).nested(7, |inside| inside.u32(1, 3)).bytes();
        let read = answers(&bytes, 5);
        let [NetlinkReply::Content(attributes)] = read[..] else { panic!("{read:?}") };
        assert_eq!((attributes.u32(1), attributes.u32(2), attributes.u16(1)), (Some(16), None, None));
        assert_eq!(attributes.find(7).and_then(|inside| NetlinkAttributes(inside).u32(1)), Some(3));
    }

    #[test]
    fn answers_to_others_are_left_out_and_outcomes_are_errnos() {
        use NetlinkReply::{Content, Outcome};

        let content = message_of(77, 5, &[&[1, 1, 0, 0][..], &shorts(&[8, 1]), &2u32.to_ne_bytes()].concat());
        let outcome = |sequence, errno: i32| message_of(OUTCOME, sequence, &errno.to_ne_bytes());
        let bytes = [outcome(4, -16), content, outcome(5, -2), outcome(5, 0), outcome(5, i32::MIN)].concat();
        let read = answers(&bytes, 5);
        assert!(
            matches!(&read[..], [Content(found), Outcome(Err(2)), Outcome(Ok(())), Outcome(Err(i32::MAX))] if found.u32(1) == Some(2)),
            "{read:?}"
        );
    }

    /// Every prefix of an answer, and every length in its fields.
    #[test]
    fn what_is_no_whole_message_is_no_answer() {
        let whole = [
            message_of(
                77,
                5,
                &[&[1, 1, 0, 0][..], &shorts(&[7, 2]), b"abc\0", &shorts(&[8, 1]), &[9; 4]].concat(),
            ),
            message_of(OUTCOME, 5, &0i32.to_ne_bytes()),
        ]
        .concat();
        assert_eq!(answers(&whole, 5).len(), 2);
        for len in 0..whole.len() {
            assert!(answers(&whole[..len], 5).len() < 2, "the first {len} bytes");
        }
        for at in (0..whole.len() - 1).step_by(2) {
            for value in [0, 1, 3, 4, 5, 19, 20, 0xff, 0x7fff, 0xffff] {
                let mut bytes = whole.clone();
                bytes[at..at + 2].copy_from_slice(&u16::to_ne_bytes(value));
                for answer in answers(&bytes, 5) {
                    if let NetlinkReply::Content(attributes) = answer {
                        assert!(attributes.count() <= 4, "{value} at {at}");
                    }
                }
            }
        }
    }
}
