//! Which path means what.

use serde::Deserialize;
use serde_json::json;
use spillway_core::{Error, Kind};

use super::super::catalog::Catalog;
use super::super::message::{ControlReply, ErrorReply, Operation, ServerVersion};
use super::head::RequestHead;
use super::response::{ContentType, Response, Status};

/// What a request wants.
#[derive(Debug, PartialEq)]
pub(super) enum Wanted {
    Asset(ContentType, &'static str),
    Metrics,
    Operation(Operation),
}

impl Wanted {
    /// Whether it may change something.
    pub(super) fn changes(&self) -> bool {
        use Operation::{Attributes, Get, List, Server, Version, Work};
        match self {
            Wanted::Asset(..) | Wanted::Metrics => false,
            Wanted::Operation(
                Version {} | Server {} | List {} | Work {} | Attributes { .. } | Get { .. },
            ) => false,
            Wanted::Operation(_) => true,
        }
    }
}

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const FIGURES: &str = include_str!("figures.js");

/// How large a device is to become.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Size {
    size: Option<u64>,
}

/// What a request wants, or why it can want nothing.
pub(super) fn wanted(head: &RequestHead, body: &[u8]) -> Result<Wanted, Response> {
    let path: Vec<&str> = head.path.iter().map(String::as_str).collect();
    let (method, from) = (head.method.as_str(), from(head)?);
    let ask = |operation| look(method, Wanted::Operation(operation));
    let act = |operation| match method {
        "POST" => Ok(Wanted::Operation(operation)),
        _ => Err(only(method, "POST")),
    };
    match *path {
        [] => look(method, Wanted::Asset(ContentType::Page, PAGE)),
        ["page.css"] => look(method, Wanted::Asset(ContentType::Style, STYLE)),
        ["page.js"] => look(method, Wanted::Asset(ContentType::Script, SCRIPT)),
        ["figures.js"] => look(method, Wanted::Asset(ContentType::Script, FIGURES)),
        ["metrics"] => look(method, Wanted::Metrics),
        ["api", "server"] => ask(Operation::Version {}),
        ["api", "server", "attributes"] => ask(Operation::Server {}),
        ["api", "work"] => ask(Operation::Work {}),
        ["api", "server", "stop"] => act(Operation::StopServer {}),
        ["api", "devices"] => match method {
            "POST" => act(Operation::Add {}),
            "GET" | "HEAD" => ask(Operation::List {}),
            _ => Err(only(method, "GET, HEAD, POST")),
        },
        ["api", "devices", device] => match method {
            "DELETE" => Ok(Wanted::Operation(Operation::Stop { device: device.to_owned() })),
            "GET" | "HEAD" => ask(Operation::Get { device: device.to_owned(), attribute: None, from: None }),
            _ => Err(only(method, "GET, HEAD, DELETE")),
        },
        ["api", "devices", device, "reset"] => act(Operation::Reset { device: device.to_owned() }),
        ["api", "devices", device, "resize"] if method == "POST" => {
            let body = if body.is_empty() { b"{}" } else { body };
            let Size { size } = of_json(body, "{\"size\": BYTES}, or nothing for the size of the origin")?;
            act(Operation::Resize { device: device.to_owned(), size })
        }
        ["api", "devices", _, "resize"] => Err(only(method, "POST")),
        ["api", "devices", device, "attributes"] => ask(Operation::Attributes { device: device.to_owned() }),
        ["api", "devices", device, "attributes", name] => {
            let (device, name) = (device.to_owned(), name.to_owned());
            match method {
                "PUT" => {
                    let value = of_json(body, "a number, true, false, null or a text in quotes")?;
                    Ok(Wanted::Operation(Operation::Set { device, attribute: name, value }))
                }
                "GET" | "HEAD" => ask(Operation::Get { device, attribute: Some(name), from }),
                _ => Err(only(method, "GET, HEAD, PUT")),
            }
        }
        _ => Err(nowhere(&path)),
    }
}

fn look(method: &str, wanted: Wanted) -> Result<Wanted, Response> {
    match method {
        "GET" | "HEAD" => Ok(wanted),
        _ => Err(only(method, "GET, HEAD")),
    }
}

/// Where lines go on.
fn from(head: &RequestHead) -> Result<Option<u64>, Response> {
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| {
            let words = format!("from cannot be {text:?}: give a number");
            Response::error(Status::BadRequest, &Error::invalid(words))
        })
    };
    head.parameter("from").map(number).transpose()
}

/// The answer to a method that there is not, with those that there are.
fn only(method: &str, allowed: &str) -> Response {
    let words = format!("{method} does nothing here; there are: {allowed}");
    let response = Response::error(Status::WrongMethod, &Error::new(Kind::NotSupported, words));
    response.with(&format!("Allow: {allowed}"))
}

fn nowhere(path: &[&str]) -> Response {
    let words = format!("there is no /{}; see /api/devices, /api/server, /metrics and /", path.join("/"));
    Response::error(Status::NotFound, &Error::new(Kind::NotFound, words))
}

fn of_json<T: for<'de> Deserialize<'de>>(body: &[u8], allowed: &str) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|why| {
        let words = format!("the body is not what is wanted ({why}): give {allowed}, as JSON");
        Response::error(Status::BadRequest, &Error::invalid(words))
    })
}

/// The answer to an operation that succeeded, for a client who may change something or not.
pub(super) fn render(reply: ControlReply, changes: bool) -> Response {
    match reply {
        ControlReply::Server(ServerVersion { version, pid }) => {
            Response::json(Status::Fine, &json!({ "version": version, "pid": pid, "changes": changes }))
        }
        ControlReply::Devices(rows) => Response::json(Status::Fine, &rows),
        ControlReply::Attributes(rows) => Response::json(Status::Fine, &rows),
        ControlReply::Values(values) => Response::json(Status::Fine, &values),
        ControlReply::Work(rows) => Response::json(Status::Fine, &rows),
        ControlReply::Added(name) => {
            let place = format!("Location: /api/devices/{name}");
            Response::json(Status::Created, &json!({ "device": name })).with(&place)
        }
        ControlReply::Done => Response::nothing(),
    }
}

/// The answer to one that failed, with what is allowed where a value was refused.
pub(super) fn failure(catalog: &dyn Catalog, operation: &Option<Operation>, error: &Error) -> Response {
    let mut body = json!({ "error": ErrorReply::from(error) });
    if let Some(Operation::Set { device, attribute, value }) = operation {
        let rows = catalog.attributes(device).unwrap_or_default();
        if let Some(row) = rows.into_iter().find(|row| row.name == *attribute) {
            body["error"]["value"] = value.clone();
            if let Some(allowed) = row.allowed {
                body["error"]["allowed"] = allowed.into();
            }
        }
    }
    Response::json(Status::of(error.kind), &body)
}
