"use strict";
// Plots: lines over a common x-axis, a cursor that all of them share, and a zoom.
const AXES = { step: "rollout step", updates: "optimiser updates", tokens: "generated tokens", time: "time, s" };
const plots = [];
const W = 400, H = 190, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 24;
let cursor = null;

// Runs that differ in their seed alone are one line, their mean, with a band from least to greatest.
function seriesOf(key, dash) {
  const found = [];
  const groups = new Map();
  for (const run of visible()) {
    const id = state.bands ? DATA.runs[run].seedless : run;
    groups.set(id, [...(groups.get(id) || []), run]);
  }
  for (const members of groups.values()) {
    const lines = members.map((run) => lineOf(run, key)).filter((line) => line.length);
    if (!lines.length) continue;
    const first = members[0];
    const name = DATA.runs[first].name + (members.length > 1 ? ` (mean of ${members.length} seeds)` : "");
    const points = lines[0].map((point, i) => {
      const all = lines.map((line) => line[i]).filter(Boolean).map((p) => p.y);
      return { x: point.x, y: all.reduce((a, b) => a + b, 0) / all.length, low: Math.min(...all),
        high: Math.max(...all), step: point.step };
    });
    found.push({ key, dash, run: first, name, points, band: lines.length > 1 });
  }
  return found;
}

function lineOf(run, key) {
  const values = DATA.runs[run].curves[key];
  if (!values) return [];
  const axes = DATA.runs[run].axes;
  return smoothed(values, state.smooth)
    .map((y, i) => ({ x: axes[state.x][i], y, step: axes.step[i] }))
    .filter((point) => point.y !== null);
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const found = [];
  for (let t = Math.ceil(low / size) * size; t <= high + size * 1e-9; t += size) found.push(Math.abs(t) < size / 1e6 ? 0 : t);
  return found;
}

// A round number without the zeros that a measured one may have.
function tick(t) {
  const value = Number(t.toPrecision(6));
  return Math.abs(value) < 1e4 && (Math.abs(value) >= 1e-4 || !value) ? String(value) : shown(value);
}

