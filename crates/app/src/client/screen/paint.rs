//! Lines of text, as the cells of a terminal.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use crate::plain::plain;

/// How a line stands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::client) enum LineStyle {
    /// It does not.
    #[default]
    Plain,
    /// A heading: bold.
    Strong,
    /// The selected one: reversed.
    Chosen,
}

/// A line of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct Line {
    pub(in crate::client) text: String,
    pub(in crate::client) mark: LineStyle,
}

impl Line {
    /// One that does not stand out.
    pub(in crate::client) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), mark: LineStyle::Plain }
    }

    /// A heading.
    pub(in crate::client) fn strong(text: impl Into<String>) -> Self {
        Self { text: text.into(), mark: LineStyle::Strong }
    }

    /// The selected one.
    pub(in crate::client) fn chosen(text: impl Into<String>) -> Self {
        Self { text: text.into(), mark: LineStyle::Chosen }
    }
}

/// Puts lines from the top; what does not fit is cut off at the right and at the bottom.
pub(in crate::client) fn paint(lines: &[Line], buffer: &mut Buffer) {
    let area = buffer.area;
    for (y, line) in (area.top()..area.bottom()).zip(lines) {
        let style = match line.mark {
            LineStyle::Plain => Style::new(),
            LineStyle::Strong => Style::new().add_modifier(Modifier::BOLD),
            LineStyle::Chosen => Style::new().add_modifier(Modifier::REVERSED),
        };
        buffer.set_style(Rect { y, height: 1, ..area }, style);
        // Tabs have a meaning of their own to a terminal, and none to cells.
        let text = plain(&line.text).replace('\t', " ");
        buffer.set_stringn(area.left(), y, text, area.width.into(), style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_the_edges_and_command_no_terminal() {
        let lines = [Line::strong("abcdef"), Line::chosen("a\x1bc"), Line::plain("漢字"), Line::plain("z")];
        let mut buffer = Buffer::empty(Rect::new(0, 0, 3, 3));
        paint(&lines, &mut buffer);
        let text = |y| (0..3).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        assert_eq!([text(0), text(1), text(2)], ["abc", r"a\u", "漢  "]);
        assert_eq!(buffer[(0, 0)].modifier, Modifier::BOLD);
        assert!((0..3).all(|x| buffer[(x, 1)].modifier == Modifier::REVERSED));
        paint(&lines, &mut Buffer::empty(Rect::new(0, 0, 0, 0)));
    }
}
