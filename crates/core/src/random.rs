//! Numbers that look random and follow from a seed: for jitter, workloads and tests.

/// A reproducible source of numbers (SplitMix64, by Sebastiano Vigna, public domain): not for secrets.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Fills `bytes`: half of the calls with noise, the others with something that compresses.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mask = if self.below(2) == 0 { u64::MAX } else { 0x0101_0303_0000_0707 };
        for chunk in bytes.chunks_mut(8) {
            let word = (self.draw() & mask).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
