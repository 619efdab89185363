//! Sizes as people and kernels write them.

use crate::error::Error;

const SUFFIXES: &str = "KMGTPE";

/// A size by the rules of a person: digits, then optionally `K M G T P E` (powers of 1024), then optionally `iB` or `B`;
/// case does not matter, a fraction is allowed where it comes to whole bytes (`1.5G`). [`crate::Kind::Invalid`] for anything
/// else, and for 2^64 and more.
pub fn parse(text: &str) -> Result<u64, Error> {
    let refuse = |why: &str| {
        Error::invalid(format!(
            "size {text:?} {why}: give a whole number of bytes or use K, M, G, T (4G, 512MiB)"
        ))
    };
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(digits_end);
    let shift = unit_shift(unit.trim()).ok_or_else(|| refuse("has an unknown unit"))?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty()
        || (digits.contains('.') && fraction.is_empty())
        || fraction.contains('.')
        || fraction.len() > 9
    {
        return Err(refuse("is not a number"));
    }
    let whole: u128 = whole.parse().map_err(|_| refuse("is too large"))?;
    let scale = 10u128.pow(fraction.len() as u32);
    let parts = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u128>().map_err(|_| refuse("is not a number"))?
    };
    let scaled =
        whole.checked_mul(scale).and_then(|w| w.checked_add(parts)).and_then(|w| w.checked_mul(1 << shift));
    let scaled = scaled.ok_or_else(|| refuse("is too large"))?;
    if scaled % scale != 0 {
        return Err(refuse("is not a whole number of bytes"));
    }
    u64::try_from(scaled / scale).map_err(|_| refuse("is too large"))
}

fn unit_shift(unit: &str) -> Option<u32> {
    let upper = unit.to_ascii_uppercase();
    if upper.is_empty() || upper == "B" {
        return Some(0);
    }
    let mut letters = upper.chars();
    let power = SUFFIXES.find(letters.next()?)? as u32 + 1;
    matches!(letters.as_str(), "" | "B" | "IB").then_some(power * 10)
}

/// A size by the kernel's rules for attributes: a decimal, `0x` or octal (`0`) number, then optionally one of
/// `K M G T P E` in either case, with `B` or `iB` if you like. [`crate::Kind::Invalid`] without digits, when too large, and,
/// unlike in the kernel, for anything else that follows: it would take `1.5G` for one byte.
pub fn memparse(text: &str) -> Result<u64, Error> {
    let refuse = || {
        Error::invalid(format!(
            "{:?} is not a size: write a number, with K, M, G or T if you like",
            text.trim_end()
        ))
    };
    let text = text.trim_start();
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', next, ..] if next.is_ascii_hexdigit() => (16, &text[2..]),
        [b'0', next, ..] if next.is_ascii_digit() => (8, &text[1..]),
        _ => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let value = u64::from_str_radix(&digits[..end], radix).map_err(|_| refuse())?;
    let shift = unit_shift(digits[end..].trim()).ok_or_else(refuse)?;
    value.checked_mul(1 << shift).ok_or_else(refuse)
}

/// `bytes` in the largest unit that leaves at least 1, with one digit after the point below 10: `4G`, `1.5M`, `312K`.
pub fn human(bytes: u64) -> String {
    let power = (bytes.max(1).ilog2() / 10).min(6) as usize;
    if power == 0 {
        return format!("{bytes}B");
    }
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let unit = &SUFFIXES[power - 1..power];
    if value >= 10.0 || value.fract() < 0.05 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4kb", 4096),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            (" 2 T ", 2 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "G",
            "4X",
            "4KK",
            "-1",
            "1.",
            ".5",
            "1.3",
            "1.0.0",
            "99999999999999999999",
            "16E",
            "4 G G",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_kernels_forms_are_read_and_leftovers_refused() {
        for (text, bytes) in
            [("64M", 64 << 20), ("0x10", 16), ("010", 8), ("1GiB", 1 << 30), ("5 K", 5 << 10), ("0", 0)]
        {
            assert_eq!(memparse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "K", "-1", "0x", "1.5G", "4 lots", "99999999999999999999", "17179869184G"] {
            assert!(memparse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in
            [(0, "0B"), (512, "512B"), (4096, "4K"), (1536, "1.5K"), (4 << 30, "4G"), (10_240_000, "9.8M")]
        {
            assert_eq!(human(bytes), text);
        }
    }
}