class Plot {
  constructor(panel, parent) {
    this.panel = panel;
    this.legend = el("div", { class: "legend" });
    this.root = svg("svg", { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "img", "aria-label": panel.title });
    this.node = el("div", { class: "plot" }, el("h3", {}, panel.title, el("small", {}, panel.note)), this.root, this.legend);
    parent.append(this.node);
    this.root.addEventListener("pointermove", (event) => this.point(event));
    this.root.addEventListener("pointerleave", () => { if (this.start === undefined) moveCursor(null); });
    this.root.addEventListener("pointerdown", (event) => { this.start = this.toX(event); });
    this.root.addEventListener("pointerup", (event) => this.release(event));
    this.root.addEventListener("dblclick", () => zoomTo(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    plots.push(this);
  }

  draw() {
    const some = this.panel.keys.filter((key) => visible().some((run) => (DATA.runs[run].curves[key] || []).some(Boolean)));
    const keys = some.length ? some : this.panel.keys.slice(0, 1); // of many kinds those that occur
    this.series = keys.flatMap((key, i) => seriesOf(key, DASHES[i % DASHES.length]));
    this.node.hidden = !this.series.length;
    this.root.replaceChildren();
    if (!this.series.length) return;
    const inside = (p) => !state.zoom || (p.x >= state.zoom[0] && p.x <= state.zoom[1]);
    const points = this.series.flatMap((s) => s.points).filter(inside);
    if (!points.length) return;
    const xs = points.map((p) => p.x);
    this.x = state.zoom || [Math.min(...xs), Math.max(...xs)];
    if (this.x[0] === this.x[1]) this.x = [this.x[0] - 0.5, this.x[1] + 0.5];
    let low = Math.min(...points.map((p) => p.low)), high = Math.max(...points.map((p) => p.high));
    if (this.panel.scale === "share") { low = Math.min(low, 0); high = Math.max(high, Math.min(1, high * 1.1)); }
    if (high - low < 1e-12) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    this.y = [low - (high - low) * 0.04, high + (high - low) * 0.04];
    for (const t of ticks(...this.y, 4)) {
      this.root.append(svg("path", { class: "grid", d: `M${LEFT} ${this.py(t)}H${W - RIGHT}` }));
      this.root.append(svg("text", { x: LEFT - 5, y: this.py(t) + 4, "text-anchor": "end" }, tick(t)));
    }
    for (const t of ticks(...this.x, 5)) {
      this.root.append(svg("text", { x: this.px(t), y: H - 8, "text-anchor": "middle" }, tick(t)));
    }
    for (const s of this.series) this.line(s, s.points.filter(inside));
    this.mark = svg("path", { stroke: "var(--soft)", "stroke-dasharray": "3 3", d: "" });
    this.root.append(this.mark);
    this.tell();
  }

  line(s, points) {
    if (!points.length) return;
    const at = (p, key) => `${this.px(p.x).toFixed(1)} ${this.py(p[key]).toFixed(1)}`;
    if (s.band) {
      const up = points.map((p) => at(p, "high")), down = points.map((p) => at(p, "low")).reverse();
      this.root.append(svg("path", { d: `M${up.join("L")}L${down.join("L")}Z`, fill: colourOf(s.run), opacity: 0.2 }));
    }
    this.root.append(svg("path", { class: "line", d: `M${points.map((p) => at(p, "y")).join("L")}`, fill: "none",
      stroke: colourOf(s.run), "stroke-width": 1.8, "stroke-dasharray": s.dash, "stroke-linejoin": "round" }));
    if (points.length < 12) {
      for (const p of points) this.root.append(svg("circle", { cx: this.px(p.x), cy: this.py(p.y), r: 2.4, fill: colourOf(s.run) }));
    }
  }

  px(x) { return LEFT + (x - this.x[0]) / (this.x[1] - this.x[0]) * (W - LEFT - RIGHT); }
  py(y) { return H - BOTTOM - (y - this.y[0]) / (this.y[1] - this.y[0]) * (H - TOP - BOTTOM); }

  toX(event) {
    const box = this.root.getBoundingClientRect(), scale = Math.min(box.width / W, box.height / H);
    const at = (event.clientX - box.left - (box.width - W * scale) / 2) / scale;
    return this.x[0] + (at - LEFT) / (W - LEFT - RIGHT) * (this.x[1] - this.x[0]);
  }

  point(event) { if (this.x) moveCursor(this.toX(event)); }

  release(event) {
    const end = this.toX(event), start = this.start;
    this.start = undefined;
    if (start !== undefined && Math.abs(end - start) > (this.x[1] - this.x[0]) * 0.03) {
      zoomTo([Math.min(start, end), Math.max(start, end)]);
    }
  }

  key(event) {
    const points = this.series[0].points, near = cursor === null ? points.length : indexNear(points, cursor);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) moveCursor(points[Math.min(Math.max(near + move, 0), points.length - 1)].x);
    else if (event.key === "Enter" && cursor !== null) openStep(this.series[0].run, points[indexNear(points, cursor)].step);
    else if (event.key === "Escape") zoomTo(null);
    else return;
    event.preventDefault();
  }

  tell() {
    if (this.node.hidden || !this.x) return;
    const inside = cursor !== null && cursor >= this.x[0] && cursor <= this.x[1];
    this.mark.setAttribute("d", inside ? `M${this.px(cursor)} ${TOP}V${H - BOTTOM}` : "");
    const at = cursor === null ? "last" : `at ${shown(this.series[0].points[indexNear(this.series[0].points, cursor)].x)}`;
    const lines = this.panel.keys.filter((key) => this.series.some((s) => s.key === key)).map((key) => {
      const own = this.series.filter((s) => s.key === key);
      const values = own.map((s) => {
        const p = cursor === null ? s.points[s.points.length - 1] : s.points[indexNear(s.points, cursor)];
        const mark = svg("svg", { width: 20, height: 8, style: "display:inline;width:20px;height:8px" });
        mark.append(svg("path", { d: "M0 4H20", stroke: colourOf(s.run), "stroke-width": 2.5, "stroke-dasharray": s.dash }));
        return el("span", { title: s.name }, mark, " ", el("b", {}, shown(p.y)), s.band ? ` ${shown(p.low)} … ${shown(p.high)}` : "");
      });
      return el("div", {}, this.panel.keys.length > 1 ? `${labelOf(key)} ` : "", ...values);
    });
    this.legend.replaceChildren(el("i", {}, at), ...lines);
  }
}

// Of an evaluation the data set, which stands in the middle of its key; else what the key ends with.
function labelOf(key) {
  const parts = key.split("/");
  return parts[0] === "eval" ? parts.slice(1, -1).join("/") : parts.pop().replace(/_frac$|_s$/, "").replaceAll("_", " ");
}

function indexNear(points, x) {
  let best = 0;
  points.forEach((p, i) => { if (Math.abs(p.x - x) < Math.abs(points[best].x - x)) best = i; });
  return best;
}

function moveCursor(x) { cursor = x; plots.forEach((plot) => plot.tell()); }
function zoomTo(range) { state.zoom = range; redraw(); }
function redraw() { keep(); plots.forEach((plot) => plot.draw()); }

// Length histogram over training: a column a step, darker where more of its responses fall.
function lengthMap(run, parent) {
  const { lengths, axes, name } = DATA.runs[run];
  if (!lengths) return;
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Response lengths over training" });
  const bins = lengths.counts.find(Boolean).length, wide = (W - LEFT - RIGHT) / lengths.counts.length;
  const tall = (H - TOP - BOTTOM) / bins;
  lengths.counts.forEach((counts, i) => {
    const most = Math.max(...(counts || [0]));
    (counts || []).forEach((count, bin) => {
      if (count) root.append(svg("rect", { x: LEFT + i * wide, y: H - BOTTOM - (bin + 1) * tall, width: wide + 0.3, height: tall + 0.3,
        fill: colourOf(run), opacity: Math.max(0.06, count / most).toFixed(2) }));
    });
  });
  for (const t of ticks(0, bins * lengths.width, 4)) {
    root.append(svg("text", { x: LEFT - 5, y: H - BOTTOM - t / lengths.width * tall + 4, "text-anchor": "end" }, shown(t)));
  }
  const steps = axes.step.filter((step) => step > 0);
  root.append(svg("text", { x: LEFT, y: H - 8 }, `step ${steps[0]}`));
  root.append(svg("text", { x: W - RIGHT, y: H - 8, "text-anchor": "end" }, `step ${steps[steps.length - 1]}`));
  parent.append(el("div", { class: "plot" }, el("h3", {}, "Response lengths", el("small", {}, `tokens, share of a step's responses · ${name}`)), root,
    el("div", { class: "legend" }, `bins of ${lengths.width} tokens`)));
}
