//! A client over HTTP that behaves: every answer comes and is whole, and devices and settings are as they were.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde_json::Value as Json;

use super::web::{Stream, Web};

/// Between two questions, so that the others have the processors most of the time.
const THOUGHT: Duration = Duration::from_millis(20);

/// The client with what it knows.
pub(super) struct Reader {
    stream: Box<dyn Stream>,
    authorization: String,
    /// Each device with its settings, as they were at first.
    known: Vec<(String, Json)>,
}

impl Reader {
    /// Connects and looks at everything; before the others come, who take all the connections that there are.
    pub(super) fn enter(web: &Web) -> Self {
        let stream = web.enter().expect("nobody else is there");
        let mut reader = Self { stream, authorization: web.authorization(), known: Vec::new() };
        reader.known = reader.look().expect("nobody else is there");
        assert!(reader.known.iter().any(|(_, settings)| settings != &Json::from(Vec::<Json>::new())));
        reader
    }

    /// Asks until `over`. An error is a connection that ended; what has changed panics.
    pub(super) fn live(&mut self, over: impl Fn() -> bool) -> io::Result<()> {
        loop {
            let found = self.look()?;
            assert!(found == self.known, "was {:?}, and is {found:?}", self.known);
            let metrics = self.get("/metrics")?;
            assert!(metrics.ends_with(b"# EOF\n"), "metrics without their end");
            if over() {
                return Ok(());
            }
            std::thread::sleep(THOUGHT);
        }
    }

    /// Every device with its settings.
    fn look(&mut self) -> io::Result<Vec<(String, Json)>> {
        let devices = self.json("/api/devices")?;
        let names =
            devices.as_array().expect("a list").iter().map(|row| row["name"].as_str().expect("a name"));
        let names: Vec<String> = names.map(str::to_owned).collect();
        names.into_iter().map(|name| self.settings(&name).map(|settings| (name, settings))).collect()
    }

    /// The knobs of a device with their values.
    fn settings(&mut self, name: &str) -> io::Result<Json> {
        let rows = self.json(&format!("/api/devices/{name}/attributes"))?;
        let knobs: Vec<&Json> =
            rows.as_array().expect("a list").iter().filter(|row| row["role"] == "knob").collect();
        let values = self.json(&format!("/api/devices/{name}"))?;
        let values = values.as_array().expect("a list").iter();
        let is_knob = |value: &&Json| knobs.iter().any(|knob| knob["name"] == value["name"]);
        Ok(values.filter(is_knob).cloned().collect())
    }

    fn json(&mut self, path: &str) -> io::Result<Json> {
        let body = self.get(path)?;
        Ok(serde_json::from_slice(&body).unwrap_or_else(|why| panic!("{path}: {why}")))
    }

    /// The body of an answer, which is good.
    fn get(&mut self, path: &str) -> io::Result<Vec<u8>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", self.authorization);
        self.stream.write_all(request.as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("a head is text").to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        let len = head.lines().find_map(|line| line.strip_prefix("content-length:")).expect("a length");
        let mut body = vec![0; len.trim().parse().expect("a number")];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}
