//! Charts of lines as SVG that needs nothing else.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Charts in one file, so many in a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Picture {
    pub(crate) name: String,
    pub(crate) charts: Vec<Chart>,
    pub(crate) columns: usize,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart; axes begin at 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Where the y axis ends at least.
    pub(crate) y_max: f64,
    pub(crate) lines: Vec<Line>,
}

/// Colours of lines: names of classes.
pub(crate) const BLUE: &str = "fill";
pub(crate) const ORANGE: &str = "mark";
pub(crate) const GREY: &str = "soft";

/// The style sheet of the live page, which begins with its colours.
const PAGE: &str = include_str!("../../../../crates/export/src/control/http/page.css");

/// How charts look. Viewers that know no variables get the light colours.
pub(crate) const STYLE: &str = "
.ground { fill: #fbfbf9; fill: var(--ground); }
svg text { fill: #1c1c1a; fill: var(--text); font: 11px system-ui, sans-serif; }
.fill, .mark, .soft, .bad, .grid { fill: none; stroke-width: 1.5; }
.fill { stroke: #2f6f9f; stroke: var(--fill); }
.mark { stroke: #b3541e; stroke: var(--mark); }
circle.fill, circle.bad { fill: #fbfbf9; fill: var(--ground); }
.soft { stroke: #5c5c56; stroke: var(--soft); }
.bad { stroke: #a11d1d; stroke: var(--bad); }
.grid { stroke: #d5d5cf; stroke: var(--line); stroke-width: 1; }
.user { fill: var(--fill); fill-opacity: .3; stroke: var(--ground); }
.kernel { fill: var(--mark); fill-opacity: .3; stroke: var(--ground); }
";

/// The colours of the live page, light and dark.
pub(crate) fn colours() -> &'static str {
    PAGE.split_once("\n* {").map_or(PAGE, |(colours, _)| colours)
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 280.0;

/// The area of the lines in a chart: left, top, width and height.
const AREA: [f64; 4] = [60.0, 34.0, 400.0, 180.0];

impl Picture {
    /// Writes it to a file of `folder`.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(&self.name);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, self.draw()))
            .with_context(|| format!("{} is to be written", path.display()))
    }

    /// As a file of its own.
    fn draw(&self) -> String {
        let style = format!("<style>{}{STYLE}</style>\n", colours());
        self.drawn(" xmlns=\"http://www.w3.org/2000/svg\"", &style)
    }

    /// Within a page that has the colours and the style.
    pub(crate) fn inline(&self) -> String {
        self.drawn(&format!(" style=\"max-width: {}px\"", WIDTH * self.columns as f64), "")
    }

    fn drawn(&self, attributes: &str, head: &str) -> String {
        let (width, height) =
            (WIDTH * self.columns as f64, HEIGHT * self.charts.len().div_ceil(self.columns) as f64);
        let mut text = format!(
            "<svg{attributes} viewBox=\"0 0 {width} {height}\">\n{head}\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        for (index, chart) in self.charts.iter().enumerate() {
            let (x, y) = (WIDTH * (index % self.columns) as f64, HEIGHT * (index / self.columns) as f64);
            let _ = writeln!(text, "<g transform=\"translate({x} {y})\">\n{}</g>", chart.draw());
        }
        text + "</svg>\n"
    }
}

impl Chart {
    fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_step = step(points().map(|point| point.0).fold(0.0, f64::max));
        let y_step = step(points().map(|point| point.1).fold(self.y_max, f64::max));
        let ends = |step: f64, max: f64| step * (max / step).ceil().max(1.0);
        let x_end = ends(x_step, points().map(|point| point.0).fold(0.0, f64::max));
        let y_end = ends(y_step, points().map(|point| point.1).fold(self.y_max, f64::max));
        let mut text = self.words();
        text += &axis(x_step, x_end, |share, value| {
            let x = AREA[0] + AREA[2] * share;
            mark([x, AREA[1], x, AREA[1] + AREA[3]], [x, AREA[1] + AREA[3] + 14.0], "middle", value)
        });
        text += &axis(y_step, y_end, |share, value| {
            let y = AREA[1] + AREA[3] * (1.0 - share);
            mark([AREA[0], y, AREA[0] + AREA[2], y], [AREA[0] - 6.0, y + 4.0], "end", value)
        });
        for line in &self.lines {
            let at = |point: &(f64, f64)| {
                let x = AREA[0] + AREA[2] * point.0 / x_end;
                format!("{x:.1},{:.1}", AREA[1] + AREA[3] * (1.0 - point.1 / y_end))
            };
            let points: Vec<String> = line.points.iter().map(at).collect();
            let _ = writeln!(text, "<polyline class=\"{}\" points=\"{}\"/>", line.colour, points.join(" "));
        }
        text
    }

    /// Title, names of the axes and of the lines.
    fn words(&self) -> String {
        let middle = AREA[0] + AREA[2] / 2.0;
        let mut text = format!(
            "<text x=\"{middle}\" y=\"18\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            escaped(&self.title),
            AREA[1] + AREA[3] + 30.0,
            escaped(&self.x),
            AREA[1] + AREA[3] / 2.0,
            escaped(&self.y)
        );
        for (index, line) in self.lines.iter().enumerate() {
            let x = AREA[0] + 132.0 * index as f64;
            let y = AREA[1] + AREA[3] + 50.0;
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                x + 16.0,
                y - 4.0,
                line.colour,
                x + 20.0,
                escaped(&line.name)
            );
        }
        text
    }
}

/// The marks of an axis, at each step of it.
fn axis(step: f64, end: f64, draw: impl Fn(f64, f64) -> String) -> String {
    let count = (end / step).round() as u32;
    (0..=count).map(|number| draw(f64::from(number) / f64::from(count), f64::from(number) * step)).collect()
}

/// A line across the area, and its value.
fn mark([x1, y1, x2, y2]: [f64; 4], [x, y]: [f64; 2], anchor: &str, value: f64) -> String {
    // Steps of a tenth add up to a bit more or less.
    let value = (value * 1e6).round() / 1e6;
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"grid\"/>\
         <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{value}</text>\n"
    )
}

/// 1, 2 or 5 times a power of ten, so that an axis up to `max` has four to ten steps.
fn step(max: f64) -> f64 {
    let power = 10f64.powf((max.max(1e-9) / 10.0).log10().ceil());
    let fits = [5.0, 2.0].into_iter().find(|part| max / (power / part) <= 10.0);
    fits.map_or(power, |part| power / part)
}

/// Text as it stands between tags.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A bounded figure of a plot: how many times better than its bound it is.
pub(crate) struct Dot {
    pub(crate) name: String,
    pub(crate) margin: f64,
    pub(crate) interval: [f64; 2],
    /// The figure and its bound.
    pub(crate) text: String,
    pub(crate) is_missed: bool,
}

/// Names end and the axis begins here; the axis ends there, and texts begin behind it.
const AXIS: [f64; 2] = [380.0, 640.0];
const TEXT: f64 = 655.0;
const DOTS_WIDTH: f64 = 900.0;
const DOT_HEIGHT: f64 = 18.0;

/// Characters of a name that fit.
const NAME_MAX: usize = 66;

/// A dot with its interval for each figure, on a logarithmic axis on which the bound is 1.
pub(crate) fn dots(dots: &[Dot]) -> String {
    let ends = || dots.iter().flat_map(|dot| [dot.margin, dot.interval[0], dot.interval[1]]);
    let low = ends().fold(0.5, f64::min).log2().floor();
    let high = ends().fold(2.0, f64::max).log2().ceil();
    let at = |margin: f64| AXIS[0] + (AXIS[1] - AXIS[0]) * (margin.log2() - low) / (high - low);
    let height = DOT_HEIGHT * (dots.len() as f64 + 1.5);
    let mut text = format!(
        "<svg viewBox=\"0 0 {DOTS_WIDTH} {height}\">\n<rect class=\"ground\" width=\"{DOTS_WIDTH}\" height=\"{height}\"/>\n"
    );
    let stride = ((high - low) / 8.0).ceil().max(1.0);
    for tick in (0..=((high - low) / stride) as u32).map(|tick| (low + f64::from(tick) * stride).exp2()) {
        text +=
            &mark([at(tick), 0.0, at(tick), height - DOT_HEIGHT], [at(tick), height - 5.0], "middle", tick);
    }
    let _ = writeln!(
        text,
        "<line class=\"mark\" x1=\"{0:.1}\" y1=\"0\" x2=\"{0:.1}\" y2=\"{1:.1}\"/>",
        at(1.0),
        height - DOT_HEIGHT
    );
    let _ = writeln!(text, "<text x=\"{TEXT}\" y=\"{}\">times better than the bound</text>", height - 5.0);
    for (dot, index) in dots.iter().zip(0u32..) {
        text += &dot.draw(DOT_HEIGHT * (f64::from(index) + 0.7), at);
    }
    text + "</svg>\n"
}

impl Dot {
    fn draw(&self, y: f64, at: impl Fn(f64) -> f64) -> String {
        let class = if self.is_missed { "bad" } else { "fill" };
        let name = match self.name.char_indices().nth(NAME_MAX) {
            Some((end, _)) => format!("{}...", &self.name[..end]),
            None => self.name.clone(),
        };
        let base = y + 4.0;
        let (x, low, high) = (at(self.margin), at(self.interval[0]), at(self.interval[1]));
        format!(
            "<g><title>{}</title><text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\n\
             <line class=\"{class}\" x1=\"{low:.1}\" y1=\"{y:.1}\" x2=\"{high:.1}\" y2=\"{y:.1}\"/>\
             <circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>\n\
             <text x=\"{TEXT}\" y=\"{base:.1}\">{}</text></g>\n",
            escaped(&self.name),
            AXIS[0] - 10.0,
            escaped(&name),
            escaped(&self.text)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (max, wanted) in [(100.0, 10.0), (30.0, 5.0), (1183.0, 200.0), (0.9, 0.1), (5.0, 0.5)] {
            assert!((step(max) - wanted).abs() < 1e-9, "{max}: {}", step(max));
        }
    }

    #[test]
    fn a_picture_is_whole_and_needs_nothing_else() {
        let line = Line { name: "a".into(), colour: BLUE.into(), points: vec![(0.0, 0.0), (10.0, 50.0)] };
        let chart =
            Chart { title: "t".into(), x: "x".into(), y: "y".into(), y_max: 100.0, lines: vec![line] };
        let picture = Picture { name: "n".into(), charts: vec![chart], columns: 1 };
        let text = picture.draw();
        assert!(text.ends_with("</svg>\n") && text.contains("60.0,214.0 460.0,124.0"), "{text}");
        assert_eq!(text.matches("http").count(), 1, "the name space");
        assert_eq!(text.matches("<g").count(), text.matches("</g>").count());
        assert!(text.contains("--ground") && text.contains("prefers-color-scheme: dark"), "{text}");
        let inline = picture.inline();
        assert!(!inline.contains("http") && !inline.contains("<style>"), "{inline}");
    }

    /// On an axis from a half to 8 the bound is at a quarter, and twice the bound in the middle.
    #[test]
    fn dots_stand_on_a_logarithmic_axis_beside_their_bound() {
        let dot = |margin: f64, is_missed| {
            let interval = [margin / 2.0, margin * 2.0];
            Dot { name: "a < b".into(), margin, interval, text: "2.00 (>= 1)".into(), is_missed }
        };
        let text = dots(&[dot(2.0, false), dot(4.0, true)]);
        let quarter = (AXIS[1] - AXIS[0]) / 4.0;
        assert!(text.contains(&format!("x1=\"{0:.1}\" y1=\"0\" x2=\"{0:.1}\"", AXIS[0] + quarter)), "{text}");
        assert!(text.contains(&format!("class=\"fill\" cx=\"{:.1}\"", AXIS[0] + 2.0 * quarter)), "{text}");
        assert!(text.contains(&format!("class=\"bad\" cx=\"{:.1}\"", AXIS[0] + 3.0 * quarter)), "{text}");
        assert!(text.contains("a &lt; b") && !text.contains("a < b"), "{text}");
    }
}
