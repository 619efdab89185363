//! TLS between the server and real clients: libnbd's and QEMU's with GnuTLS, and raw ones that mean no good.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::tool::{Said, run};
use spillway_tests::versions::Disk;
use spillway_tests::{Authority, Launch, Scratch, Server, Upstream, pattern, text, until};

const USAGE: i32 = 2;

/// A RAM disk on a free port of this machine, and the port.
fn at_port(launch: impl FnOnce(Launch) -> Launch, certificates: &Scratch) -> (Server, u16) {
    let folder = Arc::new(Scratch::new());
    let launched = Launch::new(&["ram", "--size", "64M"], folder.clone(), folder.join("spillway/ram0.ctl"));
    let launched = launched.with("--listen", "localhost:0").with("--tls-certificates", certificates.path());
    let server = launch(launched).start();
    let log = server.log();
    let (_, rest) = log.split_once("://").expect("the start text has the address");
    let port = rest.split_once('/').expect("a path").0.rsplit_once(':').expect("a port").1;
    let port = port.parse().expect("a number");
    (server, port)
}

fn uri(port: u16, certificates: &Scratch) -> String {
    format!("nbds://localhost:{port}/ram0?tls-certificates={}", text(certificates.path()))
}

fn nbdinfo(port: u16, certificates: &Scratch) -> Said {
    run("nbdinfo", &[&uri(port, certificates)])
}

#[test]
fn real_clients_read_and_write_in_tls() {
    let authority = Authority::new();
    let (certificates, trust) = (authority.server(), authority.client(None));
    let (server, port) = at_port(|launch| launch, &certificates);
    let said = nbdinfo(port, &trust).well().out;
    assert!(said.contains("protocol: newstyle-fixed with TLS"), "{said}");
    let (image, back) = (trust.write("image", pattern::half_random(3, 0, 64 << 20)), trust.join("back"));
    run("nbdcopy", &["--flush", text(&image), &uri(port, &trust)]).well();
    run("nbdcopy", &[&uri(port, &trust), text(&back)]).well();
    assert!(
        fs::read(&image).expect("it") == fs::read(&back).expect("it"),
        "what comes back is what was written"
    );
    let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", text(trust.path()));
    let options = format!("driver=nbd,host=localhost,port={port},export=ram0,tls-creds=t");
    let compared = format!("driver=file,filename={}", text(&image));
    run("qemu-img", &["compare", "--object", &object, "--image-opts", &options, &compared]).well();
    let folder = text(trust.path());
    let refused = server.spillway(&["save", "ram0", &format!("{folder}/saved")]);
    refused.refused(USAGE, "--tls-certificates");
    server.spillway(&["save", "ram0", &format!("{folder}/saved"), "--tls-certificates", folder]).well();
    assert!(fs::read(trust.join("saved")).expect("it") == fs::read(&image).expect("it"));
    server.load(&["ram0", text(&image), "--tls-certificates", folder]);
}

#[test]
fn a_second_name_is_read_only_in_tls_too_and_hidden_names_stay_so() {
    let authority = Authority::new();
    let (certificates, trust) = (authority.server(), authority.client(None));
    let names = |launch: Launch| launch.flag("--hidden").with("--read-only-name", "copy");
    let (_server, port) = at_port(names, &certificates);
    let at = |name: &str| uri(port, &trust).replace("ram0", name);
    let list = run("nbdinfo", &["--list", &at("")]).well().out;
    assert!(list.contains("\"copy\"") && !list.contains("\"ram0\""), "{list}");
    let image = trust.write("image", pattern::random(3, 0, 64 << 20));
    run("nbdcopy", &[text(&image), &at("ram0")]).well();
    run("nbdcopy", &[&at("copy"), text(&trust.join("back"))]).well();
    assert!(fs::read(&image).expect("it") == fs::read(trust.join("back")).expect("it"));
    assert_ne!(run("nbdcopy", &[text(&image), &at("copy")]).code, Some(0), "it takes no image");
}

#[test]
fn without_tls_nothing_is_told_where_it_is_required_and_all_where_it_is_optional() {
    let authority = Authority::new();
    let (certificates, trust) = (authority.server(), authority.client(None));
    let plain = |port: u16| run("nbdinfo", &[&format!("nbd://localhost:{port}/ram0")]);
    let (server, port) = at_port(|launch| launch, &certificates);
    assert!(server.log().contains(&format!("nbds://localhost:{port}/ram0")), "{}", server.log());
    assert_ne!(plain(port).code, Some(0));
    let list = run("nbdinfo", &["--list", &format!("nbd://localhost:{port}")]);
    assert!(list.code != Some(0) && !list.out.contains("ram0"), "{list}");
    let (_server, port) = at_port(|launch| launch.with("--tls", "optional"), &certificates);
    assert!(plain(port).well().out.contains("without TLS"));
    assert!(nbdinfo(port, &trust).well().out.contains("with TLS"));
    let (_server, port) = at_port(|launch| launch.with("--tls", "off"), &certificates);
    plain(port).well();
    assert_ne!(nbdinfo(port, &trust).code, Some(0), "a client that insists on TLS gets none, and leaves");
}

