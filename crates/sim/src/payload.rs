//! What tests write: contents that tell, sector by sector, which write they come from.
//!
//! A value is a number that only one write uses, or 0 for zeroes. Its two lowest bits say how it looks: as one repeated
//! word, which compresses to nothing; as a header, some noise and a pattern, which compresses to a length that depends on the value; or
//! as noise, which does not.

use spillway_core::SECTOR;
use spillway_core::random::Random;

/// Names what a sector holds.
pub type SectorValue = u64;

/// Zeroes.
pub const ZERO: SectorValue = 0;

const WORD: usize = size_of::<u64>();

/// More words of noise than a sector has that compresses.
const NOISY_WORDS_MAX: usize = 56;

/// The value of write `number`, above 0, in one of the four looks.
pub fn value(number: u64, look: u64) -> SectorValue {
    number << 2 | look & 3
}

/// Fills `bytes`, whole sectors of which the first is `sector`, with `value`.
pub fn fill(value: SectorValue, sector: u64, bytes: &mut [u8]) {
    for (index, chunk) in bytes.chunks_exact_mut(SECTOR as usize).enumerate() {
        fill_sector(value, sector + index as u64, chunk);
    }
}

fn fill_sector(value: SectorValue, sector: u64, bytes: &mut [u8]) {
    let mut noise = Random(value ^ sector << 40);
    let noisy = 2..2 + (value >> 2) as usize % NOISY_WORDS_MAX;
    for (index, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        let content = match (value, value & 3) {
            (ZERO, _) => 0,
            (_, 0) => value.wrapping_mul(0x0100_0000_01b3),
            (_, 1) if index == 0 => value,
            (_, 1) if index == 1 => sector,
            (_, 1) if !noisy.contains(&index) => 0x2020_2020_0a0a_0a0a,
            _ => noise.draw(),
        };
        word.copy_from_slice(&content.to_le_bytes());
    }
}

/// Whether `bytes`, one sector, hold `value` at `sector`.
pub fn holds(value: SectorValue, sector: u64, bytes: &[u8]) -> bool {
    let mut expected = [0; SECTOR as usize];
    fill_sector(value, sector, &mut expected);
    bytes == expected
}

/// Words for what sector `here` holds, given the values that were ever written and the sectors that there are.
pub fn describe(bytes: &[u8], here: u64, values: &[SectorValue], sectors: u64) -> String {
    let at = |sector| values.iter().copied().find(|&value| holds(value, sector, bytes));
    if let Some(value) = at(here) {
        return name(value);
    }
    if let Some((sector, value)) = (0..sectors).find_map(|sector| Some((sector, at(sector)?))) {
        return format!("{} of sector {sector}", name(value));
    }
    let head: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("what nobody wrote ({}...)", head.join(" "))
}

/// Words for a value.
pub fn name(value: SectorValue) -> String {
    if value == ZERO { "zeroes".into() } else { format!("write {}", value >> 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_their_write_and_their_sector() {
        for look in 0..4 {
            let (mut bytes, value) = ([0; 1024], value(7, look));
            fill(value, 3, &mut bytes);
            assert!(holds(value, 3, &bytes[..512]) && holds(value, 4, &bytes[512..]));
            assert!(!holds(value + 4, 3, &bytes[..512]) && !holds(ZERO, 3, &bytes[..512]));
            assert_eq!(look == 0, holds(value, 5, &bytes[..512]), "one repeated word is the same everywhere");
            assert_eq!(describe(&bytes[512..], 4, &[ZERO, value], 8), "write 7");
            let words = describe(&bytes[512..], 5, &[ZERO, value], 8);
            assert_eq!(words, if look == 0 { "write 7" } else { "write 7 of sector 4" });
        }
        assert!(describe(&[9; 512], 0, &[ZERO], 8).contains("nobody"));
    }
}
