//! Commands, their replies and every errno.

use super::*;
use crate::test_device::LOOKED_AT_MAX;
use spillway_core::session::Session;
use spillway_core::{ByteRange, Extent, Kind, Op};

#[test]
fn what_is_written_is_read() {
    each_style(|mut client, _| {
        let data: Vec<u8> = (0..8192u32).map(|n| n as u8).collect();
        let cookie = client.write(0, 4096, &data);
        assert_eq!(client.error_of(cookie), 0);
        assert_eq!(client.fetch(4096, 8192), data);
        assert_eq!(client.fetch(4096 + 512, 512), data[512..1024]);
        assert!(client.received.is_empty());
    });
}

#[test]
fn a_client_uses_room_that_is_new_without_being_told() {
    each_style(|mut client, device| {
        let beyond = client.ask(cmd::WRITE_ZEROES, 0, SIZE, 4096);
        assert_eq!(client.error_of(beyond), errno::ENOSPC);
        device.change(|geometry| geometry.size = 2 * SIZE);
        let within = client.ask(cmd::WRITE_ZEROES, 0, SIZE, 4096);
        assert_eq!(client.error_of(within), 0);
        let beyond = client.ask(cmd::WRITE_ZEROES, 0, 2 * SIZE - 4096, 8192);
        assert_eq!(client.error_of(beyond), errno::ENOSPC);
    });
}

#[test]
fn sectors_and_large_payloads_work_alike() {
    each_style(|mut client, _| {
        for len in [512, 1536, 4096, 65_536, 65_536 + 512, 1 << 19] {
            let data = vec![len as u8 | 1; len];
            let cookie = client.write(0, 512, &data);
            assert_eq!(client.error_of(cookie), 0);
            assert_eq!(client.fetch(512, len as u64), data);
        }
        assert!(client.windows > 0, "large payloads are received where they stay");
    });
}

#[test]
fn flags_reach_the_device() {
    each_style(|mut client, device| {
        let fua = cmd_flag::FUA;
        client.write(fua, 0, &[1; 4096]);
        client.ask(cmd::WRITE_ZEROES, fua | cmd_flag::NO_HOLE, 0, 4096);
        client.ask(cmd::TRIM, fua, 4096, 4096);
        client.ask(cmd::FLUSH, fua, 0, 0);
        client.read_at(fua, 0, 4096);
        for _ in 0..5 {
            assert_eq!(client.reply().error, 0);
        }
        let (first, second) = (ByteRange::new(0, 4096), ByteRange::new(4096, 4096));
        let expected = [
            (Op::Write, first, true),
            (Op::WriteZeroes, first, true),
            (Op::Discard, second, true),
            (Op::Flush, ByteRange::new(0, 0), false),
            (Op::Read, first, false),
        ];
        assert_eq!(device.log(), expected);
    });
}

