//! Flame graphs: where a program's time went, as bars below the bars of their callers. Brendan Gregg, "The Flame Graph", CACM 59(6), 2016.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::svg::escaped;

/// A function as one caller called it: the samples in which it ran, and what it called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Frame {
    name: String,
    is_kernel: bool,
    samples: usize,
    inner: Vec<Frame>,
}

/// A flame graph and its title.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flame {
    pub(crate) title: String,
    pub(crate) root: Frame,
}

/// Of the drawing, and of a bar in it.
const WIDTH: f64 = 1180.0;
const HEIGHT: f64 = 15.0;

/// Narrower bars are left out, narrower texts too.
const BAR_MIN: f64 = 1.5;
const TEXT_MIN: f64 = 30.0;

/// About what a letter takes.
const LETTER: f64 = 5.8;

/// What all system calls go through, and what a call's own function begins with.
const ENTRY: [&str; 2] = ["entry_SYSCALL", "do_syscall"];
const CALL: [&str; 4] = ["__x64_sys_", "__do_sys_", "__sys_", "ksys_"];

impl Frame {
    /// All samples that `perf script -F comm,ip,sym` prints. Kernel addresses are the upper half.
    pub(crate) fn read(script: &str) -> Self {
        let mut root = Self { name: "all".into(), ..Self::default() };
        let mut stack = Vec::new();
        for line in script.lines().chain([""]) {
            match line.trim_start().split_once(' ') {
                Some((address, name)) if line.starts_with(char::is_whitespace) => {
                    stack.push((name, address.len() == 16 && address.starts_with("ffff")));
                }
                _ if !stack.is_empty() => {
                    stack.reverse();
                    root.add(&stack);
                    stack.clear();
                }
                _ => {}
            }
        }
        root
    }

    /// A sample; the outermost function comes first.
    fn add(&mut self, stack: &[(&str, bool)]) {
        self.samples += 1;
        let Some(((name, is_kernel), rest)) = stack.split_first() else { return };
        let at = self.inner.iter().position(|frame| frame.name == *name).unwrap_or_else(|| {
            self.inner.push(Self { name: (*name).into(), is_kernel: *is_kernel, ..Self::default() });
            self.inner.len() - 1
        });
        self.inner[at].add(rest);
    }

    /// Functions by the share of samples that ended in them, the largest first. What ended in the kernel counts for how it was entered.
    pub(crate) fn largest(&self) -> Vec<(String, f64)> {
        let mut own = BTreeMap::new();
        self.count(None, &mut own);
        let mut own: Vec<_> =
            own.into_iter().map(|(name, count)| (name, count as f64 / self.samples as f64)).collect();
        own.sort_by(|a, b| b.1.total_cmp(&a.1));
        own
    }

    fn count(&self, entry: Option<&str>, own: &mut BTreeMap<String, usize>) {
        let entry = entry.or_else(|| self.entry());
        let called: usize = self.inner.iter().map(|frame| frame.samples).sum();
        let name = entry.map_or_else(|| short(&self.name), |entry| format!("kernel: {entry}"));
        *own.entry(name).or_default() += self.samples - called;
        self.inner.iter().for_each(|frame| frame.count(entry, own));
    }

    /// The system call or the like, where the kernel is entered by this function.
    fn entry(&self) -> Option<&str> {
        let is_entry = self.is_kernel && !ENTRY.iter().any(|entry| self.name.starts_with(entry));
        let call = CALL.iter().find_map(|call| self.name.strip_prefix(call));
        is_entry.then(|| call.unwrap_or(&self.name))
    }

    /// Rows of bars that are drawn.
    fn rows(&self, width: f64) -> usize {
        if width < BAR_MIN {
            return 0;
        }
        let below = |frame: &Self| frame.rows(width * frame.samples as f64 / self.samples as f64);
        1 + self.inner.iter().map(below).max().unwrap_or_default()
    }

    fn draw(&self, [x, y, width]: [f64; 3], all: usize, text: &mut String) {
        if width < BAR_MIN {
            return;
        }
        let class = if self.is_kernel { "kernel" } else { "user" };
        let percent = 100.0 * self.samples as f64 / all as f64;
        let _ = write!(
            text,
            "<g><title>{}, {percent:.1} %</title><rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{HEIGHT}\"/>",
            escaped(&self.name)
        );
        if width >= TEXT_MIN {
            let fits: String = short(&self.name).chars().take((width / LETTER) as usize).collect();
            let _ = write!(text, "<text x=\"{:.1}\" y=\"{}\">{}</text>", x + 2.0, y + 11.0, escaped(&fits));
        }
        *text += "</g>\n";
        let mut left = x;
        for frame in &self.inner {
            let width = width * frame.samples as f64 / self.samples as f64;
            frame.draw([left, y + HEIGHT, width], all, text);
            left += width;
        }
    }
}

impl Flame {
    /// Within a page that has the colours and the style.
    pub(crate) fn inline(&self) -> String {
        let height = HEIGHT * self.root.rows(WIDTH) as f64;
        let mut text = format!("<h3>{}</h3>\n<svg viewBox=\"0 0 {WIDTH} {height}\">\n", escaped(&self.title));
        self.root.draw([0.0, 0.0, WIDTH], self.root.samples, &mut text);
        text + "</svg>\n"
    }
}

