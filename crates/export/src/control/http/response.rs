//! Answers, as a status, a body and headers.

use serde::Serialize;
use serde_json::json;
use spillway_core::session::Output;
use spillway_core::{Error, Kind};

use super::super::message::ErrorReply;

/// The statuses that are given here (RFC 9110, 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Fine,
    Created,
    NoContent,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    WrongMethod,
    Conflict,
    LengthRequired,
    BodyTooLong,
    Misdirected,
    HeadTooLong,
    Failed,
    NotSupported,
    ShuttingDown,
    NoRoom,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Status::Fine => "200 OK",
            Status::Created => "201 Created",
            Status::NoContent => "204 No Content",
            Status::BadRequest => "400 Bad Request",
            Status::Unauthorized => "401 Unauthorized",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::WrongMethod => "405 Method Not Allowed",
            Status::Conflict => "409 Conflict",
            Status::LengthRequired => "411 Length Required",
            Status::BodyTooLong => "413 Content Too Large",
            Status::Misdirected => "421 Misdirected Request",
            Status::HeadTooLong => "431 Request Header Fields Too Large",
            Status::Failed => "500 Internal Server Error",
            Status::NotSupported => "501 Not Implemented",
            Status::ShuttingDown => "503 Service Unavailable",
            Status::NoRoom => "507 Insufficient Storage",
        }
    }

    /// What an operation failed with.
    pub(super) const fn of(kind: Kind) -> Self {
        match kind {
            Kind::NotFound | Kind::NoDevice => Status::NotFound,
            Kind::Denied | Kind::ReadOnly => Status::Forbidden,
            Kind::Busy => Status::Conflict,
            Kind::NoSpace | Kind::Exhausted | Kind::OutOfMemory => Status::NoRoom,
            Kind::NotSupported => Status::NotSupported,
            Kind::ShuttingDown => Status::ShuttingDown,
            Kind::Io | Kind::Corrupt | Kind::Unreachable => Status::Failed,
            _ => Status::BadRequest,
        }
    }
}

/// What the body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentType {
    Json,
    /// OpenMetrics 1.0.
    Metrics,
    Page,
    Style,
    Script,
}

impl ContentType {
    const fn name(self) -> &'static str {
        match self {
            ContentType::Json => "application/json",
            ContentType::Metrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ContentType::Page => "text/html; charset=utf-8",
            ContentType::Style => "text/css; charset=utf-8",
            ContentType::Script => "text/javascript; charset=utf-8",
        }
    }
}

/// In every answer: nothing is kept, and a browser shows only what this server sent, to nobody but its user.
const HEADERS: &str = "Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    X-Content-Type-Options: nosniff\r\n";

/// An answer.
pub(super) struct Response {
    pub(super) status: Status,
    pub(super) content: ContentType,
    pub(super) body: Vec<u8>,
    /// Further headers, each with its end of line.
    headers: String,
}

impl Response {
    pub(super) fn new(content: ContentType, body: impl Into<Vec<u8>>) -> Self {
        Self { status: Status::Fine, content, body: body.into(), headers: String::new() }
    }

    /// A value as JSON, with a newline for those who read it in a terminal.
    pub(super) fn json(status: Status, value: &impl Serialize) -> Self {
        let mut body = serde_json::to_vec(value).expect("maps have string keys and no value can fail");
        body.push(b'\n');
        Self { status, ..Self::new(ContentType::Json, body) }
    }

    pub(super) fn nothing() -> Self {
        Self { status: Status::NoContent, ..Self::new(ContentType::Json, Vec::new()) }
    }

    /// What went wrong.
    pub(super) fn error(status: Status, error: &Error) -> Self {
        Self::json(status, &json!({ "error": ErrorReply::from(error) }))
    }

    pub(super) fn with(mut self, header: &str) -> Self {
        assert!(!header.contains(['\r', '\n']), "a header is one line: {header:?}");
        self.headers.push_str(header);
        self.headers.push_str("\r\n");
        self
    }

    /// Sends the answer, without its body to who asked for the head alone.
    pub(super) fn send(&self, close: bool, head_only: bool, output: &mut Output) {
        let empty = self.status == Status::NoContent;
        assert!(!empty || self.body.is_empty(), "an answer without content has {} bytes", self.body.len());
        let mut head = format!("HTTP/1.1 {}\r\n{HEADERS}{}", self.status.line(), self.headers);
        if !empty {
            let (kind, len) = (self.content.name(), self.body.len());
            head.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {len}\r\n"));
        }
        if close {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        output.push(head.as_bytes());
        if !head_only {
            output.push(&self.body);
        }
    }
}
