// The page: reads /metrics once a second and draws what changed in between. Nothing is kept but
// what was read while the page is open.
"use strict";

const byId = (id) => document.getElementById(id);
const FLEET = document.body.dataset.mode === "fleet";
const PERIOD = 1000;
const MOST_KEPT = 900;
// Okabe and Ito's colours, which people with any kind of colour blindness tell apart; and dashes.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a00", "#7f7f7f"];
const REASONS = ["full", "interval", "early", "shape", "deadline", "retry", "drain"];
const CODES = ["200", "429", "503", "504", "500", "499", "400"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEAT = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // Viridis

// ---------------------------------------------------------------- pages of metrics
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

function parsePage(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = SAMPLE.exec(line);
    if (!found || line[0] === "#") continue;
    const labels = {};
    for (const [, key, value] of (found[2] || "").matchAll(LABEL)) labels[key] = value;
    samples.set(`${found[1]}{${found[2] || ""}}`, { name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}

const startOf = (page) => page.get("process_start_time_seconds{}")?.value;

// What each counter grew by, and what each gauge is, over all replicas, with the most of any one.
// One that began anew, or was not there before, has said nothing of this interval.
function growth(before, after) {
  const sums = new Map();
  for (const [pod, page] of after) {
    const old = before.get(pod);
    const known = old && startOf(old) === startOf(page);
    for (const [key, { name, labels, value }] of page) {
      const counter = /_(total|bucket|sum|count)$/.test(name);
      const added = counter ? (known ? Math.max(0, value - (old.get(key)?.value ?? 0)) : 0) : value;
      const sum = sums.get(key);
      if (sum) {
        sum.value += added;
        sum.most = Math.max(sum.most, added);
      } else sums.set(key, { name, labels, value: added, most: added });
    }
  }
  return sums;
}

function pick(sums, name, method, label) {
  const found = [];
  for (const one of sums.values())
    if (one.name === name && (one.labels.method ?? method) === method)
      found.push([label ? one.labels[label] : "", one.value]);
  return found;
}

const total = (pairs) => pairs.reduce((sum, [, value]) => sum + value, 0);
const edge = (text) => (text === "+Inf" ? Infinity : Number(text));

function buckets(pairs) {
  const sorted = pairs.map(([le, value]) => [edge(le), value]).sort((a, b) => a[0] - b[0]);
  return sorted.map(([le, value], i) => [le, value - (i ? sorted[i - 1][1] : 0)]);
}

function quantile(share, counted) {
  let rest = share * counted.reduce((sum, [, count]) => sum + count, 0);
  if (!rest) return null;
  let lower = 0;
  for (const [upper, count] of counted) {
    if (count >= rest) return upper === Infinity ? lower : lower + ((upper - lower) * rest) / count;
    rest -= count;
    lower = upper;
  }
  return lower;
}

function figures(sums, method, seconds, replicas) {
  const get = (name, label) => pick(sums, `batchedapi_${name}`, method, label);
  const sum = (name) => total(get(name));
  const most = (name, term) => Math.max(0, ...[...sums.values()].filter((one) => one.name === `batchedapi_${name}` && (one.labels.method ?? method) === method && one.labels.term === term).map((one) => one.most));
  const per = (pairs) => Object.fromEntries(pairs.map(([label, value]) => [label, value / seconds]));
  const batches = sum("batch_rows_count");
  const latencies = buckets(get("request_seconds_bucket", "le"));
  return {
    seconds,
    replicas,
    requests: sum("requests_total") / seconds,
    received: sum("rows_received_total") / seconds,
    run: sum("batch_rows_sum") / seconds,
    refused: per(get("rows_rejected_total", "reason")),
    answers: per(get("requests_total", "code")),
    reasons: per(get("batches_total", "reason")),
    sizes: buckets(get("batch_rows_bucket", "le")).filter(([le]) => le !== Infinity),
    queue: sum("queue_rows"),
    inFlight: sum("in_flight_requests"),
    lanes: sum("lanes"),
    busy: sum("lanes") ? sum("lane_busy_seconds_total") / seconds / sum("lanes") : 0,
    // as dashboards and status have it: one that is limited for now says nothing of the setting
    largest: most("max_batch_size"),
    interval: most("batch_interval_seconds"),
    p50: quantile(0.5, latencies),
    p99: quantile(0.99, latencies),
    padding: sum("batch_padded_lengths_total") ? 1 - sum("batch_lengths_total") / sum("batch_padded_lengths_total") : null,
    wait: sum("queue_wait_seconds_count") ? sum("queue_wait_seconds_sum") / sum("queue_wait_seconds_count") : null,
    meanRows: batches ? sum("batch_rows_sum") / batches : null,
    meanSeconds: batches ? sum("batch_seconds_sum") / batches : null,
    learned: ["batch", "row", "length"].map((term) => most("service_time_seconds", term)),
    lengths: sum("batch_lengths_total"),
  };
}

// t(n) as the replica has learned it; of rows that have lengths, for the mean length, half and twice.
function lines(shown) {
  const [fixed, row, length] = shown.at(-1)?.learned ?? [0, 0, 0];
  const [lengths, rows] = shown.reduce(([a, b], one) => [a + one.lengths, b + one.run * one.seconds], [0, 0]);
  const drawn = length && lengths ? [0.5, 1, 2].map((times) => (times * lengths) / rows) : [0];
  return drawn.map((each) => ({ fixed, each: row + length * each, of: each ? ` that is ${short(each)} long` : "" }));
}

// ---------------------------------------------------------------- numbers as people read them
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}
const ms = (seconds) => (seconds === null || seconds === undefined ? "–" : `${short(1e3 * seconds)} ms`);
const percent = (share) => `${(100 * share).toFixed(0)} %`;
const clock = (unix) => new Date(1e3 * unix).toLocaleTimeString([], { hour12: false });

// ---------------------------------------------------------------- charts
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axes(format, xFormat, incrs) {
  const common = { stroke: style("--faint"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
  const x = { ...common, space: 70, incrs, values: (_, ticks) => ticks.map(xFormat) };
  return [x, { ...common, size: 70, values: (_, ticks) => ticks.map(format) }];
}

const fromZero = (_u, _min, max) => [0, max > 0 ? max * 1.08 : 1];
const fromZeroMs = (_u, _min, max) => [0, max > 0 ? max * 1.08 : 0.01];

// What has a name keeps its colour, whichever others are there.
const colour = (how, i) => COLOURS[(how?.place ?? i) % COLOURS.length];
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300];

class Chart {
  // `series(shown)` gives [x values, [label, values, how], ...]
  constructor(title, hint, format, series, options = {}) {
    this.format = format;
    this.series = series;
    this.options = options;
    this.root = document.createElement("figure");
    const heading = document.createElement("h2");
    heading.textContent = title;
    this.caption = document.createElement("figcaption");
    this.hint = hint;
    this.place = document.createElement("div");
    this.root.append(heading, this.place, this.caption);
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.title = title;
    this.root.addEventListener("keydown", (event) => this.move(event));
    byId("charts").append(this.root);
    new ResizeObserver(() => requestAnimationFrame(() => this.fit())).observe(this.root);
  }

  draw(shown) {
    const [xs, ...series] = this.series(shown);
    const shape = series.map(([label]) => label).join("\n");
    if (shape !== this.shape || !this.plot) this.build(series, shape);
    this.xs = xs;
    this.named = series;
    this.plot.setData([xs, ...series.map(([, values]) => values)]);
    const last = xs.length - 1;
    if (this.plot.cursor.idx === null || this.plot.cursor.idx === undefined) this.plot.setLegend({ idx: last < 0 ? null : last });
    const text = series.map(([label, values, how]) => `${label} ${this.format(how?.own ? how.own[last] : values[last])}`);
    if (this.plot.cursor.left < 0 || !this.options.heat) this.caption.textContent = this.hint;
    this.root.setAttribute("aria-label", `${this.title}: ${last < 0 ? "nothing yet" : text.join(", ")}`);
  }

  build(series, shape) {
    this.plot?.destroy();
    this.shape = shape;
    const { bars, x = clock, y = fromZero } = this.options;
    const made = series.map(([label, , how], i) => ({
      label,
      stroke: colour(how, i),
      width: how?.points ? 0 : 2,
      dash: how?.stacked ? undefined : DASHES[i % DASHES.length],
      fill: how?.stacked ? colour(how, i) : undefined,
      points: { show: Boolean(how?.points), size: 6, fill: colour(how, i) },
      paths: how?.points ? () => null : undefined,
      value: (_u, value, s, index) => this.format(index === null || index === undefined ? null : (this.named[s - 1][2]?.own ?? this.named[s - 1][1])[index]),
    }));
    const plot = {
      width: this.width(), height: 210, cursor: { drag: { x: false, y: false } },
      legend: { show: !this.options.heat },
      scales: { x: { time: false }, y: { range: this.options.heat ? (u) => [0, Math.max(1, this.edges?.length ?? 1)] : y } },
      axes: axes(this.format, x, this.options.x ? undefined : SECONDS),
      series: [{ label: this.options.xLabel ?? "time", value: (_u, value) => (value === null || value === undefined ? "–" : x(value)) }, ...made],
      hooks: this.options.heat ? { draw: [(u) => this.heat(u)], setCursor: [(u) => this.tell(u)] } : {},
    };
    if (this.options.heat)
      Object.assign(plot.axes[1], { splits: () => this.edges.map((_, i) => i + 0.5), values: () => this.edges.map((le, i) => ((this.edges.length - 1 - i) % Math.ceil(this.edges.length / 9) ? "" : short(le))), grid: { show: false } });
    this.plot = new uPlot(plot, [[], ...series.map(() => [])], this.place);
  }

  heat(u) {
    const { ctx } = u;
    const { shown, edges } = this;
    const most = Math.max(1e-9, ...shown.flatMap((one) => one.sizes.map(([, count]) => count)));
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    shown.forEach((one, i) => {
      const left = Math.floor(u.valToPos(one.time - one.seconds, "x", true));
      const right = Math.ceil(u.valToPos(one.time, "x", true));
      one.sizes.forEach(([, count], row) => {
        if (count <= 0) return;
        const top = Math.round(u.valToPos(row + 1, "y", true));
        const bottom = Math.round(u.valToPos(row, "y", true));
        ctx.fillStyle = heatColour(Math.sqrt(count / most));
        ctx.fillRect(left, top + 1, Math.max(1, right - left), bottom - top - 1);
      });
    });
    ctx.restore();
  }

  tell(u) {
    const { idx, top } = u.cursor;
    const one = this.shown?.[idx];
    if (!one) return;
    const row = Math.floor(u.posToVal(top, "y"));
    const text = one.sizes.map(([le, count], i) => [count, `${between(one.sizes, i)} rows: ${short(count / one.seconds)}/s`, i]).filter(([count, , i]) => count > 0 || i === row);
    this.caption.textContent = `${clock(one.time)}  ${text.map(([, said]) => said).join("   ") || "no batch"}`;
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.xs?.length) return;
    event.preventDefault();
    const last = this.xs.length - 1;
    this.at = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? last + 1) + step));
    this.plot.setCursor({ left: this.plot.valToPos(this.xs[this.at], "x"), top: this.plot.over.clientHeight / 2 });
  }

  width() { return Math.max(200, this.root.clientWidth - 22); }
  fit() { if (this.plot && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: 210 }); }
  restyle() { this.plot?.destroy(); this.plot = null; this.place.replaceChildren(); }
}

