//! The kernel, the driver that carries the I/O, and the threads of a server.

use spillway_core::Error;
use spillway_io::{Driver, DriverChoice, Workers, WorkersOptions};

use super::finding::Finding;
use super::host::{Host, counted};
use crate::system::cgroup;

/// From which version on a worker may interrupt other threads by a short scheduler slice.
const SLICES: (u32, u32) = (6, 12);

/// From which version on io_uring does all that is asked of it.
const IO_URING: (u32, u32) = (5, 6);

/// From which version on rings do not count as locked memory.
pub(super) const RINGS_UNLOCKED: (u32, u32) = (5, 12);

/// What the other driver costs.
const COST: &str = "Everything works with poll, but each call on a file is handed to one of 64 threads, which takes two switches of threads: \
                    disks, caches and spill files are slower.";

/// Which kernel it is.
pub(super) fn kernel(host: &Host) -> Finding {
    let Some(release) = host.text("proc/sys/kernel/osrelease") else {
        let remedy = "Limits, locks and mounts are not seen without /proc: mount -t proc proc /proc.";
        return Finding::note("kernel", "unknown, /proc cannot be read", remedy);
    };
    let late = host.is_since(SLICES);
    let remedy = "A worker has no scheduler slice of its own before Linux 6.12: on busy processors a request waits up to 3 ms for other \
                  programs. Use a later kernel, or leave a processor to the server.";
    let found = format!("Linux {release}, {}", std::env::consts::ARCH);
    Finding::new("kernel", found, (!late).then(|| remedy.to_owned()))
}

/// The driver and the threads that a server gets here, by starting those of one.
pub(super) fn threads(host: &Host) -> [Finding; 2] {
    let limits = thread_limits(host);
    match start(DriverChoice::Auto) {
        Ok((driver, started)) => {
            [carried_by(&driver, host), Finding::ok("threads", format!("{started}; {limits}"))]
        }
        Err(error) => without_io_uring(host, &error, &limits),
    }
}

/// A server does not start by itself: whether one does that uses no io_uring.
fn without_io_uring(host: &Host, error: &Error, limits: &str) -> [Finding; 2] {
    let few = "No server starts: raise the limit of threads (ulimit -u, docker --pids-limit, systemd TasksMax=), or give fewer --workers.";
    match start(DriverChoice::Poll) {
        Ok((_, started)) => {
            let remedy = format!(
                "A server starts with --driver poll or fewer --workers only. {} {}",
                COST,
                permission(host)
            );
            let driver = Finding::problem("driver", format!("io_uring fails: {}", error.message()), remedy);
            [driver, Finding::ok("threads", format!("{started}; {limits}"))]
        }
        Err(poll) => {
            let driver =
                Finding::note("driver", error.message(), "It is chosen once the threads of a server start.");
            [driver, Finding::problem("threads", format!("{}; {limits}", poll.message()), few)]
        }
    }
}

/// Threads of a server: those that are asked for, and the one in front.
pub(super) fn threads_of(options: &WorkersOptions) -> usize {
    options.count + options.background + options.compute + 1
}

/// Starts the threads of a server and ends them again: the driver that they have, and their number in words.
fn start(driver: DriverChoice) -> Result<(Driver, String), Error> {
    let options = WorkersOptions { driver, ..WorkersOptions::default() };
    let all = threads_of(&options);
    let workers = Workers::start(options)?;
    let started = (workers.driver().clone(), format!("{all} start, {} of them workers", workers.count()));
    workers.stop();
    Ok(started)
}

fn carried_by(driver: &Driver, host: &Host) -> Finding {
    let remedy = matches!(driver, Driver::Poll(_)).then(|| format!("{} {}", COST, permission(host)));
    Finding::new("driver", driver.to_string(), remedy)
}

/// What allows io_uring here.
fn permission(host: &Host) -> &'static str {
    let disabled = host.text("proc/sys/kernel/io_uring_disabled").is_some_and(|value| value != "0");
    let filtered = host.status("Seccomp").as_deref() == Some("2");
    match () {
        () if !host.is_since(IO_URING) => "io_uring needs Linux 5.6 or later.",
        () if disabled => "To allow io_uring: sysctl kernel.io_uring_disabled=0.",
        () if filtered => {
            "To allow io_uring: a seccomp profile with io_uring_setup, io_uring_enter and io_uring_register (docker --security-opt \
             seccomp=FILE, Kubernetes seccompProfile, systemd SystemCallFilter=)."
        }
        () if !host.is_since(RINGS_UNLOCKED) => {
            "io_uring may need a higher limit of locked memory (ulimit -l, systemd LimitMEMLOCK=)."
        }
        () => "The kernel was built without io_uring, or a security module forbids it.",
    }
}

