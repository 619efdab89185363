//! A browser: Chromium without a window, driven by its DevTools protocol over two pipes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};

use crate::{Scratch, text, tool, until};

/// Has Chromium read commands on descriptor 3 and write answers and events on 4, each with a NUL at its end.
const ON_PIPES: &str = "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

const OPTIONS: &[&str] = &[
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
];

/// What is told of the page that is shown.
const EVENTS: &[&str] = &["Page", "Runtime", "Network", "Log"];

/// A browser with one page. It ends with all its processes when this is dropped.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: ChildStdout,
    /// Bytes of messages that are not complete.
    received: Vec<u8>,
    last_id: u64,
    /// Of the page, once there is one.
    session: Option<String>,
    complaints: Vec<String>,
    requests: BTreeSet<String>,
    folder: Scratch,
}

/// What the page looks like.
pub struct Picture {
    /// The file.
    pub png: Vec<u8>,
    /// In pixels, as those who decode the file find it.
    pub width: u64,
    /// The same.
    pub height: u64,
    /// How many colours it has.
    pub colours: u64,
    /// Mean of all channels, from 0 for black to 1 for white.
    pub brightness: f64,
}

impl Browser {
    /// Starts a browser that shows what is at `place`.
    pub fn open(place: &str) -> Self {
        tool::run("chromium", &["--version"]).well();
        let folder = Scratch::new();
        let log = File::create(log_in(&folder)).expect("the folder is ours");
        let profile = format!("--user-data-dir={}", text(&folder.join("profile")));
        let mut command = Command::new("sh");
        command.args(["-c", ON_PIPES, "sh"]).args(OPTIONS).arg(profile).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("every system has a shell");
        let (commands, answers) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        fcntl_setfl(&answers, OFlags::NONBLOCK).expect("it is ours");
        let (received, complaints, requests) = Default::default();
        let mut browser = Self {
            child,
            commands,
            answers,
            received,
            last_id: 0,
            session: None,
            complaints,
            requests,
            folder,
        };
        browser.attach();
        browser.go(place);
        browser
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].take();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = Some(attached["sessionId"].as_str().expect("a session has a name").to_owned());
        for events in EVENTS {
            self.call(&format!("{events}.enable"), json!({}));
        }
    }

    /// Loads what is at `place`, and waits until it is there.
    pub fn go(&mut self, place: &str) {
        let gone = self.call("Page.navigate", json!({ "url": place }));
        assert!(gone["errorText"].is_null(), "{place}: {gone}");
        self.shows("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// What an expression comes to in the page; fails where it throws, as on a page that is being replaced.
    fn try_evaluate(&mut self, expression: &str) -> Result<Json, String> {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.try_call("Runtime.evaluate", asked)?;
        match &answer["exceptionDetails"] {
            Json::Null => Ok(answer["result"]["value"].take()),
            thrown => Err(thrown.to_string()),
        }
    }

    /// What an expression comes to in the page.
    pub fn evaluate(&mut self, expression: &str) -> Json {
        self.try_evaluate(expression).unwrap_or_else(|why| panic!("{expression}: {why}"))
    }

    /// Waits until an expression comes to something that is true, and returns that.
    pub fn shows(&mut self, expression: &str) -> Json {
        until(&format!("the page shows {expression}"), || {
            let value = self.try_evaluate(expression).ok()?;
            (![json!(null), json!(false), json!(0), json!("")].contains(&value)).then_some(value)
        })
    }

    /// Shows the page in a window of this size, of a phone or not, for a user who prefers `theme`: light or dark.
    pub fn view(&mut self, theme: &str, width: u32, height: u32, phone: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": phone }));
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.shows(&format!(
            "innerWidth === {width} && matchMedia('(prefers-color-scheme: {theme})').matches"
        ));
    }

    /// Focuses an element, and presses Enter.
    pub fn press(&mut self, selector: &str) {
        self.focus(selector);
        let key = |kind: &str| json!({ "type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13 });
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", key(kind));
        }
    }

    /// Writes `words` into a field, in place of what is in it.
    pub fn fill(&mut self, selector: &str, words: &str) {
        self.focus(selector);
        self.evaluate("document.activeElement.select()");
        self.call("Input.insertText", json!({ "text": words }));
    }

    fn focus(&mut self, selector: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        let focused = self.evaluate(&format!("{element}.focus(), document.activeElement === {element}"));
        assert_eq!(focused, true, "{selector} can be reached by keys");
    }

    /// What the window shows.
    pub fn screenshot(&mut self) -> Picture {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let shot = shot["data"].as_str().expect("a picture");
        let png = BASE64.decode(shot).expect("the protocol has binary data as base64");
        let seen = self.evaluate(&format!("({MEASURE})({})", json!(shot)));
        let number = |name: &str| seen[name].as_u64().expect("a number");
        let brightness = seen["brightness"].as_f64().expect("a number");
        let (width, height, colours) = (number("width"), number("height"), number("colours"));
        Picture { png, width, height, colours, brightness }
    }

    /// What the page has logged as an error or a warning since it was asked last, exceptions and refused requests included.
    pub fn complaints(&mut self) -> Vec<String> {
        // Events that came before are noted once this is answered.
        self.evaluate("0");
        mem::take(&mut self.complaints)
    }

    /// Each address that was ever asked for.
    pub fn requests(&self) -> &BTreeSet<String> {
        &self.requests
    }

    fn call(&mut self, method: &str, parameters: Json) -> Json {
        self.try_call(method, parameters).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    fn try_call(&mut self, method: &str, parameters: Json) -> Result<Json, String> {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).expect("the browser runs");
        loop {
            let mut message = until(&format!("the browser answers {method}"), || self.message());
            if message["id"] == self.last_id {
                let error = message["error"].take();
                return if error.is_null() { Ok(message["result"].take()) } else { Err(error.to_string()) };
            }
            self.note(&message);
        }
    }

    /// The next message, if it is there.
    fn message(&mut self) -> Option<Json> {
        let mut bytes = [0; 1 << 16];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == 0) {
                let rest = self.received.split_off(end + 1);
                let message = mem::replace(&mut self.received, rest);
                return Some(serde_json::from_slice(&message[..end]).expect("messages are JSON"));
            }
            match self.answers.read(&mut bytes) {
                Ok(0) => panic!("the browser has ended"),
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return None,
                Err(why) => panic!("the browser cannot be read: {why}"),
            }
        }
    }

    fn note(&mut self, event: &Json) {
        let told = &event["params"];
        let bad = |level: &Json| level == "error" || level == "warning";
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requests
                    .insert(told["request"]["url"].as_str().expect("a request has an address").into());
            }
            Some("Runtime.exceptionThrown") => self.complaints.push(told["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if bad(&told["type"]) => {
                self.complaints.push(told["args"].to_string())
            }
            Some("Log.entryAdded") if bad(&told["entry"]["level"]) => {
                self.complaints.push(told["entry"].to_string())
            }
            _ => {}
        }
    }
}

/// What a browser finds in a picture. A page's policy of what it may load concerns no picture that is already there.
const MEASURE: &str = "async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes]));
    const { width, height } = bitmap;
    const canvas = new OffscreenCanvas(width, height).getContext('2d');
    canvas.drawImage(bitmap, 0, 0);
    const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height).data.buffer);
    const sum = pixels.reduce((sum, one) => sum + (one & 255) + (one >> 8 & 255) + (one >> 16 & 255), 0);
    return { width, height, colours: new Set(pixels).size, brightness: sum / (3 * 255 * pixels.length) };
}";

fn log_in(folder: &Scratch) -> std::path::PathBuf {
    folder.join("log")
}

impl Drop for Browser {
    fn drop(&mut self) {
        let id = i32::try_from(self.child.id()).expect("the kernel's ids fit");
        let _ = kill_process_group(Pid::from_raw(id).expect("an id is not 0"), Signal::KILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(log_in(&self.folder)).unwrap_or_default();
            eprintln!("the page complained of {:?}; the browser said:\n{log}", self.complaints);
        }
    }
}
