//! Limits of one session.

use spillway_core::buffer::LEN_MAX;

use crate::pending::PENDING_MAX;

/// Limits of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest payload of a request or reply in bytes; a multiple of 64 KiB up to 32 MiB, others are brought into range.
    pub payload_len_max: u32,
    /// Bytes of unsent replies and pending buffers from which on no further request is taken. One more request, of
    /// `payload_len_max` at most, may be on its way already.
    pub held_bytes_max: usize,
    /// Most pending requests, 1 to 1024; others are brought into range.
    pub requests_max: usize,
    /// Whether the client may, or must, ask for TLS.
    pub tls: TlsPolicy,
}

/// Whether conversations are in TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// None is: a client that asks for it is told that there is no TLS.
    #[default]
    Off,
    /// The client chooses. One that asks for it is sure of it; an attacker between the two can keep others from asking.
    Optional,
    /// All are: until TLS has begun a client is told nothing.
    Required,
}

/// What every server must take unfragmented, in bytes.
const PAYLOAD_UNIT: u32 = 64 << 10;

impl Default for Config {
    fn default() -> Self {
        Self {
            payload_len_max: LEN_MAX as u32,
            held_bytes_max: 8 << 20,
            requests_max: PENDING_MAX,
            tls: TlsPolicy::Off,
        }
    }
}

impl Config {
    /// The same with what is outside of its range brought into it.
    pub(super) fn in_range(self) -> Self {
        let payload_len_max = self.payload_len_max.clamp(PAYLOAD_UNIT, LEN_MAX as u32);
        Self {
            payload_len_max: payload_len_max / PAYLOAD_UNIT * PAYLOAD_UNIT,
            held_bytes_max: self.held_bytes_max,
            requests_max: self.requests_max.clamp(1, PENDING_MAX),
            tls: self.tls,
        }
    }
}
