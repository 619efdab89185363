//! What ordinary users may do by FUSE, as `/etc/fuse.conf` says.

use super::finding::Finding;
use super::host::Host;

/// Mounts of FUSE that `fusermount3` allows all users together, unless `/etc/fuse.conf` says otherwise.
const MOUNTS_MAX: usize = 1000;

/// Whether ordinary users may open a mount to others, and make one more.
pub(super) fn fuse_conf(host: &Host) -> Finding {
    if host.is_root() {
        return Finding::ok("fuse.conf", "not asked of root");
    }
    let path = "etc/fuse.conf";
    let text = host.text(path);
    if text.is_none() && host.has(path) {
        return Finding::ok("fuse.conf", "for fusermount3 to read only");
    }
    let Conf { allow_other, mounts_max } = conf(&text.unwrap_or_default());
    let mounts = host.text("proc/self/mounts").map_or(0, |table| mounts_in(&table));
    if mounts >= mounts_max {
        let remedy =
            "Only for --mount: no user but root can mount one more. Raise mount_max in /etc/fuse.conf.";
        return Finding::note("fuse.conf", format!("{mounts} mounts of {mounts_max} (mount_max)"), remedy);
    }
    let found = format!(
        "user_allow_other is {}set, {mounts} mounts of {mounts_max}",
        if allow_other { "" } else { "not " }
    );
    let remedy = "Only for --mount with --allow-other: it is refused without the line user_allow_other in /etc/fuse.conf.";
    Finding::new("fuse.conf", found, (!allow_other).then(|| remedy.to_owned()))
}

struct Conf {
    allow_other: bool,
    mounts_max: usize,
}

/// As `fusermount3` reads it: -1 mounts are any number.
fn conf(text: &str) -> Conf {
    let lines = || text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let most = lines().find_map(|line| {
        line.strip_prefix("mount_max")?.trim().strip_prefix('=')?.trim().parse::<i64>().ok()
    });
    let mounts_max = most.map_or(MOUNTS_MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    Conf { allow_other: lines().any(|line| line == "user_allow_other"), mounts_max }
}

/// How many mounts a table has that count: the third field is the type.
fn mounts_in(table: &str) -> usize {
    let kinds = table.lines().filter_map(|line| line.split_whitespace().nth(2));
    kinds.filter(|kind| *kind == "fuse" || kind.starts_with("fuse.")).count()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    const ROOT: &str = "Uid:\t0\t0\t0\t0\n";
    const USER: &str = "Uid:\t1000\t1000\t1000\t1000\n";

    #[test]
    fn what_others_may_is_read_as_fusermount3_reads_it() {
        let of = |text: &str, mounts: &str| {
            fuse_conf(
                &host(&[("proc/self/status", USER), ("etc/fuse.conf", text), ("proc/self/mounts", mounts)]).0,
            )
        };
        let mounts = "/dev/vda / ext4 rw 0 0\nspillway /mnt fuse.spillway rw 0 0\nx /y fuse rw 0 0\n/dev/sdb /z fuseblk rw 0 0\n";
        let closed = of("#user_allow_other\n#mount_max = 10\n", mounts);
        assert!(
            closed.status == Status::Note && closed.found == "user_allow_other is not set, 2 mounts of 1000",
            "{closed:?}"
        );
        let open = of("  user_allow_other # yes\nmount_max = 3\n", mounts);
        assert_eq!(open, Finding::ok("fuse.conf", "user_allow_other is set, 2 mounts of 3"));
        assert!(
            of("user_allow_other\nmount_max = 2\n", mounts)
                .remedy
                .expect("a note")
                .contains("Raise mount_max")
        );
        assert_eq!(of("user_allow_other\nmount_max = -1\n", mounts).status, Status::Ok);
        assert_eq!(fuse_conf(&host(&[("proc/self/status", ROOT)]).0).status, Status::Ok);
    }
}
