//! Bytes that can be checked: each depends on a seed and on its offset alone.

/// Bytes of a stretch that repeats its seed.
const STRETCH: u64 = 512;

/// The bytes at `offset` of the endless stream `seed`, incompressible. `offset` is a multiple of 512.
pub fn random(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for stretch in 0..len.div_ceil(STRETCH as usize) as u64 {
        let mut state = mix(seed ^ mix(offset / STRETCH + stretch));
        for _ in 0..STRETCH / 8 {
            state = mix(state);
            bytes.extend(state.to_le_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}

/// Like [`random`], but every second 512 bytes are one repeated byte: compresses to about a half.
pub fn half_random(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = random(seed, offset, len);
    let dull = bytes.chunks_mut(STRETCH as usize).skip(1).step_by(2);
    dull.for_each(|chunk| chunk.fill(seed as u8));
    bytes
}

/// One step of splitmix64.
pub(crate) fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_same_wherever_it_is_cut() {
        let whole = random(7, 0, 8192);
        assert_eq!(whole[1024..4096], random(7, 1024, 3072));
        assert_ne!(random(8, 0, 512), random(7, 0, 512));
    }
}
