//! What hostile clients do.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Chance;
use super::bystander::RANGE;
use super::door::Door;
use super::machine::Machine;
use super::motif::Motif;
use super::records;
use super::speech::{Request, Speech, Stuck, Style};
use super::stacks::{Export, Target};
use super::web::{self, Web};
use super::words::{self, flag, option};
use crate::pattern;
use crate::raw::command;

const MIB: u64 = 1 << 20;

/// Payload bytes that one client sends at most.
const PAYLOAD: u64 = 16 * MIB;

/// Most connections that one hand keeps open.
const HELD: usize = 48;

/// Bytes that nothing compresses, to be sent from any place.
pub(super) static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| pattern::random(1, 0, 4 << 20));
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// What all clients of a round share.
pub(super) struct Scene<'a> {
    pub(super) door: &'a Door,
    /// HTTP, where the server has it.
    pub(super) web: Option<&'a Web>,
    /// Of vhost-user.
    pub(super) guest: &'a Path,
    pub(super) exports: &'a [Export],
    /// Longest payload that the server should take, in bytes.
    pub(super) payload_max: u64,
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Front ends whose queues were started.
    pub(super) machines: AtomicU64,
}

impl<'a> Scene<'a> {
    pub(super) fn new(target: &'a Target, web: Option<&'a Web>, payload_max: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let (requests, connections, machines) = (zero(), zero(), zero());
        let Target { door, guest, exports, .. } = target;
        Self { door, web, guest, exports, payload_max, requests, connections, machines }
    }
}

/// A connection that stays, and says a little more now and then.
struct Held {
    speech: Speech,
    rest: Vec<u8>,
}

/// One thread of attackers.
pub(super) struct Hand<'a> {
    scene: &'a Scene<'a>,
    chance: Chance,
    /// What the wave has in common.
    theme: Option<Motif>,
    held: VecDeque<Held>,
}

impl<'a> Hand<'a> {
    pub(super) fn new(scene: &'a Scene<'a>, chance: Chance, theme: Option<Motif>) -> Self {
        Self { scene, chance, theme, held: VecDeque::new() }
    }

    /// Lets so many clients come one after the other; those that stay go with this hand.
    pub(super) fn play(mut self, clients: u64) {
        for _ in 0..clients {
            self.one_client();
            self.trickle();
        }
    }

    fn one_client(&mut self) {
        match self.chance.below(16) {
            0 => self.half_a_handshake(),
            1 => self.endless_options(),
            2 => self.garbage(),
            3 => self.crowd(),
            4 => self.machine(),
            5..8 if self.scene.door.has_tls() => self.records(),
            8..14 if self.scene.web.is_some() => self.web(),
            _ => self.requests(),
        }
    }

    fn connect(&mut self) -> Option<Speech> {
        self.scene.connections.fetch_add(1, Relaxed);
        Speech::connect(self.scene.door, &mut self.chance).ok()
    }

    fn enter(&mut self) -> Option<(Speech, Export)> {
        self.scene.connections.fetch_add(1, Relaxed);
        let export = self.chance.pick(self.scene.exports);
        let styles =
            [Style::ExportName, Style::Simple, Style::Structured, Style::Structured, Style::Extended];
        let style = self.chance.pick(&styles);
        let speech = Speech::enter(self.scene.door, &mut self.chance, export.name, style);
        speech.ok().map(|speech| (speech, export))
    }

    fn hold(&mut self, speech: Speech, rest: Vec<u8>) {
        self.held.push_back(Held { speech, rest });
        if self.held.len() > HELD {
            self.held.pop_front();
        }
    }

    /// Every connection that stays says a few bytes more of what it owes.
    fn trickle(&mut self) {
        let chance = &mut self.chance;
        self.held.retain_mut(|held| {
            let count = (chance.spread(4096) as usize).min(held.rest.len());
            let said = held.speech.say(&held.rest[..count], false).is_ok();
            held.rest.drain(..count);
            said
        });
    }

    /// A part of a handshake, with an option whose data is announced and comes later or never.
    fn half_a_handshake(&mut self) {
        let Some(mut speech) = self.connect() else { return };
        let len = self.chance.pick(&[0, 1, 4096, 65536, 65537, 1 << 20, 64 << 20, u32::MAX]);
        let sent = self.chance.spread(u64::from(len).clamp(1, MIB)) as usize;
        let mut words = speech.opening();
        words.extend(words::option_header(self.option_number(), len));
        words.extend(&NOISE[..sent]);
        let cut = self.chance.spread(words.len() as u64) as usize;
        if speech.say(&words[..cut], false).is_ok() {
            self.hold(speech, words.split_off(cut));
        }
    }

    fn option_number(&mut self) -> u32 {
        let known = [
            option::LIST,
            option::INFO,
            option::GO,
            option::LIST_META_CONTEXT,
            option::SET_META_CONTEXT,
            option::STRUCTURED_REPLY,
            99,
        ];
        self.chance.pick(&known)
    }

