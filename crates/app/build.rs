//! Has the program carry the lines of its code compressed: they are half of it otherwise, and wanted for backtraces alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
}
