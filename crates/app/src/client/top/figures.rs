//! What a row of the table shows of a device, and the sums of all rows.

use std::time::Duration;

use spillway_core::size::human;

use super::looks::{ObservedServer, Picture};
use super::sample::{DeviceKey, ObservedDevice, Sample, number};

/// A row of the table. What a device does not have is absent, and so are rates without a look before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Which device it is.
    pub(super) key: DeviceKey,
    /// Bytes read and written a second.
    pub(super) read: Option<f64>,
    pub(super) write: Option<f64>,
    /// Requests that read and wrote a second.
    pub(super) reads: Option<f64>,
    pub(super) writes: Option<f64>,
    /// Connected clients.
    pub(super) clients: Option<u64>,
    /// Stored bytes for each byte of memory.
    pub(super) ratio: Option<f64>,
    /// Bytes of memory in use, and their limit.
    pub(super) memory: Option<(u64, u64)>,
    /// Bytes in the spill file, and its size.
    pub(super) spill: Option<(u64, u64)>,
    /// Bytes that are not written back, in all caches.
    pub(super) dirty: Option<u64>,
    /// Bytes that a crash would take, and the age of the oldest in seconds.
    pub(super) risk: Option<(u64, Option<u64>)>,
    /// What is special.
    pub(super) words: Vec<String>,
}

/// The row of a device.
pub(super) fn figures(device: &ObservedDevice) -> Figures {
    let (now, row) = (&*device.now, &device.now.row);
    let rate = |of: fn(&Sample) -> u64| device.rate(|sample| Some(of(sample) as f64));
    Figures {
        key: device.key.clone(),
        read: rate(|sample| sample.row.requests.read_bytes),
        write: rate(|sample| sample.row.requests.write_bytes),
        reads: rate(|sample| sample.row.requests.reads),
        writes: rate(|sample| sample.row.requests.writes),
        clients: device.silent.is_none().then_some(row.clients),
        ratio: row.ratio,
        memory: memory(now, device.budget),
        spill: row.spilled.zip(row.spill_size),
        dirty: dirty(now),
        risk: now
            .number("at_risk_bytes")
            .map(|bytes| (bytes as u64, now.number("at_risk_seconds").map(|seconds| seconds as u64))),
        words: words(device),
    }
}

/// Memory of a RAM disk, whose limit may be its server's, or of a page cache.
fn memory(sample: &Sample, budget: u64) -> Option<(u64, u64)> {
    let bytes = |name: &str| sample.number(name).map(|bytes| bytes as u64);
    let limit = bytes("mem_limit").filter(|&limit| limit > 0).unwrap_or(budget);
    let of_pages = bytes("mem_used_total").map(|used| (used, limit));
    of_pages.or_else(|| bytes("folio_bytes").zip(bytes("folio_bytes_max")))
}

/// Dirty bytes of page caches, and blocks of write caches that the origin does not have yet.
fn dirty(sample: &Sample) -> Option<u64> {
    let sum = |name: &str, each: &dyn Fn(&str) -> f64| {
        let every = sample.every(name).filter_map(|(row, shown)| Some((&row.part, number(&shown.value)?)));
        every.map(|(part, count)| count * each(part)).reduce(|sum, next| sum + next)
    };
    let pages = sum("dirty_bytes", &|_| 1.0);
    let blocks = sum("dirty_blocks", &|part| sample.number_of(part, "block_size").unwrap_or(0.0));
    pages.into_iter().chain(blocks).reduce(|sum, next| sum + next).map(|bytes| bytes as u64)
}

