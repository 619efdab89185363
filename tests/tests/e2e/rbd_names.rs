//! How RBD images, their clusters and the clients of these are named, and what is refused.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{Client, command};
use spillway_tests::{Cluster, Launch, Scratch, Store, pattern, text};

use crate::rbd::{FAILED, MIB, SIZE, STACKS, address, cached, lazy, plain, refused, stop};

#[test]
fn what_does_not_exist_is_named_with_what_is_missing() {
    let cluster = Cluster::shared();
    let image = cluster.image("exists", SIZE);
    for (image, why) in [
        ("rbd/absent", "no such image"),
        ("absent/image", "no such pool"),
        ("rbd/absent/exists", "no such image"),
    ] {
        for (_, stack) in STACKS {
            let said = refused(stack(cluster, Arc::default(), image), why);
            assert!(said.err.contains(&address(image)), "no image in: {said}");
        }
    }
    let conf = "/nowhere/ceph.conf";
    let said = refused(bare(&image).with("--ceph-conf", conf), conf);
    assert!(said.err.contains(&address(&image)), "{said}");
    let folder = Scratch::new();
    let conf = folder.write("empty.conf", "");
    refused(bare(&image).with("--ceph-conf", conf).with("--origin-timeout", "2"), &address(&image));
}

/// Nobody has said where the cluster is.
fn bare(image: &str) -> Launch {
    Launch::disk(Arc::default(), Path::new(&address(image))).with("--name", "d").with("--page-cache", "none")
}

#[test]
fn an_address_that_is_none_is_refused_with_the_form_that_is() {
    let cluster = Cluster::shared();
    for image in ["", "pool", "pool/", "/image", "a//b", "a/b/", "a/b/c/d", "a/b@", "a/b@c@d", "//a/b"] {
        for (_, stack) in STACKS {
            refused(stack(cluster, Arc::default(), image), "give rbd:POOL[/NAMESPACE]/IMAGE[@SNAP]");
        }
    }
}

/// One that refuses connections, and one that takes them and says nothing.
#[test]
fn a_cluster_that_cannot_be_reached_is_given_up_after_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = (silent.local_addr().expect("it has one").port(), Some(silent));
    let free =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    for (port, _listens) in [silent, (free, None)] {
        let folder = Scratch::new();
        let text = format!("[global]\nmon host = v2:127.0.0.1:{port}/0\nauth client required = none\n");
        let conf = folder.write("ceph.conf", text);
        let launch = bare("rbd/image").with("--ceph-conf", conf).with("--origin-timeout", "2");
        let said = refused(launch, "the cluster");
        assert!(said.err.contains("rbd:rbd/image"), "{said}");
    }
}

/// Each library in turn; whatever else the server does goes on without.
#[test]
fn a_host_without_a_library_of_ceph_is_told_the_package() {
    for (library, package) in [("librados.so.2", "librados2"), ("librbd.so.1", "librbd1")] {
        let hide = format!("mount --bind /dev/null $(readlink -f /usr/lib/*/{library}) && exec \"$@\"");
        let without = |launch: Launch| launch.through(["unshare", "--mount", "sh", "-c", &hide, "sh"]);
        let said = without(bare("rbd/image")).run();
        assert!(
            said.code == Some(FAILED) && said.err.contains(library) && said.err.contains(package),
            "{said}"
        );
        let mut server = without(Launch::ram("16M").with("--name", "d")).start();
        server.client().write(0, &[1; 4096]).expect("a write");
        stop(&mut server);
    }
}

/// The same name in pools and namespaces, and names with signs that have a meaning elsewhere.
#[test]
fn images_of_all_pools_namespaces_and_names_are_told_apart() {
    let cluster = Cluster::shared();
    cluster.ceph(&["osd", "pool", "create", "other"]);
    cluster.rbd(&["pool", "init", "other"]);
    cluster.rbd(&["namespace", "create", "rbd/space"]);
    let images = ["rbd/same", "other/same", "rbd/space/same", "rbd/ü b.c-1:d?e=%20"];
    for (seed, image) in (0..).zip(images) {
        cluster.rbd(&["create", "--size", "4M", image]);
        let mut server = plain(cluster, Arc::default(), image).start();
        server.client().write(0, &pattern::random(seed, 0, MIB)).expect("a write");
        stop(&mut server);
    }
    for (seed, image) in (0..).zip(images) {
        assert!(cluster.export(image)[..MIB] == pattern::random(seed, 0, MIB), "{image}");
    }
}

