//! `cargo xtask hostile`: hostile clients against every stack for as long as wanted, on seeds that nobody has seen.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use spillway_tests::hostile::{Chance, Report, STACKS, Size, Stack, run};

const USAGE: &str = "\
cargo xtask hostile --seconds N [--seed N] [--stack NAME]     rounds on all stacks in turn, on fresh seeds unless one is given
cargo xtask hostile --rounds N [--seed N] [--stack NAME]      so many rounds on each
    --size short     rounds as short as those of the tests
";

struct Options {
    seconds: Duration,
    rounds: u64,
    seed: u64,
    size: Size,
    stacks: Vec<&'static Stack>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words) {
        Ok(options) => campaign(&options),
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<Options, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let mut options = Options {
        seconds: Duration::MAX,
        rounds: u64::MAX,
        seed: Chance::new(now).bits() >> 32,
        size: Size::LONG,
        stacks: STACKS.iter().collect(),
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} wants a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: give a whole number"));
        match name.as_str() {
            "--seconds" => options.seconds = Duration::from_secs(number()?),
            "--rounds" => options.rounds = number()?,
            "--seed" => options.seed = number()?,
            "--size" if value == "short" => options.size = Size::SHORT,
            "--stack" => options.stacks = vec![Stack::find(value).ok_or_else(|| no_stack(value))?],
            _ => return Err(format!("`{name}` is not an option")),
        }
    }
    match (options.seconds, options.rounds) {
        (Duration::MAX, u64::MAX) => Err("say how long: --seconds or --rounds".into()),
        _ => Ok(options),
    }
}

fn no_stack(name: &str) -> String {
    let names: Vec<_> = STACKS.iter().map(|stack| stack.name).collect();
    format!("there is no stack {name:?}; there are: {}", names.join(", "))
}

fn campaign(options: &Options) -> ExitCode {
    let begin = Instant::now();
    let mut rows: Vec<_> = options.stacks.iter().map(|stack| (*stack, Report::default(), 0)).collect();
    'rounds: for round in 0..options.rounds {
        for (stack, total, rounds) in &mut rows {
            if begin.elapsed() >= options.seconds {
                break 'rounds;
            }
            total.add(attempt(stack, options.seed.wrapping_add(round), options.size));
            *rounds += 1;
        }
    }
    println!("{:.0} s, seeds from {}\n{}", begin.elapsed().as_secs_f64(), options.seed, table(&rows));
    let violations = rows.iter().map(|(_, report, _)| report.violations.len()).sum::<usize>();
    println!("{violations} violations");
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A round whose panic is a violation, and which tells how to repeat it where there is one.
fn attempt(stack: &Stack, seed: u64, size: Size) -> Report {
    let report = catch_unwind(AssertUnwindSafe(|| run(stack, seed, size))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Report { violations: vec![words.unwrap_or_default()], ..Report::default() }
    });
    for what in &report.violations {
        eprintln!("{}: {what}\n    {}", stack.name, stack.repeat(seed, size));
    }
    report
}

fn table(rows: &[(&Stack, Report, u64)]) -> String {
    let head = format!(
        "{:<16} {:>6} {:>8} {:>9} {:>11} {:>8} {:>11} {:>11} {:>8} {:>8} {:>8} {:>10}",
        "stack",
        "rounds",
        "restarts",
        "requests",
        "connections",
        "machines",
        "counted",
        "resident",
        "read",
        "write",
        "flush",
        "violations"
    );
    let rows = rows.iter().map(|(stack, report, rounds)| row(stack, report, *rounds));
    let note = "counted and resident: most MiB at once of the limit; read, write, flush: slowest answer to the bystander in ms";
    [head].into_iter().chain(rows).chain([note.to_owned()]).collect::<Vec<_>>().join("\n")
}

fn row(stack: &Stack, report: &Report, rounds: u64) -> String {
    let of = |(bytes, limit): (u64, u64)| format!("{} of {}", bytes >> 20, limit >> 20);
    format!(
        "{:<16} {rounds:>6} {:>8} {:>9} {:>11} {:>8} {:>11} {:>11} {:>8} {:>8} {:>8} {:>10}",
        stack.name,
        report.restarts,
        report.requests,
        report.connections,
        report.machines,
        of(report.counted),
        of(report.resident),
        report.slowest.read.as_millis(),
        report.slowest.write.as_millis(),
        report.slowest.flush.as_millis(),
        report.violations.len()
    )
}