#[test]
fn every_bad_request_has_its_errno_and_the_next_is_understood() {
    for style in STYLES {
        let (device, exports) = one_export();
        device.change(|geometry| geometry.fast_zeroes = false);
        let mut client = Client::transmitting(&exports, style);
        let df = if style == Style::Simple { errno::EINVAL } else { errno::EOVERFLOW };
        let too_long = (32 << 20) + 512;
        let cases = [
            (cmd::READ, 0, SIZE, 512, errno::EINVAL),
            (cmd::READ, 0, SIZE - 512, 1024, errno::EINVAL),
            (cmd::READ, 0, u64::MAX - 511, 512, errno::EINVAL),
            (cmd::READ, 0, 1, 512, errno::EINVAL),
            (cmd::READ, 0, 0, 513, errno::EINVAL),
            (cmd::READ, 0, 0, 0, errno::EINVAL),
            (cmd::READ, 0, 0, too_long, errno::EINVAL),
            (cmd::READ, 0, 0, u32::MAX.into(), errno::EINVAL),
            (cmd::READ, cmd_flag::DF, 0, too_long, df),
            (cmd::READ, cmd_flag::NO_HOLE, 0, 512, errno::EINVAL),
            (cmd::READ, 1 << 15, 0, 512, errno::EINVAL),
            (cmd::FLUSH, 0, 512, 0, errno::EINVAL),
            (cmd::FLUSH, 0, 0, 512, errno::EINVAL),
            (cmd::FLUSH, cmd_flag::DF, 0, 0, errno::EINVAL),
            (cmd::TRIM, 0, SIZE, 512, errno::EINVAL),
            (cmd::TRIM, 0, 0, 0, errno::EINVAL),
            (cmd::TRIM, cmd_flag::NO_HOLE, 0, 512, errno::EINVAL),
            (cmd::CACHE, 0, SIZE, 512, errno::EINVAL),
            (cmd::CACHE, cmd_flag::REQ_ONE, 0, 512, errno::EINVAL),
            (cmd::WRITE_ZEROES, 0, SIZE, 512, errno::ENOSPC),
            (cmd::WRITE_ZEROES, 0, 100, 512, errno::EINVAL),
            (cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 512, errno::ENOTSUP),
            (cmd::WRITE_ZEROES, cmd_flag::REQ_ONE, 0, 512, errno::EINVAL),
            (cmd::BLOCK_STATUS, 0, SIZE, 512, errno::EINVAL),
            (cmd::BLOCK_STATUS, 0, 0, 0, errno::EINVAL),
            (cmd::BLOCK_STATUS, cmd_flag::DF, 0, 512, errno::EINVAL),
            (8, 0, 0, 512, errno::EINVAL),
            (0xffff, 0, 0, 512, errno::EINVAL),
        ];
        for (command, flags, offset, length, expected) in cases {
            let cookie = client.ask(command, flags, offset, length);
            assert_eq!(client.error_of(cookie), expected, "{command} {flags} {offset} {length}");
        }
        assert!(device.log().is_empty());
        assert_eq!(client.fetch(0, 512), [0; 512]);
    }
}

#[test]
fn bad_writes_are_refused_and_their_payload_skipped() {
    each_style(|mut client, device| {
        let cases = [
            (0, SIZE, 512, errno::ENOSPC),
            (0, SIZE - 512, 1024, errno::ENOSPC),
            (0, 3, 512, errno::EINVAL),
            (0, 0, 511, errno::EINVAL),
            (cmd_flag::DF, 0, 512, errno::EINVAL),
            (0, SIZE, 100_000, errno::ENOSPC),
        ];
        for (flags, offset, len, expected) in cases {
            let cookie = client.write(flags, offset, &vec![0x25; len]);
            assert_eq!(client.error_of(cookie), expected, "{flags} {offset} {len}");
        }
        assert!(device.log().is_empty());
        assert_eq!(client.fetch(0, 512), [0; 512]);
    });
}

#[test]
fn a_refused_write_is_answered_behind_its_payload_or_when_the_server_stops() {
    for stops in [false, true] {
        each_style(|mut client, device| {
            let (cookie, header) = client.request(cmd::WRITE, 0, SIZE, 100_000);
            let mut bytes = Vec::new();
            header.encode(client.header_style(), &mut bytes);
            client.send(&bytes);
            client.send(&[7; 99_999]);
            assert!(client.received.is_empty(), "libnbd does not know a request that it still sends");
            if stops {
                client.session.wind_down();
            }
            client.send(&[7]);
            assert_eq!(client.error_of(cookie), errno::ENOSPC);
            assert!(device.log().iter().all(|seen| seen.0 == Op::Flush));
        });
    }
}

#[test]
fn a_write_longer_than_the_largest_payload_is_skipped_or_ends_it() {
    let (_, exports) = one_export();
    let config = Config { payload_len_max: 100_000, ..Config::default() };
    let mut client = Client::with_config(&exports, config).greet().into_transmission(Style::Structured);
    let cookie = client.write(0, 0, &vec![1; 65_536 + 512]);
    assert_eq!(client.error_of(cookie), errno::EINVAL, "100,000 is rounded down to 64 KiB");
    assert_eq!(client.fetch(0, 512), [0; 512]);
    client.ask(cmd::WRITE, 0, 0, (64 << 20) + 1);
    assert!(client.session.finished() && client.received.is_empty());
}

