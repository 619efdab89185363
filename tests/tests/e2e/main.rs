//! End-to-end tests: real clients, servers, mounts and disks, one module for each subject.
//!
//! They are one program so that the parts are linked once and the cores have work to the end. What a test changes of the process or the
//! machine, it changes in a process or a mount namespace of its own: any other test runs beside it.

mod attach;
mod background;
mod budget;
mod busy;
mod cache_opening;
mod control;
mod disk;
mod fairness;
mod fio;
mod foreign_server;
mod hand_over;
mod hostile;
mod hot;
mod image;
mod inherited;
mod kept;
mod libnbd;
mod locks;
mod log;
mod log_file;
mod memory;
mod mount;
mod mount_scripts;
mod mounted_files;
mod nbd_faults;
mod nbd_origin;
mod nbd_outage;
mod origin_fsck;
mod other_users;
mod page_cache;
mod peers;
mod poll_driver;
mod power_cut;
mod program;
mod qcow2;
mod qemu;
mod rbd;
mod rbd_content;
mod rbd_faults;
mod rbd_full;
mod rbd_locks;
mod rbd_names;
mod refused_calls;
mod refused_stacks;
mod resize;
mod signals;
mod spill;
mod spill_keys;
mod spill_reader;
mod standard_streams;
mod start;
mod unmount;
mod write_cache;