#[test]
fn certificates_of_others_and_old_ones_are_believed_by_no_client() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificates, trust) = (authority.server(), authority.client(None));
    let (server, port) = at_port(|launch| launch.flag("-v"), &certificates);
    assert_ne!(nbdinfo(port, &other.client(None)).code, Some(0), "another authority");
    nbdinfo(port, &trust).well();
    authority.sign(&certificates, "server", "localhost", 2021);
    server.signal(Signal::USR1);
    server.says("were read again");
    assert_ne!(nbdinfo(port, &trust).code, Some(0), "it has expired");
    authority.sign(&certificates, "server", "elsewhere.test", 2100);
    server.signal(Signal::USR1);
    until("the server shows the other certificate", || {
        (server.log().matches("were read again").count() == 2).then_some(())
    });
    assert_ne!(nbdinfo(port, &trust).code, Some(0), "it is another server's");
    certificates.write("server-cert.pem", "nonsense");
    server.signal(Signal::USR1);
    server.says("those before are used");
    authority.sign(&certificates, "server", "localhost", 2100);
    server.signal(Signal::USR1);
    until("the server shows a good one again", || (nbdinfo(port, &trust).code == Some(0)).then_some(()));
}

#[test]
fn clients_say_who_they_are_where_that_is_asked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificates = authority.server();
    let (known, unnamed, stranger) =
        (authority.client(Some("vm7.test")), authority.client(None), other.client(Some("vm7.test")));
    // It believes the server, and shows a certificate that the server does not.
    stranger.write("ca-cert.pem", authority.pem());
    let (_server, port) = at_port(|launch| launch.flag("--tls-verify-peer"), &certificates);
    nbdinfo(port, &known).well();
    for folder in [&unnamed, &stranger] {
        assert_ne!(nbdinfo(port, folder).code, Some(0));
    }
    let (server, port) =
        at_port(|launch| launch.flag("-v").with("--tls-allow", "vm1.test, vm7.test"), &certificates);
    nbdinfo(port, &known).well();
    assert_ne!(nbdinfo(port, &authority.client(Some("vm8.test"))).code, Some(0));
    server.says("vm8.test");
    assert_ne!(nbdinfo(port, &unnamed).code, Some(0));
}

/// A client that has asked for TLS, and was told that it begins.
fn asking(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("localhost", port)).expect("it listens");
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream
        .write_all(&[&[0, 0, 0, 3], &b"IHAVEOPT"[..], &[0, 0, 0, 5, 0, 0, 0, 0]].concat())
        .expect("it is sent");
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("an answer");
    assert_eq!(reply[8..], [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0], "it is acknowledged");
    stream
}

#[test]
fn handshakes_that_stay_and_bytes_that_are_none_keep_nobody_out() {
    let authority = Authority::new();
    let (certificates, trust) = (authority.server(), authority.client(None));
    let (mut server, port) = at_port(|launch| launch.with("--memory", "64M"), &certificates);
    let stays: Vec<TcpStream> = (0..60)
        .filter_map(|at| {
            let mut stream = std::panic::catch_unwind(|| asking(port)).ok()?;
            // The first record of a handshake, all but its end.
            let part = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
            stream.write_all(&part[..at % part.len()]).ok()?;
            Some(stream)
        })
        .collect();
    assert!(stays.len() > 10);
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], b"IHAVEOPT\0\0\0\x03\0\0\0\0"] {
        let mut stream = asking(port);
        stream.write_all(noise).expect("it is sent");
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 100 && !said.windows(4).any(|word| word == b"ram0"), "{said:?}");
    }
    nbdinfo(port, &trust).well();
    assert!(server.lives(), "{}", server.log());
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success(), "{}", server.log());
}

#[test]
fn what_cannot_protect_is_refused_at_the_start() {
    let authority = Authority::new();
    let (good, bad, open) = (authority.server(), authority.server(), authority.server());
    bad.write("server-cert.pem", "nonsense");
    fs::set_permissions(open.join("server-key.pem"), fs::Permissions::from_mode(0o644)).expect("it is ours");
    let listening = |words: &[(&str, &Path)]| {
        let folder = Arc::new(Scratch::new());
        let launch = Launch::new(&["ram", "--size", "1M"], folder.clone(), folder.join("none"));
        words.iter().fold(launch.with("--listen", "localhost:0"), |launch, (option, value)| {
            launch.with(option, value)
        })
    };
    let everywhere = |extra: &[&str]| {
        let folder = Arc::new(Scratch::new());
        let words = [&["ram", "--size", "1M", "--listen", "0.0.0.0:0"], extra].concat();
        Launch::new(&words, folder.clone(), folder.join("none"))
    };
    everywhere(&[]).run().refused(USAGE, "tls_certificates DIR");
    let optional = ["--tls", "optional", "--tls-certificates", text(good.path())];
    everywhere(&optional).run().refused(USAGE, "insecure");
    listening(&[("--tls", Path::new("required"))]).run().refused(USAGE, "tls needs certificates");
    listening(&[("--tls-allow", Path::new("a"))]).run().refused(USAGE, "tls_allow needs certificates");
    let with = |folder: &Scratch| -> Said { listening(&[("--tls-certificates", folder.path())]).run() };
    with(&bad).refused(USAGE, "server-cert.pem");
    with(&open).refused(USAGE, "chmod 0600");
    with(&Scratch::new()).refused(1, "server-key.pem");
    listening(&[("--tls-certificates", good.path()), ("--tls-allow", Path::new("a,,b"))])
        .run()
        .refused(USAGE, "commas");
}

