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

pub(crate) const BLUE: &str = "#1f6fb4";
pub(crate) const ORANGE: &str = "#d9730d";
pub(crate) const GREY: &str = "#8a8a8a";

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

    pub(crate) fn draw(&self) -> String {
        let (width, height) =
            (WIDTH * self.columns as f64, HEIGHT * self.charts.len().div_ceil(self.columns) as f64);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
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
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>",
                line.colour,
                points.join(" ")
            );
        }
        text
    }

    /// Title, names of the axes and of the lines.
    fn words(&self) -> String {
        let middle = AREA[0] + AREA[2] / 2.0;
        let mut text = format!(
            "<text x=\"{middle}\" y=\"18\" text-anchor=\"middle\" font-size=\"13\">{}</text>\n\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            self.title,
            AREA[1] + AREA[3] + 30.0,
            self.x,
            AREA[1] + AREA[3] / 2.0,
            self.y
        );
        for (index, line) in self.lines.iter().enumerate() {
            let x = AREA[0] + 132.0 * index as f64;
            let y = AREA[1] + AREA[3] + 50.0;
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                x + 16.0,
                y - 4.0,
                line.colour,
                x + 20.0,
                line.name
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
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#dddddd\"/>\
         <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{value}</text>\n"
    )
}

/// 1, 2 or 5 times a power of ten, so that an axis up to `max` has four to ten steps.
fn step(max: f64) -> f64 {
    let power = 10f64.powf((max.max(1e-9) / 10.0).log10().ceil());
    let fits = [5.0, 2.0].into_iter().find(|part| max / (power / part) <= 10.0);
    fits.map_or(power, |part| power / part)
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
        let text = Picture { name: "n".into(), charts: vec![chart], columns: 1 }.draw();
        assert!(text.ends_with("</svg>\n") && text.contains("60.0,214.0 460.0,124.0"), "{text}");
        assert_eq!(text.matches("http").count(), 1, "the name space");
        assert_eq!(text.matches("<g").count(), text.matches("</g>").count());
    }
}
