//! A relay between an NBD client and a server, which knows where requests and replies begin and breaks what a test wants broken.
//!
//! It relays one handshake and then whole requests and replies, each connection with two threads. The server has to speak structured
//! replies, as all do that tests use: only then the length of each reply is known without its request.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use crate::raw::command;
use crate::upstream::uri;
use crate::{PATIENCE, Scratch, until};

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: [u8; 2] = [0, 0];
const SIMPLE_REPLY: u32 = 0x6744_6698;
const SIMPLE_LEN: usize = 16;
const CHUNK_LEN: usize = 20;
const REQUEST_LEN: usize = 28;

/// What happens to one request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Only so many bytes of a write come through, header included, then its connection is cut. The write has at least so many.
    CutRequest(usize),
    /// The same with a reply.
    CutReply(usize),
    /// A reply comes twice.
    Twice,
    /// A reply is to another request than there is.
    WrongCookie,
    /// A reply begins with another number.
    WrongMagic,
}

/// See the head of this file. Dropping it cuts all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    folder: Arc<Scratch>,
}

struct Shared {
    server: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Accepts connections.
    open: bool,
    /// Connections at once.
    most: usize,
    /// Bytes that the export is said to have.
    size: Option<u64>,
    /// Keeps replies back.
    holds: bool,
    /// Replies kept back now.
    held: usize,
    fault: Option<Fault>,
    /// By number.
    connections: Vec<(u64, UnixStream, UnixStream)>,
    accepted: u64,
    writes: u64,
    flushes: u64,
}

impl Proxy {
    /// Before the server at that socket.
    pub fn new(server: &Path) -> Self {
        let folder = Arc::new(Scratch::new());
        let state = State {
            open: true,
            most: usize::MAX,
            size: None,
            holds: false,
            held: 0,
            fault: None,
            connections: Vec::new(),
            accepted: 0,
            writes: 0,
            flushes: 0,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { server: server.to_owned(), state, changed });
        let proxy = Self { shared: shared.clone(), folder };
        let listener = UnixListener::bind(proxy.socket()).expect("the folder is ours");
        // It ends with the process: a thread that waits for clients costs nothing.
        thread::spawn(move || {
            listener.incoming().for_each(|client| drop(client.map(|client| accept(&shared, client))))
        });
        proxy
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("proxy.sock")
    }

    /// The URI of an export through it.
    pub fn uri(&self, export: &str) -> String {
        uri(&self.socket(), export)
    }

    /// Cuts all connections, and takes new ones.
    pub fn cut(&self) {
        self.shared.lock().cut_all();
        self.shared.changed.notify_all();
    }

    /// Cuts all connections, and takes none until [`Proxy::open`].
    pub fn close(&self) {
        self.shared.lock().open = false;
        self.cut();
    }

    /// Takes connections.
    pub fn open(&self) {
        self.shared.lock().open = true;
    }

    /// Takes no more connections than so many at once.
    pub fn limit(&self, connections: usize) {
        self.shared.lock().most = connections;
    }

    /// Says that the export has so many bytes, to connections to come; or what the server says.
    pub fn announce(&self, size: Option<u64>) {
        self.shared.lock().size = size;
    }

    /// Keeps all replies back until [`Proxy::release`], or until their connection is cut.
    pub fn hold(&self) {
        self.shared.lock().holds = true;
    }

    /// Has replies come through.
    pub fn release(&self) {
        self.shared.lock().holds = false;
        self.shared.changed.notify_all();
    }

    /// Waits until replies are kept back by so many connections.
    pub fn holds(&self, count: usize) {
        until("replies are kept back", || (self.shared.lock().held >= count).then_some(()));
    }

    /// Breaks the next request or reply that the fault fits, and waits until that has happened.
    pub fn break_next(&self, fault: Fault) {
        self.shared.lock().fault = Some(fault);
        until("a fault happens", || self.shared.lock().fault.is_none().then_some(()));
    }

    /// Writes that have come from the client.
    pub fn writes(&self) -> u64 {
        self.shared.lock().writes
    }

    /// Flushes that have come from the client.
    pub fn flushes(&self) -> u64 {
        self.shared.lock().flushes
    }

    /// Connections that it has taken.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// Waits for so many more writes of the client.
    pub fn sees_writes(&self, count: u64) {
        let before = self.writes();
        until("the client writes", || (self.writes() >= before + count).then_some(()));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Takes the present fault if `fits`, for a connection that is not cut.
    fn fault(&self, number: u64, fits: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut state = self.lock();
        let there = state.has(number);
        state.fault.take_if(|fault| there && fits(*fault))
    }

    /// Waits while replies are kept back; false once the connection is cut.
    fn may_reply(&self, number: u64) -> bool {
        let mut state = self.lock();
        state.held += 1;
        let waits = |state: &mut State| state.holds && state.has(number);
        let mut state = self.changed.wait_while(state, waits).expect("nobody panics with it");
        state.held -= 1;
        state.has(number)
    }

    fn end(&self, number: u64) {
        self.lock().cut(|of| of == number);
        self.changed.notify_all();
    }
}

impl State {
    fn has(&self, number: u64) -> bool {
        self.connections.iter().any(|(of, ..)| *of == number)
    }

