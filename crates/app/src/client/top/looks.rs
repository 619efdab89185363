//! Looks at all servers: what each of their devices, and the servers' memory, have come to.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use spillway_export::control::{DeviceRow, Operation, Shown};

use super::sample::{DeviceKey, ObservedDevice, Sample};
use crate::client::connection::Connection;
use crate::client::listing::{LOOK_PATIENCE, ServerAnswer, Servers, Silence};
use crate::exit::Failure;
use crate::runtime_folder::RuntimeFolder;

/// What a look has found: servers, and their devices by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub(super) servers: Vec<ObservedServer>,
    pub(super) devices: Vec<ObservedDevice>,
}

/// A server, and its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedServer {
    /// The id of its process.
    pub(super) id: u32,
    /// Names of its devices.
    pub(super) devices: Vec<String>,
    /// Bytes of its budget that are taken, and its budget; 0 as long as it has never answered.
    pub(super) memory: (u64, u64),
    /// How long it has not answered.
    pub(super) silent: Option<Duration>,
}

/// Remembers the look before, so that counters have rates.
pub(super) struct Looks {
    servers: Servers,
    start: Instant,
    before: BTreeMap<DeviceKey, Rc<Sample>>,
    memory: BTreeMap<u32, (u64, u64)>,
}

/// The answers of a server.
struct Answer {
    server: u32,
    memory: (u64, u64),
    samples: Vec<Sample>,
}

impl Looks {
    /// None so far.
    pub(super) fn new(folder: &RuntimeFolder) -> Self {
        let servers = Servers::new(folder, LOOK_PATIENCE);
        Self { servers, start: Instant::now(), before: BTreeMap::new(), memory: BTreeMap::new() }
    }

    /// Looks once. What a silent server has said last is shown again.
    pub(super) fn look(&mut self) -> Result<Picture> {
        let Self { servers, start, before, .. } = self;
        let found = servers.look(|connection, rows| answer(connection, rows, *start, before))?;
        let mut picture = Picture::default();
        for found in found {
            match found {
                ServerAnswer::Answer(answer) => self.add(answer, &mut picture),
                ServerAnswer::Silence(silence) => self.add_silent(&silence, &mut picture),
            }
        }
        picture.devices.sort_by(|one, other| (&one.key.1, one.key.0).cmp(&(&other.key.1, other.key.0)));
        picture.servers.sort_by(|one, other| one.devices.cmp(&other.devices));
        self.remember(&picture);
        Ok(picture)
    }

    /// Keeps what the next look compares with. A device whose server has never answered has nothing to compare.
    fn remember(&mut self, picture: &Picture) {
        let known = picture.devices.iter().filter(|device| device.now.is_known());
        self.before = known.map(|device| (device.key.clone(), device.now.clone())).collect();
        self.memory = picture.servers.iter().map(|server| (server.id, server.memory)).collect();
    }

    fn add(&self, Answer { server, memory, samples }: Answer, picture: &mut Picture) {
        let devices = samples.iter().map(|sample| sample.row.name.clone()).collect();
        picture.servers.push(ObservedServer { id: server, devices, memory, silent: None });
        picture.devices.extend(samples.into_iter().map(|sample| {
            let key = (server, sample.row.name.clone());
            let before = self.before.get(&key).cloned();
            ObservedDevice { key, now: Rc::new(sample), before, silent: None, budget: memory.1 }
        }));
    }

    fn add_silent(&self, silence: &Silence, picture: &mut Picture) {
        let (id, silent) = (silence.server, Some(silence.since.elapsed()));
        let known = self.before.keys().filter(|key| key.0 == id && id != 0).map(|key| key.1.clone());
        let mut devices: Vec<String> = known.chain(silence.devices.iter().cloned()).collect();
        devices.sort();
        devices.dedup();
        let memory = self.memory.get(&id).copied().unwrap_or_default();
        picture.devices.extend(devices.iter().map(|name| {
            let key = (id, name.clone());
            let now = self.before.get(&key).cloned().unwrap_or_else(|| Rc::new(unknown(name)));
            ObservedDevice { key, now, before: None, silent, budget: memory.1 }
        }));
        picture.servers.push(ObservedServer { id, devices, memory, silent });
    }
}

