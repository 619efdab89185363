//! Runs the parts whose outcome is not there yet, each in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::origin::{self, Origin};
use super::outcome::Outcome;
use super::parts::{Mode, Part};
use crate::measure::interrupt;
use crate::measure::results;

/// Where and how parts run.
pub(super) struct Runs {
    pub(super) folder: PathBuf,
    pub(super) mode: Mode,
    pub(super) origin: Origin,
    /// Outcomes that are there do not count.
    pub(super) fresh: bool,
}

impl Runs {
    /// The outcome of each of `parts`; `execute` runs those that are not there.
    pub(super) fn all(
        &self,
        parts: &[&Part],
        mut execute: impl FnMut(&Part) -> Result<Outcome>,
    ) -> Result<Vec<Outcome>> {
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        let mut outcomes = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            if let Some(outcome) = self.standing(part) {
                outcomes.push(outcome);
                continue;
            }
            let (own, left) = (self.estimate(part), self.left(&parts[index..]));
            eprintln!(
                "{} of {}: {}, about {own:.0} s; {:.0} min left",
                index + 1,
                parts.len(),
                part.name,
                left / 60.0
            );
            let outcome = execute(part)?;
            if let Some(failure) = &outcome.failure {
                eprintln!("{} failed: {failure}", part.name);
            }
            outcome.save(&self.folder)?;
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// An outcome that makes a run needless.
    fn standing(&self, part: &Part) -> Option<Outcome> {
        let outcome = Outcome::load(&self.folder, part.name).filter(|_| !self.fresh)?;
        outcome.stands_for(&self.origin).then_some(outcome)
    }

    /// What a part takes: as long as its last run, whatever that was of.
    fn estimate(&self, part: &Part) -> f64 {
        let last = Outcome::load(&self.folder, part.name).filter(|outcome| outcome.failure.is_none());
        last.map_or_else(|| part.seconds(self.mode), |outcome| outcome.seconds)
    }

    /// Seconds that those of `parts` take that have to run.
    fn left(&self, parts: &[&Part]) -> f64 {
        parts.iter().filter(|part| self.standing(part).is_none()).map(|part| self.estimate(part)).sum()
    }

    /// Runs a part by this program. What it says lies in a log beside its outcome.
    pub(super) fn execute(&self, part: &Part) -> Result<Outcome> {
        let [log, lines] = ["log", "records"].map(|kind| self.folder.join(format!("{}.{kind}", part.name)));
        let _ = fs::remove_file(&lines);
        let mut outcome = Outcome::new(part.name, self.mode, &self.origin, &origin::date()?);
        let said = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(part.words(self.mode))
            .env(results::FILE, &lines)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        let start = Instant::now();
        let status = finished(command.stdout(said.try_clone()?).stderr(said), interrupt::came)?;
        interrupt::check()?;
        outcome.seconds = start.elapsed().as_secs_f64();
        outcome.failure = (!status.success()).then(|| reason(&log)).transpose()?;
        outcome.take(&fs::read_to_string(&lines).unwrap_or_default())?;
        Ok(outcome)
    }
}

/// Runs a part to its end; it and what it runs are told to end once `is_interrupted`.
fn finished(command: &mut Command, is_interrupted: impl Fn() -> bool) -> Result<ExitStatus> {
    let (mut part, mut is_told) = (command.process_group(0).spawn()?, false);
    loop {
        if let Some(status) = part.try_wait()? {
            return Ok(status);
        }
        if is_interrupted() && !is_told {
            interrupt::forward(&part)?;
            is_told = true;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The last line of a log; behind that of a panic is a note.
fn reason(log: &Path) -> Result<String> {
    let text = fs::read_to_string(log)?;
    let is_reason = |line: &&str| !line.trim().is_empty() && !line.starts_with("note: ");
    let line = text.lines().rfind(is_reason);
    Ok(line.unwrap_or("it ended without a word").trim_start_matches("error: ").into())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Scratch, origin};
    use super::super::parts::SECTIONS;
    use super::*;

    /// The parts that a report at `origin` runs again.
    fn executed(scratch: &Scratch, origin: Origin, fresh: bool, failing: Option<&str>) -> Vec<&'static str> {
        let parts: Vec<&Part> = SECTIONS[1].parts.iter().collect();
        let runs = Runs { folder: scratch.0.clone(), mode: Mode::Quick, origin, fresh };
        let mut executed = Vec::new();
        let outcomes = runs.all(&parts, |part| {
            executed.push(part.name);
            let mut outcome = Outcome::new(part.name, Mode::Quick, &runs.origin, "today");
            outcome.failure = (failing == Some(part.name)).then(|| "broken".into());
            outcome.seconds = 7.0;
            Ok(outcome)
        });
        assert_eq!(outcomes.unwrap().len(), parts.len());
        executed.iter().map(|name| parts.iter().find(|part| part.name == *name).unwrap().name).collect()
    }

    #[test]
    fn a_part_of_the_same_commit_and_host_is_not_run_again() {
        let scratch = Scratch::new("same");
        let all = ["streams-inside", "streams-fwrite", "streams-locks"];
        assert_eq!(executed(&scratch, origin(), false, None), all);
        assert_eq!(executed(&scratch, origin(), false, None), [""; 0]);
        assert_eq!(executed(&scratch, origin(), true, None), all, "all afresh");
        let other = Origin { commit: "another".into(), ..origin() };
        assert_eq!(executed(&scratch, other.clone(), false, None), all, "another commit");
        assert_eq!(executed(&scratch, Origin { cores: 64, ..other }, false, None), all, "another host");
    }

    #[test]
    fn a_part_that_failed_is_run_again_and_hinders_no_other() {
        let scratch = Scratch::new("failed");
        assert_eq!(executed(&scratch, origin(), false, Some("streams-inside")).len(), 3);
        assert_eq!(executed(&scratch, origin(), false, None), ["streams-inside"]);
    }

    #[test]
    fn with_uncommitted_changes_nothing_stands() {
        let scratch = Scratch::new("uncommitted");
        let changed = Origin { uncommitted: true, ..origin() };
        assert_eq!(executed(&scratch, changed.clone(), false, None).len(), 3);
        assert_eq!(executed(&scratch, changed, false, None).len(), 3);
    }

    #[test]
    fn the_estimate_is_of_the_last_run_or_of_the_table() {
        let scratch = Scratch::new("estimate");
        let parts: Vec<&Part> = SECTIONS[1].parts.iter().collect();
        let runs = |commit: &str| Runs {
            folder: scratch.0.clone(),
            mode: Mode::Quick,
            origin: Origin { commit: commit.into(), ..origin() },
            fresh: false,
        };
        let table: f64 = parts.iter().map(|part| part.seconds(Mode::Quick)).sum();
        assert!((runs("a").left(&parts) - table).abs() < 1e-9);
        executed(&scratch, runs("a").origin, false, None);
        assert!((runs("b").left(&parts) - 21.0).abs() < 1e-9, "three runs of 7 s");
        assert!(runs("a").left(&parts).abs() < 1e-9, "nothing is left");
    }

    #[test]
    fn an_interrupted_part_ends_by_itself_and_so_does_what_it_runs() {
        let scratch = Scratch::new("interrupted");
        let [ready, ended] = ["ready", "ended"].map(|name| scratch.0.join(name));
        // What it runs is itself by then: a shell that is about to be a program takes a signal and does nothing.
        let mut part = Command::new("sh");
        part.arg("-c")
            .arg("trap 'touch ended; exit 3' INT; sh -c 'touch ready; exec sleep 1000'")
            .current_dir(&scratch.0);
        let status = finished(&mut part, || ready.exists()).unwrap();
        assert_eq!((status.code(), ended.exists()), (Some(3), true));
    }

    #[test]
    fn the_last_line_of_a_log_says_why() {
        let scratch = Scratch::new("reason");
        let log = scratch.0.join("log");
        for last in ["", "note: run with `RUST_BACKTRACE=1`\n"] {
            fs::write(&log, format!("round 1\nerror: fio cannot be started\n\n{last}")).unwrap();
            assert_eq!(reason(&log).unwrap(), "fio cannot be started");
        }
    }
}
