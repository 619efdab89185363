//! The numbers of the protocol: magic numbers, flags, options, commands and errors.

/// First eight bytes of a server's greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Starts the rest of the greeting and every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Starts an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Longest name, description or query, in bytes.
pub const STRING_LEN_MAX: usize = 4096;

/// Declares a module of constants of one type.
macro_rules! constants {
    ($(#[$about:meta])* $module:ident: $type:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$about])*
        pub mod $module {
            $(
                #[doc = concat!("`", stringify!($name), "`, see the protocol's description.")]
                pub const $name: $type = $value;
            )*
        }
    };
}

constants! {
    /// Handshake flags of the server (16 bits) and of the client (32 bits): the same two bits.
    handshake_flag: u16 { FIXED_NEWSTYLE = 1, NO_ZEROES = 1 << 1, }
}
constants! {
    /// Transmission flags: what an export can do.
    flag: u16 {
        HAS_FLAGS = 1,
        READ_ONLY = 1 << 1,
        SEND_FLUSH = 1 << 2,
        SEND_FUA = 1 << 3,
        ROTATIONAL = 1 << 4,
        SEND_TRIM = 1 << 5,
        SEND_WRITE_ZEROES = 1 << 6,
        SEND_DF = 1 << 7,
        CAN_MULTI_CONN = 1 << 8,
        SEND_CACHE = 1 << 10,
        SEND_FAST_ZERO = 1 << 11,
    }
}
constants! {
    /// Options.
    opt: u32 {
        EXPORT_NAME = 1,
        ABORT = 2,
        LIST = 3,
        STARTTLS = 5,
        INFO = 6,
        GO = 7,
        STRUCTURED_REPLY = 8,
        LIST_META_CONTEXT = 9,
        SET_META_CONTEXT = 10,
        EXTENDED_HEADERS = 11,
    }
}
constants! {
    /// Types of option replies; errors have bit 31.
    rep: u32 {
        ACK = 1,
        SERVER = 2,
        INFO = 3,
        META_CONTEXT = 4,
        ERR_UNSUP = 1 << 31 | 1,
        ERR_POLICY = 1 << 31 | 2,
        ERR_INVALID = 1 << 31 | 3,
        ERR_TLS_REQD = 1 << 31 | 5,
        ERR_UNKNOWN = 1 << 31 | 6,
        ERR_SHUTDOWN = 1 << 31 | 7,
        ERR_TOO_BIG = 1 << 31 | 9,
        ERR_EXT_HEADER_REQD = 1 << 31 | 10,
    }
}
constants! {
    /// Kinds of information about an export.
    info: u16 { EXPORT = 0, NAME = 1, DESCRIPTION = 2, BLOCK_SIZE = 3, }
}
constants! {
    /// Commands.
    cmd: u16 {
        READ = 0,
        WRITE = 1,
        DISC = 2,
        FLUSH = 3,
        TRIM = 4,
        CACHE = 5,
        WRITE_ZEROES = 6,
        BLOCK_STATUS = 7,
    }
}
constants! {
    /// Command flags.
    cmd_flag: u16 {
        FUA = 1,
        NO_HOLE = 1 << 1,
        DF = 1 << 2,
        REQ_ONE = 1 << 3,
        FAST_ZERO = 1 << 4,
        PAYLOAD_LEN = 1 << 5,
    }
}
constants! {
    /// Types of reply chunks; errors have bit 15.
    chunk: u16 {
        NONE = 0,
        OFFSET_DATA = 1,
        OFFSET_HOLE = 2,
        BLOCK_STATUS = 5,
        BLOCK_STATUS_EXT = 6,
        ERROR = 1 << 15 | 1,
        ERROR_OFFSET = 1 << 15 | 2,
    }
}
constants! {
    /// Errors of the transmission phase; no others may be sent.
    errno: u32 {
        EPERM = 1,
        EIO = 5,
        ENOMEM = 12,
        EINVAL = 22,
        ENOSPC = 28,
        EOVERFLOW = 75,
        ENOTSUP = 95,
        ESHUTDOWN = 108,
    }
}

/// Flag of a reply chunk: the last of its request.
pub const REPLY_FLAG_DONE: u16 = 1;
/// The extent is not allocated.
pub const STATE_HOLE: u32 = 1;
/// The extent reads as zero.
pub const STATE_ZERO: u32 = 1 << 1;
/// The one metadata context of the protocol itself.
pub const BASE_ALLOCATION: &str = "base:allocation";
