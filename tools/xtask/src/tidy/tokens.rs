//! Source text as a flat list of tokens and the paths written in it.
//!
//! Comments and the contents of literals are gone, code inside macros is kept, and `use a::{b, c::d}` is spelled out as
//! `a::b` and `a::c::d`.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// A word or a sign, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

/// Stands for any literal.
const LITERAL: &str = "0";

/// Flattens `stream`, brackets included.
pub(super) fn flat(stream: TokenStream) -> Vec<Token> {
    let mut tokens = Vec::new();
    push_all(stream, &mut tokens);
    tokens
}

fn push_all(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let mut push = |text: String, span: Span| tokens.push(Token { text, line: span.start().line });
        match tree {
            TokenTree::Ident(ident) => push(ident.to_string().trim_start_matches("r#").into(), ident.span()),
            TokenTree::Punct(punct) => push(punct.as_char().into(), punct.span()),
            TokenTree::Literal(literal) => push(LITERAL.into(), literal.span()),
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                push(open.into(), group.span_open());
                push_all(group.stream(), tokens);
                tokens.push(Token { text: close.into(), line: group.span_close().start().line });
            }
        }
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

/// Lines on which the words and signs of `pattern`, separated by spaces, follow each other.
pub(super) fn find(tokens: &[Token], pattern: &str) -> Vec<usize> {
    let pattern: Vec<&str> = pattern.split(' ').collect();
    let matches =
        |window: &&[Token]| window.iter().map(|token| token.text.as_str()).eq(pattern.iter().copied());
    tokens.windows(pattern.len()).filter(matches).map(|window| window[0].line).collect()
}

/// A path as written, `use` groups spelled out; a single word is a path of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) parts: Vec<String>,
    pub(super) line: usize,
}

impl Path {
    /// Whether the path ends with `parts`, separated by `::`.
    pub(super) fn ends_with(&self, parts: &str) -> bool {
        let parts: Vec<&str> = parts.split("::").collect();
        self.parts.len() >= parts.len() && self.parts[self.parts.len() - parts.len()..] == parts[..]
    }

    /// Whether the path begins with `parts`, separated by `::`.
    pub(super) fn starts_with(&self, parts: &str) -> bool {
        let parts: Vec<&str> = parts.split("::").collect();
        self.parts.len() >= parts.len() && self.parts[..parts.len()] == parts[..]
    }

    pub(super) fn shown(&self) -> String {
        self.parts.join("::")
    }
}

/// All paths in `tokens`.
pub(super) fn paths(tokens: &[Token]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = if is_word(&tokens[at].text) { walk(tokens, at, &[], &mut found) } else { at + 1 };
    }
    found
}

/// Follows one path from the word at `at`; returns the index behind it.
fn walk(tokens: &[Token], at: usize, prefix: &[String], found: &mut Vec<Path>) -> usize {
    let line = tokens[at].line;
    let mut parts = prefix.to_vec();
    parts.push(tokens[at].text.clone());
    let mut next = at + 1;
    while text(tokens, next) == ":" && text(tokens, next + 1) == ":" {
        let after = text(tokens, next + 2);
        if after == "{" {
            return walk_group(tokens, next + 3, &parts, found);
        }
        if !is_word(after) && after != "*" {
            break;
        }
        parts.push(after.to_string());
        next += 3;
    }
    found.push(Path { parts, line });
    next
}

/// Follows the paths of a group from behind its opening brace; returns the index behind its closing one.
fn walk_group(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Path>) -> usize {
    while at < tokens.len() && tokens[at].text != "}" {
        let text = &tokens[at].text;
        let names_part = (is_word(text) && text != "as") || text == "*";
        let renames = at > 0 && tokens[at - 1].text == "as";
        at = if names_part && !renames { walk(tokens, at, prefix, found) } else { at + 1 };
    }
    at + 1
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| &token.text)
}

/// Whether a token is a name or a keyword.
pub(super) fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c == '_' || c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        flat(text.parse().unwrap())
    }

    fn shown(text: &str) -> Vec<String> {
        paths(&tokens(text)).iter().map(Path::shown).collect()
    }

    #[test]
    fn comments_and_literals_hold_no_words() {
        let text =
            "// unsafe\n/* unsafe /* nested */ */ let a = (\"unsafe\", r#\"un\"safe\"#, b\"unsafe\", 'u');";
        assert!(find(&tokens(text), "unsafe").is_empty());
        assert_eq!(find(&tokens("\n\nunsafe { }"), "unsafe"), [3]);
    }

    #[test]
    fn patterns_match_inside_macros() {
        assert_eq!(find(&tokens("assert!(\n a . unwrap ())"), ". unwrap ( )"), [2]);
        assert!(find(&tokens("a.unwrap_or(0)"), ". unwrap ( )").is_empty());
    }

    #[test]
    fn groups_are_spelled_out() {
        let text = "use std::{sync::{self, Arc, Mutex as Lock}, time::*};";
        let wanted = ["use", "std::sync::self", "std::sync::Arc", "std::sync::Mutex", "std::time::*"];
        assert_eq!(shown(text), wanted);
    }

    #[test]
    fn paths_start_anew_behind_a_turbofish_and_at_a_leading_colon() {
        assert_eq!(shown("a::b::<c::d>::new()"), ["a::b", "c::d", "new"]);
        assert_eq!(shown("::std::sync::Mutex"), ["std::sync::Mutex"]);
    }
}