/// A client that may only use images, with a key of its own; the configuration has no key. What the options say counts more.
#[test]
fn a_client_is_who_the_options_or_the_environment_say() {
    let cluster = Cluster::shared();
    let (folder, image) = (Scratch::new(), cluster.image("with a key", SIZE));
    let caps = ["mon", "profile rbd", "osd", "profile rbd pool=rbd"];
    let key = cluster.ceph(&[&["auth", "get-or-create", "client.disks"], &caps[..]].concat());
    let key = folder.write("key", key);
    let all = fs::read_to_string(cluster.conf()).expect("it exists");
    let keyless: Vec<_> = all.lines().filter(|line| !line.starts_with("keyring")).collect();
    let conf = folder.write("ceph.conf", keyless.join("\n") + "\n");
    let environment = ["env".to_owned(), format!("CEPH_CONF={}", text(&conf))];
    let arguments = format!("CEPH_ARGS=--id disks --keyring {}", text(&key));
    let others = ["env", "CEPH_ARGS=--id nobody --keyring /nowhere/keyring"];
    let options = bare(&image).with("--ceph-conf", &conf).with("--ceph-id", "disks");
    let options = options.with("--ceph-keyring", &key);
    for (number, launch) in [
        options.clone(),
        options.through(others),
        bare(&image).with("--ceph-id", "disks").with("--ceph-keyring", &key).through(environment.clone()),
        bare(&image).through(environment.into_iter().chain([arguments])),
    ]
    .into_iter()
    .enumerate()
    {
        let mut server = launch.start();
        let bytes = pattern::random(number as u64, 0, MIB);
        server.client().write(0, &bytes).expect("a write");
        stop(&mut server);
        assert!(cluster.export(&image)[..MIB] == bytes, "way {number}");
    }
    for (id, key) in [("disks", None), ("nobody", Some(&key))] {
        let launch = bare(&image).with("--ceph-conf", &conf).with("--ceph-id", id);
        let launch = key.map_or(launch.clone(), |key| launch.with("--ceph-keyring", key));
        refused(launch.with("--origin-timeout", "10"), &address(&image));
    }
}

#[test]
fn one_server_has_origins_of_two_clusters() {
    let clusters = [Cluster::shared(), &Cluster::start(1, Store::Memory)];
    let images = clusters.map(|cluster| cluster.image("of two", SIZE));
    let device = |name: &str, cluster: &Cluster| {
        format!(
            "[[device]]\nname = \"{name}\"\n\
             origin = {{ kind = \"file\", path = \"rbd:{}\", ceph_conf = {:?} }}\n",
            images[0],
            cluster.conf()
        )
    };
    let config = device("one", clusters[0]) + &device("two", clusters[1]);
    let server = Launch::serve(Arc::default(), config).start();
    for (seed, name) in [(1, "one"), (2, "two")] {
        let mut client = Client::open(server.socket(), name);
        client.write(0, &pattern::random(seed, 0, MIB)).expect("a write");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
    }
    for (seed, cluster) in (1..).zip(clusters) {
        assert!(cluster.export(&images[0])[..MIB] == pattern::random(seed, 0, MIB), "cluster {seed}");
    }
}

/// With a dirty block on its device, and stopped.
pub(super) fn with_a_dirty_block(cluster: &Cluster, image: &str) -> (Arc<Scratch>, Vec<u8>) {
    let (folder, bytes) = (Arc::new(Scratch::new()), pattern::random(8, 0, MIB));
    let mut server = lazy(cached(cluster, folder.clone(), image)).start();
    server.client().write(MIB as u64, &bytes).expect("a write");
    server.client().ask(command::FLUSH, 0, 0).expect("a flush");
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    assert!(cluster.export(image)[MIB..2 * MIB] == vec![0; MIB], "it is not dirty");
    (folder, bytes)
}

/// The name may change, and another image may get it.
#[test]
fn blocks_of_a_write_cache_belong_to_the_image_and_not_to_its_name() {
    let cluster = Cluster::shared();
    let image = cluster.image("named", SIZE);
    let (folder, bytes) = with_a_dirty_block(cluster, &image);
    let moved = "rbd/renamed";
    cluster.rbd(&["rename", &image, moved]);
    cluster.image("named", SIZE);
    let before = fs::read(folder.join("cache.raw")).expect("it exists");
    refused(lazy(cached(cluster, folder.clone(), &image)), "the cache holds blocks of another origin");
    assert!(
        fs::read(folder.join("cache.raw")).expect("it exists") == before,
        "the refused cache was written"
    );
    let mut server = lazy(cached(cluster, folder, moved)).start();
    assert!(server.client().read(MIB as u64, MIB) == Ok(bytes.clone()), "the dirty blocks are lost");
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(moved)[MIB..2 * MIB] == bytes);
    assert!(cluster.export(&image).iter().all(|&byte| byte == 0), "they are in another image");
}