    /// Options without end whose answers nobody reads.
    fn endless_options(&mut self) {
        let Some(mut speech) = self.connect() else { return };
        let export = self.chance.pick(self.scene.exports).name;
        let asked = vec!["base:allocation"; self.chance.spread(3000) as usize];
        let queries = words::queries(export, &asked);
        let one = match self.chance.below(4) {
            0 => words::option(option::LIST, &[]),
            1 => words::option(option::SET_META_CONTEXT, &queries),
            2 => words::option(option::LIST_META_CONTEXT, &queries),
            _ => words::option(self.option_number(), &NOISE[..self.chance.spread(65536) as usize]),
        };
        let times = self.chance.spread(5000).min(1 + 8 * MIB / one.len() as u64);
        let said = speech.say(&speech.opening(), false);
        if said.and_then(|()| (0..times).try_for_each(|_| speech.say(&one, false))).is_ok() {
            self.hold(speech, Vec::new());
        }
    }

    fn garbage(&mut self) {
        let Some(mut speech) = self.connect() else { return };
        let len = self.chance.spread(MIB) as usize;
        let _ = speech.say(&NOISE[..len], self.chance.one_in(2));
    }

    /// Many connections at once, each somewhere before or after its handshake. Those that have entered may all ask for the same,
    /// and read nothing.
    fn crowd(&mut self) {
        let count = self.chance.spread(256);
        let motif = Motif { reads: false, ..self.motif() };
        let (entered, asks) = (!self.chance.one_in(4), !self.chance.one_in(4));
        let mut crowd = Vec::new();
        for _ in 0..count {
            if !entered {
                let Some(mut speech) = self.connect() else { continue };
                let words = speech.opening();
                let said = self.chance.below(words.len() as u64 + 1) as usize;
                crowd.extend(speech.say(&words[..said], false).ok().map(|()| speech));
            } else if let Some((mut speech, export)) = self.enter() {
                if asks {
                    // The server takes no more once enough is unread: that is when to stay.
                    let _ = self.burst(&mut speech, &export, motif, PAYLOAD / count);
                }
                crowd.push(speech);
            }
        }
        // They stay while one of them works.
        self.requests();
        drop(crowd);
    }

    /// A front end of vhost-user, of which the server takes one at a time.
    fn machine(&mut self) {
        self.scene.connections.fetch_add(1, Relaxed);
        let machine = Machine::connect(self.scene, self.scene.guest, self.chance.fork());
        machine.into_iter().for_each(Machine::play);
    }

    /// TLS that is none, or that breaks.
    fn records(&mut self) {
        self.scene.connections.fetch_add(1, Relaxed);
        if let Ok((speech, rest)) = records::play(self.scene, &mut self.chance) {
            self.hold(speech, rest);
        }
    }

    /// A client over HTTP.
    fn web(&mut self) {
        let Some(web) = self.scene.web else { return };
        self.scene.connections.fetch_add(1, Relaxed);
        let asked = web::play(web, self.scene.exports, &mut self.chance);
        self.scene.requests.fetch_add(asked, Relaxed);
    }

    /// Enters an export and asks for much, in bursts.
    fn requests(&mut self) {
        let Some((mut speech, export)) = self.enter() else { return };
        let bursts = self.chance.spread(4);
        for _ in 0..bursts {
            let motif = self.motif();
            if self.burst(&mut speech, &export, motif, PAYLOAD).is_err() {
                return self.part(speech, Vec::new());
            }
            if motif.reads {
                speech.hear_out();
            }
        }
        let unfinished = self.unfinished(&mut speech, &export);
        self.part(speech, unfinished);
    }

    /// What the wave has in common, mostly.
    fn motif(&mut self) -> Motif {
        let own = Motif::draw(&mut self.chance, self.scene.payload_max);
        match self.theme {
            Some(theme) if !self.chance.one_in(4) => theme,
            _ => own,
        }
    }

    /// Sends at most `payload_max` bytes of payload, and one request more.
    fn burst(
        &mut self,
        speech: &mut Speech,
        export: &Export,
        motif: Motif,
        payload_max: u64,
    ) -> Result<(), Stuck> {
        let start = self.chance.below(export.size / 512) * 512;
        let (mut payload, mut words) = (0, Vec::new());
        let (in_place, wild) = (self.chance.one_in(4), self.chance.one_in(4));
        for number in 0..motif.count {
            let at = if in_place { start } else { start.wrapping_add(number * motif.len) % export.size };
            let plain = Request { command: motif.command, flags: motif.flags, offset: at, len: motif.len };
            let request = if wild && self.chance.one_in(64) { self.wild(export) } else { plain };
            let request = beside_the_bystander(request, export, speech.extended());
            words.extend(speech.header(announced(request, speech.extended())));
            self.scene.requests.fetch_add(1, Relaxed);
            if request.command == command::WRITE {
                speech.say(&words, motif.reads)?;
                words.clear();
                payload += request.len;
                self.payload(speech, request.len, motif.reads)?;
                if payload > payload_max {
                    break;
                }
            }
        }
        speech.say(&words, motif.reads)
    }

