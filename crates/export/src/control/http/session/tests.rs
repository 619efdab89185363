//! The conversation against a catalog of one device that answers changes when told to.

use std::task::Waker;

use serde_json::{Value as Json, json};
use spillway_core::random::Random;
use spillway_core::sync::Ordering;

use super::super::super::test_catalog::Toy;
use super::*;

fn session(toy: &Arc<Toy>, rights: Rights) -> HttpSession {
    HttpSession::new(toy.clone(), Arc::new(rights))
}

fn poll(session: &mut HttpSession) {
    let _turn = work::turn(work::TURN);
    session.poll(&mut Context::from_waker(Waker::noop()));
}

/// Gives the session all of `bytes` that it takes, as its driver does, and returns what it sends.
fn fed(session: &mut HttpSession, mut bytes: &[u8], step: usize) -> Vec<u8> {
    let mut answers = Vec::new();
    while !bytes.is_empty() && !session.finished() {
        let _turn = work::turn(work::TURN);
        if matches!(session.intake(), Intake::Bytes) {
            let part = &bytes[..step.min(bytes.len())];
            bytes = &bytes[session.receive(part)..];
        }
        let before = session.pending();
        poll(session);
        answers.extend(session.output().take());
        if before > 0 && session.pending() > 0 {
            break;
        }
    }
    answers
}

/// A head and a body of each answer.
fn answers(bytes: &[u8]) -> Vec<(String, String)> {
    let mut rest = std::str::from_utf8(bytes).expect("answers are text");
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_once("\r\n\r\n").expect("a head is complete");
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let (body, behind) = behind.split_at(len.map_or(0, |len| len.parse().unwrap()));
        all.push((head.to_owned(), body.to_owned()));
        rest = behind;
    }
    all
}

/// The status and the body of the one answer.
fn one(session: &mut HttpSession, request: &str) -> (u16, String) {
    let all = answers(&fed(session, request.as_bytes(), usize::MAX));
    let [(head, body)] = &all[..] else { panic!("{request:?} has the answers {all:?}") };
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.clone())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

fn with_body(method: &str, path: &str, body: &str) -> String {
    let len = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}")
}

fn read(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{text:?}: {why}"))
}

#[test]
fn every_path_of_the_table_answers() {
    let toy = Arc::new(Toy::default());
    let mut session = session(&toy, Rights::All);
    let mut ask = |request: &str| one(&mut session, request);
    assert_eq!(
        ask(&get("/api/server")),
        (200, "{\"changes\":true,\"pid\":42,\"version\":\"1.2.3\"}\n".into())
    );
    assert_eq!(read(&ask(&get("/api/server/attributes")).1)[0]["name"], "workers");
    assert_eq!(read(&ask(&get("/api/devices")).1)[0]["name"], "ram0");
    assert_eq!(read(&ask(&get("/api/devices/ram0")).1)[0]["value"], 5);
    assert_eq!(read(&ask(&get("/api/devices/ram0/attributes")).1)[2]["type"], "lines");
    let pages = "/api/devices/ram0/attributes/pages";
    assert_eq!(read(&ask(&get(&format!("{pages}?from=2"))).1)[0]["next"], 3);
    assert_eq!(ask(&with_body("POST", "/api/devices", "")), (201, "{\"device\":\"ram7\"}\n".into()));
    for (path, kind) in [
        ("/", "<!doctype html>"),
        ("/page.css", ":root"),
        ("/page.js", "\"use strict\""),
        ("/figures.js", "\"use strict\""),
    ] {
        let (status, body) = ask(&get(path));
        assert!(status == 200 && body.starts_with(kind), "{path}: {status} {body:.40}");
    }
    assert!(toy.changes.lock().is_empty(), "to look changes nothing");
    let device = || "ram0".to_owned();
    for (request, operation) in [
        (
            with_body("PUT", "/api/devices/ram0/attributes/mem_limit", "\"1G\""),
            Operation::Set { device: device(), attribute: "mem_limit".into(), value: "1G".into() },
        ),
        (with_body("POST", "/api/devices/ram0/reset", ""), Operation::Reset { device: device() }),
        (
            with_body("POST", "/api/devices/ram0/resize", ""),
            Operation::Resize { device: device(), size: None },
        ),
        (
            with_body("POST", "/api/devices/ram0/resize", "{\"size\": 4096}"),
            Operation::Resize { device: device(), size: Some(4096) },
        ),
        (with_body("DELETE", "/api/devices/ram0", ""), Operation::Stop { device: device() }),
        (with_body("POST", "/api/server/stop", ""), Operation::StopServer {}),
    ] {
        assert_eq!(ask(&request), (204, String::new()), "{request}");
        assert_eq!(toy.changes.lock().pop(), Some(operation));
    }
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let toy = Arc::new(Toy::default());
    let mut session = session(&toy, Rights::All);
    for (request, status, why) in [
        (get("/nothing"), 404, "/api/devices"),
        (get("/api/devices/ram9"), 404, "ram9"),
        (get("/api/devices/ram0/reset"), 405, "POST"),
        (with_body("POST", "/metrics", ""), 405, "GET, HEAD"),
        (with_body("PATCH", "/api/devices/ram0", ""), 405, "DELETE"),
        (get("/api/devices/ram0/attributes/pages?from=x"), 400, "give a number"),
        (with_body("PUT", "/api/devices/ram0/attributes/mem_limit", "1G"), 400, "as JSON"),
        (with_body("PUT", "/api/devices/ram0/attributes/mem_limit", ""), 400, "as JSON"),
        (with_body("POST", "/api/devices/ram0/resize", "{\"sise\": 1}"), 400, "sise"),
    ] {
        let (found, body) = one(&mut session, &request);
        let message = read(&body)["error"]["message"].as_str().unwrap().to_owned();
        assert!(found == status && message.contains(why), "{request}: {found} {message}");
    }
    assert!(toy.changes.lock().is_empty());
    assert!(!session.finished(), "the client may go on");
}

