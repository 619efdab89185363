//! The tables of options and attributes in the manual, made of the declarations.
//!
//! Each stands between `<!-- options: KIND -->` or `<!-- attributes: KIND -->` and `<!-- end -->`, in a file of the folder that is
//! given, and is made anew. The test says which file has one that says something else than the declarations.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use spillway_core::{Preset, Role, Spec, When};
use spillway_layers::options::Options;
use spillway_layers::{limits, page_cache, stack, write_cache, zram};

/// The options of a kind, of the limits of a device, or of the server.
fn options(kind: &str) -> Option<&'static [Spec]> {
    match kind {
        "server" => Some(spillway::server_options()),
        "limits" => Some(limits::Config::specs()),
        _ => stack::options(kind),
    }
}

/// The attributes of a kind whose table is in the manual.
fn attributes(kind: &str) -> Option<Vec<Spec>> {
    match kind {
        "zram" => Some(zram::declarations()),
        "write_cache" => Some(write_cache::declarations()),
        "page_cache" => Some(page_cache::declarations()),
        "limits" => Some(limits::declarations()),
        _ => None,
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [folder] = &words[..] else {
        eprintln!("give the folder of the manual");
        return ExitCode::FAILURE;
    };
    match make_anew(Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{folder}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn make_anew(folder: &Path) -> io::Result<()> {
    stale(folder)?.iter().try_for_each(|(path, made)| fs::write(path, made))
}

/// A file with a table that says something else than the declarations, and what belongs into it.
type Stale = (PathBuf, String);

fn stale(folder: &Path) -> io::Result<Vec<Stale>> {
    let mut stale = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let made =
            with_tables(&text).map_err(|why| io::Error::other(format!("{}: {why}", path.display())))?;
        if made != text {
            stale.push((path, made));
        }
    }
    Ok(stale)
}

const END: &str = "<!-- end -->";

/// `text` with its tables made anew; an error names a mark that makes no sense.
fn with_tables(text: &str) -> Result<String, String> {
    let (mut made, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        made.push_str(line);
        made.push('\n');
        if let Some(table) = table_for(line)? {
            made.push_str(&table);
            lines.by_ref().find(|line| *line == END).ok_or_else(|| format!("{line} has no {END}"))?;
            made.push_str(END);
            made.push('\n');
        }
    }
    Ok(made)
}

/// The table that a line marks the place of.
fn table_for(line: &str) -> Result<Option<String>, String> {
    let mark = |what: &str| line.strip_prefix(&format!("<!-- {what}: "))?.strip_suffix(" -->");
    let unknown = || format!("{line}: there is nothing of this kind");
    if let Some(kind) = mark("options") {
        return options(kind).map(|specs| Some(option_table(specs))).ok_or_else(unknown);
    }
    if let Some(kind) = mark("attributes") {
        return attributes(kind).map(|specs| Some(attribute_table(&specs))).ok_or_else(unknown);
    }
    Ok(None)
}

fn option_table(specs: &[Spec]) -> String {
    let has_options = specs.iter().any(|spec| spec.option.is_some());
    let option = |spec: &Spec| {
        let names = spec.option.into_iter().chain(spec.switches.iter().map(|switch| switch.name));
        names.map(|name| format!("`--{name}`")).collect::<Vec<_>>().join(", ")
    };
    let row = |spec: &Spec| {
        let Role::Knob(when) = spec.role else { unreachable!("{} is no option", spec.name) };
        let key = if when == When::Once { "(no key)".into() } else { format!("`{}`", spec.name) };
        let mut cells =
            vec![key, option(spec), values(spec), preset(spec), when.name().into(), meaning(spec)];
        if !has_options {
            cells.remove(1);
        }
        cells
    };
    let mut head = vec!["key", "option", "values", "default", "set", "meaning"];
    if !has_options {
        head.remove(1);
    }
    table(&head, specs.iter().map(row))
}

/// What an option does, and each of its switches.
fn meaning(spec: &Spec) -> String {
    let switches = spec.switches.iter().map(|switch| format!("{}: {}", switch.name, switch.help));
    [spec.help.to_owned()].into_iter().chain(switches).collect::<Vec<_>>().join(". ")
}

fn attribute_table(specs: &[Spec]) -> String {
    let row = |spec: &Spec| {
        let access = match (spec.readable, spec.writable) {
            (true, true) => "read, write",
            (true, false) => "read",
            _ => "write",
        };
        let help = match spec.kind.columns() {
            [] => spec.help.to_owned(),
            columns => format!("{}: {}", spec.help, named(columns)),
        };
        vec![format!("`{}`", spec.name), spec.role.name().into(), access.into(), values(spec), help]
    };
    table(&["name", "role", "access", "values", "meaning"], specs.iter().map(row))
}

fn named(columns: &[spillway_core::Column]) -> String {
    let name = |column: &spillway_core::Column| match column.unit.name() {
        "" => format!("`{}`", column.name),
        unit => format!("`{}` ({unit})", column.name),
    };
    columns.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn values(spec: &Spec) -> String {
    match spec.range() {
        range if !range.is_empty() => range,
        _ => match spec.kind.name() {
            kind @ ("text" | "path" | "lines") => kind.into(),
            "switch" => "0, 1".into(),
            _ => String::new(),
        },
    }
}

fn preset(spec: &Spec) -> String {
    match spec.preset {
        Preset::Switch(on) => u8::from(on).to_string(),
        _ => spec.preset_text().unwrap_or_default(),
    }
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = [line(head.iter().map(ToString::to_string).collect()), line(vec!["---".into(); head.len()])];
    head.into_iter().chain(rows.map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
| key | values | default | set | meaning |
| --- | --- | --- | --- | --- |
| `records_max` | 1 to 65536 requests | 1024 | at the start | Requests remembered, charged to the budget |
";

    #[test]
    fn the_manual_has_the_tables_of_the_declarations() {
        let stale = stale(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))).unwrap();
        let files: Vec<_> = stale.iter().map(|(path, _)| path).collect();
        assert!(files.is_empty(), "{files:?}: a table says something else; cargo xtask manual makes it anew");
    }

    #[test]
    fn a_table_is_made_anew_between_its_marks() {
        let made = format!("before\n<!-- options: trace -->\n{TRACE}<!-- end -->\nafter\n");
        assert_eq!(with_tables(&made).as_ref(), Ok(&made), "what is as declared stays");
        let stale = made.replace("1024", "1000");
        assert_eq!(with_tables(&stale).as_ref(), Ok(&made));
        assert_eq!(with_tables("<!-- options: trace -->\n<!-- end -->\n").unwrap(), made[7..made.len() - 6]);
    }

    #[test]
    fn a_mark_that_makes_no_sense_is_an_error() {
        assert!(with_tables("<!-- options: trace -->\n| a |\n").unwrap_err().contains("has no"));
        assert!(with_tables("<!-- options: floppy -->\n<!-- end -->\n").unwrap_err().contains("floppy"));
        assert!(with_tables("<!-- attributes: floppy -->\n<!-- end -->\n").is_err());
    }

    #[test]
    fn options_of_the_command_line_have_their_column() {
        let table = option_table(options("write_cache").unwrap());
        for row in [
            "| `high_watermark` | `--high-watermark` | 0 to 100 percent | 50 | at any time |",
            "| `cleaner` | `--cleaner` | 0, 1 | 0 | at any time |",
            "| `old_cache` | `--create`, `--recover` | open, create, recover | open | at the start |",
            "| (no key) | `--force` | 0, 1 | 0 | for one start |",
        ] {
            assert!(table.contains(row), "{row}: {table}");
        }
        let table = option_table(options("server").unwrap());
        assert!(table.contains("| `poll_us` | `--poll-us` | 0 to 1000 us | 100 | at the start |"), "{table}");
    }

    #[test]
    fn attributes_have_their_role_and_columns() {
        let table = attribute_table(&zram::declarations());
        for row in [
            "| `num_reads` | counter | read | pages | Pages read |",
            "| `reset` | command | write | 1 to 65535 |",
            "`orig_data_size` (bytes), `compr_data_size` (bytes)",
        ] {
            assert!(table.contains(row), "{row}: {table}");
        }
    }

    #[test]
    fn stale_files_are_named_and_written() {
        let folder = env::temp_dir().join(format!("spillway-manual-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.md");
        fs::write(&path, "<!-- options: trace -->\n<!-- end -->\n").unwrap();
        fs::write(folder.join("b.txt"), "<!-- options: trace -->\n").unwrap();
        let found = stale(&folder).unwrap();
        assert!(matches!(&found[..], [(file, made)] if *file == path && made.contains("1024")), "{found:?}");
        make_anew(&folder).unwrap();
        assert!(fs::read_to_string(&path).unwrap() == found[0].1 && stale(&folder).unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
