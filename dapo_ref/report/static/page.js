"use strict";
// Controls, summary, configuration; then everything is drawn.
function controls() {
  const axis = el("select", { id: "axis", "aria-label": "x-axis", onchange: (e) => { state.x = e.target.value; state.zoom = null; cursor = null; redraw(); } },
    ...Object.entries(AXES).map(([key, text]) => el("option", { value: key }, text)));
  axis.value = state.x;
  const smooth = el("input", { id: "smooth", type: "range", min: 0, max: 0.95, step: 0.05, "aria-label": "smoothing", oninput: (e) => { state.smooth = Number(e.target.value); redraw(); } });
  smooth.value = state.smooth;
  const theme = el("button", { id: "theme", type: "button", onclick: () => { setTheme(isDark() ? "light" : "dark"); keep(); } }, "◐ theme");
  const parts = [el("label", {}, "x", axis), el("label", {}, "smooth", smooth)];
  if (new Set(DATA.runs.map((run) => run.seedless)).size < DATA.runs.length) {
    const band = el("input", { id: "bands", type: "checkbox", onchange: (e) => { state.bands = e.target.checked; redraw(); } });
    band.checked = state.bands;
    parts.push(el("label", {}, band, "one band for seeds"));
  }
  document.getElementById("controls").append(...parts, theme);
}

const isDark = () => document.documentElement.dataset.theme === "dark";
function setTheme(theme) { state.theme = theme; document.documentElement.dataset.theme = theme; }

function ends(values, count = 5) {
  const there = (values || []).filter((v) => v !== null);
  const mean = (part) => (part.length ? part.reduce((a, b) => a + b, 0) / part.length : null);
  const n = Math.min(count, Math.ceil(there.length / 2));
  return [mean(there.slice(0, n)), mean(there.slice(there.length - n))];
}

function summary() {
  const section = document.getElementById("summary");
  section.append(el("div", { class: "runs" }, ...DATA.runs.map((run, i) => el("button", { type: "button", "aria-pressed": String(!state.hidden.includes(i)),
    onclick: (e) => { state.hidden = state.hidden.includes(i) ? state.hidden.filter((h) => h !== i) : [...state.hidden, i];
      e.currentTarget.setAttribute("aria-pressed", String(!state.hidden.includes(i))); redraw(); } },
    el("span", { class: "swatch", style: `background:${colourOf(i)}` }), run.name))));
  const { curves, axes, name } = DATA.runs[0];
  const change = (key) => ends(curves[key]).map(shown).join(" → ");
  const tile = (value, text) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, text));
  const last = axes.step.length - 1;
  section.append(el("div", { class: "tiles" }, tile(shown(axes.step[last]), `steps · ${name}`), tile(change("reward/accuracy"), "accuracy, first → last 5 steps"),
    tile(change("policy/entropy"), "entropy"), tile(change("response/length_mean"), "length"), tile(shown(axes.tokens[last]), "tokens generated"), tile(duration(axes.time[last] || 0), "time")));
  DATA.runs.forEach((run, i) => section.append(el("div", { class: "notes" }, el("span", { class: "swatch", style: `background:${colourOf(i)}` }),
    ...notable(run).map(([text, step]) => el("button", { type: "button", title: "open its rollouts", onclick: () => openStep(i, step) }, `${text} at step ${step}`)))));
}

// The steps that people look for: where the mean of three steps moved most, and the worst of each kind.
function notable(run) {
  const found = [], steps = run.axes.step;
  const worst = (key, text, sign, least) => {
    const values = run.curves[key] || [];
    let best = -1;
    values.forEach((v, i) => { if (v !== null && (best < 0 || sign * v > sign * values[best])) best = i; });
    if (best >= 0 && sign * values[best] > least) found.push([`${text} ${shown(values[best])}`, steps[best]]);
  };
  const moved = (key, text, sign) => {
    const v = run.curves[key] || [];
    let best = -1, most = 0;
    for (let i = 3; i + 2 < v.length; i++) {
      const d = sign * ((v[i] + v[i + 1] + v[i + 2]) - (v[i - 1] + v[i - 2] + v[i - 3])) / 3;
      if (d > most) { most = d; best = i; }
    }
    if (best >= 0) found.push([`${text} by ${shown(most)}`, steps[best]]);
  };
  moved("policy/entropy", "entropy fell most,", -1);
  moved("reward/accuracy", "accuracy rose most,", 1);
  worst("response/truncated_frac", "most truncated", 1, 0);
  worst("grad_norm", "largest gradient norm", 1, 0);
  worst("verdict/recipe_disagrees_frac", "most disagreement with the recipe", 1, 0);
  return found;
}

function panels() {
  const section = document.getElementById("curves");
  const evals = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.curves)))].filter((key) => key.startsWith("eval/"));
  const kinds = [...new Set(evals.map((key) => key.split("/").pop()))].filter((kind) => /^(avg|maj|pass)@/.test(kind));
  const held = kinds.map((kind) => ({ title: kind, note: "held-out problems", section: "Evaluation", scale: "share",
    keys: evals.filter((key) => key.endsWith("/" + kind)) }));
  const all = [...held, ...DATA.panels];
  for (const name of new Set(all.map((panel) => panel.section))) {
    const grid = el("div", { class: "plots" });
    section.append(el("h2", {}, name), grid);
    all.filter((panel) => panel.section === name).forEach((panel) => new Plot(panel, grid));
    if (name === "Learning") DATA.runs.forEach((_, i) => lengthMap(i, grid));
  }
}

function configuration() {
  const section = document.getElementById("configuration");
  section.append(el("h2", {}, "Configuration"));
  const keys = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.config)))].filter((key) => !DATA.own_keys.includes(key));
  const differing = keys.filter((key) => new Set(DATA.runs.map((run) => JSON.stringify(run.config[key]))).size > 1);
  if (DATA.runs.length > 1) {
    const head = el("tr", {}, el("th", {}, "key"), ...DATA.runs.map((run, i) => el("th", {}, el("span", { class: "swatch", style: `background:${colourOf(i)}` }), run.name)));
    const rows = differing.map((key) => el("tr", {}, el("th", {}, key), ...DATA.runs.map((run) => el("td", {}, key in run.config ? String(run.config[key]) : "–"))));
    section.append(el("div", { class: "scroll" }, differing.length ? el("table", { id: "differences" }, head, ...rows) : el("p", {}, "The runs have the same configuration.")));
  }
  DATA.runs.forEach((run) => section.append(el("details", {}, el("summary", {}, `all keys of ${run.name}`),
    el("pre", {}, Object.entries(run.config).map(([key, value]) => `${key}: ${value}`).join("\n")))));
}

setTheme(state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
controls();
summary();
panels();
configuration();
redraw();
if (!DATA.runs[state.run]) state.run = 0;
new IntersectionObserver((entries, observer) => {
  if (entries.some((entry) => entry.isIntersecting)) { observer.disconnect(); if (!rollouts) drawRollouts(); }
}, { rootMargin: "600px" }).observe(document.getElementById("rollouts"));
document.querySelectorAll("nav a").forEach((link) => link.addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById(link.hash.slice(1)).scrollIntoView();
}));
if (DATA.watch_s) {
  setInterval(() => {
    const typing = document.activeElement && document.activeElement.tagName === "INPUT";
    if (!document.hidden && !typing) { const y = scrollY; sessionStorage.setItem("y", y); location.reload(); }
  }, DATA.watch_s * 1000);
  scrollTo(0, Number(sessionStorage.getItem("y") || 0));
}
