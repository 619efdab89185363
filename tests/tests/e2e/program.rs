//! The program as a file.

use std::fs;

use spillway_tests::binary;

/// Flags of an ELF section: it is loaded, and it is compressed.
const LOADED: u64 = 2;
const COMPRESSED: u64 = 0x800;

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Names and flags of the sections of a program of 64 bits.
fn sections(program: &[u8]) -> Vec<(String, u64)> {
    assert_eq!(program[..5], *b"\x7fELF\x02");
    let (table, entry) = (number(program, 0x28, 8) as usize, number(program, 0x3a, 2) as usize);
    let header = |index: u64| &program[table + index as usize * entry..][..entry];
    let names = number(header(number(program, 0x3e, 2)), 0x18, 8) as usize;
    let section = |index| {
        let name = &program[names + number(header(index), 0, 4) as usize..];
        let name = name.split(|byte| *byte == 0).next().expect("a name ends");
        (String::from_utf8_lossy(name).into_owned(), number(header(index), 8, 8))
    };
    (0..number(program, 0x3c, 2)).map(section).collect()
}

/// What backtraces need beside the names is small, and there.
#[test]
fn lines_of_code_are_compressed() {
    let program = fs::read(binary::path()).expect("it is built");
    let of_code = |(name, flags): &(String, u64)| name.starts_with(".debug_") && flags & LOADED == 0;
    let found: Vec<_> = sections(&program).into_iter().filter(of_code).collect();
    assert!(found.iter().any(|(name, _)| name == ".debug_line"), "{found:?}");
    assert!(found.iter().all(|(_, flags)| flags & COMPRESSED != 0), "{found:?}");
}
