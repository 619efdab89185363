//! What identifies a package: version, time and maintainer, read from the last commit unless the environment says otherwise.
//!
//! The variables are those of Debian's tools: `SOURCE_DATE_EPOCH`, `DEBFULLNAME` and `DEBEMAIL`.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::printed;

/// Of the Debian package of a version.
const REVISION: u32 = 1;

/// A release, or any other commit.
#[derive(Debug)]
pub(super) struct Release {
    /// Of the workspace.
    pub(super) version: &'static str,
    /// Name and address, as in a message's head.
    pub(super) maintainer: String,
    /// Seconds since 1970.
    pub(super) time: u64,
    /// The day, as 2026-01-31.
    pub(super) date: String,
    /// The same with the time of the day, as in a message's head.
    pub(super) full_date: String,
}

impl Release {
    /// Of the last commit.
    pub(super) fn of_commit(root: &Path) -> Result<Self> {
        let time = match env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => of_last(root, "%ct")?,
        };
        let time =
            time.parse().with_context(|| format!("SOURCE_DATE_EPOCH is no number of seconds: {time}"))?;
        let author = |variable, format| env::var(variable).or_else(|_| of_last(root, format));
        let maintainer = format!("{} <{}>", author("DEBFULLNAME", "%an")?, author("DEBEMAIL", "%ae")?);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            maintainer,
            time,
            date: date(time, "+%F")?,
            full_date: date(time, "-R")?,
        })
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn example() -> Self {
        Self {
            version: "1.2.3",
            maintainer: "A B <a@b.example>".into(),
            time: 0,
            date: "1970-01-01".into(),
            full_date: "Thu, 01 Jan 1970 00:00:00 +0000".into(),
        }
    }

    /// The version with the revision of its Debian package.
    pub(super) fn debian_version(&self) -> String {
        format!("{}-{REVISION}", self.version)
    }
}

/// A fact about the last commit.
fn of_last(root: &Path, format: &str) -> Result<String> {
    let format = format!("--format={format}");
    let printed = printed(Command::new("git").current_dir(root).args(["log", "-1", &format]))?;
    Ok(printed.trim().to_owned())
}

/// A time in a form of date(1).
fn date(seconds: u64, form: &str) -> Result<String> {
    let at = format!("--date=@{seconds}");
    let printed = printed(Command::new("date").env("LC_ALL", "C").args(["--utc", &at, form]))?;
    Ok(printed.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_a_maintainer_and_a_time() {
        let release = Release::of_commit(&crate::root()).unwrap();
        assert!(release.maintainer.contains(" <") && release.maintainer.ends_with('>'), "{release:?}");
        assert!(release.time > 0 && release.date.len() == "2026-01-31".len(), "{release:?}");
    }

    #[test]
    fn a_time_has_the_forms_of_pages_and_of_changelogs() {
        assert_eq!(date(1_000_000_000, "+%F").unwrap(), "2001-09-09");
        assert_eq!(date(1_000_000_000, "-R").unwrap(), "Sun, 09 Sep 2001 01:46:40 +0000");
    }
}
