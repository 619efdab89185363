//! A mount that clients use as programs do: they open the device's file, read, write, sync, punch holes and close it, may be killed
//! in the midst, and the mount may go, in order or not.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spillway_core::exchange::Exchange;
use spillway_core::random::Random;
use spillway_core::sync::WaitList;
use spillway_core::{ByteRange, IoBuf, Op, Reply, Request};
use spillway_export::fuse::MESSAGE_FORMAT;
use spillway_export::fuse::wire::{
    Fields, MAJOR, MINOR_MIN, ROOT, fallocate_mode, init_flag, opcode, open_flag, open_mode,
};
use spillway_sim::mount::Mount;
use spillway_sim::pace::Pace;
use spillway_sim::world::World;

use super::super::parts::{PAGE, parts};
use super::{FLUSH, Kernel, closes, interruption, kind, portion, words32, words64};

/// Name of the device's file in its folder.
const DISK: &str = "disk";

/// How files are opened.
const READ_AND_WRITE: u32 = 2;

/// Bytes of the replies to LOOKUP, to GETATTR and to INIT.
const ENTRY_LEN: usize = 128;
const STAT_LEN: usize = 104;
const INIT_LEN: usize = 64;

/// What the kernel does of its own choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Pages of a message at most.
    pub(crate) pages: u64,
    /// Parts of what is longer are asked for together.
    pub(crate) parallel: bool,
}

/// What a mount shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Name of the device.
    pub(crate) name: &'static str,
    /// Its bytes.
    pub(crate) size: u64,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The mount was aborted.
    Connection,
    /// Its client was killed before all of it was asked for; nothing is under way.
    Client,
}

/// Why a call has no reply with what was asked for.
enum Refusal {
    Errno(i32),
    Gone(Gone),
}

/// One mount.
pub(crate) struct Link {
    mount: Mount,
    kernel: RefCell<Kernel>,
    habits: Habits,
    /// Open files, by their clients.
    handles: RefCell<BTreeMap<u8, u64>>,
    served: Served,
    /// The node of the device's file.
    node: Cell<u64>,
    /// Clients that were killed in the midst of a request.
    killed: RefCell<BTreeSet<u8>>,
    /// Requests under way.
    under_way: Cell<usize>,
    news: WaitList,
    /// Nothing more comes from the server.
    gone: Cell<bool>,
    random: RefCell<Random>,
}

/// A request that is under way.
struct UnderWay<'a>(&'a Link);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.news.wake_all();
    }
}

impl Link {
    /// Mounts what these readers serve.
    pub(crate) fn new(
        world: &Arc<World>,
        readers: Vec<Box<dyn Exchange>>,
        habits: Habits,
        pace: Pace,
        served: Served,
        seed: u64,
    ) -> Self {
        Self {
            mount: Mount::connect(world, readers, MESSAGE_FORMAT, pace, seed),
            kernel: RefCell::default(),
            habits,
            handles: RefCell::default(),
            node: Cell::default(),
            served,
            killed: RefCell::default(),
            under_way: Cell::default(),
            news: WaitList::default(),
            gone: Cell::default(),
            random: RefCell::new(Random(seed ^ 0x6d6f_756e_7400)),
        }
    }

    /// Waits until the readers are gone.
    pub(crate) async fn over(&self) {
        self.mount.over().await;
    }

    /// Aborts the connection in the midst of whatever is asked.
    pub(crate) fn abort(&self) {
        self.mount.abort();
    }

