//! Packages of the program under test: the Debian one, installed into a folder and removed from there, and the archive.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_tests::tool::{Said, finish, run};
use spillway_tests::{Launch, Scratch, binary, text};

use crate::units;

/// The time of the packages in seconds since 1970, and its day: a commit during a test changes nothing.
const TIME: (&str, &str) = ("1700000000", " 2023-11-14 ");

/// Makes a package in `folder` by these options; its path.
fn package_in(folder: &Path, options: &[&str]) -> PathBuf {
    let built = binary::to_package();
    let mut xtask = Command::new(built.join("xtask"));
    xtask.env("SOURCE_DATE_EPOCH", TIME.0);
    let said =
        finish(xtask.args(["package", "--built"]).arg(built).arg("--into").arg(folder).args(options)).well();
    said.out.lines().last().expect("it prints the path").into()
}

/// A system with nothing but dpkg's database, and a folder for users. Scripts of packages run outside of it and are told where it is.
struct System(Scratch);

impl System {
    fn new() -> Self {
        let root = Scratch::new();
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
            fs::create_dir_all(root.join(folder)).expect("the folder is ours");
        }
        ["status", "available"].iter().for_each(|name| drop(root.write(&format!("var/lib/dpkg/{name}"), "")));
        Self(root)
    }

    fn dpkg(&self, words: &[&str]) -> Said {
        let root = format!("--root={}", text(self.0.path()));
        // Its libraries are those of the host. A container's dpkg may be told to leave documents out.
        let options = ["--force-script-chrootless", "--force-depends", "--log=/dev/null", "--path-include=*"];
        run("dpkg", &[&[root.as_str()], &options[..], words].concat()).well()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// The files in a folder.
    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(folder)).unwrap_or_else(|why| panic!("{folder}: {why}"));
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    fn names(&self, folder: &str) -> BTreeSet<String> {
        let name = |path: PathBuf| path.file_name().expect("an entry").to_string_lossy().into_owned();
        self.files(folder).into_iter().map(name).collect()
    }
}

/// Runs a script of a shell on a file; nothing may be said on standard error.
fn is_well(shell: &str, script: &str, file: &Path) -> Said {
    let said = run(shell, &["-c", script, shell, text(file)]).well();
    assert!(said.err.is_empty(), "{said}");
    said
}

#[test]
fn two_packages_of_one_program_are_equal_and_list_what_they_hold() {
    let folders = [Scratch::new(), Scratch::new()];
    let packages = folders.each_ref().map(|folder| package_in(folder.path(), &[]));
    let [one, other] = packages.each_ref().map(|package| fs::read(package).expect("it was made"));
    assert!(one == other, "{packages:?} differ");
    let package = text(&packages[0]);
    let held = run("dpkg-deb", &["--contents", package]).well();
    let held: BTreeSet<_> = held.out.lines().filter(|line| line.starts_with('-')).collect();
    assert!(held.iter().all(|line| line.contains(" root/root ") && line.contains(TIME.1)), "{held:?}");
    let held: BTreeSet<_> = held.iter().filter_map(|line| Some(line.rsplit_once(" ./")?.1)).collect();
    let sums = run("dpkg-deb", &["--info", package, "md5sums"]).well();
    let listed: BTreeSet<_> = sums.out.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    assert_eq!(held, listed);
    assert!(held.len() > 40 && held.contains("usr/bin/spillway"), "{held:?}");
    let depends = run("dpkg-deb", &["--field", package, "Depends"]).well();
    assert!(depends.out.contains("libc6 (>= 2."), "{depends}");
}

#[test]
fn an_installed_package_works_and_a_removed_one_leaves_its_user_alone() {
    let (folder, system) = (Scratch::new(), System::new());
    system.dpkg(&["--install", text(&package_in(folder.path(), &[]))]);
    let said = system.dpkg(&["--verify", "spillway"]);
    assert!(said.out.is_empty(), "{said}");
    let users = fs::read_to_string(system.path("etc/passwd")).expect("the package has a user");
    assert!(users.contains("\nspillway:") || users.starts_with("spillway:"), "{users}");
    serves(&system.path("usr/bin/spillway"));
    units::are_sound(&system.path("usr/lib/systemd/system"), &system.path("usr/bin/spillway"));
    pages_are_sound(&system);
    completions_are_sound(&system);
    licences_are_told(&system.path("usr/share/doc/spillway"));

    system.dpkg(&["--purge", "spillway"]);
    assert_eq!(system.names(""), BTreeSet::from(["etc".into(), "var".into()]), "dpkg's own, and users");
    let of_users =
        |name: &String| ["passwd", "group", "shadow", ".pwd.lock"].iter().any(|part| name.contains(part));
    assert!(system.names("etc").iter().all(of_users), "{:?}", system.names("etc"));
}

