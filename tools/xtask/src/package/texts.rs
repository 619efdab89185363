//! Files of the Debian package that are no files of the repository: its licences and its changes.

use super::release::Release;

/// The file that names changes of the package: that it was made.
pub(super) fn changelog(release: &Release) -> String {
    let (version, when) = (release.debian_version(), &release.full_date);
    format!(
        "spillway ({version}) unstable; urgency=medium\n\n  * Version {}.\n\n -- {}  {when}\n",
        release.version, release.maintainer
    )
}

/// The licences, in Debian's form.
pub(super) fn copyright(_: &Release) -> String {
    const MIT: &str = include_str!("../../../../LICENSE-MIT");
    let (_, after_title) = MIT.split_once("\n\n").expect("a title comes first");
    let (holder, terms) = after_title.split_once("\n\n").expect("the terms follow the holder");
    let terms: String = terms
        .lines()
        .map(|line| if line.is_empty() { " .\n".into() } else { format!(" {line}\n") })
        .collect();
    let holder = holder.trim_start_matches("Copyright (c) ");
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: spillway\n\n\
         Files: *\nCopyright: {holder}\nLicense: MIT or Apache-2.0\n\n\
         License: MIT\n{terms}\n\
         License: Apache-2.0\n On Debian systems, the full text of the Apache License, Version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
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

    #[test]
    fn both_licences_are_named() {
        let text = copyright(&Release::example());
        for part in
            ["\nLicense: MIT or Apache-2.0\n", "common-licenses/Apache-2.0", " .\n", "WITHOUT WARRANTY"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let known = |line: &str| line.is_empty() || line.starts_with(' ') || line.contains(": ");
        assert!(text.lines().all(known), "{text}");
    }
}