    fn cut(&mut self, which: impl Fn(u64) -> bool) {
        self.connections.retain(|(number, client, server)| {
            let goes = which(*number);
            if goes {
                [client, server].into_iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
            }
            !goes
        });
    }

    fn cut_all(&mut self) {
        self.cut(|_| true);
    }
}

/// What carries bytes in one direction.
type Relay = fn(&Shared, u64, UnixStream, UnixStream) -> io::Result<()>;

/// Relays a connection, unless there may be none.
fn accept(shared: &Arc<Shared>, client: UnixStream) -> io::Result<()> {
    let mut state = shared.lock();
    if !state.open || state.connections.len() >= state.most {
        return Ok(());
    }
    let server = UnixStream::connect(&shared.server)?;
    for stream in [&client, &server] {
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    state.accepted += 1;
    let number = state.accepted;
    state.connections.push((number, client.try_clone()?, server.try_clone()?));
    drop(state);
    let relays: [(Relay, _, _); 2] =
        [(requests, client.try_clone()?, server.try_clone()?), (replies, server, client)];
    for (relay, from, to) in relays {
        let shared = shared.clone();
        thread::spawn(move || {
            let _ = relay(&shared, number, from, to);
            shared.end(number);
        });
    }
    Ok(())
}

fn take(from: &mut UnixStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn cut_off() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

fn requests(shared: &Shared, connection: u64, mut from: UnixStream, mut to: UnixStream) -> io::Result<()> {
    let flags = take(&mut from, 4)?;
    to.write_all(&flags)?;
    loop {
        let mut option = take(&mut from, 16)?;
        let more = take(&mut from, number(&option, 12) as usize)?;
        option.extend(more);
        to.write_all(&option)?;
        if number(&option, 8) == OPTION_GO {
            break;
        }
    }
    loop {
        let mut request = take(&mut from, REQUEST_LEN)?;
        let command = u16::from_be_bytes([request[6], request[7]]);
        if command == command::WRITE {
            shared.lock().writes += 1;
            let payload = take(&mut from, number(&request, 24) as usize)?;
            request.extend(payload);
            let len = request.len();
            let fault = shared.fault(connection, |fault| matches!(fault, Fault::CutRequest(at) if at <= len));
            if let Some(Fault::CutRequest(at)) = fault {
                to.write_all(&request[..at])?;
                return Err(cut_off());
            }
        }
        shared.lock().flushes += u64::from(command == command::FLUSH);
        to.write_all(&request)?;
    }
}

fn replies(shared: &Shared, connection: u64, mut from: UnixStream, mut to: UnixStream) -> io::Result<()> {
    let greeting = take(&mut from, 18)?;
    to.write_all(&greeting)?;
    loop {
        let mut reply = take(&mut from, 20)?;
        let (option, kind) = (number(&reply, 8), number(&reply, 12));
        let more = take(&mut from, number(&reply, 16) as usize)?;
        reply.extend(more);
        if let (REPLY_INFO, Some(INFO_EXPORT), Some(size)) =
            (kind, reply.get(20..22).and_then(|kind| kind.try_into().ok()), shared.lock().size)
        {
            reply[22..30].copy_from_slice(&size.to_be_bytes());
        }
        to.write_all(&reply)?;
        if (option, kind) == (OPTION_GO, REPLY_ACK) {
            break;
        }
    }
    loop {
        let reply = take_reply(&mut from)?;
        if !shared.may_reply(connection) {
            return Err(cut_off());
        }
        pass(shared, connection, reply, &mut to)?;
    }
}

fn take_reply(from: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut reply = take(from, SIMPLE_LEN)?;
    if number(&reply, 0) != SIMPLE_REPLY {
        reply.extend(take(from, CHUNK_LEN - SIMPLE_LEN)?);
        let more = take(from, number(&reply, SIMPLE_LEN) as usize)?;
        reply.extend(more);
    }
    Ok(reply)
}

/// Sends a reply, broken if it is to be.
fn pass(shared: &Shared, connection: u64, mut reply: Vec<u8>, to: &mut UnixStream) -> io::Result<()> {
    let len = reply.len();
    let fault = shared.fault(connection, |fault| match fault {
        Fault::CutRequest(_) => false,
        Fault::CutReply(at) => at <= len,
        _ => true,
    });
    match fault {
        Some(Fault::CutReply(at)) => {
            to.write_all(&reply[..at])?;
            return Err(cut_off());
        }
        Some(Fault::Twice) => to.write_all(&reply)?,
        Some(Fault::WrongCookie) => reply[8] ^= 1,
        Some(Fault::WrongMagic) => reply[0] ^= 1,
        Some(Fault::CutRequest(_)) | None => {}
    }
    to.write_all(&reply)
}
