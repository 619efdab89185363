//! The `spillway` program: serves devices, and asks running servers. `src/main.rs` is the binary that ships; the end-to-end
//! tests wrap the same `main` in one with a counting allocator.
//!
//! | module | holds |
//! | --- | --- |
//! | `cli` | what is asked for: options, the file of `serve`, and what both come to |
//! | `server` | a running server and its devices |
//! | `client` | the commands that talk to running servers |
//! | `doctor` | what of a host helps or hinders a server |
//! | `runtime_folder`, `address` | where servers are found |
//! | `memory`, `log`, `words`, `plain`, `tables` | budget, log, what is said beside it, is safe for a terminal, and stands in columns |
//! | `system`, `exit` | what a server asks of the system: cgroups, `--background`, service managers; exit codes |
#![forbid(unsafe_code)]

mod address;
mod cli;
mod client;
mod doctor;
mod exit;
mod log;
mod memory;
mod plain;
mod runtime_folder;
#[cfg(test)]
mod scratch;
mod server;
mod system;
mod tables;
mod trust;
mod words;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use spillway_core::Spec;
use spillway_io::rbd;
use spillway_layers::options::Options;

use crate::cli::plan::ServerPlan;
use crate::cli::server_options::{RunMode, ServerConfig};
use crate::cli::{Cli, Command};
use crate::exit::Exit;
use crate::runtime_folder::RuntimeFolder;
use crate::server::shutdown::signals;
use crate::system::daemon;

/// The declarations of the options that every server has, for the manual.
pub fn server_options() -> &'static [Spec] {
    ServerConfig::specs()
}

/// The definition of the command line, for the man pages.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what the command line says; the result is the process's exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cli::answer(&error)),
    };
    let started = log::start(&cli.log).and_then(|()| signals::await_children());
    let outcome = started.and_then(|()| carry_out(cli.command));
    let is_read = log::flush();
    let code = outcome.unwrap_or_else(|error| {
        words::complain(&error, is_read);
        exit::code_of(&error) as u8
    });
    rbd::exit_if_loaded(code);
    ExitCode::from(code)
}

fn carry_out(command: Command) -> Result<u8> {
    match command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "spillway", &mut script);
            client::print(&String::from_utf8_lossy(&script))?;
        }
        Command::Doctor(options) => return doctor::examine(&options),
        command => return with_servers(command, RuntimeFolder::locate()?),
    }
    Ok(Exit::Success as u8)
}

/// Starts a server in `folder`, or asks one that is found from there.
fn with_servers(command: Command, folder: RuntimeFolder) -> Result<u8> {
    match command {
        Command::Ram(options) => {
            return serve(options.server.run_mode(), || ServerPlan::ram(options), &folder);
        }
        Command::Disk(options) => {
            return serve(options.server.run_mode(), || ServerPlan::disk(options), &folder);
        }
        Command::Cache(options) => {
            return serve(options.server.run_mode(), || ServerPlan::cache(options), &folder);
        }
        Command::Serve(options) => {
            return serve(options.server.run_mode(), || ServerPlan::serve(options), &folder);
        }
        Command::Ls(options) => client::list(&folder, &options)?,
        Command::Top(options) => client::top(&folder, &options)?,
        Command::Get(options) => client::get(&folder.of_device(&options.device), options)?,
        Command::Why(options) => client::why(&folder.of_device(&options.device), &options)?,
        Command::Set(options) => client::set(&folder.of_device(&options.device), options)?,
        Command::Reset(option) => client::reset(&folder.of_device(&option.device), option.device)?,
        Command::Drain(option) => client::drain(&folder.of_device(&option.device), option.device)?,
        Command::HandOver(option) => client::hand_over(&folder.of_device(&option.device), option.device)?,
        Command::Resize(options) => client::resize(&folder.of_device(&options.device), &options)?,
        Command::Save(options) => client::save(&folder.of_device(&options.image.device), &options)?,
        Command::Load(options) => client::load(&folder.of_device(&options.image.device), &options)?,
        Command::Attach(options) => client::attach(&folder.of_device(&options.device), &options)?,
        Command::Detach(options) => client::detach(&folder.of_device(&options.device), &options)?,
        Command::Stop(options) => client::stop(&folder, &options)?,
        Command::Doctor(_) | Command::Completions { .. } => unreachable!("it asks no server"),
    }
    Ok(Exit::Success as u8)
}

/// Serves in this process, or in one of its own in the background; the exit code.
fn serve(mode: RunMode, plan: impl FnOnce() -> Result<ServerPlan>, folder: &RuntimeFolder) -> Result<u8> {
    let plan = plan()?;
    plan.check_sockets(folder)?;
    if mode.background && !daemon::is_child() {
        if spillway_io::passed_count().map_err(exit::refused)? > 0 {
            let words = "the service manager passes sockets to this process: leave out --background";
            return Err(exit::Failure::usage(words).into());
        }
        return daemon::launch();
    }
    if daemon::is_child() {
        daemon::leave_session()?;
    }
    spillway_io::memory::return_what_is_freed();
    server::run(plan, &mode.command, folder)
}
