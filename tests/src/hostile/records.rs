//! Hostile clients that break TLS itself: they begin it and say no more, or something else, or have spoken it well and then harm a record.
//!
//! What lies in plain where records have to be writes to the range of the bystander: it finds out if a server obeys.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use rustls::ClientConnection;

use super::Chance;
use super::attack::{NOISE, Scene};
use super::bystander::RANGE;
use super::speech::Speech;
use super::stacks::Export;
use super::words::{self, option};
use crate::raw::{self, command};

const KIB: u64 = 1 << 10;

/// Bytes before what a record holds: kind, version, length.
const HEAD: usize = 5;

/// Kinds of records: a change of the cipher, an alert, a part of a handshake, content, and one that there is not.
const KINDS: [u8; 5] = [20, 21, 22, 23, 99];

/// Plays one client; its connection, and what it still owes.
pub(super) fn play(scene: &Scene<'_>, chance: &mut Chance) -> io::Result<(Speech, Vec<u8>)> {
    let export = chance.pick(scene.exports);
    match chance.below(8) {
        0 => half_a_handshake(scene, chance),
        1 => no_records(scene, chance),
        2 => plain_words(scene, chance, &export),
        _ => harmed(scene, chance, &export),
    }
}

/// Says a part, the rest later or never.
fn in_parts(stream: UnixStream, mut bytes: Vec<u8>, chance: &mut Chance) -> io::Result<(Speech, Vec<u8>)> {
    let mut speech = Speech::as_it_is(stream)?;
    let rest = bytes.split_off(chance.below(bytes.len() as u64 + 1) as usize);
    let _ = speech.say(&bytes, chance.one_in(2));
    Ok((speech, rest))
}

/// What a client has enciphered and not sent.
fn enciphered(connection: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).expect("memory takes all");
    }
    bytes
}

fn half_a_handshake(scene: &Scene<'_>, chance: &mut Chance) -> io::Result<(Speech, Vec<u8>)> {
    let hello = enciphered(&mut scene.door.connection(chance));
    let early = if chance.one_in(4) { hello.clone() } else { Vec::new() };
    in_parts(scene.door.ask(&early)?, hello, chance)
}

/// Any bytes, or records whose heads alone make sense.
fn no_records(scene: &Scene<'_>, chance: &mut Chance) -> io::Result<(Speech, Vec<u8>)> {
    let mut bytes = Vec::new();
    if chance.one_in(2) {
        bytes.extend(noise(chance, 256 * KIB));
    } else {
        for _ in 0..chance.spread(200) {
            bytes.extend(record(chance, 20 * KIB));
        }
    }
    in_parts(scene.door.ask(&[])?, bytes, chance)
}

/// A record of noise, whose length may lie.
fn record(chance: &mut Chance, len_max: u64) -> Vec<u8> {
    let content = noise(chance, len_max);
    let len = content.len() as u16;
    let said = chance.pick(&[len, len, len, 0, u16::MAX, 1 << 14]);
    let version = chance.pick(&[1, 3, 3, 3, 0xff]);
    let head = [chance.pick(&KINDS), 3, version, (said >> 8) as u8, said as u8];
    [&head[..], &content].concat()
}

fn noise(chance: &mut Chance, len_max: u64) -> Vec<u8> {
    let len = chance.spread(len_max) as usize;
    let from = chance.below((NOISE.len() - len) as u64) as usize;
    NOISE[from..from + len].to_vec()
}