/// A type and its function of a path in Rust, without modules and parameters: `a::B<C>::d` and `<a::B as e::F>::d` are `B::d`.
fn short(name: &str) -> String {
    let (mut pieces, mut piece, mut depth) = (Vec::new(), String::new(), 0u32);
    let plain = name.replace("::", "\n").replace("->", "");
    for letter in plain.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '\n' if depth == 0 => pieces.push(std::mem::take(&mut piece)),
            _ => {}
        }
        if letter != '\n' || depth > 0 {
            piece.push(letter);
        }
    }
    pieces.push(piece);
    let words: Vec<String> = pieces.iter().map(|piece| word(piece)).filter(|word| !word.is_empty()).collect();
    let type_at = words.iter().rposition(|word| word.starts_with(|first: char| first.is_ascii_uppercase()));
    let from = type_at.unwrap_or(words.len().saturating_sub(2));
    words[from..].join("::")
}

/// A piece of a path between colons: of `<T as U>` and `<impl U for T>` the type `T`, of `T<V>` the name.
fn word(piece: &str) -> String {
    let Some(inside) = piece.strip_prefix('<').and_then(|piece| piece.strip_suffix('>')) else {
        return piece.split('<').next().unwrap_or_default().into();
    };
    let inside = inside.strip_prefix("impl ").unwrap_or(inside);
    let inside = inside.split(" as ").next().unwrap_or(inside);
    let named = inside.rsplit(" for ").next().unwrap_or(inside).split('<').next().unwrap_or_default();
    named.rsplit('\n').next().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "spillway-0 \n\tffffffff821f80ce copy\n\tffffffff82e2ead0 __x64_sys_recvfrom\n\tffffffff82e2eac0 do_syscall_64\n\
        \t          770fd7 io::Connection::fetch\n\t          1098eb clone3\n\n\
        spillway-0 \n\t          9c25f4 LZ4_compress\n\t          770fd7 io::Connection::fetch\n\t          1098eb clone3\n\n\
        spillway-1 \n\t          9c25f4 LZ4_compress\n\t          1098eb clone3\n\n";

    #[test]
    fn samples_that_share_callers_share_their_bars() {
        let root = Frame::read(SCRIPT);
        assert_eq!((root.samples, root.inner.len(), root.inner[0].name.as_str()), (3, 1, "clone3"));
        let below: Vec<_> =
            root.inner[0].inner.iter().map(|frame| (frame.name.as_str(), frame.samples)).collect();
        assert_eq!(below, [("io::Connection::fetch", 2), ("LZ4_compress", 1)]);
    }

    #[test]
    fn what_is_largest_is_what_samples_ended_in_and_the_kernel_counts_for_its_calls() {
        let largest = Frame::read(SCRIPT).largest();
        let shown: Vec<_> = largest
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(name, share)| format!("{name} {share:.2}"))
            .collect();
        assert_eq!(shown, ["LZ4_compress 0.67", "kernel: recvfrom 0.33"]);
    }

    #[test]
    fn bars_lie_below_their_callers_side_by_side() {
        let flame = Flame { title: "a < b".into(), root: Frame::read(SCRIPT) };
        let text = flame.inline();
        assert!(text.starts_with("<h3>a &lt; b</h3>"), "{text}");
        assert!(text.contains(&format!(
            "x=\"{:.1}\" y=\"30\" width=\"{:.1}\"",
            WIDTH * 2.0 / 3.0,
            WIDTH / 3.0
        )));
        assert!(text.contains("class=\"kernel\"") && text.contains(">Connection::fetch<"), "{text}");
        assert_eq!(text.matches("<g>").count(), text.matches("</g>").count());
        assert!(text.contains(&format!("viewBox=\"0 0 {WIDTH} {}\"", 6.0 * HEIGHT)), "{text}");
    }

    #[test]
    fn paths_are_shortened_to_a_type_and_its_function() {
        for (long, wanted) in [
            ("spillway_io::net::connection::Connection::fetch", "Connection::fetch"),
            ("<a::lz4::Lz4 as a::traits::Compressor>::compress", "Lz4::compress"),
            ("a::zram::write::<impl a::zram::device::Core>::store_page", "Core::store_page"),
            ("a::zram::<impl c::device::BlockDevice for a::zram::device::Zram>::submit", "Zram::submit"),
            ("compio_executor::task::TaskAlloc<F>::run_future", "TaskAlloc::run_future"),
            ("core::ops::function::FnOnce::call_once{{vtable.shim}}", "FnOnce::call_once{{vtable.shim}}"),
            ("std::sys::backtrace::__rust_begin_short_backtrace", "backtrace::__rust_begin_short_backtrace"),
            ("LZ4_compress_fast_extState", "LZ4_compress_fast_extState"),
            ("__schedule", "__schedule"),
        ] {
            assert_eq!(short(long), wanted, "{long}");
        }
    }
}