#[test]
fn an_archive_unpacked_where_users_unpack_it_works() {
    let (folder, usr) = (Scratch::new(), Scratch::new());
    let archive = package_in(folder.path(), &["--musl"]);
    let to = ["--directory", text(usr.path()), "--strip-components=1"];
    run("tar", &[&["--extract", "--file", text(&archive)], &to[..]].concat()).well();
    for path in
        ["share/doc/spillway/LICENSE-MIT", "lib/sysusers.d/spillway.conf", "share/man/man1/spillway.1.gz"]
    {
        assert!(usr.join(path).is_file(), "{path}");
    }
    licences_are_told(&usr.join("share/doc/spillway"));
    let told = fs::read_to_string(usr.join("share/doc/spillway/copyright")).expect("licences");
    assert!(told.contains("\nFiles: linked/musl/*\n"), "{told}");
    serves(&usr.join("bin/spillway"));
}

/// The licences of all that is linked are in a folder of documents, and name no place that crates come from.
fn licences_are_told(folder: &Path) {
    let told = fs::read_to_string(folder.join("copyright")).expect("licences");
    for crate_name in ["anyhow", "compio", "ring", "rustls", "zstd-sys"] {
        assert!(told.contains(&format!("\nFiles: linked/{crate_name}-")), "{crate_name}: {told}");
    }
    let texts = [
        "Redistribution and use in source and binary",
        "Permission is hereby granted",
        "TERMS AND CONDITIONS",
    ];
    assert!(texts.iter().all(|text| told.contains(text)) && !told.contains("/registry/"), "{told}");
    is_well("sh", "zcat \"$1\" | grep -q 'Rust Standard Library'", &folder.join("rust-library.html.gz"));
}

/// The program starts a server and stops it.
fn serves(program: &Path) {
    // In the place of the program under test, whose path comes first.
    let mut server =
        Launch::ram("64M").through(["sh", "-c", "shift && exec \"$0\" \"$@\"", text(program)]).start();
    let running = fs::read_link(format!("/proc/{}/exe", server.pid())).expect("it runs");
    assert_eq!(running, program);
    server.client().write(0, &[7; 4096]).expect("a write");
    let mut stop = Command::new(program);
    finish(stop.args(["stop", "ram0"]).env("SPILLWAY_RUNTIME_DIR", server.folder().path())).well();
    assert!(server.ends().success(), "{}", server.log());
}

fn pages_are_sound(system: &System) {
    let pages = system.files("usr/share/man/man1");
    let named = |name: &str| pages.iter().any(|page| page.ends_with(name));
    assert!(named("spillway.1.gz") && named("spillway-ram.1.gz"), "{pages:?}");
    for page in &pages {
        let said = is_well("sh", "zcat \"$1\" | groff -man -ww -Tutf8 -P-cbou", page);
        assert!(said.out.contains("SYNOPSIS") && said.out.contains("OPTIONS"), "{said}");
    }
}

fn completions_are_sound(system: &System) {
    let bash = system.path("usr/share/bash-completion/completions/spillway");
    is_well("bash", "bash -n \"$1\"", &bash);
    let said = is_well("bash", "source \"$1\" && complete -p spillway", &bash);
    assert!(said.out.contains("_spillway"), "{said}");
    let zsh =
        fs::read_to_string(system.path("usr/share/zsh/vendor-completions/_spillway")).expect("a script");
    assert!(zsh.starts_with("#compdef spillway"), "{zsh}");
    let fish = fs::read_to_string(system.path("usr/share/fish/vendor_completions.d/spillway.fish"));
    assert!(fish.expect("a script").contains("complete -c spillway"));
}
