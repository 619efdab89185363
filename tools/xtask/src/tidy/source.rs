//! A parsed Rust file: its tokens, functions, names and the lines that only tests use.

use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Ident, Item, Signature};

use super::tokens::{self, Path, Token};

/// A function with a body.
pub(super) struct Function {
    pub(super) name: String,
    /// From `fn` to the closing brace.
    pub(super) lines: RangeInclusive<usize>,
    /// The name is ours: neither a sentence above a test nor dictated by a trait that is implemented.
    pub(super) named_here: bool,
}

/// A defined name that is not a function's.
pub(super) struct Name {
    pub(super) name: String,
    pub(super) line: usize,
}

/// One file.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    pub(super) paths: Vec<Path>,
    pub(super) functions: Vec<Function>,
    pub(super) names: Vec<Name>,
    /// Names of modules that are compiled for tests only and lie in files of their own.
    pub(super) test_modules: Vec<String>,
    /// Whether `#![forbid(unsafe_code)]` stands at the top.
    pub(super) forbids_unsafe: bool,
    /// The whole file serves tests only.
    pub(super) is_test: bool,
    test_lines: Vec<RangeInclusive<usize>>,
}

impl Source {
    /// Parses `text`; the error says where and why it cannot be parsed.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, syn::Error> {
        let file = syn::parse_file(text)?;
        let stream = text.parse::<proc_macro2::TokenStream>()?;
        let tokens = tokens::flat(stream);
        let mut found = Found::default();
        found.visit_file(&file);
        Ok(Self {
            path: path.into(),
            text: text.into(),
            paths: tokens::paths(&tokens),
            tokens,
            functions: found.functions,
            names: found.names,
            test_modules: found.test_modules,
            forbids_unsafe: file.attrs.iter().any(forbids_unsafe),
            is_test: in_test_folder(path) || file.attrs.iter().any(is_test_only),
            test_lines: found.test_lines,
        })
    }

    /// Whether only tests use `line`.
    pub(super) fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Numbers of the lines of code: not blank, no comment, and not for tests.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = usize> {
        let is_code = |line: &str| !line.trim().is_empty() && !line.trim().starts_with("//");
        (1..)
            .zip(self.text.lines())
            .filter_map(move |(number, line)| (is_code(line) && !self.is_test_line(number)).then_some(number))
    }

    /// How often code that is not for tests has one of these `patterns`.
    pub(super) fn count(&self, patterns: &[&str]) -> usize {
        let found = patterns.iter().flat_map(|pattern| tokens::find(&self.tokens, pattern));
        found.filter(|line| !self.is_test_line(*line)).count()
    }

    /// The files in which a module declared here may lie: `name.rs` and the folder `name/`.
    pub(super) fn module_places(&self, name: &str) -> [String; 2] {
        let stem = self.path.trim_end_matches(".rs");
        let folder = match stem.rsplit_once('/') {
            Some((folder, "lib" | "main" | "mod")) => folder,
            _ => stem,
        };
        [format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]
    }
}

fn in_test_folder(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.contains("/benches/")
}

fn words(attribute: &Attribute) -> Vec<String> {
    match &attribute.meta {
        syn::Meta::List(list) => {
            tokens::flat(list.tokens.clone()).into_iter().map(|token| token.text).collect()
        }
        _ => Vec::new(),
    }
}

/// `cfg(test)`, also within `all`; whatever says `not` or `any` is compiled without tests too.
fn is_test_only(attribute: &Attribute) -> bool {
    let words = words(attribute);
    let has = |word: &str| words.iter().any(|w| w == word);
    attribute.path().is_ident("cfg") && has("test") && !has("not") && !has("any")
}

fn is_test_function(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
}

fn forbids_unsafe(attribute: &Attribute) -> bool {
    attribute.path().is_ident("forbid") && words(attribute).iter().any(|word| word == "unsafe_code")
}

/// What the walk over the syntax tree gathers.
#[derive(Default)]
struct Found {
    functions: Vec<Function>,
    names: Vec<Name>,
    test_modules: Vec<String>,
    test_lines: Vec<RangeInclusive<usize>>,
    in_trait_of_others: bool,
}

