//! What a server says of itself: its memory, by purpose, and its threads.

use std::sync::Arc;
use std::time::Instant;

use spillway_core::buffer::Buffers;
use spillway_core::{Attribute, Attributes, Budget, Spec, Table, Unit, Value};
use spillway_io::{AllowedNetworks, Peers};

use crate::memory::ServerMemory;

/// See the head of this file.
struct Own {
    budget: Arc<Budget>,
    memory: ServerMemory,
    buffers: Buffers,
    workers: usize,
    hosts: Arc<AllowedNetworks>,
    peers: Arc<Peers>,
    start: Instant,
}

/// The kind that stands before its attributes' names, where devices have those of their parts.
pub(crate) const PART: &str = "server";

/// Attributes of a server that starts now.
pub(crate) fn attributes(
    budget: Arc<Budget>,
    memory: ServerMemory,
    buffers: Buffers,
    workers: usize,
    hosts: Arc<AllowedNetworks>,
    peers: Arc<Peers>,
) -> Arc<dyn Attributes> {
    Arc::new(Table::new(
        Arc::new(Own { budget, memory, buffers, workers, hosts, peers, start: Instant::now() }),
        ROWS,
    ))
}

const fn bytes(name: &'static str, help: &'static str) -> Spec {
    Spec::gauge(name, Unit::Bytes, help)
}

static ROWS: &[Attribute<Own>] = &[
    Attribute::read(bytes("memory_limit", "Memory that the server may use in all"), |own| {
        Value::U64(own.budget.limit())
    }),
    Attribute::read(
        bytes("memory_used", "Memory of that which is taken, with what is kept for buffers and connections"),
        |own| Value::U64(own.budget.used()),
    ),
    Attribute::read(bytes("memory_peak", "The most of it that was ever taken"), |own| {
        Value::U64(own.budget.peak())
    }),
    Attribute::read(
        bytes("buffers_limit", "Memory of that which is kept for the buffers of requests"),
        |own| Value::U64(own.memory.buffers),
    ),
    Attribute::read(bytes("buffers_used", "Memory of the buffers that requests have now"), |own| {
        Value::U64(own.buffers.bytes_in_use())
    }),
    Attribute::read(bytes("connections_limit", "Memory of that which is kept for connections"), |own| {
        Value::U64(own.memory.connections)
    }),
    Attribute::read(
        Spec::counter(
            "hosts_refused",
            Unit::None,
            "Connections to ports that were closed because allow has not their hosts",
        ),
        |own| Value::U64(own.hosts.refused()),
    ),
    Attribute::read(
        Spec::gauge(
            "peer_connections_max",
            Unit::None,
            "NBD connections that each peer may have: a host, or a user of a unix socket; none without a limit",
        )
        .or_none(),
        |own| own.peers.limit().map_or(Value::None, Value::U64),
    ),
    Attribute::read(
        Spec::gauge("peer_connections", Unit::None, "NBD connections of the peer that has most of them now"),
        |own| Value::U64(own.peers.highest()),
    ),
    Attribute::read(
        Spec::counter(
            "peer_connections_refused",
            Unit::None,
            "NBD connections that were closed because their peers had peer_connections_max, or few places were left for others",
        ),
        |own| Value::U64(own.peers.refused()),
    ),
    Attribute::read(Spec::gauge("workers", Unit::None, "Threads that serve clients"), |own| {
        Value::U64(own.workers as u64)
    }),
    Attribute::read(Spec::gauge("uptime", Unit::Seconds, "Time since the server started"), |own| {
        Value::U64(own.start.elapsed().as_secs())
    }),
];
