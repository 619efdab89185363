//! Aliases and hidden names: what clients are told, and what they get.

use super::super::wire::{info, opt};
use super::client::{queries, query_payload};
use super::*;
use crate::Alias;

fn alias(name: &str, hidden: bool) -> Option<Alias> {
    Some(Alias { name: name.to_owned(), hidden })
}

fn export(name: &str) -> Export {
    Export::new(name, Aligned::new(TestDevice::new(SIZE))).unwrap()
}

/// One export "disk", also offered as "copy".
fn with_alias() -> (Arc<TestDevice>, Arc<Exports>) {
    let (device, exports) = (TestDevice::new(SIZE), Arc::new(Exports::new()));
    let export = Export::new("disk", Aligned::new(device.clone())).unwrap();
    exports.add(export.with_alias(alias("copy", false)).unwrap()).unwrap();
    (device, exports)
}

fn enter(exports: &Arc<Exports>, name: &str, style: Style) -> Client {
    let mut client = Client::greeted(exports);
    if style != Style::Simple {
        client.option(opt::STRUCTURED_REPLY, &[]);
    }
    client.style = style;
    assert_eq!(client.option(opt::GO, &query_payload(name, &[])).last(), Some(&(rep::ACK, vec![])));
    client
}

/// The names that a list shows.
fn listed(exports: &Arc<Exports>) -> Vec<String> {
    let replies = Client::greeted(exports).option(opt::LIST, &[]);
    let names = replies.iter().filter(|(kind, _)| *kind == rep::SERVER);
    names.map(|(_, data)| String::from_utf8(data[4..].to_vec()).unwrap()).collect()
}

/// What INFO answers: the name that the export has, or the refusal with its words.
fn asked(exports: &Arc<Exports>, name: &str) -> Result<String, (u32, Vec<u8>)> {
    let mut replies = Client::greeted(exports).option(opt::INFO, &query_payload(name, &[info::NAME]));
    match replies.len() {
        1 => Err(replies.remove(0)),
        _ => Ok(String::from_utf8(replies[1].1[2..].to_vec()).unwrap()),
    }
}

#[test]
fn a_twin_shows_what_is_written_and_takes_no_write() {
    for style in [Style::Simple, Style::Structured] {
        let (device, exports) = with_alias();
        let (mut writer, mut reader) = (enter(&exports, "disk", style), enter(&exports, "copy", style));
        for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
            let cookie = reader.ask(command, 0, 0, 512);
            assert_eq!(reader.error_of(cookie), errno::EPERM);
        }
        let cookie = reader.write(0, 0, &[1; 512]);
        assert_eq!(reader.error_of(cookie), errno::EPERM);
        assert!(device.log().is_empty());
        let cookie = writer.write(0, 512, &[7; 512]);
        assert_eq!(writer.error_of(cookie), 0);
        assert_eq!(reader.fetch(512, 512), [7; 512]);
        let both = exports.find(b"copy").unwrap().export().clone();
        assert_eq!(both.clients(), 2, "they are clients of one export");
        let cookie = reader.ask(cmd::FLUSH, 0, 0, 0);
        assert_eq!(reader.error_of(cookie), 0);
        drop(writer);
        assert!(both.reserve().is_err(), "the reader keeps it from being changed");
        drop(reader);
        assert!(both.reserve().is_ok());
    }
}

#[test]
fn flags_of_a_twin_are_those_of_a_read_only_export() {
    let (device, exports) = with_alias();
    device.change(|geometry| geometry.rotational = true);
    let flags = |name: &str| {
        let replies = Client::greeted(&exports).option(opt::INFO, &query_payload(name, &[]));
        u16::from_be_bytes([replies[0].1[10], replies[0].1[11]])
    };
    let writing = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    assert_eq!(flags("disk") & (writing | flag::READ_ONLY), writing);
    assert_eq!(flags("copy"), flags("disk") & !writing | flag::READ_ONLY);
    let mut old = Client::greeted(&exports);
    old.send_option(opt::EXPORT_NAME, b"copy");
    assert_eq!(old.take(10), [&SIZE.to_be_bytes()[..], &flags("copy").to_be_bytes()].concat());
}