const between = (sizes, i) => (i && sizes[i - 1][0] + 1 < sizes[i][0] ? `${sizes[i - 1][0] + 1}–${sizes[i][0]}` : `${sizes[i][0]}`);

function heatColour(share) {
  const at = Math.min(HEAT.length - 1.001, share * (HEAT.length - 1));
  const [low, high] = [HEAT[Math.floor(at)], HEAT[Math.floor(at) + 1]];
  return `rgb(${low.map((value, i) => Math.round(value + (high[i] - value) * (at % 1))).join(",")})`;
}

const times = (shown) => shown.map((one) => one.time);
const labels = (shown, key) => [...new Set(shown.flatMap((one) => Object.keys(one[key]).filter((label) => one[key][label] > 0)))];

function stacked(shown, key, order, share) {
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  const names = labels(shown, key).sort((a, b) => place(a) - place(b));
  const own = names.map((name) => shown.map((one) => {
    const all = share ? Object.values(one[key]).reduce((a, b) => a + b, 0) : 1;
    return all ? (one[key][name] ?? 0) / all : null;
  }));
  const sums = own.map((_, i) => shown.map((_one, t) => own.slice(i).reduce((sum, values) => sum + (values[t] ?? 0), 0)));
  return [times(shown), ...names.map((name, i) => [name, sums[i], { stacked: true, own: own[i], place: place(name) }])];
}