/// Everything of a conversation in plain, with the request for TLS or once it was granted: nothing of it is obeyed or answered.
fn plain_words(scene: &Scene<'_>, chance: &mut Chance, export: &Export) -> io::Result<(Speech, Vec<u8>)> {
    let name = words::option(option::EXPORT_NAME, export.name.as_bytes());
    let bytes = [name, forbidden(chance, export)].concat();
    let mut stream = match chance.one_in(2) {
        true => scene.door.ask(&bytes)?,
        false => {
            let mut stream = scene.door.ask(&[])?;
            stream.write_all(&bytes)?;
            stream
        }
    };
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut said = Vec::new();
    // A server that hangs up before it has read all resets the connection.
    let _ = stream.read_to_end(&mut said);
    let alerts = said.is_empty() || said[0] == 21;
    assert!(alerts && said.len() < 64, "a server answers in plain once TLS was asked for: {said:?}");
    Ok((Speech::as_it_is(stream)?, Vec::new()))
}

/// Writes to the bystander, in plain.
fn forbidden(chance: &mut Chance, export: &Export) -> Vec<u8> {
    let offset = export.size - RANGE + chance.below(RANGE / (4 * KIB)) * 4 * KIB;
    let header = raw::header(command::WRITE, 1, offset, 4096);
    [&header[..], &NOISE[..4096]].concat()
}

/// A conversation that is sound up to a record.
fn harmed(scene: &Scene<'_>, chance: &mut Chance, export: &Export) -> io::Result<(Speech, Vec<u8>)> {
    let tls = scene.door.enter_tls(chance)?;
    let (stream, mut connection) = (tls.stream, tls.connection);
    connection.writer().write_all(&words::option(option::EXPORT_NAME, export.name.as_bytes()))?;
    let mut bytes = enciphered(&mut connection);
    for _ in 0..chance.below(8) {
        connection.writer().write_all(&request(chance, export))?;
        bytes.extend(enciphered(&mut connection));
    }
    bytes = harm(bytes, &mut connection, scene, chance, export);
    in_parts(stream, bytes, chance)
}

/// A request that makes sense, beside the bystander.
fn request(chance: &mut Chance, export: &Export) -> Vec<u8> {
    let len = chance.spread(64) * 512;
    let offset = chance.below((export.size - RANGE - len) / 512) * 512;
    let command = chance.pick(&[command::READ, command::WRITE, command::WRITE, command::FLUSH]);
    let header = raw::header(command, chance.bits(), offset, len as u32);
    let payload = if command == command::WRITE { &NOISE[..len as usize] } else { &[] };
    [&header[..], payload].concat()
}

/// Records with a fault in them or behind them, or followed by what may not follow.
fn harm(
    mut bytes: Vec<u8>,
    connection: &mut ClientConnection,
    scene: &Scene<'_>,
    chance: &mut Chance,
    export: &Export,
) -> Vec<u8> {
    let at = chance.below(bytes.len() as u64) as usize;
    match chance.below(9) {
        // Cut off, and no word that it ends.
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << chance.below(8),
        2 => drop(bytes.splice(at..at, noise(chance, 64 * KIB))),
        // The same again.
        3 => bytes.extend_from_within(..),
        4 => bytes.extend(forbidden(chance, export)),
        5 => drop(bytes.splice(..0, forbidden(chance, export))),
        6 => bytes.extend(another_handshake(scene, chance)),
        7 => {
            // Keys without end, where the version has that.
            let _ = (0..chance.spread(3000)).try_for_each(|_| connection.refresh_traffic_keys());
            bytes.extend(enciphered(connection));
        }
        _ => {
            connection.send_close_notify();
            bytes.extend(enciphered(connection));
            bytes.extend_from_within(..HEAD.max(at));
        }
    }
    bytes
}

/// What begins a handshake or asks for one, changes the cipher, or warns, again and again.
fn another_handshake(scene: &Scene<'_>, chance: &mut Chance) -> Vec<u8> {
    let one = match chance.below(4) {
        0 => enciphered(&mut scene.door.connection(chance)),
        1 => vec![22, 3, 3, 0, 4, 0, 0, 0, 0],
        2 => vec![20, 3, 3, 0, 1, 1],
        _ => vec![21, 3, 3, 0, 2, 1, chance.pick(&[0, 90, 100])],
    };
    one.repeat(chance.spread(500) as usize)
}