#[test]
fn a_context_that_was_selected_for_a_twin_is_not_one_of_the_other_name() {
    for (selected, answer) in [("disk", errno::EINVAL), ("copy", 0)] {
        let (_, exports) = with_alias();
        let mut client = Client::greeted(&exports);
        client.option(opt::STRUCTURED_REPLY, &[]);
        client.style = Style::Structured;
        client.option(opt::SET_META_CONTEXT, &queries(selected, &["base:allocation"]));
        client.option(opt::GO, &query_payload("copy", &[]));
        let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 4096);
        let replied = if answer == 0 { client.reply().error } else { client.error_of(cookie) };
        assert_eq!(replied, answer, "selected for {selected}");
    }
}

/// A client may negotiate for long: a device that has ended is gone nevertheless, with its memory and its files.
#[test]
fn a_context_keeps_no_device_and_is_not_one_of_the_next_that_has_the_name() {
    for selected in ["disk", "copy"] {
        let (device, exports) = with_alias();
        let mut client = Client::greeted(&exports);
        client.option(opt::STRUCTURED_REPLY, &[]);
        client.style = Style::Structured;
        let context = client.option(opt::SET_META_CONTEXT, &queries(selected, &["base:allocation"]));
        assert_eq!(context.len(), 2, "it is selected: {context:?}");
        drop(exports.remove("disk").unwrap());
        assert_eq!(Arc::strong_count(&device), 1, "nobody else has it");
        exports.add(export("disk").with_alias(alias("copy", false)).unwrap()).unwrap();
        client.option(opt::GO, &query_payload(selected, &[]));
        let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 4096);
        assert_eq!(client.error_of(cookie), errno::EINVAL, "it was selected for another");
    }
}

#[test]
fn names_are_taken_by_twins_too() {
    let (_, exports) = with_alias();
    let refused = |export: Export| exports.add(export).err().expect("a name is taken").message().to_owned();
    assert!(refused(export("copy")).contains("'copy'"));
    assert!(refused(export("x").with_alias(alias("disk", false)).unwrap()).contains("'disk'"));
    assert!(refused(export("x").with_alias(alias("copy", true)).unwrap()).contains("'copy'"));
    for bad in ["x", "a\0b", &"y".repeat(4097)] {
        assert!(export("x").with_alias(alias(bad, false)).is_err(), "{bad}");
    }
    let mut reader = enter(&exports, "copy", Style::Simple);
    assert!(exports.remove("copy").is_none(), "an export is removed by its own name");
    exports.remove("disk").unwrap();
    assert!(exports.find(b"copy").is_none());
    assert_eq!(reader.fetch(0, 512), [0; 512], "who is connected stays so");
}

#[test]
fn a_hidden_name_is_not_listed_and_opens_as_before() {
    let exports = Arc::new(Exports::new());
    exports.add(export("secret").with_hidden(true).with_alias(alias("copy", false)).unwrap()).unwrap();
    exports.add(export("open").with_alias(alias("veiled", true)).unwrap()).unwrap();
    exports.add(export("gone").with_hidden(true)).unwrap();
    assert_eq!(listed(&exports), ["copy", "open"]);
    for name in ["secret", "copy", "open", "veiled", "gone"] {
        assert_eq!(asked(&exports, name).as_deref(), Ok(name));
        enter(&exports, name, Style::Simple);
    }
    let wrong = asked(&exports, "secre").unwrap_err();
    assert_eq!(wrong.0, rep::ERR_UNKNOWN);
    exports.remove("secret").unwrap();
    for absent in ["secret", "secret2", "x"] {
        assert_eq!(asked(&exports, absent), Err(wrong.clone()), "{absent}");
    }
}

/// Otherwise a client without a name would be led to what is hidden, and told its name.
#[test]
fn the_empty_name_means_the_only_export_that_is_listed() {
    let meant = |exports: &[(bool, Option<Alias>)]| {
        let all = Arc::new(Exports::new());
        for (number, (hidden, alias)) in exports.iter().enumerate() {
            let export = export(&format!("e{number}")).with_hidden(*hidden);
            all.add(export.with_alias(alias.clone()).unwrap()).unwrap();
        }
        asked(&all, "").ok()
    };
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(meant(&[(false, alias("t", false))]), name("e0"), "an alias is no second export");
    assert_eq!(meant(&[(true, alias("t", false))]), name("t"), "its own name is not told");
    assert_eq!(meant(&[(true, None), (false, None)]), name("e1"));
    assert_eq!(meant(&[(true, alias("t", true)), (false, None)]), name("e1"));
    assert_eq!(meant(&[(true, alias("t", false)), (false, None)]), None);
    assert_eq!(meant(&[(true, None)]), None);
    assert_eq!(meant(&[(true, alias("t", true))]), None);
}
