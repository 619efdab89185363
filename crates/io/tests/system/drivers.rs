//! Which driver the workers run on, and what happens where the system refuses it.

use std::sync::mpsc;

use spillway_core::task;
use spillway_io::{Driver, DriverChoice, Workers, WorkersOptions};

#[test]
fn the_driver_is_named() {
    let workers = crate::toy::workers(1, DriverChoice::Poll);
    assert_eq!(workers.driver(), &Driver::Poll(None));
    match crate::toy::workers(1, DriverChoice::Auto).driver() {
        Driver::IoUring => {}
        Driver::Poll(reason) => assert!(reason.is_some(), "a fall-back has a reason"),
    }
    assert!(
        Workers::start(WorkersOptions { count: 0, driver: DriverChoice::Auto, ..WorkersOptions::default() })
            .is_err()
    );
}

/// Makes the kernel refuse io_uring to this process, as container runtimes do.
fn forbid_io_uring() {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program live until the call returns; it only ever takes rights from this thread and those
    // that it starts.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(outcome, 0, "a filter can be had without rights");
}

#[test]
fn where_io_uring_is_refused_polling_takes_over_and_says_why() {
    let thread = std::thread::spawn(|| {
        forbid_io_uring();
        let error = Workers::start(WorkersOptions {
            count: 1,
            driver: DriverChoice::IoUring,
            ..WorkersOptions::default()
        })
        .err()
        .unwrap();
        assert!(error.message().contains("choose 'poll'"), "{error}");
        let workers = crate::toy::workers(1, DriverChoice::Auto);
        let words = workers.driver().to_string();
        assert!(words.starts_with("poll (io_uring was refused") && words.contains("os error 1"), "{words}");
        let (sender, done) = mpsc::channel();
        workers.run_on(0, task(move || async move { sender.send(()).unwrap() }));
        done.recv().unwrap();
        workers.stop();
    });
    thread.join().unwrap();
}
