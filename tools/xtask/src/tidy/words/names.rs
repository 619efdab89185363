//! Words that say nothing are kept out of names.
//!
//! Looked at: files, modules, types, traits, macros and functions. Free are constants, which often carry a protocol's
//! name; tests, whose names are sentences; and methods of implemented traits, whose names were chosen elsewhere.

use crate::tidy::finding::Finding;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

const EMPTY_WORDS: &[&str] =
    &["manager", "handler", "helper", "util", "misc", "inner", "impl", "data", "info", "process"];

/// Rule: no empty word in a name.
pub(crate) fn words(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().flat_map(in_source).collect()
}

fn in_source(source: &Source) -> Vec<Finding> {
    let functions = source.functions.iter().filter(|function| function.named_here);
    let functions = functions.map(|function| (function.name.as_str(), *function.lines.start()));
    let names = source.names.iter().map(|name| (name.name.as_str(), name.line));
    let folders = source.path.trim_end_matches(".rs").split('/').map(|part| (part, 1));
    let all = folders.chain(names).chain(functions);
    all.filter_map(|(name, line)| {
        let word = empty_word(name)?;
        Some(Finding::new(
            "name",
            &source.path,
            line,
            format!("`{word}` in `{name}` says nothing: name what it is"),
        ))
    })
    .collect()
}

fn empty_word(name: &str) -> Option<String> {
    let words = split(name);
    if words.len() > 1 && words[0] == "do" {
        return Some("do_".into());
    }
    let is_empty =
        |word: &String| EMPTY_WORDS.contains(&word.strip_suffix('s').unwrap_or(word)) || word == "process";
    words.into_iter().find(is_empty)
}

/// Lower-case words of a name in snake, kebab or camel case.
fn split(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &letter) in letters.iter().enumerate() {
        let follows_lower = at > 0 && !letters[at - 1].is_uppercase();
        let leads_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if !letter.is_alphanumeric() || letter.is_uppercase() && (follows_lower || leads_lower) {
            words.push(String::new());
        }
        if letter.is_alphanumeric() {
            let word = words.last_mut().expect("there is always a last word");
            word.extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        words(&Tree::of(&[("crates/core/src/a.rs", text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(split("read_data2"), ["read", "data2"]);
        assert_eq!(split("NBDInfoReply"), ["nbd", "info", "reply"]);
        assert_eq!(split("BlockDevice"), ["block", "device"]);
        assert_eq!(split("_same-filled"), ["same", "filled"]);
    }

    #[test]
    fn empty_words_in_every_kind_of_name_are_found() {
        let text = "struct PoolManager;\nenum Info {}\ntrait Handler {}\nmod utils {}\nfn do_flush() {}\nfn read_data() {}\ntype Inner = u8;\nimpl A {\n    fn process(&self) {}\n}\n";
        assert_eq!(found(text), [1, 2, 3, 4, 7, 5, 6, 9]);
    }

    #[test]
    fn parts_of_words_constants_tests_and_foreign_methods_are_free() {
        let text = "struct Metadata;\nfn domain() {}\nfn information() {}\nconst NBD_INFO: u8 = 0;\nfn undo_all() {}\n";
        assert!(found(text).is_empty());
        assert!(
            found("#[test]\nfn no_data_is_lost() {}\nimpl Read for A {\n    fn read_data(&self) {}\n}\n")
                .is_empty()
        );
    }

    #[test]
    fn files_and_folders_are_names_too() {
        let paths = ["crates/core/src/utils.rs", "crates/core/src/misc/a.rs", "tools/helper/src/main.rs"];
        for path in paths {
            assert_eq!(words(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        assert!(words(&Tree::of(&[("crates/core/src/database.rs", "")])).is_empty());
    }
}
