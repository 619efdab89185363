//! The worked example of a new layer in CONTRIBUTING.md applies to the tree.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const GUIDE: &str = "CONTRIBUTING.md";
const BEGIN: &str = "```diff\n";
const END: &str = "```\n";

/// Fails where the patch in the guide does not apply at `root`; git says why.
pub(crate) fn applies(root: &Path) -> Result<()> {
    let guide = std::fs::read_to_string(root.join(GUIDE)).with_context(|| format!("cannot read {GUIDE}"))?;
    let patch =
        patch_in(&guide).with_context(|| format!("{GUIDE} has no example of a layer: a block of `diff`"))?;
    let mut git = Command::new("git");
    let mut git = git.args(["apply", "--check", "-"]).current_dir(root).stdin(Stdio::piped()).spawn()?;
    git.stdin.take().expect("it was asked for").write_all(patch.as_bytes())?;
    ensure!(git.wait()?.success(), "the example of a layer in {GUIDE} does not apply: make it anew");
    Ok(())
}

fn patch_in(guide: &str) -> Option<&str> {
    let (_, rest) = guide.split_once(BEGIN)?;
    rest.split_once(END).map(|(patch, _)| patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_is_the_block_of_a_diff() {
        assert_eq!(patch_in("# A\n```sh\nls\n```\n```diff\n--- a/x\n+b\n```\nmore\n"), Some("--- a/x\n+b\n"));
        assert_eq!(patch_in("# A\n```sh\nls\n```\n"), None);
    }

    #[test]
    fn a_patch_that_does_not_apply_is_an_error() {
        let folder = std::env::temp_dir().join(format!("spillway-example-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let patch = "```diff\n--- a/file\n+++ b/file\n@@ -1 +1,2 @@\n one\n+two\n```\n";
        std::fs::write(folder.join(GUIDE), patch).unwrap();
        for (content, fits) in [("one\n", true), ("another\n", false)] {
            std::fs::write(folder.join("file"), content).unwrap();
            assert_eq!(applies(&folder).is_ok(), fits, "{content}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
