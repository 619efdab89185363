//! What a report is made of.

use super::origin::Origin;
use super::outcome::Outcome;
use super::parts::{Mode, SECTIONS};

/// All that is known.
pub(super) struct Report {
    pub(super) mode: Mode,
    pub(super) origin: Origin,
    pub(super) outcomes: Vec<Outcome>,
}

impl Report {
    pub(super) fn has_part(name: &str) -> bool {
        SECTIONS.iter().flat_map(|section| section.parts).any(|part| part.name == name)
    }

    pub(super) fn has_all_parts(&self) -> bool {
        SECTIONS.iter().flat_map(|section| section.parts).all(|part| self.outcome(part.name).is_some())
    }

    pub(super) fn outcome(&self, part: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.part == part)
    }

    /// Parts that were begun after one that follows them.
    fn measured_again(&self) -> Vec<&str> {
        let later = |at: usize| self.outcomes[at..].iter().map(|outcome| &outcome.date).min();
        let all = self.outcomes.iter().enumerate();
        let again = all.filter(|(at, outcome)| later(at + 1).is_some_and(|date| *date < outcome.date));
        again.map(|(_, outcome)| outcome.part.as_str()).collect()
    }

    /// Why it is less than a report.
    pub(super) fn labels(&self) -> Vec<String> {
        let quick = (self.mode == Mode::Quick).then(|| "A try: few rounds, short runs, small sets.".into());
        let changes = "Not a report: the tree has uncommitted changes.";
        quick.into_iter().chain(self.origin.uncommitted.then(|| changes.into())).collect()
    }

    /// What the figures are of.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let Origin { commit, processor, cores, memory_mib, kernel, system, root, versions, .. } =
            &self.origin;
        let user = if *root { "root" } else { "an ordinary user" };
        let minutes = self.outcomes.iter().map(|outcome| outcome.seconds).sum::<f64>() / 60.0;
        // A part may have been measured again, long after the others.
        let dates = || self.outcomes.iter().map(|outcome| outcome.date.as_str());
        let (first, last) = (dates().min().unwrap_or_default(), dates().max().unwrap_or_default());
        let again = self.measured_again();
        let again =
            if again.is_empty() { String::new() } else { format!("; measured again: {}", again.join(", ")) };
        vec![
            (
                "Commit",
                format!("{commit}; parts begun {first} to {last}, {minutes:.0} minutes in all{again}"),
            ),
            ("Machine", format!("{processor}, {cores} processors, {memory_mib} MiB")),
            ("System", format!("Linux {kernel}, {system}, as {user}")),
            ("Peers", versions.join("; ")),
        ]
    }
}
