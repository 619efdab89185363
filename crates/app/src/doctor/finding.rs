//! What a check has found, and how it is shown: as a table, or as JSON.

use std::fmt::{Alignment, Write};

use serde::Serialize;

use crate::tables::{aligned, wrapped_words};

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Nothing to do.
    Ok,
    /// Something is slower, smaller or not there.
    Note,
    /// No server can start as things are.
    Problem,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) status: Status,
    pub(super) check: &'static str,
    /// The file, device or folder that it is about; of the host where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<String>,
    pub(super) found: String,
    /// The effect and what to do; none of what is good.
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// A note where there is a remedy, otherwise good.
    pub(super) fn new(check: &'static str, found: impl Into<String>, remedy: Option<String>) -> Self {
        assert!(remedy.as_ref().is_none_or(|words| words.ends_with('.')), "{check}: sentences: {remedy:?}");
        let status = if remedy.is_some() { Status::Note } else { Status::Ok };
        Self { status, check, path: None, found: found.into(), remedy }
    }

    /// Good.
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, found, None)
    }

    /// Not good, with the effect and what to do.
    pub(super) fn note(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, found, Some(remedy.into()))
    }

    /// So bad that no server starts.
    pub(super) fn problem(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Status::Problem, ..Self::note(check, found, remedy) }
    }

    /// The same of a path.
    pub(super) fn about(self, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }
}

/// Characters of a line of the terminal or the report that it is for.
const WIDTH: usize = 110;

/// The host's rows, then those of each path below its name.
pub(super) fn table(findings: &[Finding]) -> String {
    let mut text = String::new();
    for group in findings.chunk_by(|one, next| one.path == next.path) {
        assert!(group.iter().all(|finding| finding.path == group[0].path), "a group is of one path");
        if let Some(path) = &group[0].path {
            write!(text, "\n{path}\n").expect("writing to a string cannot fail");
        }
        text += &rows(group, findings);
    }
    text
}

fn rows(group: &[Finding], all: &[Finding]) -> String {
    let widest = |words: &mut dyn Iterator<Item = &str>| words.map(str::len).max().unwrap_or_default();
    let status = widest(&mut all.iter().map(|finding| finding.status.word()).chain(["STATUS"]));
    let check = widest(&mut all.iter().map(|finding| finding.check).chain(["CHECK"]));
    // Each group is a table of its own: all have the columns of the widest.
    let titles = [format!("{:status$}", "STATUS"), format!("{:check$}", "CHECK"), "FOUND".to_owned()];
    let room = WIDTH - status - check - 2;
    let rows: Vec<_> =
        [titles].into_iter().chain(group.iter().flat_map(|finding| cells(finding, room))).collect();
    aligned(&[Alignment::Left; 3], &rows).join("\n") + "\n"
}

/// What was found, and the remedy below it, in lines of `room` characters.
fn cells(finding: &Finding, room: usize) -> impl Iterator<Item = [String; 3]> {
    let words = [Some(&finding.found), finding.remedy.as_ref()].into_iter().flatten();
    let lines = words.flat_map(move |words| wrapped_words(words, room)).enumerate();
    lines.map(move |(at, line)| match at {
        0 => [finding.status.word().to_owned(), finding.check.to_owned(), line],
        _ => [String::new(), String::new(), line],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::json;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("driver", "io_uring"),
            Finding::note("swap", "2G", "Pages wait. Turn it off."),
            Finding::ok("file system", "ext4").about("/srv"),
            Finding::problem("room", "0B", "It is full.").about("/srv/a b"),
        ]
    }

    #[test]
    fn rows_are_aligned_and_a_remedy_stands_below_what_it_is_for() {
        let expected = "\
STATUS  CHECK       FOUND
ok      driver      io_uring
note    swap        2G
                    Pages wait. Turn it off.

/srv
STATUS  CHECK       FOUND
ok      file system ext4

/srv/a b
STATUS  CHECK       FOUND
problem room        0B
                    It is full.
";
        assert_eq!(table(&findings()), expected);
    }

    #[test]
    fn long_words_are_wrapped_below_their_beginning() {
        let long = format!("{}.", ["word"; 60].join(" "));
        let text = table(&[Finding::note("swap", "2G", long)]);
        assert!(text.lines().count() > 3 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(
            text.lines()
                .skip(2)
                .all(|line| line.starts_with("             ") && line.trim_start().starts_with("word")),
            "{text}"
        );
    }

    #[test]
    fn json_has_an_object_for_each() {
        let rows: serde_json::Value = serde_json::from_str(&json(&findings()).unwrap()).unwrap();
        assert_eq!(
            rows[0],
            serde_json::json!({"status": "ok", "check": "driver", "found": "io_uring", "remedy": null})
        );
        assert_eq!((&rows[3]["status"], &rows[3]["path"]), (&"problem".into(), &"/srv/a b".into()));
    }
}
