//! The log: to standard error or a file, as text or JSON. Who logs never waits for it.
//!
//! A line that cannot be written is nobody's error: it is counted, and the log says so as soon as a line can be written again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use std::{panic, thread};

use anyhow::{Context, Result};
use tracing::level_filters::LevelFilter;

use crate::cli::{LogFormat, LogOptions};

mod output;
mod queue;
mod writing;

use output::LogOutput;
use queue::{Item, LogOrder, LogQueue, PANIC, QueueWriters};
use writing::LogWriter;

/// How long the end of the program waits for lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log that was started.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    queue: LogQueue,
    /// The file that it was asked to go to.
    file: Option<PathBuf>,
}

/// Starts logging for the rest of the program.
pub(crate) fn start(options: &LogOptions) -> Result<()> {
    let (output, (queue, items)) = (output(options)?, LogQueue::new());
    let (file, counts) = (output.path().map(Path::to_owned), queue.counts());
    let log = LOG.get_or_init(|| Log { queue, file });
    let writing = LogWriter::new(items, counts, output);
    let write = || {
        // The file may lie on a device of this server; see `system::become_io_flusher`, which says so where it fails.
        let _ = rustix::process::configure_io_flusher_behavior(true);
        writing.run();
    };
    thread::Builder::new().name("log".into()).spawn(write).context("cannot start a thread")?;
    subscribe(options, &log.queue);
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn subscribe(options: &LogOptions, queue: &'static LogQueue) {
    let level = match options.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
    // Its own way of saying so is to print, and it panics where that fails.
    let log = log.log_internal_errors(false).with_writer(QueueWriters(queue));
    match options.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

fn output(options: &LogOptions) -> Result<LogOutput> {
    let Some(path) = &options.log_file else {
        return LogOutput::stderr().context("cannot write to standard error");
    };
    let cannot = || format!("cannot open the log file {}", path.display());
    // A server in the background leaves the working folder, and opens the file again later.
    let whole = std::path::absolute(path).with_context(cannot)?;
    LogOutput::file(whole).with_context(cannot)
}

/// Logs a panic, and waits until it is written: the process may end by it.
fn log_panic(what: &panic::PanicHookInfo<'_>) {
    let thread = thread::current();
    let trace = Backtrace::capture();
    let trace =
        if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
    tracing::error!(target: PANIC, "thread {} {what}{trace}", thread.name().unwrap_or("?"));
    flush();
}

/// Waits until lines that were logged are written, but not for long; says whether they are.
pub(crate) fn flush() -> bool {
    LOG.get().is_none_or(|log| log.queue.wait_until_settled(PATIENCE))
}

/// Has the log's file opened again by its path, if it is one.
pub(crate) fn reopen() {
    LOG.get().into_iter().for_each(|log| log.queue.send(Item::Order(LogOrder::Reopen)));
}

/// Has further lines go to the file at `path`, of bounded size, unless a file was asked for. Returns the path of the one that it is.
pub(crate) fn keep_in(path: &Path) -> Result<PathBuf> {
    let log = LOG.get().context("there is no log yet")?;
    if let Some(file) = &log.file {
        return Ok(file.clone());
    }
    let cannot = || format!("cannot open the log file {}", path.display());
    let path = std::path::absolute(path).with_context(cannot)?;
    let kept = LogOutput::kept(path.clone()).with_context(cannot)?;
    // What was logged before is for the terminal.
    flush();
    log.queue.send(Item::Order(LogOrder::Replace(kept)));
    flush();
    Ok(path)
}

#[cfg(test)]
mod tests;