const CHARTS = [
  (() => {
    const chart = new Chart("Batch sizes", "batches by rows: the brighter, the more", short, (shown) => {
      chart.shown = shown;
      chart.edges = (shown.at(-1)?.sizes ?? []).map(([le]) => le);
      return [times(shown), ["mean rows", shown.map(() => null), { own: shown.map((one) => one.meanRows) }]];
    }, { heat: true });
    return chart;
  })(),
  new Chart("Rows per second", "what arrived, what ran, what was refused or too late", short, (shown) => [times(shown),
    ["received", shown.map((one) => one.received)], ["run", shown.map((one) => one.run)],
    ["refused", shown.map((one) => Object.values(one.refused).reduce((a, b) => a + b, 0))]]),
  new Chart("Latency", "from a complete request to its answer; wait: in the queue, on average", ms, (shown) => [times(shown),
    ["p50", shown.map((one) => one.p50)], ["p99", shown.map((one) => one.p99)], ["wait", shown.map((one) => one.wait)]], { y: fromZeroMs }),
  new Chart("Queue", "rows that wait, and requests not answered yet", short, (shown) => [times(shown),
    ["rows waiting", shown.map((one) => one.queue)], ["requests in flight", shown.map((one) => one.inFlight)]]),
  new Chart("Release reasons", "share of batches by what let them go", (value) => (value === null || value === undefined ? "–" : percent(value)),
    (shown) => stacked(shown, "reasons", REASONS, true), { y: () => [0, 1] }),
  new Chart("t(n): time of a batch by its rows", "each point is a second; the line is what is learned: fixed + per row, of rows of several lengths one for each", ms, (shown) => {
    const points = shown.filter((one) => one.meanRows !== null).sort((a, b) => a.meanRows - b.meanRows);
    const at = points.map((one) => one.meanRows);
    return [at, ["measured", points.map((one) => one.meanSeconds), { points: true }],
      ...lines(shown).map(({ fixed, each, of }) => [`${ms(fixed)} + ${ms(each)} a row${of}`, at.map((n) => fixed + each * n)])];
  }, { x: short, xLabel: "rows", y: fromZeroMs }),
  new Chart("Answers", "requests per second by status", short, (shown) => stacked(shown, "answers", CODES, false)),
];

