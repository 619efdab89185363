//! Contenders and their tools: servers of ours and peers (`servers`, `mounted`), a device in this process (`device`), the codec alone
//! (`lz4`), and what the kernel has (`kernel_zram`, `loop_device`, `ext4`, `emulated`); fio (`fio`, `account`), and the pages that
//! are written (`pages`).
//!
//! They need `measure`, and no benchmark.

pub(crate) mod account;
pub(crate) mod device;
pub(crate) mod emulated;
pub(crate) mod ext4;
pub(crate) mod fio;
pub(crate) mod kernel_zram;
pub(crate) mod loop_device;
pub(crate) mod lz4;
pub(crate) mod mounted;
pub(crate) mod pages;
pub(crate) mod servers;
