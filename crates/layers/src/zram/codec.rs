//! Compression of one page: what a codec is, and which there are.
//!
//! A [`Codec`] makes [`Compressor`]s, one for each stream, and decompresses with a [`Decompressor`]; all foreign code is
//! behind these three. To add a codec: implement them and add a row to [`CODECS`].
//!
//! lz4: acceleration as level (1 to 65537, default 1). zstd: levels as in its manual (default 3, the kernel's too); frames
//! without checksum and content size, since slots know the length.

use std::ffi::{c_char, c_int, c_void};

use spillway_core::{Error, Kind};
use zstd_safe::{CCtx, CParameter, DCtx};

use super::page::PAGE;

/// Parameters of a codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Params {
    /// Compression level or acceleration; `None` for the codec's default.
    pub(super) level: Option<i32>,
}

/// Compresses pages, one after another, on one thread at a time.
pub(super) trait Compressor: Send {
    /// Compresses `page` into `out` and returns the bytes used; `None` where they would not fit.
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize>;
}

/// Decompresses pages, one after another, on one thread at a time.
pub(super) trait Decompressor: Send {
    /// Decompresses `bytes` into all of `page`; [`Kind::Corrupt`] where they do not give exactly a page.
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind>;
}

/// Decompresses all of a page, without state.
pub(super) type Decompress = fn(&[u8], &mut [u8]) -> Result<(), Kind>;

/// Number of a codec in [`CODECS`]: three bits of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodecIndex(pub(super) u8);

impl CodecIndex {
    /// The codec of that number in [`CODECS`].
    pub(super) fn new(codec: usize) -> Self {
        assert!(codec < CODECS.len(), "codec {codec} of {}", CODECS.len());
        Self(codec as u8)
    }

    /// The codec.
    pub(super) fn codec(self) -> &'static Codec {
        &CODECS[usize::from(self.0)]
    }
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

/// Microseconds a page, measured on programs: 15 to 25 up to level 4, then 40, 100, 200, and up to 1000 from level 16 on.
fn zstd_units(params: Params) -> u32 {
    match params.level.unwrap_or(ZSTD_LEVEL) {
        ..=4 => 250,
        5..=8 => 400,
        9..=11 => 1000,
        12..=15 => 4000,
        _ => 10_000,
    }
}

const ZSTD_LEVEL: i32 = 3;

/// Measured over all levels: tables for a window of 4 KiB, and at the highest the prices of the optimal parser.
const ZSTD_COMPRESSOR_BYTES: u64 = 1 << 20;
const ZSTD_DECOMPRESSOR_BYTES: u64 = 160 << 10;

/// The codecs in the order of listings; the first is the default.
pub(super) static CODECS: [Codec; 2] = [
    Codec {
        name: "lz4",
        compressor_bytes: LZ4_STATE_BYTES as u64,
        decompressor_bytes: 0,
        levels: || 1..=65537,
        compressor: |params| Box::new(Lz4::new(params)),
        decompressor: || Box::new(Lz4Decoder),
        at_once: Some(lz4_decompress),
        compress_units: |_| 31,
        decompress_units: 31,
    },
    Codec {
        name: "zstd",
        compressor_bytes: ZSTD_COMPRESSOR_BYTES,
        decompressor_bytes: ZSTD_DECOMPRESSOR_BYTES,
        levels: || zstd_safe::min_c_level()..=zstd_safe::max_c_level(),
        compressor: |params| Box::new(Zstd::new(params)),
        decompressor: || Box::new(ZstdDecoder(DCtx::create())),
        at_once: None,
        compress_units: zstd_units,
        decompress_units: 100,
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

unsafe extern "C" {
    // Exported by liblz4, not declared by its binding.
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        target_bytes: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_sizeofState() -> c_int;
}

/// At least what LZ4_sizeofState asks for; checked when a compressor is made.
const LZ4_STATE_BYTES: usize = 16416;

struct Lz4 {
    state: Box<[u64; LZ4_STATE_BYTES / 8]>,
    acceleration: c_int,
}

impl Lz4 {
    fn new(params: Params) -> Self {
        // SAFETY: takes nothing and returns a constant.
        let wanted = unsafe { LZ4_sizeofState() };
        assert!(wanted as usize <= LZ4_STATE_BYTES, "liblz4 wants a state of {wanted} bytes");
        Self { state: Box::new([0; LZ4_STATE_BYTES / 8]), acceleration: params.level.unwrap_or(1) }
    }
}

impl Compressor for Lz4 {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        // SAFETY: the state is large and aligned enough, as checked in `new`; source and target are described by their own
        // lengths, both far below 2^31.
        let written = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                page.len() as c_int,
                out.len() as c_int,
                self.acceleration,
            )
        };
        usize::try_from(written).ok().filter(|&written| written > 0)
    }
}

struct Lz4Decoder;

fn lz4_decompress(bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
    // SAFETY: liblz4 reads within `bytes` and writes within `page` for any content.
    let written = unsafe {
        lz4_sys::LZ4_decompress_safe(
            bytes.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            bytes.len() as c_int,
            page.len() as c_int,
        )
    };
    if written == page.len() as c_int { Ok(()) } else { Err(Kind::Corrupt) }
}

impl Decompressor for Lz4Decoder {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        lz4_decompress(bytes, page)
    }
}

struct Zstd(CCtx<'static>);

impl Zstd {
    fn new(params: Params) -> Self {
        let mut context = CCtx::create();
        let level = params.level.unwrap_or(ZSTD_LEVEL);
        let set = [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::WindowLog(PAGE.trailing_zeros()),
        ];
        for parameter in set {
            context
                .set_parameter(parameter)
                .expect("levels are checked when they are stored; the rest is constant");
        }
        Self(context)
    }
}

impl Compressor for Zstd {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.compress2(out, page).ok()
    }
}

struct ZstdDecoder(DCtx<'static>);

impl Decompressor for ZstdDecoder {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        match self.0.decompress(page, bytes) {
            Ok(written) if written == page.len() => Ok(()),
            _ => Err(Kind::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn contexts_take_no_more_than_is_charged_for_them() {
        let mut page = vec![0; PAGE];
        Random(4).fill(&mut page[..2048]);
        for level in (-8..=zstd_safe::max_c_level()).chain([zstd_safe::min_c_level()]) {
            let (mut zstd, mut out) = (Zstd::new(Params { level: Some(level) }), vec![0; 2 * PAGE]);
            let len = zstd.compress(&page, &mut out).expect("two pages hold any page");
            let taken = zstd.0.sizeof() as u64;
            assert!(taken <= ZSTD_COMPRESSOR_BYTES, "level {level} takes {taken} bytes");
            let (mut decoder, mut back) = (ZstdDecoder(DCtx::create()), vec![0; PAGE]);
            decoder.decompress(&out[..len], &mut back).expect("what was compressed");
            let taken = decoder.0.sizeof() as u64;
            assert!(taken <= ZSTD_DECOMPRESSOR_BYTES, "a decompressor takes {taken} bytes");
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
        assert_eq!(find("zstd").ok(), Some(1));
        let error = find("lzo").unwrap_err();
        assert!(error.kind == Kind::Invalid && error.to_string().contains("lz4, zstd"));
    }
}
