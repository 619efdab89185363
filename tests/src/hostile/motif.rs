//! Requests that resemble each other: what a burst, or a whole wave of clients, asks for.

use super::Chance;
use super::words::flag;
use crate::raw::command;

const MIB: u64 = 1 << 20;

/// Most requests of a burst.
const BURST: u64 = 4096;

/// Requests that resemble each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Motif {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) len: u64,
    pub(super) count: u64,
    pub(super) reads: bool,
}

impl Motif {
    /// Any.
    pub(super) fn draw(chance: &mut Chance, payload_max: u64) -> Self {
        let command = chance.pick(&[
            command::READ,
            command::READ,
            command::WRITE,
            command::WRITE,
            command::FLUSH,
            command::TRIM,
            command::CACHE,
            command::WRITE_ZEROES,
            command::WRITE_ZEROES,
            command::BLOCK_STATUS,
        ]);
        let flags = match command {
            _ if chance.one_in(2) => 0,
            command::WRITE_ZEROES => chance.below(32) as u16 & (flag::FUA | flag::NO_HOLE | flag::FAST_ZERO),
            command::READ => flag::DF,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => flag::FUA,
        };
        let short = chance.pick(&[512, 512, 1536, 4096, 4096, 4608, 65536, 66048, MIB]);
        let len = match command {
            command::FLUSH => 0,
            command::READ | command::WRITE => {
                chance.pick(&[short, short, short, payload_max, payload_max - 512])
            }
            _ => chance.pick(&[short, short, MIB, MIB + 512, 3 * MIB, 64 * MIB, 1 << 30, 3 << 30]),
        };
        // Few, or more than a server lets a client have pending.
        let count = if chance.one_in(2) { chance.spread(BURST) } else { BURST - chance.below(BURST) / 2 };
        Self { command, flags, len, count, reads: chance.one_in(3) }
    }
}
