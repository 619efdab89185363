"use strict";
// Elements that show values: words, bars and charts. Each figure says what it is, so that tests find and compare them all.

// Seconds that a chart spans at first, and at most.
const MINUTE = 60;
const HISTORY = 300;

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// An element that shows a value. It names the attribute of its device, or of the server outside of devices; `marked` names something else.
// Tests find all figures by these marks and compare them with what the server says.
function figure(tag, name, value, text) {
  return marked("attribute", name, value, element(tag, {}, text));
}

function marked(mark, name, value, made) {
  made.dataset[mark] = name;
  made.dataset.value = JSON.stringify(value);
  return made;
}

// One of a row of `spillway ls`, or of the server's version.
const field = (name, value, text) => marked("field", name, value, element("span", {}, text));

// One that the page has computed from several.
const derived = (tag, properties, ...children) => {
  const made = element(tag, properties, ...children);
  made.dataset.derived = "";
  return made;
};

// Numbers.

function human(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return `${bytes >= 100 || step === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[step]}`;
}

// Units that are not written as they are named.
const SIGNS = { percent: "%", us: "µs" };

// Bytes of one of a unit, where it counts data.
function bytesOf(unit, values) {
  if (unit === "bytes" || unit === "bytes/s") return 1;
  if (unit === "pages") return 4096;
  if (unit === "sectors") return 512;
  if (unit === "blocks") return values.get("block_size") || null;
  return null;
}

function shown(number, unit, values) {
  if (number === null) return "none";
  const bytes = bytesOf(unit, values);
  if (bytes) return human(number * bytes) + (unit === "bytes/s" ? "/s" : "");
  const text = Number.isInteger(number) ? number.toLocaleString("en") : number.toFixed(2);
  return unit ? `${text} ${SIGNS[unit] || unit}` : text;
}

function rate(perSecond, unit, values) {
  const bytes = bytesOf(unit, values);
  if (bytes) return `${(perSecond * bytes / 1048576).toFixed(1)} MiB/s`;
  return `${perSecond >= 100 ? Math.round(perSecond).toLocaleString("en") : perSecond.toFixed(1)} ${unit || ""}/s`;
}

// A value as `spillway set` reads it.
function written(value) {
  if (typeof value === "boolean") return value ? "1" : "0";
  return String(value ?? "none");
}

// A bar that is readable without colour: the words beside it say all.
function meterOf(words, part, whole, ...text) {
  const meter = element("meter", { min: 0, max: Math.max(whole, 1), value: Math.min(part, whole) });
  meter.setAttribute("aria-label", words);
  const said = element("span", {}, ...text);
  return element("div", { className: "meter" },
    element("div", { className: "words" }, element("span", {}, words), said), meter);
}

// A share of bytes, in two elements that show them, as words.
const share = (part, shownPart, whole, shownWhole) =>
  [shownPart, " of ", shownWhole, derived("span", {}, ` (${whole ? Math.round(100 * part / whole) : 0} %)`)];

function timeLeft(seconds) {
  for (const [unit, of] of [["days", 86400], ["h", 3600], ["min", 60]]) if (seconds >= 2 * of) return `${Math.ceil(seconds / of)} ${unit}`;
  return `${Math.ceil(seconds)} s`;
}

// Long work: without a total, as of a pipe, the words say what is done.
function workMeter({ kind, done, total, bytes_per_second: rate, seconds_left: left }) {
  const words = [total ? `${Math.floor(100 * done / total)} % of ${human(total)}` : human(done)];
  if (rate !== undefined) words.push(`${human(rate)}/s`);
  if (left !== undefined) words.push(`${timeLeft(left)} left`);
  return meterOf(kind.replace("_", " "), total ? done : 0, total || 1, derived("span", {}, words.join(", ")));
}

// The latest of `points`, one a second, with a line at `limit`, which `mark` names. `latest` shows the last point, `words` says any.
function chart(title, points, latest, words, limit, mark) {
  const span = points.length > MINUTE ? HISTORY : MINUTE;
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${span - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}, the last ${span} seconds`);
  const most = Math.max(1, limit || 0, ...points);
  const y = (value) => 98 - 94 * value / most;
  const path = document.createElementNS(space, "path");
  const from = span - points.length;
  path.setAttribute("d", points.map((value, at) => `${at ? "L" : "M"}${from + at} ${y(value).toFixed(1)}`).join(""));
  svg.append(path);
  if (limit) {
    const line = document.createElementNS(space, "line");
    for (const [name, value] of [["x1", 0], ["x2", span], ["y1", y(limit)], ["y2", y(limit)]]) line.setAttribute(name, value);
    svg.append(line);
  }
  const scale = `${span} s, from 0 to ${words(most)}${limit ? `; dashed: ${mark}, ${words(limit)}` : ""}`;
  return element("figure", {}, element("figcaption", {}, element("span", {}, title), latest), svg, derived("p", { className: "scale" }, scale));
}

// Where the histograms of latencies end their buckets: docs/http.md.
const FIRST_MICROS = 0.25;

function time(micros) {
  for (const [unit, of] of [["s", 1e6], ["ms", 1e3]]) if (micros >= of) return `${Number((micros / of).toPrecision(3))} ${unit}`;
  return `${Number(micros.toPrecision(3))} µs`;
}
