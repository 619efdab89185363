//! Which path means what.

use serde::Deserialize;
use serde_json::{Value as Json, json};
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

/// What `method` does at a path, or the methods that there are.
enum Route<'a> {
    Methods(&'static str),
    Does(Wanted),
    /// The body is needed.
    Set(&'a str, &'a str),
    Resize(&'a str),
    Nowhere,
}

fn route<'a>(method: &str, path: &[&'a str], from: Option<u64>) -> Route<'a> {
    let ask = |operation| look(method, Wanted::Operation(operation));
    let act = |operation| match method {
        "POST" => Route::Does(Wanted::Operation(operation)),
        _ => Route::Methods("POST"),
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
            "POST" => Route::Does(Wanted::Operation(Operation::Add {})),
            "GET" | "HEAD" => ask(Operation::List {}),
            _ => Route::Methods("GET, HEAD, POST"),
        },
        ["api", "devices", device] => match method {
            "DELETE" => Route::Does(Wanted::Operation(Operation::Stop { device: device.to_owned() })),
            "GET" | "HEAD" => ask(Operation::Get { device: device.to_owned(), attribute: None, from: None }),
            _ => Route::Methods("GET, HEAD, DELETE"),
        },
        ["api", "devices", device, "reset"] => act(Operation::Reset { device: device.to_owned() }),
        ["api", "devices", device, "resize"] if method == "POST" => Route::Resize(device),
        ["api", "devices", _, "resize"] => Route::Methods("POST"),
        ["api", "devices", device, "attributes"] => ask(Operation::Attributes { device: device.to_owned() }),
        ["api", "devices", device, "attributes", name] => match method {
            "PUT" => Route::Set(device, name),
            "GET" | "HEAD" => {
                let (device, attribute) = (device.to_owned(), Some(name.to_owned()));
                ask(Operation::Get { device, attribute, from })
            }
            _ => Route::Methods("GET, HEAD, PUT"),
        },
        _ => Route::Nowhere,
    }
}

fn look<'a>(method: &str, wanted: Wanted) -> Route<'a> {
    match method {
        "GET" | "HEAD" => Route::Does(wanted),
        _ => Route::Methods("GET, HEAD"),
    }
}

/// How large a device is to become.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Size {
    size: Option<u64>,
}

/// What a request wants, or why it can want nothing.
pub(super) fn wanted(head: &RequestHead, body: &[u8]) -> Result<Wanted, Response> {
    let path: Vec<&str> = head.path.iter().map(String::as_str).collect();
    let from = match head.parameter("from") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Response::error(
                Status::BadRequest,
                &Error::invalid(format!("from cannot be {text:?}: give a number")),
            )
        })?),
    };
    match route(&head.method, &path, from) {
        Route::Does(wanted) => Ok(wanted),
        Route::Set(device, name) => {
            let value: Json = of_json(body, "a number, true, false, null or a text in quotes")?;
            let (device, attribute) = (device.to_owned(), name.to_owned());
            Ok(Wanted::Operation(Operation::Set { device, attribute, value }))
        }
        Route::Resize(device) => {
            let body = if body.is_empty() { b"{}" } else { body };
            let Size { size } = of_json(body, "{\"size\": BYTES}, or nothing for the size of the origin")?;
            Ok(Wanted::Operation(Operation::Resize { device: device.to_owned(), size }))
        }
        Route::Methods(allowed) => {
            let words = format!("{} does nothing here; there are: {allowed}", head.method);
            let response = Response::error(Status::WrongMethod, &Error::new(Kind::NotSupported, words));
            Err(response.with(&format!("Allow: {allowed}")))
        }
        Route::Nowhere => {
            let words =
                format!("there is no /{}; see /api/devices, /api/server, /metrics and /", path.join("/"));
            Err(Response::error(Status::NotFound, &Error::new(Kind::NotFound, words)))
        }
    }
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
