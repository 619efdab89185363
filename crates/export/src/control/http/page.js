"use strict";
// The page of a server: it asks for all values once a second, and shows what was declared about them. Nothing is kept on the server for it.

const EVERY_MS = 1000;
const server = { changes: false };
const devices = new Map();

const byId = (id) => document.getElementById(id);

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

const put = (device, name, value) =>
  ask(`api/devices/${encodeURIComponent(device)}/attributes/${encodeURIComponent(name)}`,
    { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

// Decisions of a part that are shown, the latest.
const DECISIONS = 3;

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
    const value = element("input", { size: 16, required: true, autocomplete: "off" });
    value.setAttribute("aria-label", "value");
    const about = element("span", { className: "soft" });
    this.explain = () => {
      const row = has(choice.value);
      about.textContent = `${row.help}; ${row.allowed}`;
      value.value = this.values.has(row.name) ? written(this.values.get(row.name)) : "";
    };
    choice.addEventListener("change", this.explain);
    const form = element("form", {}, choice, value, element("button", { textContent: "Set" }), about);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.change(choice.value, value.value, `${choice.value} is set`);
    });
    this.controls.append(form);
  }

  async change(name, value, done) {
    this.outcome.textContent = "";
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
    for (const name of ["write_bytes", "read_bytes"]) if (this.before) this.remember(name, this.flow(name));
    if (!this.before && this.explain) this.explain();
  }

  remember(name, value) {
    const points = this.history.get(name) || [];
    points.push(value);
    if (points.length > HISTORY) points.shift();
    this.history.set(name, points);
  }

  // How much of something clients ask for in a second.
  flow(name) {
    return this.speed(this.requests[name], this.before && this.before.requests[name]) || 0;
  }

  // How fast a counter grows.
  speed(now, before) {
    if (!this.before || typeof before !== "number" || now < before) return null;
    return (now - before) * 1000 / Math.max(1, this.now - this.before.at);
  }

  // An element with an attribute of this device as bytes, each of its units having `size`.
  bytes(name, size = 1) {
    return figure("span", name, this.values.get(name), human(this.values.get(name) * size));
  }

  // The limit of its memory, or of the server's, and an element that shows it.
  memoryLimit() {
    if (this.values.get("mem_limit")) return [this.values.get("mem_limit"), this.bytes("mem_limit")];
    const limit = this.server.get("memory_limit");
    return [limit, marked("server", "memory_limit", limit, element("span", {}, human(limit)))];
  }

  meters() {
    const of = (name) => this.values.get(name);
    const made = (this.row.work || []).map(workMeter);
    if (of("mem_used_total") !== undefined) {
      const [limit, shownLimit] = this.memoryLimit();
      made.push(meterOf("memory", of("mem_used_total"), limit, ...share(of("mem_used_total"), this.bytes("mem_used_total"), limit, shownLimit)));
    }
    if (of("spill_size")) {
      const words = share(of("spill_bytes"), this.bytes("spill_bytes"), of("spill_size"), this.bytes("spill_size"));
      made.push(meterOf("spill file", of("spill_bytes"), of("spill_size"), ...words));
    }
    if (of("dirty_blocks") !== undefined && of("blocks")) {
      const size = of("block_size") || 4096;
      const words = share(of("dirty_blocks"), this.bytes("dirty_blocks", size), of("blocks"), this.bytes("blocks", size));
      made.push(meterOf("dirty", of("dirty_blocks"), of("blocks"), ...words));
    }
    if (of("read_hits") !== undefined && of("reads") > 0) {
      const percent = `${(100 * of("read_hits") / of("reads")).toFixed(1)} %`;
      made.push(meterOf("reads from the cache", of("read_hits"), of("reads"), derived("span", {}, percent)));
    }
    if (this.row.ratio) {
      const ratio = field("ratio", this.row.ratio, `${this.row.ratio.toFixed(2)} to 1`);
      made.push(meterOf("compression", this.row.ratio, Math.max(4, this.row.ratio), ratio));
    }
    if (typeof of("at_risk_bytes") === "number") made.push(this.risk());
    return made;
  }

  // What a crash would take.
  risk() {
    const [bytes, most, seconds] = ["at_risk_bytes", "at_risk_bytes_max", "at_risk_seconds"].map((name) => this.values.get(name));
    const words = [this.bytes("at_risk_bytes")];
    if (most) words.push(" of ", this.bytes("at_risk_bytes_max"));
    if (typeof seconds === "number") words.push(", the oldest for ", figure("span", "at_risk_seconds", seconds, shown(seconds, "s")));
    return meterOf("at risk in a crash", bytes, most || Math.max(1, ...this.history.get("at_risk_bytes")), ...words);
  }

  charts() {
    const made = [];
    const add = (name, title, latest, words, ...limit) => {
      const points = this.history.get(name);
      if (points && points.length > 1) made.push(chart(title, points, latest(points.at(-1)), words, ...limit));
    };
    const perSecond = (value) => `${human(value)}/s`;
    const flow = (name, title) => add(name, title, (value) => derived("span", {}, perSecond(value)), perSecond);
    const attribute = (name, title, limit, mark = "limit", size = 1) =>
      add(name, title, () => this.bytes(name, size), (value) => human(value * size), limit, mark);
    flow("write_bytes", "clients write");
    flow("read_bytes", "clients read");
    attribute("at_risk_bytes", "at risk in a crash", this.values.get("at_risk_bytes_max"));
    const start = this.values.get("blocks") * this.values.get("high_watermark") / 100;
    attribute("dirty_blocks", "dirty", start, "writing back starts", this.values.get("block_size") || 4096);
    attribute("mem_used_total", "memory", this.values.get("mem_limit"));
    attribute("spill_bytes", "in the spill file", this.values.get("spill_size"));
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
    const flow = (words, bytes, count) =>
      `${words} ${(this.flow(bytes) / 1048576).toFixed(1)} MiB/s (${Math.round(this.flow(count)).toLocaleString("en")} requests/s${this.within(words)})`;
    const errors = now.errors ? `; ${now.errors.toLocaleString("en")} requests failed` : "";
    const flows = `: ${flow("write", "write_bytes", "writes")}, ${flow("read", "read_bytes", "reads")}${errors}`;
    const clients = this.row.clients;
    return ["↓ ", field("clients", clients, String(clients)), clients === 1 ? " client" : " clients", derived("span", {}, flows)];
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

  sentence(row, own, value) {
    const className = own === "error" ? "policy error" : "policy";
    return element("p", { className, title: row.help }, `${own}: `, figure("span", row.name, value, written(value)));
  }

  part(name) {
    const figures = element("dl", { className: "figures" });
    const settings = element("dl", { className: "figures" });
    const words = [];
    for (const row of this.rows.filter((row) => row.part === name && row.readable)) {
      const value = this.values.get(row.name);
      const own = row.name.split(".").at(-1);
      const line = (text, speed = "") => {
        const name = own.split("_").flatMap((word, at) => at ? ["_", element("wbr"), word] : [word]);
        const made = element("dd", {}, figure("span", row.name, value, text), derived("span", {}, speed));
        return element("div", { title: row.help }, element("dt", {}, ...name), made);
      };
      if (own === "decisions" && Array.isArray(value)) {
        for (const { age, decision, bytes, rule, figures } of value.slice(-DECISIONS)) {
          const amount = bytes ? ` ${human(bytes)}` : "";
          words.push(derived("p", { className: "policy" }, `${age} s ago: ${decision}${amount}, by ${rule}: ${figures}`));
        }
      }
      if (row.type === "columns" || row.type === "rows" || value === undefined) continue;
      if (WORDS.includes(own) && row.role !== "knob") {
        if (value !== null) words.push(this.sentence(row, own, value));
      } else if (row.role === "knob" || typeof value === "string") {
        settings.append(line(typeof value === "number" ? shown(value, row.unit, this.values) : written(value)));
      } else if (row.role === "counter") {
        const speed = this.speed(value, this.before && this.before.values.get(row.name));
        figures.append(line(shown(value, row.unit, this.values), speed ? ` (${rate(speed, row.unit, this.values)})` : ""));
      } else if (typeof value === "number" || value === null) {
        figures.append(line(shown(value, row.unit, this.values)));
      }
    }
    const open = this.open && this.open.has(name);
    const summary = element("summary", {}, "settings");
    summary.dataset.part = name;
    const details = element("details", { open }, summary, settings);
    details.addEventListener("toggle", () => {
      this.open = this.open || new Set();
      if (details.open) this.open.add(name); else this.open.delete(name);
    });
    return element("li", {}, element("h3", {}, name), ...words, figures, settings.children.length ? details : "");
  }

  draw() {
    const parts = [...new Set(this.rows.map((row) => row.part))];
    const flow = element("ul", { className: "flow" }, element("li", { className: "between" }, ...this.clients()));
    for (const [at, name] of parts.entries()) {
      const below = this.below(name, parts[at + 1]);
      flow.append(this.part(name), below ? derived("li", { className: "between" }, below) : "");
    }
    const alias = this.row.read_only_name ? ` · read-only as ${this.row.read_only_name}` : "";
    const about = ` · ${this.row.stack}${this.row.read_only ? " · read-only" : alias}`;
    const size = field("disksize", this.row.disksize, human(this.row.disksize));
    const focused = this.live.contains(document.activeElement) ? document.activeElement.dataset.part : null;
    this.live.replaceChildren(
      element("h2", {}, this.name, " ", element("span", { className: "soft" }, size, about)),
      element("div", { className: "meters" }, ...this.meters()),
      element("div", { className: "charts" }, ...this.charts()),
      flow);
    const again = [...this.live.querySelectorAll("summary")].find((summary) => summary.dataset.part === focused);
    if (again) again.focus({ preventScroll: true });
  }
}

