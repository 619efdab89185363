//! The log: to standard error or a file, as text or JSON, never on the data path.

use std::fs::OpenOptions;
use std::io::stderr;

use anyhow::{Context, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::cli::{LogFormat, LogOptions};

/// Starts logging for the rest of the program.
pub(crate) fn start(options: &LogOptions) -> Result<()> {
    let level = match options.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer(options)?);
    match options.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn writer(options: &LogOptions) -> Result<BoxMakeWriter> {
    let Some(path) = &options.log_file else { return Ok(BoxMakeWriter::new(stderr)) };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("cannot open the log file {}", path.display()))?;
    Ok(BoxMakeWriter::new(std::sync::Arc::new(file)))
}