fn thread_limits(host: &Host) -> String {
    let user = host.limit("Max processes").map_or("unknown".to_owned(), |limit| counted(limit.soft));
    let groups = cgroup::unified(host.root(), "pids.max").into_iter();
    let groups = groups.chain(cgroup::legacy(host.root(), "pids", "pids.max"));
    let group = groups.filter_map(|text| text.parse().ok()).min().unwrap_or(u64::MAX);
    format!("at most {user} of this user (ulimit -u), {} of the cgroup (pids.max)", counted(group))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    const RELEASE: &str = "proc/sys/kernel/osrelease";

    #[test]
    fn an_older_kernel_has_a_note_and_a_later_one_none() {
        for (release, status) in
            [("6.12.0-arch1", Status::Ok), ("7.1.2", Status::Ok), ("6.1.0-18-amd64", Status::Note)]
        {
            let (host, _root) = host(&[(RELEASE, release)]);
            let finding = kernel(&host);
            assert!(finding.status == status && finding.found.contains(release), "{finding:?}");
        }
        assert!(kernel(&host(&[]).0).remedy.expect("a note").contains("mount -t proc"));
    }

    #[test]
    fn a_refused_io_uring_has_the_remedy_of_its_cause() {
        let status = |seccomp: &str| format!("Uid:\t0\t0\t0\t0\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n");
        let driver = Driver::Poll(Some("io_uring was refused".into()));
        for (release, disabled, seccomp, words) in [
            ("6.6.1", "2", "2", "sysctl kernel.io_uring_disabled=0"),
            ("6.6.1", "0", "2", "--security-opt seccomp="),
            ("6.6.1", "0", "0", "built without io_uring"),
            ("5.10.0-28-amd64", "0", "0", "LimitMEMLOCK="),
            ("4.19.0", "0", "2", "Linux 5.6"),
        ] {
            let status = status(seccomp);
            let files = [
                (RELEASE, release),
                ("proc/sys/kernel/io_uring_disabled", disabled),
                ("proc/self/status", &status),
            ];
            let finding = carried_by(&driver, &host(&files).0);
            assert_eq!(
                (finding.status, finding.found.as_str()),
                (Status::Note, "poll (io_uring was refused)")
            );
            assert!(finding.remedy.as_ref().expect("a note").contains(words), "{finding:?}");
        }
        assert_eq!(carried_by(&Driver::IoUring, &host(&[]).0), Finding::ok("driver", "io_uring"));
    }

    #[test]
    fn threads_are_limited_by_the_user_and_by_the_least_group() {
        let (of_user, _root) = host(&[
            (
                "proc/self/limits",
                "Max processes             100                  unlimited            processes \n",
            ),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/pids.max", "max\n"),
            ("sys/fs/cgroup/a/pids.max", "64\n"),
        ]);
        assert_eq!(
            thread_limits(&of_user),
            "at most 100 of this user (ulimit -u), 64 of the cgroup (pids.max)"
        );
        assert!(thread_limits(&host(&[]).0).contains("unknown of this user"));
    }

    #[test]
    fn a_server_that_starts_without_io_uring_alone_is_a_problem_of_the_driver() {
        let error = Error::new(spillway_core::Kind::OutOfMemory, "no room for rings");
        let [driver, threads] = without_io_uring(&host(&[(RELEASE, "5.10.0")]).0, &error, "at most 9");
        assert_eq!(
            (driver.status, driver.found.as_str()),
            (Status::Problem, "io_uring fails: no room for rings")
        );
        assert!(
            driver.remedy.as_ref().expect("a remedy").starts_with("A server starts with --driver poll"),
            "{driver:?}"
        );
        assert!(threads.status == Status::Ok && threads.found.ends_with("; at most 9"), "{threads:?}");
    }

    #[test]
    fn the_threads_of_a_server_start_here() {
        let [driver, threads] = threads(&Host::at(std::path::Path::new("/")));
        assert_eq!(
            (driver.found.as_str(), threads.status),
            ("io_uring", Status::Ok),
            "{driver:?} {threads:?}"
        );
    }
}
