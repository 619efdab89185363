//! What TLS takes of a turn.

use super::*;

/// Bytes that a client says.
const SAID: usize = 2000;

/// Units of work for what a client says in so many records.
fn work_of(records: usize) -> u64 {
    let authority = Authority::new();
    let mut session = asked(authority.server(Clients::Any).unwrap());
    let mut client = authority.client(None);
    assert!(converse(&mut session, &mut client, 1 << 20).unwrap().is_empty());
    for part in [7; SAID].chunks(SAID / records) {
        client.writer().write_all(part).unwrap();
    }
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    let _turn = work::turn(u32::MAX);
    let mut left = &bytes[..];
    while !left.is_empty() {
        left = &left[session.receive(left)..];
    }
    assert_eq!(session.inside().taken.len(), 2 + SAID);
    work::so_far()
}

/// Each costs as much as a kilobyte of content: a client could keep a worker from the others by records of a byte, or of none.
#[test]
fn a_record_is_work_however_short() {
    let [one, many] = [1, SAID].map(work_of);
    assert!(many >= one + SAID as u64, "{one} units in one record, {many} in {SAID}");
}
