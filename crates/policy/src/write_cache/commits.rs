//! What the committer does next. Commits come first: clients wait for them. But where one is always wanted, entries get cleared in
//! between, as soon as there are many, or a task waits for it.

/// Stale entries for which clearing is not put off until after another commit.
pub const CLEARED_SOON: u32 = 4096;

/// What the committer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing is to be done.
    Rest,
    /// Commit.
    Commit,
    /// Clear stale entries.
    Clear,
}

/// The next action: after `last`, where a commit is `wanted` or not, and so many entries are `stale`, for which a task `waits` or
/// nobody.
pub fn next_action(last: Action, wanted: bool, stale: u32, waits: bool) -> Action {
    let due = stale >= CLEARED_SOON || stale > 0 && waits;
    match (wanted, stale > 0) {
        (true, _) if !(last == Action::Commit && due) => Action::Commit,
        (_, true) => Action::Clear,
        (_, false) => Action::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state: what is wanted gets its turn after one other action at most, and nothing is done for nothing.
    #[test]
    fn neither_waits_for_more_than_one_action_of_the_other() {
        for last in [Action::Rest, Action::Commit, Action::Clear] {
            for (stale, waits) in
                [0, 1, CLEARED_SOON - 1, CLEARED_SOON].into_iter().flat_map(|n| [(n, false), (n, true)])
            {
                let [calm, wanted] = [false, true].map(|wanted| next_action(last, wanted, stale, waits));
                assert_eq!(calm, if stale > 0 { Action::Clear } else { Action::Rest });
                let due = stale >= CLEARED_SOON || stale > 0 && waits;
                assert_eq!(
                    wanted,
                    if due && last == Action::Commit { Action::Clear } else { Action::Commit }
                );
            }
        }
    }
}
