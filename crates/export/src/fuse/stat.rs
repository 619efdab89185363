//! The metadata of a node, for the kernel.

use super::tree::{FileOwner, Node};
use super::wire::ReplyHead;

const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Type of an entry in a list of names, as `d_type` has it.
const KIND_SHIFT: u32 = 12;

/// What `stat(2)` shows of a node. The kernel keeps none of it: a size may grow at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    node: Node,
    mode: u32,
    size: u64,
    /// Bytes of an I/O that is liked best.
    block: u32,
}

impl Stat {
    pub(super) fn folder(node: Node) -> Self {
        Self { node, mode: FOLDER | 0o755, size: 0, block: 4096 }
    }

    pub(super) fn file(node: Node, permissions: u32, size: u64, block: u32) -> Self {
        Self { node, mode: REGULAR | permissions, size, block }
    }

    /// For a list of names.
    pub(super) fn kind(&self) -> u32 {
        self.mode >> KIND_SHIFT
    }

    /// As the reply to LOOKUP has it: the name, and the node behind it.
    pub(super) fn encode_entry(&self, owner: FileOwner, head: &mut ReplyHead) {
        // Node, generation, how long name and node may be kept: not at all.
        head.u64(self.node.number()).u64(0).u64(0).u64(0).u32(0).u32(0);
        self.encode(owner, head);
    }

    /// As the reply to GETATTR has it.
    pub(super) fn encode_alone(&self, owner: FileOwner, head: &mut ReplyHead) {
        // How long it may be kept: not at all.
        head.u64(0).u32(0).u32(0);
        self.encode(owner, head);
    }

    fn encode(&self, FileOwner { uid, gid, since }: FileOwner, head: &mut ReplyHead) {
        head.u64(self.node.number()).u64(self.size).u64(self.size.div_ceil(512));
        head.u64(since).u64(since).u64(since).u32(0).u32(0).u32(0);
        let links = if self.mode & FOLDER == 0 { 1 } else { 2 };
        head.u32(self.mode).u32(links).u32(uid).u32(gid).u32(0).u32(self.block).u32(0);
    }
}
