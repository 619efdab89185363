//! What may have changed of an export when its server is there again.

use super::super::negotiation::Described;
use super::super::reconnect::check;
use crate::nbd::wire::flag;

const SIZE: u64 = 1 << 20;

fn export(flags: u16) -> Described {
    let (flags, allocation) = (flag::HAS_FLAGS | flags, Some(3));
    Described { size: SIZE, flags, allocation, structured: true, ..Described::NOTHING }
}

/// What the check says of an export that had `first` flags and has others now.
fn changed(first: u16, now: u16) -> Result<(), String> {
    check(&export(first), SIZE, false, &export(now))
}

#[test]
fn an_export_may_become_larger_and_able_to_do_more() {
    let mut larger = export(flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_TRIM);
    larger.size *= 2;
    assert_eq!(check(&export(flag::SEND_FLUSH), SIZE, false, &larger), Ok(()));
    let unused = flag::READ_ONLY | flag::CAN_MULTI_CONN | flag::SEND_DF | flag::SEND_CACHE | flag::ROTATIONAL;
    assert_eq!(changed(unused, 0), Ok(()), "nothing of that is used by itself");
    assert!(check(&larger, 2 * SIZE, false, &export(larger.flags)).unwrap_err().contains("it had 2097152"));
}

#[test]
fn a_volatile_cache_that_is_new_matters_to_who_writes() {
    let result = |read_only| check(&export(0), SIZE, read_only, &export(flag::SEND_FLUSH));
    assert!(result(false).unwrap_err().contains("a volatile cache now"));
    assert_eq!(result(true), Ok(()), "there is nothing to lose");
}

#[test]
fn an_export_that_can_do_less_is_not_used() {
    let narrowed = |change: fn(&mut Described)| {
        let mut now = export(0);
        change(&mut now);
        check(&export(0), SIZE, false, &now)
    };
    for (what, result) in [
        ("no flush", changed(flag::SEND_FLUSH, 0)),
        ("no FUA", changed(flag::SEND_FLUSH | flag::SEND_FUA, flag::SEND_FLUSH)),
        ("no discards", changed(flag::SEND_TRIM, 0)),
        ("no zeroes", changed(flag::SEND_WRITE_ZEROES, 0)),
        ("read-only", changed(0, flag::READ_ONLY)),
        ("larger blocks", narrowed(|now| now.block *= 2)),
        ("shorter payloads", narrowed(|now| now.payload_len_max /= 2)),
    ] {
        assert!(result.expect_err(what).contains("less"), "{what}");
    }
}

/// What was acknowledged without a journal is lost with such a cache.
#[test]
fn an_export_that_has_a_cache_now_is_not_used() {
    for now in [flag::SEND_FLUSH, flag::SEND_FLUSH | flag::SEND_FUA] {
        assert!(changed(0, now).expect_err("it would be used").contains("volatile cache"));
    }
}
