"use strict";
// The page of a server: it asks for all values once a second, and shows what was declared about them. Nothing is kept on the server for it.

const EVERY_MS = 1000;
const HISTORY = 300;

const server = { changes: false };
const devices = new Map();

const byId = (id) => document.getElementById(id);

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

const put = (device, name, value) =>
  ask(`api/devices/${encodeURIComponent(device)}/attributes/${encodeURIComponent(name)}`,
    { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

// Numbers.

function human(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return `${bytes >= 100 || step === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[step]}`;
}

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
  return unit ? `${text} ${unit === "percent" ? "%" : unit}` : text;
}

function rate(perSecond, unit, values) {
  const bytes = bytesOf(unit, values);
  if (bytes) return `${(perSecond * bytes / 1048576).toFixed(1)} MiB/s`;
  return `${perSecond >= 100 ? Math.round(perSecond).toLocaleString("en") : perSecond.toFixed(1)} ${unit || ""}/s`;
}

// A bar that is readable without colour: the words beside it say all.
function meterOf(words, part, whole, text) {
  const meter = element("meter", { min: 0, max: Math.max(whole, 1), value: Math.min(part, whole) });
  meter.setAttribute("aria-label", words);
  meter.textContent = text;
  return element("div", { className: "meter" },
    element("div", { className: "words" }, element("span", {}, words), element("span", {}, text)), meter);
}

const share = (part, whole) => `${human(part)} of ${human(whole)} (${whole ? Math.round(100 * part / whole) : 0} %)`;

function timeLeft(seconds) {
  for (const [unit, of] of [["days", 86400], ["h", 3600], ["min", 60]]) if (seconds >= 2 * of) return `${Math.ceil(seconds / of)} ${unit}`;
  return `${Math.ceil(seconds)} s`;
}

// Long work: without a total, as of a pipe, the words say what is done.
function workMeter({ kind, done, total, bytes_per_second: rate, seconds_left: left }) {
  const words = [total ? `${Math.floor(100 * done / total)} % of ${human(total)}` : human(done)];
  if (rate !== undefined) words.push(`${human(rate)}/s`);
  if (left !== undefined) words.push(`${timeLeft(left)} left`);
  return meterOf(kind.replace("_", " "), total ? done : 0, total || 1, words.join(", "));
}

function chart(title, points, limit, text) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}, the last ${HISTORY} seconds`);
  const most = Math.max(1, limit || 0, ...points);
  const y = (value) => 98 - 94 * value / most;
  const path = document.createElementNS(space, "path");
  const from = HISTORY - points.length;
  path.setAttribute("d", points.map((value, at) => `${at ? "L" : "M"}${from + at} ${y(value).toFixed(1)}`).join(""));
  svg.append(path);
  if (limit) {
    const line = document.createElementNS(space, "line");
    for (const [name, value] of [["x1", 0], ["x2", HISTORY], ["y1", y(limit)], ["y2", y(limit)]]) line.setAttribute(name, value);
    svg.append(line);
  }
  return element("figure", {}, element("figcaption", {}, element("span", {}, title), element("span", {}, text)), svg);
}

// Decisions of a part that are shown, the latest.
const DECISIONS = 3;

// Where the histograms of latencies end their buckets: docs/http.md.
const FIRST_MICROS = 0.25;

function time(micros) {
  for (const [unit, of] of [["s", 1e6], ["ms", 1e3]]) if (micros >= of) return `${Number((micros / of).toPrecision(3))} ${unit}`;
  return `${Number(micros.toPrecision(3))} µs`;
}

// Attributes that are sentences or states, unless they are settings.
const WORDS = ["policy", "error", "drain_state", "connection"];

// A device.

class Device {
  constructor(name, rows) {
    this.name = name;
    this.rows = rows;
    this.values = new Map();
    this.before = null;
    this.history = new Map();
    this.latencies = [];
    this.card = element("section", { className: "device" });
    this.card.dataset.device = name;
    this.live = element("div", {});
    this.controls = element("div", { className: "controls" });
    this.outcome = element("p", { className: "soft" });
    this.outcome.setAttribute("role", "status");
    this.card.append(this.live, this.controls, this.outcome);
    if (server.changes) this.offer();
  }

  // What `set` and `drain` do, where this server lets us.
  offer() {
    const has = (name) => this.rows.find((row) => row.name === name);
    if (has("drain")) {
      const button = element("button", { type: "button", textContent: "Drain" });
      button.addEventListener("click", () => this.change("drain", 1, "draining has begun"));
      this.controls.append(button, " ");
    }
    const knobs = this.rows.filter((row) => row.writable && row.readable && row.role === "knob");
    if (!knobs.length) return;
    const choice = element("select", {}, ...knobs.map((row) => element("option", { value: row.name, textContent: row.name })));
    choice.setAttribute("aria-label", "attribute");
    const value = element("input", { size: 16, required: true });
    value.setAttribute("aria-label", "value");
    const about = element("span", { className: "soft" });
    const explain = () => {
      const row = has(choice.value);
      about.textContent = `${row.help}; ${row.allowed}`;
      value.value = this.values.has(row.name) ? String(this.values.get(row.name) ?? "none") : "";
    };
    choice.addEventListener("change", explain);
    choice.addEventListener("focus", explain);
    const form = element("form", {}, choice, value, element("button", { textContent: "Set" }), about);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.change(choice.value, value.value, `${choice.value} is set`);
    });
    this.controls.append(form);
  }

  async change(name, value, done) {
    try {
      await put(this.name, name, value);
      this.outcome.className = "soft";
      this.outcome.textContent = done;
    } catch (error) {
      this.outcome.className = "error";
      this.outcome.textContent = error.message;
    }
  }

  take(row, shownValues, now) {
    this.row = row;
    this.before = this.now ? { at: this.now, values: this.values, requests: this.requests, passed: this.passed } : null;
    this.now = now;
    this.requests = row.requests;
    this.passed = new Map((row.passed || []).map((one) => [one.part, one]));
    const latencies = [["", row.latencies || []], ...[...this.passed].map(([part, one]) => [part, one.latencies])];
    this.latencies.push(new Map(latencies.flatMap(([part, of]) => of.map((one) => [`${part} ${one.operation}`, one.counts]))));
    if (this.latencies.length > HISTORY) this.latencies.shift();
    this.values = new Map(shownValues.map((one) => [one.name, one.value]));
    this.texts = new Map(shownValues.map((one) => [one.name, one.text]));
    for (const name of ["at_risk_bytes", "at_risk_seconds", "dirty_blocks", "mem_used_total", "spill_bytes"]) {
      if (typeof this.values.get(name) === "number") this.remember(name, this.values.get(name));
    }
  }

  remember(name, value) {
    const points = this.history.get(name) || [];
    points.push(value);
    if (points.length > HISTORY) points.shift();
    this.history.set(name, points);
  }

  // How fast a counter grows.
  speed(now, before) {
    if (!this.before || typeof before !== "number" || now < before) return null;
    return (now - before) * 1000 / Math.max(1, this.now - this.before.at);
  }

  meters() {
    const of = (name) => this.values.get(name);
    const made = (this.row.work || []).map(workMeter);
    const ratio = (words, part, whole) => {
      if (!(whole > 0)) return;
      made.push(meterOf(words, part, whole, `${(100 * part / whole).toFixed(1)} %`));
    };
    if (of("mem_used_total") !== undefined && this.server) {
      const limit = of("mem_limit") || this.server.get("memory_limit");
      made.push(meterOf("memory", of("mem_used_total"), limit, share(of("mem_used_total"), limit)));
    }
    if (this.row.spill_size) made.push(meterOf("spill file", this.row.spilled, this.row.spill_size, share(this.row.spilled, this.row.spill_size)));
    if (of("dirty_blocks") !== undefined && of("blocks")) {
      const size = of("block_size") || 4096;
      made.push(meterOf("dirty", of("dirty_blocks"), of("blocks"), share(of("dirty_blocks") * size, of("blocks") * size)));
    }
    if (of("read_hits") !== undefined) ratio("reads from the cache", of("read_hits"), of("reads"));
    if (this.row.ratio) made.push(meterOf("compression", this.row.ratio, Math.max(4, this.row.ratio), `${this.row.ratio.toFixed(2)} to 1`));
    const risk = of("at_risk_bytes");
    if (typeof risk === "number") {
      const most = of("at_risk_bytes_max");
      const seconds = of("at_risk_seconds");
      const words = `${human(risk)}${most ? ` of ${human(most)}` : ""}, the oldest for ${seconds || 0} s`;
      made.push(meterOf("at risk in a crash", risk, most || Math.max(1, ...this.history.get("at_risk_bytes")), words));
    }
    return made;
  }

  charts() {
    const made = [];
    const add = (name, title, limit, text) => {
      const points = this.history.get(name);
      if (points && points.length > 1) made.push(chart(title, points, limit, text(points.at(-1))));
    };
    add("at_risk_bytes", "at risk in a crash", this.values.get("at_risk_bytes_max"), human);
    const size = this.values.get("block_size") || 4096;
    const blocks = this.values.get("blocks");
    const high = this.values.get("high_watermark");
    add("dirty_blocks", "dirty", blocks && high ? blocks * high / 100 : null, (value) => human(value * size));
    add("mem_used_total", "memory", this.values.get("mem_limit"), human);
    add("spill_bytes", "in the spill file", this.row.spill_size, human);
    return made;
  }

  // Within which time half of the requests of the last minute to a part below another, or of clients, and all but a hundredth, were
  // answered; nothing where none was timed.
  within(operation, part = "") {
    const key = `${part} ${operation}`;
    const before = this.latencies[0].get(key) || [];
    const counts = (this.latencies.at(-1).get(key) || []).map((count, at) => count - (before[at] || 0));
    const all = counts.reduce((sum, count) => sum + count, 0);
    if (!(all > 0)) return "";
    const end = (share) => {
      let [at, seen] = [0, counts[0]];
      while (seen < share * all) seen += counts[++at];
      return at === counts.length - 1 ? `over ${time(FIRST_MICROS * 2 ** (at - 1))}` : time(FIRST_MICROS * 2 ** at);
    };
    return `, 50 % in ${end(0.5)}, 99 % in ${end(0.99)}`;
  }

  // What the clients do, as a line above the stack.
  clients() {
    const now = this.requests;
    const before = this.before ? this.before.requests : {};
    const speed = (name) => this.speed(now[name], before[name]) || 0;
    const flow = (words, bytes, count) =>
      `${words} ${(speed(bytes) / 1048576).toFixed(1)} MiB/s (${Math.round(speed(count)).toLocaleString("en")} requests/s${this.within(words)})`;
    const count = this.row.clients === 1 ? "1 client" : `${this.row.clients} clients`;
    const errors = now.errors ? `; ${now.errors.toLocaleString("en")} requests failed` : "";
    return `↓ ${count}: ${flow("write", "write_bytes", "writes")}, ${flow("read", "read_bytes", "reads")}${errors}`;
  }

  // What passes from a part to the next, or to its spill file, as a line below it.
  below(name, next) {
    const mib = (now, before) => ((this.speed(now, before) || 0) / 1048576).toFixed(1);
    const passed = this.passed.get(next);
    if (passed) {
      const before = this.before && this.before.passed.get(next) || {};
      const flow = (words, bytes) => `${words} ${mib(passed[bytes], before[bytes])} MiB/s${this.within(words, next)}`;
      return `↓ ${flow("write", "write_bytes")}; ${flow("read", "read_bytes")}`;
    }
    if (!name.startsWith("zram") || !this.row.spill_size) return null;
    const moved = (values) => values ? [values.get("spill_written_bytes"), values.get("bd_stat").bd_reads * 4096] : [];
    const [now, before] = [moved(this.values), moved(this.before && this.before.values)];
    return `↓ spill file: write ${mib(now[0], before[0])} MiB/s, read ${mib(now[1], before[1])} MiB/s`;
  }

  part(name) {
    const figures = element("dl", { className: "figures" });
    const settings = element("dl", { className: "figures" });
    const words = [];
    for (const row of this.rows.filter((row) => row.part === name && row.readable)) {
      const value = this.values.get(row.name);
      const own = row.name.split(".").at(-1);
      const line = (text) => {
        const name = own.split("_").flatMap((word, at) => at ? ["_", element("wbr"), word] : [word]);
        const made = element("div", { title: row.help }, element("dt", {}, ...name), element("dd", {}, text));
        made.dataset.attribute = row.name;
        made.dataset.value = String(value);
        return made;
      };
      if (own === "decisions" && Array.isArray(value)) {
        for (const { age, decision, bytes, rule, figures } of value.slice(-DECISIONS)) {
          const amount = bytes ? ` ${human(bytes)}` : "";
          words.push(element("p", { className: "policy" }, `${age} s ago: ${decision}${amount}, by ${rule}: ${figures}`));
        }
      }
      if (row.type === "columns" || row.type === "rows" || value === undefined) continue;
      if (WORDS.includes(own) && row.role !== "knob") {
        if (value !== null) words.push(element("p", { className: own === "error" ? "policy error" : "policy", title: row.help }, `${own}: ${value}`));
      } else if (row.role === "knob" || typeof value === "string") {
        settings.append(line(typeof value === "number" ? shown(value, row.unit, this.values) : String(value ?? "none")));
      } else if (row.role === "counter") {
        const before = this.before && this.before.values.get(row.name);
        const speed = this.speed(value, before);
        figures.append(line(speed ? `${shown(value, row.unit, this.values)} (${rate(speed, row.unit, this.values)})` : shown(value, row.unit, this.values)));
      } else if (typeof value === "number" || value === null) {
        figures.append(line(shown(value, row.unit, this.values)));
      }
    }
    const open = this.open && this.open.has(name);
    const details = element("details", { open }, element("summary", {}, "settings"), settings);
    details.addEventListener("toggle", () => {
      this.open = this.open || new Set();
      if (details.open) this.open.add(name); else this.open.delete(name);
    });
    return element("li", {}, element("h3", {}, name), ...words, figures, settings.children.length ? details : "");
  }

  draw() {
    const parts = [...new Set(this.rows.map((row) => row.part))];
    const flow = element("ul", { className: "flow" }, element("li", { className: "between" }, this.clients()));
    for (const [at, name] of parts.entries()) {
      const below = this.below(name, parts[at + 1]);
      flow.append(this.part(name), below ? element("li", { className: "between" }, below) : "");
    }
    const twin = this.row.read_only_name ? ` · read-only as ${this.row.read_only_name}` : "";
    const about = `${human(this.row.disksize)} · ${this.row.stack}${this.row.read_only ? " · read-only" : twin}`;
    this.live.replaceChildren(
      element("h2", {}, this.name, " ", element("span", { className: "soft" }, about)),
      element("div", { className: "meters" }, ...this.meters()),
      flow,
      element("div", { className: "charts" }, ...this.charts()));
  }
}

function drawMemory(values) {
  const of = (name) => values.get(name);
  const limit = of("memory_limit");
  const kept = of("buffers_limit") + of("connections_limit");
  byId("memory").className = "meters";
  byId("memory").replaceChildren(
    meterOf("in use", of("memory_used"), limit, share(of("memory_used"), limit)),
    meterOf("pages and tables of devices", of("memory_used") - kept, limit, share(Math.max(0, of("memory_used") - kept), limit)),
    meterOf("buffers of requests", of("buffers_used"), of("buffers_limit"), share(of("buffers_used"), of("buffers_limit"))),
    meterOf("kept for connections", of("connections_limit"), limit, human(of("connections_limit"))));
}

async function look() {
  const [list, own] = await Promise.all([ask("api/devices"), ask("api/server/attributes")]);
  const values = new Map(own.map((one) => [one.name, one.value]));
  drawMemory(values);
  byId("server").textContent = `version ${server.version}, process ${server.pid}, up for ${values.get("uptime").toLocaleString("en")} s, ` +
    `${values.get("workers")} workers${server.changes ? "" : "; nothing can be changed here"}`;
  const there = new Set(list.map((row) => row.name));
  for (const [name, device] of devices) if (!there.has(name)) { device.card.remove(); devices.delete(name); }
  await Promise.all(list.map(async (row) => {
    const path = `api/devices/${encodeURIComponent(row.name)}`;
    let device = devices.get(row.name);
    if (!device) {
      device = new Device(row.name, await ask(`${path}/attributes`));
      devices.set(row.name, device);
      byId("devices").append(device.card);
    }
    const shownValues = await ask(path);
    device.server = values;
    device.take(row, shownValues, performance.now());
    device.draw();
  }));
}

function say(trouble) {
  byId("trouble").hidden = !trouble;
  byId("trouble").textContent = trouble || "";
}

async function run() {
  for (;;) {
    try {
      if (!server.pid) Object.assign(server, await ask("api/server"));
      await look();
      say(null);
    } catch (error) {
      say(`The server does not answer (${error.message}); what is shown may be old. Trying again.`);
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

run();
