//! The man pages of the program and of each command, made of the definition of the command line: `pages FOLDER DATE`.
//!
//! clap_mangen writes names, descriptions and options. The help after the options has a form of its own, which becomes sections here:
//!
//! | paragraph of the help | in the page |
//! | --- | --- |
//! | a title of [`TITLES`], then indented lines | a section of items |
//! | a sentence, then indented lines | a paragraph and items, in the same section |
//! | a single line that ends with a colon | an example: all that follows, as it is |
//! | prose | a paragraph of the notes |
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Titles in the help, and the names of their sections, which are those of other man pages.
const TITLES: &[(&str, &str)] = &[
    ("Examples:", "EXAMPLES"),
    ("Environment:", "ENVIRONMENT"),
    ("Exit codes:", "EXIT STATUS"),
    ("Signals of a server:", "SIGNALS"),
];

/// Spaces before an item in the help. A line with more of them continues the item before it.
const INDENT: usize = 2;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [folder, date] = &words[..] else {
        eprintln!("give the folder of the pages, and their date");
        return ExitCode::FAILURE;
    };
    match write_pages(Path::new(folder), date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{folder}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn write_pages(folder: &Path, date: &str) -> io::Result<()> {
    pages(date)?.iter().try_for_each(|(name, page)| fs::write(folder.join(name), page))
}

/// Names and contents of all pages.
fn pages(date: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = spillway::command().disable_help_subcommand(true);
    program.build();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    [&program].into_iter().chain(commands).map(|command| page(command, date)).collect()
}

fn page(command: &Command, date: &str) -> io::Result<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let source = concat!("spillway ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(with_usage(command)).title(name.to_uppercase()).date(date);
    let man = man.source(source).manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    page.extend(after_options(&help, &name).to_roff().into_bytes());
    Ok((man.get_filename(), page))
}

/// The command with the usage of its help, where clap_mangen would list every option.
fn with_usage(command: &Command) -> Command {
    let usage = command.clone().render_usage().to_string();
    command.clone().override_usage(usage.trim_start_matches("Usage:").trim().to_owned())
}

/// The sections after the options of the page `name`.
fn after_options(help: &str, name: &str) -> Roff {
    let mut roff = Roff::new();
    let (mut rest, mut has_notes) = (help, false);
    while !rest.is_empty() {
        let (paragraph, others) = rest.split_once("\n\n").unwrap_or((rest, ""));
        let (head, lines) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        rest = others;
        if let Some((_, title)) = TITLES.iter().find(|(title, _)| *title == head) {
            roff.control("SH", [*title]);
            items(&mut roff, lines);
        } else if head.ends_with(':') && lines.is_empty() {
            roff.control("SH", ["EXAMPLES"]).text([roman(head)]).control("PP", []);
            as_it_is(&mut roff, rest);
            rest = "";
        } else if lines.starts_with(' ') {
            roff.control("PP", []).text([roman(head)]);
            items(&mut roff, lines);
        } else {
            let (macro_name, title) = if has_notes { ("PP", None) } else { ("SH", Some("NOTES")) };
            roff.control(macro_name, title).text([roman(paragraph)]);
            has_notes = true;
        }
    }
    if name != "spillway" {
        roff.control("SH", ["SEE ALSO"]).text([bold("spillway"), roman("(1)")]);
    }
    roff
}

/// Lines of an item and its meaning, two or more spaces apart, or of an item alone.
fn items(roff: &mut Roff, lines: &str) {
    for line in lines.lines() {
        let text = line.trim_start();
        if line.len() - text.len() > INDENT {
            roff.control("br", []).text([roman(text)]);
        } else if let Some((item, meaning)) = text.split_once("  ") {
            roff.control("TP", []).text([bold(item)]).text([roman(meaning.trim_start())]);
        } else {
            roff.control("PP", []);
            as_it_is(roff, text);
        }
    }
}

/// Lines that are not filled.
fn as_it_is(roff: &mut Roff, lines: &str) {
    roff.control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(help: &str) -> String {
        after_options(help, "spillway").to_roff()
    }

    #[test]
    fn each_command_has_a_page_with_its_options_and_examples() {
        let pages = pages("2026-01-31").unwrap();
        assert_eq!(pages.len(), spillway::command().get_subcommands().count() + 1);
        let page = |wanted: &str| {
            let (_, page) = pages.iter().find(|(name, _)| name == wanted).expect(wanted);
            String::from_utf8(page.clone()).unwrap()
        };
        let ram = page("spillway-ram.1");
        for part in [
            ".TH SPILLWAY-RAM 1 2026-01-31 \"spillway ",
            "spillway\\-ram \\- Serve a compressed RAM disk",
            "\\fBspillway ram\\fR [OPTIONS]",
            "\\fB\\-\\-size\\fR",
            ".SH EXAMPLES\n",
            ".SH NOTES\nThe content lives in memory only",
        ] {
            assert!(ram.contains(part), "{part}: {ram}");
        }
        let main = page("spillway.1");
        for part in ["ENVIRONMENT", "EXIT STATUS", "SIGNALS", "SUBCOMMANDS"] {
            assert!(main.contains(&format!(".SH {part}\n")) || main.contains(&format!(".SH \"{part}\"\n")));
        }
        assert!(page("spillway-serve.1").contains("\n[[device]]\n"));
    }

    #[test]
    fn items_are_apart_from_their_meaning() {
        let found =
            sections("Exit codes:\n  0    success\n       or nearly\n  1    failure\n\nProse.\n\nMore.");
        let wanted = ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nsuccess\n.br\nor nearly\n.TP\n\\fB1\\fR\nfailure\n\
                      .SH NOTES\nProse.\n.PP\nMore.\n";
        assert!(found.ends_with(wanted), "{found}");
    }

    #[test]
    fn an_example_stays_as_it_is_to_its_end() {
        let found = sections("An example:\n\n[[device]]\n\n# Words  apart\n.x");
        let wanted = ".SH EXAMPLES\nAn example:\n.PP\n.nf\n[[device]]\n\n# Words  apart\n\\&.x\n.fi\n";
        assert!(found.ends_with(wanted), "{found}");
    }

    #[test]
    fn pages_are_written_where_they_are_wanted() {
        let folder = env::temp_dir().join(format!("spillway-pages-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_pages(&folder, "2026-01-31").unwrap();
        let pages = pages("2026-01-31").unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), pages.len());
        assert_eq!(fs::read(folder.join(&pages[0].0)).unwrap(), pages[0].1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