/// A disk over an export with TLS, and what trusts it.
fn over(uri: &str, trust: &Scratch) -> Launch {
    let folder = Arc::new(Scratch::new());
    let launch =
        Launch::new(&["disk", "--origin", uri, "--memory", "256M"], folder.clone(), folder.join("nbd.sock"));
    let socket = folder.join("nbd.sock");
    launch.with("--socket", socket).with("--origin-tls-certificates", trust.path())
}

#[test]
fn an_origin_with_tls_is_read_and_written_and_comes_back_after_an_outage() {
    let authority = Authority::new();
    let (certificates, trust) = (authority.server(), authority.client(Some("cache.test")));
    let folder = text(certificates.path());
    let (tls, verify) = (["--tls=require", "--tls-verify-peer"], format!("--tls-certificates={folder}"));
    let image = certificates.write("image", vec![0; 8 << 20]);
    let mut upstream = Upstream::nbdkit(&[tls[0], tls[1], &verify, "file", text(&image)]);
    let uri = upstream.uri().replace("nbd+unix", "nbds+unix");
    let mut server = over(&uri, &trust).start();
    let bytes = pattern::half_random(5, 0, 4 << 20);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    client.flush().expect("a flush");
    assert!(fs::read(&image).expect("it")[..4 << 20] == bytes[..], "it is in the origin");
    upstream.kill();
    client.write(4 << 20, &bytes[..1 << 20]).expect("the cache takes it");
    upstream.restart();
    client.flush().expect("it is there again");
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    assert!(fs::read(&image).expect("it")[4 << 20..5 << 20] == bytes[..1 << 20]);
}

/// Server and client change to another authority; the client is told of its files last.
#[test]
fn certificates_of_an_origin_that_were_read_again_hold_for_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let (certificates, trust) = (old.server(), old.client(Some("cache.test")));
    let image = certificates.write("image", vec![0; 1 << 20]);
    let folder = format!("--tls-certificates={}", text(certificates.path()));
    let words = ["--tls=require", "--tls-verify-peer", &folder, "file", text(&image)];
    let mut upstream = Upstream::nbdkit(&words);
    let uri = upstream.uri().replace("nbd+unix", "nbds+unix");
    let server = over(&uri, &trust).flag("-v").start();
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("a write");
    new.sign(&certificates, "server", "localhost", 2100);
    new.sign(&trust, "client", "cache.test", 2100);
    upstream.kill();
    upstream.restart();
    server.says("invalid peer certificate");
    trust.write("client-key.pem", "nonsense");
    server.signal(Signal::USR1);
    server.says("those before are used");
    new.sign(&trust, "client", "cache.test", 2100);
    server.signal(Signal::USR1);
    server.says("were read again");
    server.says("connected again");
    client.flush().expect("it is there again");
    assert!(fs::read(&image).expect("it")[..4096] == [1; 4096]);
}

#[test]
fn origins_that_are_not_what_they_say_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificates = authority.server();
    let (server, port) = at_port(|launch| launch.flag("--tls-verify-peer"), &certificates);
    let uri = format!("nbds://localhost:{port}/ram0");
    let refused = |uri: &str, trust: &Scratch, words: &str| {
        let said = over(uri, trust).run();
        assert!(said.code.is_some_and(|code| code != 0) && said.err.contains(words), "{words}: {said}");
    };
    refused(&uri, &other.client(Some("cache.test")), "TLS: invalid peer certificate");
    refused(&format!("nbds://127.0.0.1:{port}/ram0"), &authority.client(Some("cache.test")), "127.0.0.1");
    refused(&uri, &authority.client(None), "TLS: ");
    refused(&uri, &Scratch::new(), "ca-cert.pem");
    refused(&uri.replace("nbds", "nbd"), &authority.client(None), "use nbds:");
    let plain = Upstream::nbdkit(&["memory", "1M"]);
    refused(&plain.uri().replace("nbd+unix", "nbds+unix"), &authority.client(None), "it speaks no TLS");
    let mut disk = over(&uri, &authority.client(Some("cache.test"))).start();
    let bytes = pattern::half_random(6, 0, 1 << 20);
    let mut client = disk.client();
    client.write(0, &bytes).expect("a write");
    client.flush().expect("a flush");
    assert_eq!(server.value("ram0", "orig_data_size"), 1 << 20, "both ends are ours");
    drop(client);
    disk.signal(Signal::TERM);
    assert!(disk.ends().success(), "{}", disk.log());
}