/// States that are not the usual ones, the worst first.
fn words(device: &ObservedDevice) -> Vec<String> {
    if let Some(silent) = device.silent {
        return vec![silence(silent)];
    }
    let (now, row) = (&*device.now, &device.now.row);
    let texts =
        |name: &'static str| now.every(name).filter_map(|(_, shown)| shown.value.as_str()).map(str::to_owned);
    // The error that a layer makes on purpose is a setting.
    let failures = now.every("error").filter(|(row, _)| row.role != "knob");
    let errors = failures.filter_map(|(_, shown)| shown.value.as_str()).map(|errno| format!("error {errno}"));
    let connections = texts("connection").filter(|state| state != "local" && state != "up");
    let drains = texts("drain_state").filter(|state| state != "off").map(|state| format!("drain {state}"));
    let without_size = (row.disksize == 0).then(|| "no size".to_owned());
    let read_only = row.read_only.then(|| "read-only".to_owned());
    errors.chain(connections).chain(drains).chain(without_size).chain(read_only).collect()
}

fn silence(lasts: Duration) -> String {
    format!("silent for {} s", lasts.as_secs())
}

/// The sums over all devices, each with what it is.
pub(super) fn sums(picture: &Picture, rows: &[Figures]) -> Vec<String> {
    let sum = |of: fn(&Figures) -> Option<f64>| rows.iter().filter_map(of).reduce(|sum, next| sum + next);
    let bytes = |of: fn(&Figures) -> Option<u64>| human(rows.iter().filter_map(of).sum());
    vec![
        format!("servers {}", picture.servers.len()),
        format!("devices {}", rows.len()),
        format!("clients {}", rows.iter().filter_map(|row| row.clients).sum::<u64>()),
        format!("read {}", traffic(sum(|row| row.read), sum(|row| row.reads))),
        format!("write {}", traffic(sum(|row| row.write), sum(|row| row.writes))),
        format!("dirty {}", bytes(|row| row.dirty)),
        format!("at risk {}", bytes(|row| row.risk.map(|(bytes, _)| bytes))),
    ]
}

/// Bytes and requests a second.
pub(super) fn traffic(bytes: Option<f64>, requests: Option<f64>) -> String {
    match bytes {
        None => "-".to_owned(),
        bytes => format!("{} MiB/s ({}/s)", mebibytes(bytes), per_second(requests)),
    }
}

/// The memory of each server beside its budget.
pub(super) fn memories(picture: &Picture) -> Vec<String> {
    picture.servers.iter().map(memory_of).collect()
}

fn memory_of(server: &ObservedServer) -> String {
    let ObservedServer { devices, memory: (used, limit), silent, .. } = server;
    let name = match &devices[..] {
        [] => format!("pid {}", server.id),
        [only] => only.clone(),
        [first, others @ ..] => format!("{first}+{}", others.len()),
    };
    match silent {
        Some(lasts) => format!("{name} {}", silence(*lasts)),
        None => format!("{name} {}/{} {} %", human(*used), human(*limit), 100 * used / (*limit).max(1)),
    }
}

/// Bytes a second in MiB, with as many digits as four characters hold.
pub(super) fn mebibytes(bytes: Option<f64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| match bytes / f64::from(1 << 20) {
        low if low < 9.995 => format!("{low:.2}"),
        middle if middle < 99.95 => format!("{middle:.1}"),
        high => format!("{high:.0}"),
    })
}

