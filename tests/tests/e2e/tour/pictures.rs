//! Pictures of the page as people see it: on a desktop and a phone, light and dark. Each can be read without colours.

use std::fs;
use std::path::Path;

use serde_json::json;
use spillway_tests::{Browser, Picture};

/// Names a folder that the pictures are written to.
const FOLDER: &str = "SPILLWAY_PICTURES";

/// See its head.
const LEGIBLE: &str = include_str!("legible.js");

/// Seconds that charts show before pictures are taken for people.
const SECONDS: u32 = 40;

/// Colours that letters, bars and lines of a page have at least, with their edges.
const COLOURS_MIN: u64 = 50;

/// A name, the width and height of the window, and whether it is one of a phone.
const WINDOWS: &[(&str, u32, u32, bool)] = &[("page", 1280, 720, false), ("phone", 390, 844, true)];

/// Takes them all, and leaves the page in the last window.
pub(super) fn are_sound(browser: &mut Browser) {
    let folder = std::env::var_os(FOLDER);
    if folder.is_some() {
        (0..=SECONDS).step_by(10).for_each(|points| have_points(browser, points));
    }
    for &(name, width, height, phone) in WINDOWS {
        let [light, dark] = ["light", "dark"].map(|theme| {
            browser.view(theme, width, height, phone);
            assert_eq!(browser.evaluate(LEGIBLE), json!([]), "{name} {theme}");
            let picture = browser.screenshot();
            assert_eq!((picture.width, picture.height), (width.into(), height.into()));
            assert!(picture.colours >= COLOURS_MIN, "{name} {theme}: {} colours", picture.colours);
            if let Some(folder) = &folder {
                write(Path::new(folder), &format!("{name}-{theme}.png"), &picture);
            }
            picture.brightness
        });
        assert!(light > 0.7 && dark < 0.3, "{name}: light {light}, dark {dark}");
    }
}

/// Waits until charts have more than so many points, one a second.
fn have_points(browser: &mut Browser, points: u32) {
    browser
        .shows(&format!("document.querySelector('svg path').getAttribute('d').split('L').length > {points}"));
}

fn write(folder: &Path, name: &str, picture: &Picture) {
    fs::write(folder.join(name), &picture.png).expect("the folder of the pictures is there");
}