/// A device of which nothing is known but its name.
fn unknown(name: &str) -> Sample {
    Sample { row: DeviceRow { name: name.to_owned(), ..Default::default() }, ..Default::default() }
}

fn answer(
    connection: &mut Connection,
    rows: Vec<DeviceRow>,
    start: Instant,
    before: &BTreeMap<DeviceKey, Rc<Sample>>,
) -> Result<Answer> {
    let server = connection.server();
    let own = values(connection, &Operation::Server {})?;
    let bytes = |name: &str| own.get(name).and_then(|shown| shown.value.as_u64()).unwrap_or(0);
    let memory = (bytes("memory_used"), bytes("memory_limit"));
    let mut samples = Vec::new();
    for row in rows {
        let known = before.get(&(server, row.name.clone())).filter(|known| known.row.stack == row.stack);
        let attributes = match known.filter(|known| !known.attributes.is_empty()) {
            Some(known) => known.attributes.clone(),
            None => unless_refused(connection.attributes(&row.name))?.into(),
        };
        let get = Operation::Get { device: row.name.clone(), attribute: None, from: None };
        let values = values(connection, &get)?;
        samples.push(Sample { at: start.elapsed(), row, attributes, values });
    }
    Ok(Answer { server, memory, samples })
}

/// Values by name; none of a device that has ended since it was listed.
fn values(connection: &mut Connection, question: &Operation) -> Result<BTreeMap<String, Shown>> {
    let values = unless_refused(connection.values(question))?;
    Ok(values.into_iter().map(|shown| (shown.name.clone(), shown)).collect())
}

fn unless_refused<T: Default>(answer: Result<T>) -> Result<T> {
    match answer {
        Err(error) if error.is::<Failure>() => Ok(T::default()),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;
    use std::path::Path;

    /// A server with one device that has written so many bytes.
    fn answer(seconds: u64, write_bytes: u64) -> Answer {
        let mut row = DeviceRow { name: "ram0".into(), stack: "zram".into(), ..Default::default() };
        row.requests.write_bytes = write_bytes;
        Answer { server: 7, memory: (1, 2), samples: vec![sample(seconds, row, &[])] }
    }

    /// What the next look makes of its findings.
    fn look(looks: &mut Looks, find: impl FnOnce(&Looks, &mut Picture)) -> ObservedDevice {
        let mut picture = Picture::default();
        find(looks, &mut picture);
        looks.remember(&picture);
        picture.devices.remove(0)
    }

    #[test]
    fn a_server_that_was_silent_has_rates_only_where_it_has_answered_before() {
        let mut looks = Looks::new(&RuntimeFolder::at(Path::new("none")));
        let silence = Silence { server: 7, devices: vec!["ram0".into()], since: Instant::now() };
        let written =
            |device: &ObservedDevice| device.rate(|sample| Some(sample.row.requests.write_bytes as f64));
        let device = look(&mut looks, |looks, picture| looks.add_silent(&silence, picture));
        assert!(device.silent.is_some() && !device.now.is_known() && written(&device).is_none());
        let device = look(&mut looks, |looks, picture| looks.add(answer(10, 1000), picture));
        assert_eq!((device.silent, written(&device)), (None, None), "what it wrote before is no rate");
        let device = look(&mut looks, |looks, picture| looks.add_silent(&silence, picture));
        assert!(device.silent.is_some() && device.now.row.stack == "zram" && written(&device).is_none());
        let device = look(&mut looks, |looks, picture| looks.add(answer(30, 3000), picture));
        assert_eq!((written(&device), device.budget), (Some(100.0), 2), "the mean of the time of silence");
    }
}
