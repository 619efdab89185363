//! The kernel's side of the FUSE protocol, without I/O: calls to messages, and replies to what they come to.
//!
//! It believes nothing: a reply that the kernel would refuse, or one that is shorter than what it is to tell, is a panic, which breaks
//! the story.

mod link;
mod unasked;

use std::collections::BTreeMap;

use spillway_core::{ByteRange, Kind};
use spillway_export::fuse::wire::{self, Fields, Header, ReplyHead, opcode};

pub(crate) use link::{Gone, Habits, Link, Served};
pub(crate) use unasked::Unasked;

/// Set in the number of a message that is about another.
const ABOUT: u64 = 1;

/// FLUSH: a program closes a file that others may have open too.
const FLUSH: u32 = 25;

/// The thread of the first client.
const THREAD: u32 = 100;

/// What a call comes to: what follows the head of the reply, or an errno.
type Outcome = Result<Vec<u8>, i32>;

/// A call that is not answered.
struct Call {
    opcode: u32,
    client: u8,
    /// Bytes behind the head of a reply without an error: at most, or exactly.
    len: usize,
}

/// One connection, as the kernel knows it.
#[derive(Default)]
struct Kernel {
    calls: BTreeMap<u64, Call>,
    outcomes: BTreeMap<u64, Outcome>,
    last: u64,
}

impl Kernel {
    /// Notes a call that is answered by `len` bytes, and gives its number and its message.
    fn call(&mut self, client: u8, opcode: u32, node: u64, body: &[u8], len: usize) -> (u64, Vec<u8>) {
        let (number, message) = self.tell(client, opcode, node, body);
        self.calls.insert(number, Call { opcode, client, len });
        (number, message)
    }

    /// A message that is not answered, and its number.
    fn tell(&mut self, client: u8, opcode: u32, node: u64, body: &[u8]) -> (u64, Vec<u8>) {
        self.last += 2;
        (self.last, message(client, opcode, node, self.last, body))
    }

    /// What the call of that number has come to, once it has.
    fn take_outcome(&mut self, number: u64) -> Option<Outcome> {
        self.outcomes.remove(&number)
    }

    /// The calls of a client that are not answered, those apart that are made whatever becomes of it.
    fn calls_of(&self, client: u8) -> Vec<u64> {
        let of = |call: &Call| call.client == client && !closes(call.opcode);
        self.calls.iter().filter(|(_, call)| of(call)).map(|(number, _)| *number).collect()
    }

    /// Whether the call of that number is not answered.
    fn is_under_way(&self, number: u64) -> bool {
        self.calls.contains_key(&number)
    }

    /// A call of that number was never made.
    fn forget(&mut self, number: u64) {
        self.calls.remove(&number).expect("it was not answered");
    }

    /// Takes a reply, with the checks of the kernel.
    fn receive(&mut self, reply: &[u8]) {
        let mut fields = Fields::of(reply);
        let (len, error) = fields.u32().zip(fields.u32()).expect("a reply has a head");
        let (number, error) = (fields.u64().expect("a reply has a number"), error as i32);
        assert_eq!(len as usize, reply.len(), "a reply says how long it is");
        assert!((-511..=0).contains(&error), "error {error} is none of the protocol's");
        let Call { opcode: asked, len, .. } = self.calls.remove(&number).expect("a reply to something asked");
        let body = &reply[ReplyHead::LEN..];
        let whole = if error == 0 { len } else { 0 };
        assert_eq!(body.len(), whole, "bytes of a reply to operation {asked} with error {error}");
        assert!(error == 0 || asked != opcode::RELEASE, "a file is closed, or error {error}");
        self.outcomes.insert(number, if error == 0 { Ok(body.to_vec()) } else { Err(-error) });
    }
}

/// Whether an operation closes a file.
fn closes(opcode: u32) -> bool {
    matches!(opcode, FLUSH | opcode::RELEASE)
}

fn message(client: u8, opcode: u32, node: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let len = (Header::LEN + body.len()) as u32;
    let (ids, thread) = (words32(&[0, 0]), words32(&[THREAD + u32::from(client), 0]));
    [words32(&[len, opcode]), words64(&[number, node]), ids, thread, body.to_vec()].concat()
}

/// INTERRUPT of the call of that number.
fn interruption(number: u64) -> Vec<u8> {
    message(0, opcode::INTERRUPT, 0, number | ABOUT, &number.to_ne_bytes())
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What READ and WRITE begin with.
fn portion(handle: u64, range: ByteRange, mode: u32) -> Vec<u8> {
    let (place, len) = (words64(&[handle, range.offset]), words32(&[range.len as u32, wire::FOR_A_CALL]));
    [place, len, words64(&[0]), words32(&[mode, 0])].concat()
}

/// What a device has said, as far as the system's numbers tell.
fn kind(errno: i32) -> Kind {
    let kind = Kind::of_errno(errno);
    let unknown = kind == Kind::Io && errno != Kind::Io.errno();
    assert!(!unknown, "errno {errno} is none of a device");
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(number: u64, errno: i32, body: &[u8]) -> Vec<u8> {
        let head = ReplyHead::of(number, errno).finish(body.len()).to_vec();
        [head, body.to_vec()].concat()
    }

    fn called() -> (Kernel, u64) {
        let mut kernel = Kernel::default();
        let (number, message) = kernel.call(3, opcode::READ, 7, &portion(1, ByteRange::new(512, 8), 0), 8);
        let header = Header::decode(&message).expect("a message begins with a header");
        assert_eq!((header.len as usize, header.unique, header.node), (message.len(), number, 7));
        (kernel, number)
    }

    #[test]
    fn a_reply_ends_its_call_alone() {
        let (mut kernel, number) = called();
        let (other, _) = kernel.call(4, opcode::FSYNC, 7, &[], 0);
        kernel.receive(&reply(other, 28, &[]));
        assert_eq!((kernel.take_outcome(number), kernel.take_outcome(other)), (None, Some(Err(28))));
        kernel.receive(&reply(number, 0, &[9; 8]));
        assert_eq!(kernel.take_outcome(number), Some(Ok(vec![9; 8])));
    }

    #[test]
    #[should_panic(expected = "a reply to something asked")]
    fn a_second_reply_breaks_the_story() {
        let (mut kernel, number) = called();
        kernel.receive(&reply(number, 5, &[]));
        kernel.receive(&reply(number, 5, &[]));
    }

    #[test]
    #[should_panic(expected = "bytes of a reply")]
    fn a_short_read_breaks_the_story() {
        let (mut kernel, number) = called();
        kernel.receive(&reply(number, 0, &[9; 7]));
    }
}