function drawMemory(values) {
  const of = (name) => values.get(name);
  const bytes = (name) => figure("span", name, of(name), human(of(name)));
  const sharing = (part, whole) => share(of(part), bytes(part), of(whole), bytes(whole));
  const limit = of("memory_limit");
  const devices = Math.max(0, of("memory_used") - of("buffers_limit") - of("connections_limit"));
  byId("memory").className = "meters";
  byId("memory").replaceChildren(
    meterOf("in use", of("memory_used"), limit, ...sharing("memory_used", "memory_limit")),
    meterOf("pages and tables", devices, limit, ...share(devices, derived("span", {}, human(devices)), limit, bytes("memory_limit"))),
    meterOf("buffers of requests", of("buffers_used"), of("buffers_limit"), ...sharing("buffers_used", "buffers_limit")),
    meterOf("kept for connections", of("connections_limit"), limit, bytes("connections_limit")));
}

function drawServer(values) {
  const own = (name, unit) => figure("span", name, values.get(name), shown(values.get(name), unit));
  byId("server").replaceChildren("version ", field("version", server.version, server.version), ", process ", field("pid", server.pid, String(server.pid)),
    ", up for ", own("uptime", "s"), ", ", own("workers"), " workers", server.changes ? "" : "; nothing can be changed here");
}