#[test]
fn a_refused_value_comes_back_with_what_is_allowed() {
    let toy = Arc::new(Toy { slow: true.into(), ..Toy::default() });
    toy.complete.store(true, Ordering::SeqCst);
    let mut session = session(&toy, Rights::All);
    let (status, body) = one(&mut session, &with_body("PUT", "/api/devices/ram0/attributes/disksize", "3"));
    let error = &read(&body)["error"];
    assert_eq!((status, &error["errno"], &error["value"]), (409, &json!("EBUSY"), &json!(3)));
    assert_eq!(error["allowed"], "a size", "{error}");
}

#[test]
fn any_split_of_the_bytes_gives_the_same_answers() {
    let text = [
        get("/api/server"),
        with_body("PUT", "/api/devices/ram0/attributes/mem_limit", "7"),
        get("/metrics"),
        get("/nowhere"),
        "HEAD /api/devices HTTP/1.1\r\n\r\n".to_owned(),
    ]
    .concat();
    let whole = {
        let mut session = session(&Arc::default(), Rights::All);
        fed(&mut session, text.as_bytes(), usize::MAX)
    };
    assert!(whole.ends_with(b"\r\n\r\n"), "to a HEAD comes a head");
    for step in 1..text.len() {
        let mut session = session(&Arc::default(), Rights::All);
        assert!(fed(&mut session, text.as_bytes(), step) == whole, "in steps of {step}");
    }
}

#[test]
fn a_client_may_look_where_it_may_not_change() {
    let toy = Arc::new(Toy::default());
    let mut session = session(&toy, Rights::Look);
    assert_eq!(read(&one(&mut session, &get("/api/server")).1)["changes"], false);
    for request in [with_body("DELETE", "/api/devices/ram0", ""), with_body("POST", "/api/devices", "")] {
        let (status, body) = one(&mut session, &request);
        assert!(status == 403 && body.contains("--http-token-file"), "{status} {body}");
    }
    assert!(toy.changes.lock().is_empty());
}

#[test]
fn without_the_token_nothing_is_told() {
    let mut session = session(&Arc::default(), Rights::Token("0123456789abcdef".into()));
    for path in ["/", "/metrics", "/api/devices", "/nowhere"] {
        assert_eq!(one(&mut session, &get(path)).0, 401, "{path}");
    }
    let request = "GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n";
    assert_eq!(one(&mut session, request).0, 200);
}