impl Found {
    fn add_function(&mut self, attributes: &[Attribute], signature: &Signature, body: Option<&Block>) {
        let start = signature.span().start().line;
        let end = body.map_or(start, |block| block.span().end().line);
        let is_test = attributes.iter().any(is_test_function);
        if is_test {
            self.test_lines.push(start..=end);
        }
        self.functions.push(Function {
            name: signature.ident.to_string(),
            lines: start..=end,
            named_here: !is_test && !self.in_trait_of_others,
        });
    }

    fn add_name(&mut self, ident: &Ident) {
        self.names.push(Name { name: ident.to_string(), line: ident.span().start().line });
    }

    fn add_item(&mut self, item: &Item) {
        match item {
            Item::Struct(item) => self.add_name(&item.ident),
            Item::Enum(item) => self.add_name(&item.ident),
            Item::Union(item) => self.add_name(&item.ident),
            Item::Trait(item) => self.add_name(&item.ident),
            Item::Type(item) => self.add_name(&item.ident),
            Item::Mod(item) => self.add_name(&item.ident),
            Item::Macro(item) => item.ident.iter().for_each(|ident| self.add_name(ident)),
            _ => {}
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        _ => &[],
    }
}

impl<'a> Visit<'a> for Found {
    fn visit_item(&mut self, item: &'a Item) {
        self.add_item(item);
        if attributes(item).iter().any(is_test_only) {
            self.test_lines.push(item.span().start().line..=item.span().end().line);
            if let Item::Mod(module) = item
                && module.content.is_none()
            {
                self.test_modules.push(module.ident.to_string());
            }
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        let outer = std::mem::replace(&mut self.in_trait_of_others, false);
        self.add_function(&item.attrs, &item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
        self.in_trait_of_others = outer;
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_of_others, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.in_trait_of_others = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add_function(&item.attrs, &item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.add_function(&item.attrs, &item.sig, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Source {
        Source::parse("crates/core/src/a.rs", text).unwrap()
    }

    #[test]
    fn lines_of_tests_are_known() {
        let source =
            parse("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(not(test))]\nmod c {}\n");
        let lines: Vec<_> = (1..=7).filter(|line| source.is_test_line(*line)).collect();
        assert_eq!(lines, [2, 3, 4, 5]);
    }

    #[test]
    fn a_test_function_outside_a_test_module_is_a_test_too() {
        let source = parse(
            "#[test]\nfn a() {\n}\n#[cfg(any(test, debug))]\nfn b() {}\n#[cfg(all(test, unix))]\nfn c() {}\n",
        );
        let lines: Vec<_> = (1..=7).filter(|line| source.is_test_line(*line)).collect();
        assert_eq!(lines, [2, 3, 6, 7]);
    }

    #[test]
    fn whole_files_serve_tests() {
        assert!(Source::parse("tests/src/lib.rs", "").unwrap().is_test_line(1));
        assert!(Source::parse("crates/io/tests/a.rs", "").unwrap().is_test_line(1));
        assert!(parse("#![cfg(test)]").is_test_line(1));
        assert!(!parse("").is_test_line(1));
    }

    #[test]
    fn modules_lie_beside_a_root_and_below_a_leaf() {
        assert_eq!(parse("").module_places("b"), ["crates/core/src/a/b.rs", "crates/core/src/a/b/"]);
        let root = Source::parse("crates/core/src/lib.rs", "").unwrap();
        assert_eq!(root.module_places("b"), ["crates/core/src/b.rs", "crates/core/src/b/"]);
    }

    #[test]
    fn functions_have_spans_and_owners() {
        let text =
            "impl Display for A {\n fn fmt(&self) {\n }\n}\nimpl A {\n fn own() {\n  fn nested() {}\n }\n}\n";
        let shown: Vec<_> =
            parse(text).functions.iter().map(|f| (f.name.clone(), f.lines.clone(), f.named_here)).collect();
        let wanted =
            [("fmt".into(), 2..=3, false), ("own".into(), 6..=8, true), ("nested".into(), 7..=7, true)];
        assert_eq!(shown, wanted);
    }
}