async function look() {
  const [list, own] = await Promise.all([ask("api/devices"), ask("api/server/attributes")]);
  const values = new Map(own.map((one) => [one.name, one.value]));
  drawMemory(values);
  drawServer(values);
  const there = new Set(list.map((row) => row.name));
  for (const [name, device] of devices) if (!there.has(name)) { device.card.remove(); devices.delete(name); }
  for (const { name } of list) {
    if (devices.has(name)) continue;
    devices.set(name, new Device(name, await ask(`api/devices/${encodeURIComponent(name)}/attributes`)));
    byId("devices").append(devices.get(name).card);
  }
  await Promise.all(list.map(async (row) => {
    const device = devices.get(row.name);
    const shownValues = await ask(`api/devices/${encodeURIComponent(row.name)}`);
    device.server = values;
    device.take(row, shownValues, performance.now());
    device.draw();
  }));
}

function say(trouble) {
  byId("trouble").hidden = !trouble;
  byId("trouble").textContent = trouble || "";
}

// Learns which server answers. Counters of another than before begin anew, and so does the page.
async function meet() {
  const now = await ask("api/server");
  if (server.pid && server.pid !== now.pid) location.reload();
  Object.assign(server, now);
}

async function run() {
  let met = false;
  for (;;) {
    try {
      if (!met) await meet();
      met = true;
      await look();
      say(null);
    } catch (error) {
      met = false;
      say(`The server does not answer (${error.message}); what is shown may be old. Trying again.`);
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

run();