/// Events a second.
pub(super) fn per_second(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| match rate {
        0.0 => "0".to_owned(),
        low if low < 9.95 => format!("{low:.1}"),
        middle if middle < 99_999.5 => format!("{middle:.0}"),
        high => format!("{:.0}k", high / 1000.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{device, sample};
    use super::*;
    use serde_json::json;
    use spillway_export::control::{AttributeRow, DeviceRow};

    fn row(read_bytes: u64, writes: u64) -> DeviceRow {
        let mut row = DeviceRow { name: "a".into(), disksize: 1 << 30, clients: 2, ..Default::default() };
        (row.requests.read_bytes, row.requests.writes) = (read_bytes, writes);
        row
    }

    #[test]
    fn a_row_has_rates_and_states() {
        let values = [
            ("limits", "at_risk_bytes", json!(8192)),
            ("limits", "at_risk_seconds", json!(3)),
            ("page_cache", "folio_bytes", json!(100)),
            ("page_cache", "folio_bytes_max", json!(400)),
            ("page_cache", "dirty_bytes", json!(1000)),
            ("write_cache", "block_size", json!(512)),
            ("write_cache", "dirty_blocks", json!(2)),
            ("write_cache", "error", json!("EIO")),
            ("write_cache", "drain_state", json!("running")),
            ("file", "connection", json!("reconnecting")),
        ];
        let now = sample(12, DeviceRow { read_only: true, ..row(3 << 20, 40) }, &values);
        let found = figures(&device(Some(sample(10, row(1 << 20, 20), &[])), now));
        assert_eq!((found.read, found.writes, found.write), (Some(1048576.0), Some(10.0), Some(0.0)));
        assert_eq!((found.memory, found.dirty), (Some((100, 400)), Some(2024)));
        assert_eq!((found.risk, found.clients, found.spill), (Some((8192, Some(3))), Some(2), None));
        assert_eq!(found.words, ["error EIO", "reconnecting", "drain running", "read-only"]);
    }

    #[test]
    fn an_error_that_is_made_on_purpose_is_no_state() {
        let mut now = sample(0, row(0, 0), &[("fault", "error", json!("EIO"))]);
        let knob = |row: &AttributeRow| AttributeRow { role: "knob".into(), ..row.clone() };
        now.attributes = now.attributes.iter().map(knob).collect();
        assert_eq!(figures(&device(None, now)).words, [""; 0]);
    }

    #[test]
    fn a_ram_disk_without_a_limit_has_that_of_its_server() {
        for (mem_limit, limit) in [(0, 1 << 30), (4096, 4096)] {
            let values = [("zram", "mem_used_total", json!(77)), ("zram", "mem_limit", json!(mem_limit))];
            assert_eq!(figures(&device(None, sample(0, row(0, 0), &values))).memory, Some((77, limit)));
        }
    }

    #[test]
    fn a_silent_device_says_nothing_else() {
        let mut silent = device(None, sample(0, DeviceRow { read_only: true, ..row(0, 0) }, &[]));
        silent.silent = Some(Duration::from_secs(4));
        let found = figures(&silent);
        assert_eq!((found.words, found.clients), (vec!["silent for 4 s".to_owned()], None));
    }

    #[test]
    fn sums_count_what_is_known() {
        let rows = [
            Figures { read: Some(1048576.0), clients: Some(1), dirty: Some(1024), ..Default::default() },
            Figures { read: Some(2097152.0), reads: Some(3.0), clients: Some(2), ..Default::default() },
            Figures::default(),
        ];
        let servers = vec![
            ObservedServer {
                id: 3,
                devices: vec!["a".into(), "b".into()],
                memory: (1 << 20, 4 << 20),
                silent: None,
            },
            ObservedServer { id: 4, silent: Some(Duration::from_secs(9)), ..Default::default() },
        ];
        let picture = Picture { servers, devices: vec![] };
        let said = sums(&picture, &rows);
        assert_eq!(said[..4], ["servers 2", "devices 3", "clients 3", "read 3.00 MiB/s (3.0/s)"]);
        assert_eq!(said[4..], ["write -", "dirty 1K", "at risk 0B"]);
        assert_eq!(memories(&picture), ["a+1 1M/4M 25 %", "pid 4 silent for 9 s"]);
    }

    #[test]
    fn rates_are_short() {
        let mib = f64::from(1 << 20);
        let shown = [0.0, 0.04, 9.994, 9.996, 99.94, 99.96, 12345.6].map(|rate| mebibytes(Some(rate * mib)));
        assert_eq!(shown, ["0.00", "0.04", "9.99", "10.0", "99.9", "100", "12346"]);
        let shown = [0.0, 0.5, 9.96, 99_999.0, 123_456.0].map(|rate| per_second(Some(rate)));
        assert_eq!(shown, ["0", "0.5", "10", "99999", "123k"]);
    }
}