/// As after a pool was copied with its objects: to another pool of the cluster, and to the same one of another cluster.
#[test]
fn images_with_one_id_in_two_pools_or_clusters_are_two() {
    let clusters = [(); 2].map(|()| Cluster::start(1, Store::Memory));
    let image = clusters[0].image("image", SIZE);
    let (folder, bytes) = with_a_dirty_block(&clusters[0], &image);
    clusters[0].ceph(&["osd", "pool", "create", "other"]);
    let dump = folder.join("dump");
    clusters[0].run("rados", &["-p", "rbd", "export", text(&dump)]).well();
    for (cluster, pool) in [(&clusters[0], "other"), (&clusters[1], "rbd")] {
        cluster.run("rados", &["-p", pool, "import", text(&dump)]).well();
        let copy = format!("{pool}/image");
        let [first, second] = [(&clusters[0], &image), (cluster, &copy)]
            .map(|(cluster, image)| cluster.json(&["info", image])["id"].clone());
        assert_eq!(first, second, "{pool}: it is another image");
        refused(lazy(cached(cluster, folder.clone(), &copy)), "the cache holds blocks of another origin");
    }
    let server = lazy(cached(&clusters[0], folder, &image)).start();
    assert!(server.client().read(MIB as u64, MIB) == Ok(bytes), "the dirty blocks are lost");
}

/// A host that has only read is none; neither is the cache itself.
#[test]
fn a_write_cache_is_refused_once_another_host_has_written_to_its_image() {
    let cluster = Cluster::shared();
    let image = cluster.image("written by two", SIZE);
    let (folder, bytes) = with_a_dirty_block(cluster, &image);
    let launch = lazy(cached(cluster, folder, &image));
    for _ in 0..2 {
        let mut reader = plain(cluster, Arc::default(), &image).start();
        assert!(reader.client().read(MIB as u64, MIB) == Ok(vec![0; MIB]));
        stop(&mut reader);
        let mut server = launch.clone().start();
        assert!(server.client().read(MIB as u64, MIB) == Ok(bytes.clone()));
        server.client().write(0, &[3; 4096]).expect("a write");
        server.client().ask(command::FLUSH, 0, 0).expect("a flush");
        server.signal(Signal::TERM);
        assert!(server.ends().success(), "{}", server.log());
    }
    let mut writer = plain(cluster, Arc::default(), &image).start();
    writer.client().write(2 * MIB as u64, &[9; 4096]).expect("a write");
    stop(&mut writer);
    refused(launch.clone(), "another host");
    let mut server = launch.flag("--recover").start();
    assert!(server.client().read(MIB as u64, MIB) == Ok(bytes.clone()));
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    let found = cluster.export(&image);
    assert!(
        found[MIB..2 * MIB] == bytes && found[2 * MIB..][..4096] == [9; 4096] && found[..4096] == [3; 4096]
    );
}

/// As the refusal says. What the cache held is lost, and what the other host wrote is kept.
#[test]
fn a_write_cache_that_another_host_has_overtaken_is_made_anew_and_leaves_the_image_alone() {
    let cluster = Cluster::shared();
    let image = cluster.image("overtaken", SIZE);
    let (folder, _) = with_a_dirty_block(cluster, &image);
    let launch = lazy(cached(cluster, folder, &image));
    let mut writer = plain(cluster, Arc::default(), &image).start();
    writer.client().write((MIB + MIB / 2) as u64, &pattern::random(2, 0, MIB)).expect("a write");
    stop(&mut writer);
    let content = cluster.export(&image);
    for launch in [launch.clone(), launch.clone().flag("--create")] {
        refused(launch, "--create --force");
    }
    let mut server = launch.flag("--create").flag("--force").start();
    assert_eq!(server.value("d", "dirty_blocks"), 0, "{}", server.log());
    assert!(server.content() == content, "clients see what the cache held");
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image) == content, "what the cache held is in the image");
}

/// What looks like an image there is the name of a file.
#[test]
fn a_cache_device_is_never_an_image() {
    let cluster = Cluster::shared();
    let image = cluster.image("as a cache", SIZE);
    let (folder, path) = (Arc::new(Scratch::new()), address(&image));
    let origin = folder.write("origin.raw", vec![0; SIZE * MIB]);
    let config = format!(
        "[[device]]\nname = \"d\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [{{ kind = \"write_cache\", path = {path:?} }}]\n"
    );
    let conf = format!("CEPH_CONF={}", text(&cluster.conf()));
    for launch in [
        Launch::cache(folder.clone(), &origin, Path::new(&path)).with("--name", "d"),
        Launch::serve(folder.clone(), config),
    ] {
        let said = launch.through(["timeout", "--signal=KILL", "60", "env", &conf]).run();
        assert!(said.code == Some(FAILED) && said.err.contains("does not exist"), "{said}");
        assert!(said.err.contains(&path), "no path in: {said}");
    }
    assert!(cluster.export(&image).iter().all(|&byte| byte == 0), "the image was made a cache");
}
