//! Requests and replies of the control protocol, as types and as lines of JSON.
//!
//! Unknown operations and unknown fields of a request are refused, so that a misspelt field is not silently ignored.
//! Unknown fields of a reply are accepted: a newer server may say more within the same version.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use spillway_core::{Error, Kind};

use super::rows::{AttributeRow, DeviceRow, Shown};
use super::work::WorkRow;

/// Version of the protocol: `v` in every message.
pub const PROTOCOL_VERSION: u64 = 2;

/// Longest request line in bytes, without its newline.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Which server this is.
    Version {},
    /// What the server says of itself.
    Server {},
    /// Every device.
    List {},
    /// The attributes that a device has.
    Attributes {
        /// Name of the device.
        device: String,
    },
    /// The value of one attribute, or of all that can be read.
    Get {
        /// Name of the device.
        device: String,
        /// Name of the attribute; all that are not lines where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attribute: Option<String>,
        /// Where to go on in lines: what the reply before said; the first ones where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// Long work that is under way, also of devices that begin or end.
    Work {},
    /// How far long work is that this client does with a device; it lasts until the connection ends.
    Report {
        /// Name of the device.
        device: String,
        /// As in [`WorkRow::kind`].
        kind: String,
        /// Bytes that are done.
        done: u64,
        /// Bytes that are done or left, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
    },
    /// Stores a value in an attribute.
    Set {
        /// Name of the device.
        device: String,
        /// Name of the attribute.
        attribute: String,
        /// The new value: a number, `true` or `false`, `null` for none, or text that the attribute reads.
        value: Json,
    },
    /// Forgets everything a device holds.
    Reset {
        /// Name of the device.
        device: String,
    },
    /// Makes a device larger while it is in use.
    Resize {
        /// Name of the device.
        device: String,
        /// Bytes; as many as its origin has now where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// Adds a compressed RAM disk without a size.
    Add {},
    /// Gives a device to one client alone, until that leaves.
    Hold {
        /// Name of the device.
        device: String,
        /// The thread that opened its file; the one client that it has where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opener: Option<u32>,
    },
    /// Keeps a device for a client of before, which the program that asks brings back: it connects next.
    Keep {
        /// Name of the device.
        device: String,
        /// Others may connect then.
        shared: bool,
    },
    /// Flushes and removes a device.
    Stop {
        /// Name of the device.
        device: String,
    },
    /// Stops every device and ends the server.
    StopServer {},
}

/// What answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerVersion {
    /// Version of the program.
    pub version: String,
    /// Process id of the server.
    pub pid: u32,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// To [`Operation::Version`].
    Server(ServerVersion),
    /// To [`Operation::List`].
    Devices(Vec<DeviceRow>),
    /// To [`Operation::Attributes`].
    Attributes(Vec<AttributeRow>),
    /// To [`Operation::Get`] and [`Operation::Server`].
    Values(Vec<Shown>),
    /// To [`Operation::Work`], and to [`Operation::Report`] the work that was reported.
    Work(Vec<WorkRow>),
    /// To [`Operation::Add`]: the name of the new device.
    Added(String),
    /// To every other change: it is complete.
    Done,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Symbolic errno, such as `EBUSY`.
    pub errno: String,
    /// The same as a number.
    pub code: i32,
    /// The words for a person.
    pub message: String,
}

impl From<&Error> for ErrorReply {
    fn from(error: &Error) -> Self {
        Self {
            errno: error.kind.errno_name().to_owned(),
            code: error.kind.errno(),
            message: error.message().to_owned(),
        }
    }
}

