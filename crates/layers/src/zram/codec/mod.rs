//! Compression of one page: what a codec is, and which there are.
//!
//! A [`Codec`] makes [`Compressor`]s, one for each stream, and decompresses with a [`Decompressor`]; all foreign code is
//! behind these three. To add a codec: implement them and add a row to [`CODECS`].
//!
//! Levels: of lz4 the acceleration (1 to 65537, default 1); of lz4hc 1 to 12 (default 9); of zstd as in its manual (default 3); of
//! deflate 1 to 9 (default 6). The defaults are the kernel's.

pub(super) mod codecs;
pub(super) mod decoders;
pub(super) mod encoder;
pub(super) mod streams;

mod deflate;
mod lz4;
mod traits;
mod zstd;

use spillway_core::{Error, Kind};

use deflate::{Deflate, DeflateDecoder};
use lz4::{Lz4, Lz4Decoder};
use zstd::{Zstd, ZstdDecoder};

pub(super) use traits::{Compressor, Decompressor, Params};

/// Decompresses all of a page, without state.
pub(super) type Decompress = fn(&[u8], &mut [u8]) -> Result<(), Kind>;

/// Which of a device's codecs: its priority, three bits of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CodecIndex(pub(super) u8);

impl CodecIndex {
    /// The codec of writers.
    pub(super) const PRIMARY: Self = Self(0);
}

/// A compression algorithm.
pub(super) struct Codec {
    /// The kernel's name for it.
    pub(super) name: &'static str,
    /// Most bytes that a compressor takes.
    pub(super) compressor_bytes: u64,
    /// Most bytes that a decompressor takes.
    pub(super) decompressor_bytes: u64,
    /// Levels that it takes.
    pub(super) levels: fn() -> std::ops::RangeInclusive<i32>,
    pub(super) compressor: fn(Params) -> Box<dyn Compressor>,
    pub(super) decompressor: fn() -> Box<dyn Decompressor>,
    /// Decompresses as [`Decompressor::decompress`], where that takes no state and less than a microsecond.
    pub(super) at_once: Option<Decompress>,
    /// Units of work that a page takes, of 100 ns: rather too many than too few.
    pub(super) compress_units: fn(Params) -> u32,
    pub(super) decompress_units: u32,
}

/// The codecs in the order of listings; the first is the default.
pub(super) static CODECS: [Codec; 4] = [
    Codec {
        name: "lz4",
        compressor_bytes: lz4::FAST_STATE_BYTES as u64,
        decompressor_bytes: 0,
        levels: || 1..=65537,
        compressor: |params| Box::new(Lz4::fast(params)),
        decompressor: || Box::new(Lz4Decoder),
        at_once: Some(lz4::decompress),
        compress_units: |_| 31,
        decompress_units: 31,
    },
    Codec {
        name: "lz4hc",
        compressor_bytes: lz4::HC_STATE_BYTES as u64,
        decompressor_bytes: 0,
        levels: || 1..=12,
        compressor: |params| Box::new(Lz4::high(params)),
        decompressor: || Box::new(Lz4Decoder),
        at_once: Some(lz4::decompress),
        compress_units: lz4::high_units,
        decompress_units: 31,
    },
    Codec {
        name: "zstd",
        compressor_bytes: zstd::COMPRESSOR_BYTES,
        decompressor_bytes: zstd::DECOMPRESSOR_BYTES,
        levels: zstd::levels,
        compressor: |params| Box::new(Zstd::new(params)),
        decompressor: || Box::new(ZstdDecoder::new()),
        at_once: None,
        compress_units: zstd::units,
        decompress_units: 100,
    },
    Codec {
        name: "deflate",
        compressor_bytes: deflate::COMPRESSOR_BYTES,
        decompressor_bytes: deflate::DECOMPRESSOR_BYTES,
        levels: || deflate::LEVELS,
        compressor: |params| Box::new(Deflate::new(params)),
        decompressor: || Box::new(DeflateDecoder::new()),
        at_once: None,
        compress_units: deflate::units,
        decompress_units: 130,
    },
];

/// Their names.
pub(super) const NAMES: [&str; CODECS.len()] = {
    let mut names = [""; CODECS.len()];
    let mut codec = 0;
    while codec < names.len() {
        names[codec] = CODECS[codec].name;
        codec += 1;
    }
    names
};

/// The number of the codec called `name`; [`Kind::Invalid`] with the list of what there is.
pub(super) fn find(name: &str) -> Result<usize, Error> {
    CODECS.iter().position(|codec| codec.name == name).ok_or_else(|| {
        let names: Vec<_> = CODECS.iter().map(|codec| codec.name).collect();
        Error::invalid(format!("comp_algorithm {name:?} is not known; there are: {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zram::page::PAGE;
    use spillway_core::random::Random;

    #[test]
    fn pages_survive_every_codec_and_level() {
        let mut random = Random(11);
        for codec in &CODECS {
            let levels = (codec.levels)();
            for level in [None, Some(*levels.start()), Some(1), Some((*levels.end()).min(22))] {
                let mut compressor = (codec.compressor)(Params { level });
                let mut decompressor = (codec.decompressor)();
                for _ in 0..50 {
                    let (mut page, mut out, mut back) = (vec![0; PAGE], vec![0; 2 * PAGE], vec![1; PAGE]);
                    random.fill(&mut page);
                    let len = compressor.compress(&page, &mut out).expect("two pages hold any page");
                    decompressor.decompress(&out[..len], &mut back).expect("what was compressed");
                    assert_eq!(page, back, "{} {level:?}", codec.name);
                }
            }
        }
    }

    #[test]
    fn damaged_objects_are_errors() {
        let mut page = vec![0; PAGE];
        Random(4).fill(&mut page[..512]);
        for codec in &CODECS {
            let mut out = vec![0; 2 * PAGE];
            let len = (codec.compressor)(Params::default()).compress(&page, &mut out).expect("fits");
            let mut decompressor = (codec.decompressor)();
            assert_eq!(decompressor.decompress(&out[..len - 1], &mut vec![0; PAGE]), Err(Kind::Corrupt));
            assert_eq!(decompressor.decompress(&[], &mut vec![0; PAGE]), Err(Kind::Corrupt));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_list() {
        assert_eq!(find("zstd").ok(), Some(2));
        let error = find("lzo").unwrap_err();
        assert!(error.kind == Kind::Invalid && error.to_string().contains("lz4, lz4hc, zstd, deflate"));
    }
}