#[test]
fn extended_payloads_are_announced_and_limited() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Extended);
    let (cookie, mut header) = client.request(cmd::WRITE, 0, 0, 512);
    header.flags = 0;
    let mut bytes = Vec::new();
    header.encode(client.header_style(), &mut bytes);
    client.send(&bytes);
    assert_eq!(client.error_of(cookie), errno::EINVAL, "a write without payload");
    let cookie = client.ask(cmd::READ, cmd_flag::PAYLOAD_LEN, 0, 512);
    client.send(&[7; 512]);
    assert_eq!(client.error_of(cookie), errno::EINVAL, "a read with payload, which is skipped");
    let cookie = client.ask(cmd::BLOCK_STATUS, cmd_flag::PAYLOAD_LEN, 0, 12);
    client.send(&[7; 12]);
    assert_eq!(client.error_of(cookie), errno::EINVAL);
    assert_eq!(client.fetch(0, 512), [0; 512]);
    device.log();
    client.ask(cmd::WRITE, 0, 0, (32 << 20) + 1);
    assert!(client.session.finished() && device.log().is_empty());
}

#[test]
fn extended_ranges_may_be_longer_than_four_gigabytes() {
    let (_, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Extended);
    for (command, expected) in
        [(cmd::TRIM, errno::EINVAL), (cmd::WRITE_ZEROES, errno::ENOSPC), (cmd::BLOCK_STATUS, errno::EINVAL)]
    {
        let cookie = client.ask(command, 0, 0, 1 << 33);
        assert_eq!(client.error_of(cookie), expected);
    }
    let cookie = client.ask(cmd::READ, 0, 0, u64::MAX);
    assert_eq!(client.error_of(cookie), errno::EINVAL);
}

#[test]
fn a_read_only_export_takes_no_writes() {
    for by_device in [false, true] {
        let device = TestDevice::new(SIZE);
        device.change(|geometry| geometry.read_only = by_device);
        let exports = Arc::new(Exports::new());
        let export = Export::new("disk", Aligned::new(device.clone())).unwrap().with_read_only(!by_device);
        exports.add(export).unwrap();
        let mut client = Client::transmitting(&exports, Style::Structured);
        let cookie = client.write(0, 0, &[1; 512]);
        assert_eq!(client.error_of(cookie), errno::EPERM);
        for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
            let cookie = client.ask(command, 0, 0, 512);
            assert_eq!(client.error_of(cookie), errno::EPERM);
        }
        assert!(device.log().is_empty());
        assert_eq!(client.fetch(0, 512), [0; 512]);
        let cookie = client.ask(cmd::FLUSH, 0, 0, 0);
        assert_eq!(client.error_of(cookie), 0);
    }
}

#[test]
fn failures_of_the_device_reach_the_client() {
    each_style(|mut client, device| {
        for (kind, expected) in
            [(Kind::Io, errno::EIO), (Kind::NoSpace, errno::ENOSPC), (Kind::Corrupt, errno::EIO)]
        {
            device.fail(Some(kind));
            let cookie = client.write(0, 0, &[1; 512 * 8]);
            assert_eq!(client.error_of(cookie), expected);
            let cookie = client.read_at(0, 0, 4096);
            assert_eq!(client.error_of(cookie), expected);
            let cookie = client.ask(cmd::FLUSH, 0, 0, 0);
            assert_eq!(client.error_of(cookie), expected);
            if client.style != Style::Simple {
                let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 4096);
                assert_eq!(client.error_of(cookie), expected);
            }
        }
        device.fail(None);
        assert_eq!(client.fetch(0, 512), [0; 512]);
    });
}