    fn payload(&mut self, speech: &mut Speech, len: u64, reads: bool) -> Result<(), Stuck> {
        // Longer than anybody may: the rest is owed for ever, or the connection is closed.
        let mut left = len.min(2 * PAYLOAD);
        let dull = self.chance.one_in(4);
        while left > 0 {
            let count = left.min(MIB) as usize;
            let from = self.chance.below((NOISE.len() - count + 1) as u64) as usize;
            let bytes = if dull { &ZEROES[..count] } else { &NOISE[from..from + count] };
            speech.say(bytes, reads)?;
            left -= count as u64;
        }
        Ok(())
    }

    /// A request that need not make sense.
    fn wild(&mut self, export: &Export) -> Request {
        let chance = &mut self.chance;
        let command = chance.pick(&[0, 1, 3, 4, 5, 6, 7, 8, 99]);
        let flags = if chance.one_in(2) { 0 } else { 1 << chance.below(8) };
        let short = chance.spread(MIB);
        let len = chance.pick(&[0, 1, 511, short, short / 512 * 512, 32 * MIB, 33 * MIB, 1 << 31]);
        let past = export.size - 512 + chance.below(1024);
        let offset = chance.pick(&[0, past, chance.clone().bits(), chance.clone().below(export.size)]);
        Request { command, flags, offset, len }
    }

    /// A request of which a part is said now, and the rest later or never.
    fn unfinished(&mut self, speech: &mut Speech, export: &Export) -> Vec<u8> {
        if self.chance.one_in(2) {
            return Vec::new();
        }
        let len = self.chance.pick(&[512, 65536, MIB, self.scene.payload_max]);
        let offset = self.chance.below((export.size - RANGE - len) / 512) * 512;
        let request = Request { command: command::WRITE, flags: 0, offset, len };
        let mut words = speech.header(announced(request, speech.extended()));
        words.extend(&NOISE[..(len as usize).min(NOISE.len())]);
        let cut = self.chance.spread(words.len() as u64) as usize;
        let rest = words.split_off(cut);
        match speech.say(&words, false) {
            Ok(()) => rest,
            Err(Stuck) => Vec::new(),
        }
    }

    /// Goes politely, goes at once, closes one direction, or stays.
    fn part(&mut self, mut speech: Speech, rest: Vec<u8>) {
        match self.chance.below(6) {
            0 if rest.is_empty() => {
                let bye = Request { command: command::DISC, flags: 0, offset: 0, len: 0 };
                let words = speech.header(bye);
                let _ = speech.say(&words, false);
            }
            1 => {}
            2 => {
                speech.fall_silent();
                self.hold(speech, Vec::new());
            }
            _ => self.hold(speech, rest),
        }
    }
}

/// Extended headers announce a payload by a flag.
fn announced(request: Request, extended: bool) -> Request {
    let payload = extended && request.command == command::WRITE;
    Request { flags: if payload { request.flags | flag::PAYLOAD_LEN } else { request.flags }, ..request }
}

/// What would change the bystander's bytes is brought before its range; what the server must refuse stays as it is.
fn beside_the_bystander(request: Request, export: &Export, extended: bool) -> Request {
    let changes = [command::WRITE, command::TRIM, command::WRITE_ZEROES].contains(&request.command);
    let len = if extended { request.len } else { u64::from(request.len as u32) };
    let free = export.size - RANGE;
    let end = request.offset.checked_add(len).filter(|&end| end <= export.size);
    match end {
        Some(end) if changes && end > free => {
            let len = len.min(free / 512 * 512);
            Request { offset: request.offset.min(free - len), len, ..request }
        }
        _ => request,
    }
}

#[cfg(test)]
mod tests {
    use super::super::stacks::Keeps;
    use super::*;

    #[test]
    fn nobody_changes_what_belongs_to_the_bystander() {
        let export = Export { name: "", size: 64 << 20, keeps: Keeps::Nothing, unit: 4096 };
        let free = export.size - RANGE;
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            for offset in [0, free - 512, free, export.size - 512, export.size, u64::MAX - 511] {
                for len in [512, MIB, RANGE, free, export.size, u64::from(u32::MAX) + 1 + free] {
                    for extended in [false, true] {
                        let asked = Request { command, flags: 0, offset, len };
                        let Request { offset, len, .. } = beside_the_bystander(asked, &export, extended);
                        let len = if extended { len } else { u64::from(len as u32) };
                        let refused = offset.checked_add(len).is_none_or(|end| end > export.size);
                        assert!(refused || offset + len <= free, "{asked:?} becomes {offset}+{len}");
                    }
                }
            }
        }
    }
}
