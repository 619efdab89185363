//! The units for systemd, as far as they can be judged without it.

use std::fs;
use std::path::Path;

use spillway_tests::tool::run;
use spillway_tests::{Scratch, binary, text};

/// Highest exposure that `systemd-analyze security` may find, in tenths.
const EXPOSURE_MAX: &str = "--threshold=20";

#[test]
fn units_are_sound_and_confine_the_server() {
    are_sound(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/packaging"), binary::path());
}

/// Panics unless the units in `folder` are sound and confine the server, with `program` in place of the one in `/usr/bin`.
pub(crate) fn are_sound(folder: &Path, program: &Path) {
    let installed = Scratch::new();
    for name in ["spillway", "spillway-ram", "spillway-swap"] {
        let unit = fs::read_to_string(folder.join(format!("{name}@.service"))).expect("a unit");
        assert!(unit.contains("ExecStart=/usr/bin/spillway "), "{unit}");
        // The program lies elsewhere before it is installed.
        let unit = unit.replace("/usr/bin/spillway", text(program));
        let path = installed.write(&format!("{name}@x.service"), unit);
        let said = run("systemd-analyze", &["verify", text(&path)]).well();
        assert!(said.err.is_empty() && said.out.is_empty(), "{said}");
        run("systemd-analyze", &["security", "--offline=true", "--no-pager", EXPOSURE_MAX, text(&path)])
            .well();
    }
}