#[test]
fn block_status_tells_data_from_holes() {
    for style in [Style::Structured, Style::Extended] {
        let (_, exports) = one_export();
        let mut client = Client::transmitting(&exports, style);
        client.write(0, 8192, &[1; 4096]);
        client.reply();
        let mut status = |flags, offset, length| {
            let cookie = client.ask(cmd::BLOCK_STATUS, flags, offset, length);
            let got = client.reply();
            assert_eq!((got.cookie, got.error), (cookie, 0));
            got.extents
        };
        // The rest of what the device says at a time: the client asks on from there.
        let rest = Extent::hole(LOOKED_AT_MAX as u64 * 4096 - 12_288);
        assert_eq!(status(0, 0, SIZE), [Extent::hole(8192), Extent::stored(4096), rest]);
        assert_eq!(status(cmd_flag::REQ_ONE, 0, SIZE), [Extent::hole(8192)]);
        assert_eq!(status(0, 512, 9216), [Extent::hole(7680), Extent::stored(1536)]);
        assert_eq!(status(cmd_flag::REQ_ONE, 8704, 512), [Extent::stored(512)]);
    }
}

#[test]
fn block_status_needs_structured_replies() {
    let (_, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 512);
    assert_eq!(client.error_of(cookie), errno::EINVAL);
}

#[test]
fn cache_succeeds() {
    each_style(|mut client, device| {
        let cookie = client.ask(cmd::CACHE, 0, 0, SIZE);
        assert_eq!(client.error_of(cookie), 0);
        assert!(device.log().is_empty());
    });
}

#[test]
fn many_requests_in_one_piece_are_all_answered() {
    each_style(|mut client, _| {
        let mut bytes = Vec::new();
        let mut cookies = Vec::new();
        for index in 0..64 {
            let (cookie, header) = client.request(cmd::WRITE, 0, index * 4096, 4096);
            header.encode(client.header_style(), &mut bytes);
            bytes.extend([index as u8; 4096]);
            cookies.push(cookie);
        }
        client.piece = usize::MAX;
        client.send(&bytes);
        for cookie in cookies {
            assert_eq!(client.error_of(cookie), 0);
        }
        assert_eq!(client.fetch(63 * 4096, 4096), [63; 4096]);
    });
}

#[test]
fn a_wrong_magic_number_ends_it_after_what_was_asked_before() {
    each_style(|mut client, device| {
        device.hold();
        let cookie = client.write(0, 0, &[1; 4096]);
        client.send(&[0; 32]);
        assert!(!client.session.finished() && client.session.pending() == 1);
        device.release(1);
        client.drive();
        assert_eq!(client.error_of(cookie), 0);
        assert!(client.session.finished());
    });
}

#[test]
fn statistics_count_what_was_answered() {
    let (_, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Structured);
    client.write(0, 0, &[1; 4096]);
    client.read_at(0, 0, 1024);
    client.read_at(0, 1, 1024);
    client.ask(cmd::FLUSH, 0, 0, 0);
    client.ask(cmd::TRIM, 0, 0, 512);
    client.ask(cmd::WRITE_ZEROES, 0, 0, 512);
    client.ask(cmd::CACHE, 0, 0, 512);
    let statistics = exports.find(b"").unwrap().export().statistics();
    let expected = crate::Statistics {
        reads: 1,
        read_bytes: 1024,
        writes: 1,
        write_bytes: 4096,
        flushes: 1,
        discards: 1,
        write_zeroes: 1,
        others: 1,
        errors: 1,
    };
    assert_eq!(statistics, expected);
}

#[test]
fn zeroes_that_keep_their_room_are_not_known_to_be_fast() {
    each_style(|mut client, _| {
        for (flags, expected) in
            [(cmd_flag::FAST_ZERO, 0), (cmd_flag::FAST_ZERO | cmd_flag::NO_HOLE, errno::ENOTSUP)]
        {
            let cookie = client.ask(cmd::WRITE_ZEROES, flags, 0, 512);
            assert_eq!(client.error_of(cookie), expected);
        }
    });
}