// ---------------------------------------------------------------- the page
let previous = null; // { pages, time }
let kept = []; // { sums, time, seconds, replicas }
let answered = null;
let reading = false;

function tiles(now, shown) {
  const refused = Object.values(now.refused).reduce((a, b) => a + b, 0);
  const padded = shown.some((one) => one.padding !== null);
  const tiled = [["requests/s", short(now.requests)], ["rows/s", short(now.received)], ["refused rows/s", short(refused)], ["rows in a batch", short(now.meanRows)],
    ["waiting rows", short(now.queue)], ["in flight", short(now.inFlight)], ["p50", ms(now.p50)], ["p99", ms(now.p99)], ["busy lanes", percent(now.busy)],
    ...(padded ? [["padding", now.padding === null ? "–" : percent(now.padding)]] : [])];
  byId("tiles").replaceChildren(...tiled.map(([name, value]) => {
    const tile = document.createElement("div");
    for (const [tag, text] of [["dt", name], ["dd", value]]) tile.append(Object.assign(document.createElement(tag), { textContent: text }));
    return tile;
  }));
}

function methods(sums) {
  const names = [...new Set([...sums.values()].filter((one) => one.name === "batchedapi_queue_rows").map((one) => one.labels.method))].sort();
  const select = byId("method");
  if (names.join("\n") !== select.dataset.names) {
    const chosen = select.value;
    select.dataset.names = names.join("\n");
    select.replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name, textContent: name })));
    if (names.includes(chosen)) select.value = chosen;
  }
  byId("choose-method").hidden = names.length < 2;
  return select.value;
}

