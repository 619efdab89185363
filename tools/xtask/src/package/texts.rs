//! Files of the Debian package that are no files of the repository: its changes.

use super::release::Release;

/// The file that names changes of the package: that it was made.
pub(super) fn changelog(release: &Release) -> String {
    let (version, when) = (release.debian_version(), &release.full_date);
    format!(
        "spillway ({version}) unstable; urgency=medium\n\n  * Version {}.\n\n -- {}  {when}\n",
        release.version, release.maintainer
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changelog_is_one_entry() {
        let wanted = "spillway (1.2.3-1) unstable; urgency=medium\n\n  * Version 1.2.3.\n\n \
                      -- A B <a@b.example>  Thu, 01 Jan 1970 00:00:00 +0000\n";
        assert_eq!(changelog(&Release::example()), wanted);
    }
}