#[test]
fn a_connection_ends_where_the_client_wants_that_or_nobody_knows_what_it_says() {
    for (request, last) in [
        ("GET /api/server HTTP/1.0\r\n\r\n", "200"),
        ("GET /api/server HTTP/1.1\r\nConnection: close\r\n\r\n", "200"),
        ("nonsense\r\n\r\nGET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "411"),
        ("PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", "413"),
    ] {
        let mut session = session(&Arc::default(), Rights::All);
        let all = answers(&fed(&mut session, request.as_bytes(), usize::MAX));
        assert!(session.finished() && all.len() == 1, "{request:?}: {all:?}");
        assert!(all[0].0.contains(last) && all[0].0.ends_with("Connection: close"), "{}", all[0].0);
    }
}

#[test]
fn what_is_no_request_is_answered_whole_also_behind_one_for_a_head() {
    let mut session = session(&Arc::default(), Rights::All);
    fed(&mut session, b"HEAD /api/devices HTTP/1.1\r\n\r\n", usize::MAX);
    let (status, body) = one(&mut session, "nonsense\r\n\r\n");
    assert!(status == 400 && read(&body)["error"]["errno"] == "EINVAL", "{status} {body}");
}

#[test]
fn a_client_that_asks_for_leave_to_send_its_body_gets_it() {
    let toy = Arc::new(Toy::default());
    let mut session = session(&toy, Rights::All);
    let head =
        "PUT /api/devices/ram0/attributes/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(fed(&mut session, head.as_bytes(), usize::MAX), b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(session.owed() && toy.changes.lock().is_empty());
    assert_eq!(one(&mut session, "7").0, 204);
    assert_eq!(toy.changes.lock().len(), 1);
}

#[test]
fn one_change_at_a_time_and_one_that_has_begun_outlives_its_client() {
    let toy = Arc::new(Toy { slow: true.into(), ..Toy::default() });
    let mut session = session(&toy, Rights::All);
    let reset = with_body("POST", "/api/devices/ram0/reset", "");
    let both = [reset.clone(), get("/api/server")].concat();
    assert_eq!(session.receive(both.as_bytes()), reset.len(), "the second request waits outside");
    poll(&mut session);
    assert!(matches!(session.intake(), Intake::Pause) && session.pending() == 1);
    session.wind_down();
    assert!(!session.finished(), "the change is not answered yet");
    session.hang_up();
    assert!(session.finished() && session.pending() == 0);
    assert_eq!(toy.changes.lock().len(), 1);
}

#[test]
fn a_client_that_never_reads_is_not_listened_to() {
    let mut session = session(&Arc::default(), Rights::All);
    let mut rounds = 0;
    loop {
        let _turn = work::turn(work::TURN);
        poll(&mut session);
        match session.intake() {
            Intake::Bytes => session.receive(get("/").as_bytes()),
            _ => break,
        };
        rounds += 1;
        assert!(rounds < UNSENT_BYTES_MAX, "it must pause");
    }
    assert!(session.output().len() < UNSENT_BYTES_MAX + 8192);
}

#[test]
fn metrics_say_what_attributes_declare() {
    let mut session = session(&Arc::default(), Rights::All);
    let (status, text) = one(&mut session, &get("/metrics"));
    assert_eq!(status, 200);
    for line in [
        "# TYPE spillway_server_workers gauge",
        "spillway_server_workers 5",
        "spillway_device_clients{device=\"ram0\"} 0",
        "spillway_device_requests_total{device=\"ram0\",operation=\"read\"} 0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

/// Bytes of requests with some of them changed, taken out or doubled: whatever comes, it is answered or the connection ends.
#[test]
fn any_bytes_are_answered() {
    let seeds = [
        get("/api/devices/ram0/attributes/pages?from=1"),
        with_body("PUT", "/api/devices/ram0/attributes/mem_limit", "{\"a\": [1]}"),
        with_body("POST", "/api/devices/ram0/resize", "{\"size\": 1}"),
        get("/metrics"),
    ];
    let mut random = Random(7);
    for _ in 0..4000 {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].repeat(2).into_bytes();
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.draw() as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        let mut session = session(&Arc::default(), Rights::All);
        let step = 1 + random.below(bytes.len() as u64) as usize;
        let all = fed(&mut session, &bytes, step);
        assert!(all.is_empty() || all.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&all));
        assert!(session.bytes.len() <= HEAD_BYTES_MAX.max(BODY_BYTES_MAX));
    }
}
