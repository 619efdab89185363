//! What the cgroups that hold this process say, of either version.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of version 2, such as `memory.max`, in the cgroups of this process from its own to the top, below `root`: where there is one.
pub(crate) fn unified(root: &Path, file: &str) -> Vec<String> {
    texts(root, "sys/fs/cgroup", file, str::is_empty)
}

/// The same of version 1, of a `controller`, such as `memory`.
pub(crate) fn legacy(root: &Path, controller: &str, file: &str) -> Vec<String> {
    let top = format!("sys/fs/cgroup/{controller}");
    texts(root, &top, file, |list| list.split(',').any(|name| name == controller))
}

/// From the lines `ID:CONTROLLERS:PATH` whose controllers are `wanted`. A path that does not exist, as seen from a container whose own group
/// is mounted as the top, is climbed from as well.
fn texts(root: &Path, top: &str, file: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let fields = membership.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let paths = fields.filter(|(controllers, _)| wanted(controllers)).map(|(_, path)| path);
    let top = root.join(top);
    let groups = paths.flat_map(|path| up_from(&top.join(path.trim_start_matches('/')), &top));
    groups.filter_map(|group| Some(fs::read_to_string(group.join(file)).ok()?.trim().to_owned())).collect()
}

fn up_from(group: &Path, top: &Path) -> Vec<PathBuf> {
    group.ancestors().take_while(|folder| folder.starts_with(top)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn each_group_up_the_tree_is_asked_and_each_version_by_its_own_path() {
        let root = Scratch::new("cgroup");
        root.write("proc/self/cgroup", "4:cpu,cpuacct:/old\n1:name=systemd:/other\n0::/a/b\n");
        root.write("sys/fs/cgroup/a/b/memory.max", "7\n");
        root.write("sys/fs/cgroup/a/memory.max", "max\n");
        root.write("sys/fs/cgroup/other/memory.max", "1\n");
        root.write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "-1\n");
        root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
        assert_eq!(unified(root.path(), "memory.max"), ["7", "max"]);
        assert_eq!(legacy(root.path(), "cpu", "cpu.cfs_quota_us"), ["-1", "50000"]);
        assert_eq!(legacy(root.path(), "memory", "memory.limit_in_bytes"), [""; 0]);
        assert_eq!(unified(Path::new("/nowhere"), "memory.max"), [""; 0]);
    }
}