    /// Whether it was aborted or unmounted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.mount.is_aborted()
    }

    /// Both sides agree on what they can do; false where the mount has ended before.
    pub(crate) async fn ready(&self) -> bool {
        let mut body = words32(&[MAJOR, 45, 128 << 10, u32::MAX]);
        body.resize(64, 0);
        let reply = match self.call(0, opcode::INIT, 0, &body, INIT_LEN).await {
            Ok(reply) => reply,
            Err(Refusal::Gone(_)) => return false,
            Err(Refusal::Errno(errno)) => panic!("no agreement: error {errno}"),
        };
        let mut fields = Fields::of(&reply);
        let mut next = || fields.u32().expect("it is as long as agreed");
        let (major, minor, _, flags, _, write_max) = (next(), next(), next(), next(), next(), next());
        assert!(major == MAJOR && minor >= MINOR_MIN, "version {major}.{minor}");
        assert!(flags & init_flag::MAX_PAGES != 0, "messages are not limited to 128 KiB");
        assert!(u64::from(write_max) >= self.habits.pages * PAGE, "payloads of {write_max} bytes");
        true
    }

    /// Takes what the readers reply, until they are gone.
    pub(crate) async fn listen(&self) {
        while let Some(reply) = self.mount.receive().await {
            self.kernel.borrow_mut().receive(&reply);
            self.news.wake_all();
        }
        self.gone.set(true);
        self.news.wake_all();
        self.over().await;
    }

    /// Carries out `request` with this payload.
    pub(crate) async fn ask(&self, client: u8, request: Request, payload: Vec<u8>) -> Result<Reply, Gone> {
        self.under_way.set(self.under_way.get() + 1);
        let _under_way = UnderWay(self);
        let done = self.carry_out(client, &request, &payload).await;
        if self.killed.borrow_mut().remove(&client) || self.below(8) == 0 {
            self.close(client);
        }
        let mut buf = IoBuf::new(payload.len());
        match done {
            Ok(bytes) => {
                buf[..bytes.len()].copy_from_slice(&bytes);
                Ok(Reply { result: Ok(()), buf })
            }
            Err(Refusal::Errno(errno)) => Ok(Reply { result: Err(kind(errno)), buf }),
            Err(Refusal::Gone(gone)) => Err(gone),
        }
    }

    /// What was read, nothing for another request.
    async fn carry_out(&self, client: u8, request: &Request, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let handle = self.open(client).await?;
        match request.op {
            Op::Read => return self.read(client, handle, request.range).await,
            Op::Write => self.write(client, handle, request, payload).await?,
            Op::Flush => self.sync(client, handle).await?,
            Op::WriteZeroes => {
                self.zero(client, handle, request).await?;
                if request.flags.fua {
                    self.sync(client, handle).await?;
                }
            }
            Op::Discard => unreachable!("a file has holes instead"),
        }
        Ok(Vec::new())
    }

    async fn read(&self, client: u8, handle: u64, range: ByteRange) -> Result<Vec<u8>, Refusal> {
        let message = |part: ByteRange| (opcode::READ, portion(handle, part, 0), part.len as usize);
        let parts = self.in_parts(client, range, message).await?;
        Ok(parts.into_iter().flat_map(|(_, bytes)| bytes).collect())
    }

    async fn write(&self, client: u8, handle: u64, request: &Request, payload: &[u8]) -> Result<(), Refusal> {
        let (range, durable) = (request.range, request.flags.fua);
        let mode = READ_AND_WRITE | if durable { open_mode::DSYNC } else { 0 };
        let message = |part: ByteRange| {
            let at = (part.offset - range.offset) as usize;
            let bytes = &payload[at..at + part.len as usize];
            (opcode::WRITE, [portion(handle, part, mode), bytes.to_vec()].concat(), 8)
        };
        for (part, reply) in self.in_parts(client, range, message).await? {
            let written = Fields::of(&reply).u32().map(u64::from);
            assert_eq!(written, Some(part.len), "a part of a write that is within the device");
        }
        Ok(())
    }

    async fn zero(&self, client: u8, handle: u64, request: &Request) -> Result<(), Refusal> {
        let kind =
            if request.flags.no_hole { fallocate_mode::ZERO_RANGE } else { fallocate_mode::PUNCH_HOLE };
        let place = words64(&[handle, request.range.offset, request.range.len]);
        let body = [place, words32(&[kind | fallocate_mode::KEEP_SIZE, 0])].concat();
        self.call(client, opcode::FALLOCATE, self.node.get(), &body, 0).await.map(drop)
    }

    async fn sync(&self, client: u8, handle: u64) -> Result<(), Refusal> {
        let body = [words64(&[handle]), words32(&[0, 0])].concat();
        self.call(client, opcode::FSYNC, self.node.get(), &body, 0).await.map(drop)
    }

    /// A request in parts, with the reply to each. Where one fails, no other is under way.
    async fn in_parts(
        &self,
        client: u8,
        range: ByteRange,
        message: impl Fn(ByteRange) -> (u32, Vec<u8>, usize),
    ) -> Result<Vec<(ByteRange, Vec<u8>)>, Refusal> {
        let (mut begun, mut done) = (Vec::new(), Vec::new());
        for part in parts(range, self.habits.pages * PAGE) {
            let (opcode, body, len) = message(part);
            let Some(number) = self.begin(client, opcode, self.node.get(), &body, len) else { break };
            begun.push((part, number));
            if !self.habits.parallel {
                let (part, number) = begun.pop().expect("it has just begun");
                done.push((part, self.end(number).await?));
            }
        }
        let mut failed = None;
        for (part, number) in begun {
            match self.end(number).await {
                Ok(reply) => done.push((part, reply)),
                // Where the mount is gone, so is what is said of other parts.
                Err(refusal @ Refusal::Gone(Gone::Connection)) => return Err(refusal),
                Err(refusal) => failed = Some(refusal),
            }
        }
        let whole = done.iter().map(|(part, _)| part.len).sum::<u64>() == range.len;
        match failed {
            Some(refusal) => Err(refusal),
            None if whole => Ok(done),
            None => Err(Refusal::Gone(Gone::Client)),
        }
    }

    /// The handle of the client's open file, which is opened where there is none.
    async fn open(&self, client: u8) -> Result<u64, Refusal> {
        if let Some(handle) = self.handles.borrow().get(&client) {
            return Ok(*handle);
        }
        let folder = self.look_up(client, ROOT, self.served.name).await?;
        let node = self.look_up(client, folder, DISK).await?;
        self.node.set(node);
        let stat = self.call(client, opcode::GETATTR, node, &[0; 16], STAT_LEN).await?;
        let mut fields = Fields::of(&stat[16..]);
        assert_eq!(fields.u64(), Some(node), "node");
        assert!(fields.u64() >= Some(self.served.size), "devices grow only");
        let mode = words32(&[READ_AND_WRITE, 0]);
        let opened = self.call(client, opcode::OPEN, node, &mode, 16).await?;
        let mut fields = Fields::of(&opened);
        let (handle, flags) = fields.u64().zip(fields.u32()).expect("it is as long as agreed");
        assert!(flags & open_flag::DIRECT_IO != 0, "the kernel keeps nothing of it");
        let before = self.handles.borrow_mut().insert(client, handle);
        assert!(before.is_none() && handle > 0, "it had none open");
        Ok(handle)
    }

    async fn look_up(&self, client: u8, folder: u64, name: &str) -> Result<u64, Refusal> {
        let name = [name.as_bytes(), b"\0"].concat();
        let entry = self.call(client, opcode::LOOKUP, folder, &name, ENTRY_LEN).await?;
        let node = Fields::of(&entry).u64().expect("it is as long as agreed");
        assert!(node != 0, "it is there");
        if self.below(4) == 0 {
            let (_, message) = self.kernel.borrow_mut().tell(client, opcode::FORGET, node, &words64(&[1]));
            self.mount.send(message, false);
        }
        Ok(node)
    }

    /// Closes the client's file, if it has one; nobody waits for that.
    fn close(&self, client: u8) -> Option<u64> {
        let handle = self.handles.borrow_mut().remove(&client)?;
        let body = [words64(&[handle]), words32(&[0, 0]), words64(&[0])].concat();
        let _ = self.begin(client, FLUSH, self.node.get(), &body, 0);
        self.begin(client, opcode::RELEASE, self.node.get(), &body, 0)
    }

    /// Unmounts it once nothing is under way, and waits until the readers are gone. Of some files the kernel does not say that they are
    /// closed.
    pub(crate) async fn unmount(&self) {
        self.news.until(|| (self.under_way.get() == 0 || self.gone.get()).then_some(())).await;
        let clients: Vec<u8> = self.handles.borrow().keys().copied().collect();
        for client in clients {
            if self.below(8) > 0
                && let Some(number) = self.close(client)
                && self.below(4) > 0
            {
                let _ = self.end(number).await;
            }
        }
        if self.below(2) == 0 {
            let _ = self.call(0, opcode::DESTROY, 0, &[], 0).await;
        }
        self.abort();
        self.over().await;
    }

    /// Kills a client: what of its request nobody has read is never asked for, and the rest is waited for.
    pub(crate) fn kill(&self, client: u8) {
        self.killed.borrow_mut().insert(client);
        let calls = self.kernel.borrow().calls_of(client);
        for number in calls {
            if self.mount.take_back(number) {
                self.kernel.borrow_mut().forget(number);
            } else {
                self.mount.send(interruption(number), false);
            }
        }
        self.news.wake_all();
    }

    async fn call(
        &self,
        client: u8,
        opcode: u32,
        node: u64,
        body: &[u8],
        len: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let begun = self.begin(client, opcode, node, body, len);
        self.end(begun.ok_or(Refusal::Gone(Gone::Client))?).await
    }

    /// Makes a call that is answered by `len` bytes, and gives its number; none of a client that was killed.
    fn begin(&self, client: u8, opcode: u32, node: u64, body: &[u8], len: usize) -> Option<u64> {
        if !closes(opcode) && self.killed.borrow().contains(&client) {
            return None;
        }
        let (number, message) = self.kernel.borrow_mut().call(client, opcode, node, body, len);
        self.mount.send(message, true);
        Some(number)
    }

    /// What the call of that number comes to.
    async fn end(&self, number: u64) -> Result<Vec<u8>, Refusal> {
        let outcome = || {
            let mut kernel = self.kernel.borrow_mut();
            let outcome = kernel.take_outcome(number).map(|outcome| outcome.map_err(Refusal::Errno));
            let gone = |gone| Some(Err(Refusal::Gone(gone)));
            outcome
                .or_else(|| if self.gone.get() { gone(Gone::Connection) } else { None })
                .or_else(|| if kernel.is_under_way(number) { None } else { gone(Gone::Client) })
        };
        self.news.until(outcome).await
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }
}