impl From<ErrorReply> for Error {
    fn from(failure: ErrorReply) -> Self {
        Error::new(Kind::of_errno(failure.code), failure.message)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplyBody {
    Result(ControlReply),
    Error(ErrorReply),
}

#[derive(Serialize)]
struct Versioned<T> {
    v: u64,
    #[serde(flatten)]
    body: T,
}

impl Operation {
    /// The line of this request, newline included.
    pub fn encode(&self) -> String {
        line(self)
    }

    /// Reads a request line. [`Kind::Invalid`] where it is not one; [`Kind::NotSupported`] for another version.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        let mut object = object(line)?;
        check_version(&mut object)?;
        serde_json::from_value(Json::Object(object))
            .map_err(|why| Error::invalid(format!("this is not a request that is known here: {why}")))
    }
}

/// The line that answers a request, newline included.
pub fn encode_reply(reply: Result<ControlReply, &Error>) -> String {
    line(&match reply {
        Ok(reply) => ReplyBody::Result(reply),
        Err(error) => ReplyBody::Error(error.into()),
    })
}

/// Reads the line that answers a request; the server's refusal and a line that makes no sense are both errors.
pub fn decode_reply(line: &[u8]) -> Result<ControlReply, Error> {
    let mut object = object(line)?;
    check_version(&mut object)?;
    let body: ReplyBody = serde_json::from_value(Json::Object(object))
        .map_err(|why| Error::invalid(format!("the server's reply cannot be understood: {why}")))?;
    match body {
        ReplyBody::Result(reply) => Ok(reply),
        ReplyBody::Error(failure) => Err(failure.into()),
    }
}

fn line(body: &impl Serialize) -> String {
    let message = Versioned { v: PROTOCOL_VERSION, body };
    let mut text = serde_json::to_string(&message).expect("maps have string keys and no value can fail");
    text.push('\n');
    text
}

fn object(line: &[u8]) -> Result<Map<String, Json>, Error> {
    let json = serde_json::from_slice(line).map_err(|why| {
        Error::invalid(format!("the line is not JSON ({why}): send one JSON object a line"))
    })?;
    match json {
        Json::Object(object) => Ok(object),
        _ => Err(Error::invalid("the line is JSON but not an object: send one JSON object a line")),
    }
}

fn check_version(object: &mut Map<String, Json>) -> Result<(), Error> {
    match object.remove("v") {
        Some(Json::Number(v)) if v.as_u64() == Some(PROTOCOL_VERSION) => Ok(()),
        Some(other) => Err(Error::new(
            Kind::NotSupported,
            format!(
                "version {other} of the control protocol is not spoken here, {PROTOCOL_VERSION} is: \
                 use client and server of the same release"
            ),
        )),
        None => Err(Error::invalid(format!("the message has no version: add \"v\":{PROTOCOL_VERSION}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations() -> Vec<Operation> {
        let device = || "ram0".to_owned();
        vec![
            Operation::Version {},
            Operation::Server {},
            Operation::List {},
            Operation::Attributes { device: device() },
            Operation::Get { device: device(), attribute: None, from: None },
            Operation::Get { device: device(), attribute: Some("mm_stat".into()), from: None },
            Operation::Get { device: device(), attribute: Some("block_state".into()), from: Some(1 << 40) },
            Operation::Work {},
            Operation::Report { device: device(), kind: "save".into(), done: 5, total: Some(1 << 40) },
            Operation::Report { device: device(), kind: "load".into(), done: 0, total: None },
            Operation::Set {
                device: device(),
                attribute: "mem_limit".into(),
                value: "1G\n\"\u{1f980}".into(),
            },
            Operation::Reset { device: device() },
            Operation::Resize { device: device(), size: None },
            Operation::Resize { device: device(), size: Some(1 << 40) },
            Operation::Add {},
            Operation::Hold { device: device(), opener: None },
            Operation::Hold { device: device(), opener: Some(77) },
            Operation::Keep { device: device(), shared: false },
            Operation::Keep { device: device(), shared: true },
            Operation::Stop { device: device() },
            Operation::StopServer {},
        ]
    }

    #[test]
    fn every_request_survives_the_line() {
        for operation in operations() {
            let line = operation.encode();
            assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line:?}");
            assert_eq!(Operation::decode(line.as_bytes()).unwrap(), operation);
        }
    }

    #[test]
    fn every_reply_survives_the_line() {
        let row =
            DeviceRow { name: "ram0".into(), stack: "zram".into(), ratio: Some(2.5), ..Default::default() };
        let (value, text) = (serde_json::json!({"a": 1}), "1\n2".into());
        let value = Shown { name: "io_stat".into(), value, text, next: Some(7) };
        for reply in [
            ControlReply::Server(ServerVersion { version: "0.1.0".into(), pid: 7 }),
            ControlReply::Devices(vec![row]),
            ControlReply::Attributes(vec![]),
            ControlReply::Values(vec![value]),
            ControlReply::Work(vec![WorkRow {
                total: Some(9),
                seconds_left: Some(0.25),
                ..Default::default()
            }]),
            ControlReply::Added("ram1".into()),
            ControlReply::Done,
        ] {
            let line = encode_reply(Ok(reply.clone()));
            assert_eq!(decode_reply(line.as_bytes()), Ok(reply), "{line}");
        }
        let refusal = Error::new(Kind::Busy, "a client is connected");
        let line = encode_reply(Err(&refusal));
        assert!(line.contains(r#""errno":"EBUSY","code":16"#), "{line}");
        assert_eq!(decode_reply(line.as_bytes()), Err(refusal));
    }

    #[test]
    fn the_wire_is_as_documented() {
        let attribute = Some("mm_stat".into());
        let get = Operation::Get { device: "ram0".into(), attribute, from: None };
        assert_eq!(get.encode(), "{\"v\":2,\"op\":\"get\",\"device\":\"ram0\",\"attribute\":\"mm_stat\"}\n");
        assert_eq!(encode_reply(Ok(ControlReply::Done)), "{\"v\":2,\"result\":\"done\"}\n");
    }

    #[test]
    fn bad_lines_are_refused_with_a_reason() {
        for (line, kind, part) in [
            (&b""[..], Kind::Invalid, "not JSON"),
            (b"get ram0", Kind::Invalid, "not JSON"),
            (b"\xff\xfe", Kind::Invalid, "not JSON"),
            (b"[1]", Kind::Invalid, "not an object"),
            (b"{}", Kind::Invalid, "\"v\":2"),
            (br#"{"op":"list"}"#, Kind::Invalid, "\"v\":2"),
            (br#"{"v":1,"op":"list"}"#, Kind::NotSupported, "version 1"),
            (br#"{"v":"2","op":"list"}"#, Kind::NotSupported, "version \"2\""),
            (br#"{"v":2}"#, Kind::Invalid, "op"),
            (br#"{"v":2,"op":"format"}"#, Kind::Invalid, "format"),
            (br#"{"v":2,"op":"get"}"#, Kind::Invalid, "device"),
            (br#"{"v":2,"op":"get","device":3}"#, Kind::Invalid, "string"),
            (br#"{"v":2,"op":"get","device":"a","atribute":"b"}"#, Kind::Invalid, "atribute"),
            (br#"{"v":2,"op":"list","device":"a"}"#, Kind::Invalid, "device"),
        ] {
            let error = Operation::decode(line).unwrap_err();
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.message().contains(part), "{error}");
        }
        let deep = [br#"{"v":2,"op":"#.to_vec(), vec![b'['; 60_000]].concat();
        assert_eq!(Operation::decode(&deep).unwrap_err().kind, Kind::Invalid);
    }
}