function render() {
  const last = kept.at(-1);
  byId("figures").hidden = !last;
  if (!last) return;
  const method = methods(last.sums);
  const since = last.time - Number(byId("span").value);
  const shown = kept.filter((one) => one.time >= since).map((one) => ({ ...figures(one.sums, method, one.seconds, one.replicas), time: one.time }));
  const now = shown.at(-1);
  tiles(now, shown);
  const setting = `maxBatchSize ${short(now.largest)}, batchInterval ${ms(now.interval)}, ${short(now.lanes)} ${now.lanes === 1 ? "lane" : "lanes"}`;
  byId("why").textContent = FLEET ? [last.why, setting].filter(Boolean).join(" · ") : setting;
  for (const chart of CHARTS) chart.draw(shown);
}

function took(pages, time, why) {
  if (previous && time > previous.time) {
    kept.push({ sums: growth(previous.pages, pages), time, seconds: time - previous.time, replicas: pages.size, why });
    if (kept.length > MOST_KEPT) kept.shift();
  }
  previous = { pages, time };
}

function say(state, text) {
  document.body.dataset.state = state;
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

async function readReplica() {
  const answer = await fetch("metrics", { cache: "no-store" });
  if (!answer.ok) throw new Error(`the replica answers ${answer.status}`);
  const page = parsePage(await answer.text());
  took(new Map([["", page]]), Date.now() / 1e3, "");
  const last = kept.at(-1);
  const idle = last && !pick(last.sums, "batchedapi_rows_received_total", byId("method").value).some(([, value]) => value > 0);
  say("live", !last ? "waiting for the second page" : idle ? "idle: no request in the last second" : "under load");
}

const chosen = () => decodeURIComponent(location.hash.slice(1));

async function readFleet() {
  const answer = await fetch(`fleet?api=${encodeURIComponent(chosen())}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the operator answers ${answer.status}`);
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  byId("fleet").hidden = false;
  byId("apis").replaceChildren(...found.apis.map(row));
  const now = found.apis.find((one) => one.api === chosen());
  byId("title").textContent = now ? now.api : "batchedapi: all APIs";
  if (now && found.pages) took(new Map(Object.entries(found.pages).map(([pod, text]) => [pod, parsePage(text)])), Date.now() / 1e3, now.why);
  else { previous = null; kept = []; }
  const missing = now && found.missing ? `; ${found.missing} replicas could not be read` : "";
  const more = found.more ? `, and ${found.more} more` : "";
  say("live", found.apis.length ? `${found.apis.length} ${found.apis.length === 1 ? "API" : "APIs"}${more}${missing}` : "no BatchedAPI yet: kubectl apply one");
}

function row(one) {
  const made = document.createElement("tr");
  made.setAttribute("aria-current", String(one.api === chosen()));
  const link = Object.assign(document.createElement("a"), { href: `#${encodeURIComponent(one.api)}`, textContent: one.api });
  const cells = [link, one.phase, one.ready, one.wanted, one.why].map((what) => {
    const cell = document.createElement("td");
    cell.append(what instanceof Node ? what : String(what ?? "–"));
    return cell;
  });
  made.append(...cells);
  return made;
}

async function tick() {
  if (reading || byId("pause").getAttribute("aria-pressed") === "true" || document.hidden) return;
  reading = true;
  try {
    await (FLEET ? readFleet() : readReplica());
    answered = Date.now() / 1e3;
    render();
  } catch (error) {
    const whose = FLEET ? "the operator" : "the replica";
    say("dead", `no answer from ${whose}${answered ? ` since ${clock(answered)}; the figures are of then` : ""}: ${error.message}`);
  } finally {
    reading = false;
  }
}

byId("pause").addEventListener("click", () => {
  const paused = byId("pause").getAttribute("aria-pressed") !== "true";
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "go on" : "pause";
  previous = null; // what happens meanwhile is not one interval
});
for (const id of ["method", "span"]) byId(id).addEventListener("change", render);
addEventListener("hashchange", () => { previous = null; kept = []; tick(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of CHARTS) chart.restyle(); render(); });
tick();
setInterval(tick, PERIOD);
