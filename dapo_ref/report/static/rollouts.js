"use strict";
// The browser of rollouts: step, filter, search; a group; its responses side by side.
let rollouts = null;
const stepsOf = (run) => Object.keys(loaded()[run].steps).map(Number);
const FILTERS = {
  all: ["all", () => true],
  mixed: ["mixed", (g) => rightOf(g) > 0 && rightOf(g) < g.responses.length],
  right: ["all right", (g) => rightOf(g) === g.responses.length],
  wrong: ["all wrong", (g) => rightOf(g) === 0],
  truncated: ["truncated", (g) => g.responses.some((r) => r.truncated)],
  none: ["no answer", (g) => g.responses.some((r) => r.status === "no_answer")],
  disagree: ["verifier and recipe disagree", (g) => g.responses.some((r) => r.recipe !== r.correct)],
  suspect: ["judged wrong, ends with the reference", (g) => g.responses.some((r) => isSuspect(g, r))],
  kept: ["kept", (g) => g.kept],
  dropped: ["not kept", (g) => !g.kept],
  tokens: ["with token probabilities", (g) => g.responses.some((r) => r.tokens)],
};

const rightOf = (group) => group.responses.filter((r) => r.correct).length;

// To be looked at: the last line holds the reference, between characters that cannot be part of a number.
function isSuspect(group, response) {
  if (response.correct) return false;
  const last = response.text.trim().split("\n").pop(), at = last.lastIndexOf(group.reference);
  if (at < 0) return false;
  const around = (last[at - 1] || " ") + (last[at + group.reference.length] || " ");
  return !/[\w.]/.test(around.replace(/\.$/, ""));
}

function loaded() {
  if (!rollouts) rollouts = JSON.parse(document.getElementById("rollout-data").textContent);
  return rollouts;
}

function openStep(run, step) {
  const steps = stepsOf(run);
  if (!steps.length) return;
  state.run = run;
  state.step = steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
  state.group = 0;
  drawRollouts();
  document.getElementById("rollouts").scrollIntoView();
}

function found() {
  const all = loaded()[state.run].steps, needle = state.search.toLowerCase(), test = FILTERS[state.filter][1];
  const steps = state.everywhere ? stepsOf(state.run) : [state.step];
  return steps.flatMap((step) => (all[step] || []).map((group, index) => ({ step, index, group })))
    .filter(({ group }) => test(group) && (!needle || holds(group, needle)));
}

function holds(group, needle) {
  return [group.prompt, group.reference, ...group.responses.map((r) => r.text)].some((t) => t.toLowerCase().includes(needle));
}

function drawRollouts() {
  const section = document.getElementById("rollouts");
  const steps = stepsOf(state.run);
  if (!steps.includes(state.step)) state.step = steps[steps.length - 1] || 0;
  const of = loaded()[state.run].of;
  const note = steps.length === of ? `all ${of} steps are in this page`
    : `${steps.length} of ${of} steps are in this page, spread over the run; the others are in the run folder's rollouts/`;
  const draw = (change) => (event) => { change(event); state.group = 0; drawList(); };
  section.replaceChildren(el("h2", {}, "Rollouts", el("small", {}, note)));
  if (!steps.length) return;
  const search = el("input", { type: "search", placeholder: "search prompts and responses", "aria-label": "search",
    oninput: draw((e) => { state.search = e.target.value; }) });
  search.value = state.search;
  const choose = (label, values, current, change) => {
    const node = el("select", { "aria-label": label, onchange: change }, ...values.map(([v, t]) => el("option", { value: v }, t)));
    node.value = current;
    return el("label", {}, label, node);
  };
  const everywhere = el("input", { type: "checkbox", onchange: draw((e) => { state.everywhere = e.target.checked; }) });
  everywhere.checked = state.everywhere;
  section.append(el("div", { class: "filters" },
    DATA.runs.length > 1 ? choose("run", DATA.runs.map((r, i) => [i, r.name]), state.run, (e) => { state.run = Number(e.target.value); state.group = 0; drawRollouts(); }) : null,
    choose("step", steps.map((s) => [s, s]), state.step, draw((e) => { state.step = Number(e.target.value); })),
    el("label", {}, everywhere, "all steps"), search,
    choose("show", Object.entries(FILTERS).map(([k, [t]]) => [k, t]), state.filter, draw((e) => { state.filter = e.target.value; })),
    el("span", { id: "count", class: "empty", role: "status" })));
  section.append(el("div", { class: "browser" }, el("div", { class: "list", id: "groups", onkeydown: listKey }), el("div", { id: "group" })));
  drawList();
}

function drawList() {
  keep();
  const matches = found(), MOST = 400;
  document.getElementById("count").textContent = `${matches.length} groups` + (matches.length > MOST ? `, the first ${MOST} listed` : "");
  document.getElementById("groups").replaceChildren(...matches.slice(0, MOST).map((match, i) => {
    const { group, step } = match;
    const dots = group.responses.map((r) => el("span", { class: r.correct ? "right" : r.answer === null ? "none" : "wrong" }, r.correct ? "●" : r.answer === null ? "○" : "×"));
    return el("button", { type: "button", "aria-current": String(i === state.group), onclick: () => { state.group = i; drawList(); focusGroup(); } },
      el("span", { class: "dots" }, ...dots), group.kept ? null : el("span", { class: "badge none" }, "not kept"),
      el("em", {}, (state.everywhere ? `step ${step} · ` : "") + group.prompt.replace(/\s+/g, " ")));
  }));
  const chosen = matches[state.group] || matches[0];
  document.getElementById("group").replaceChildren(...(chosen ? groupView(chosen) : [el("p", { class: "empty" }, "No group of this kind.")]));
}

function listKey(event) {
  const move = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  const count = document.getElementById("groups").children.length;
  state.group = Math.min(Math.max(state.group + move, 0), count - 1);
  drawList();
  focusGroup();
}

function focusGroup() {
  const node = document.getElementById("groups").children[state.group];
  if (node) node.focus();
}

function groupView({ group, step }) {
  const facts = [`step ${step}`, `reference ${group.reference}`, `${rightOf(group)} of ${group.responses.length} right`,
    group.kept ? "kept" : "not kept", group.source].filter(Boolean).join(" · ");
  return [el("p", { class: "empty" }, facts), el("div", { class: "prompt" }, ...marked(group.prompt)),
    el("div", { class: "responses" }, ...group.responses.map((r) => responseView(group, r)))];
}

function responseView(group, r) {
  const punished = Math.round((r.reward - (r.correct ? 1 : -1)) * 1e4) / 1e4;
  const ofPaper = (DATA.runs[state.run].config.reward || "dapo") === "dapo" && punished <= 0;
  const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const kind = r.correct ? "right" : r.answer === null ? "none" : "wrong";
  const badge = (text, tone) => el("span", { class: `badge ${tone}` }, text);
  return el("article", { class: `response is-${kind}` },
    el("b", { class: kind }, r.correct ? "● right" : r.answer === null ? "○ no answer" : "× wrong"),
    r.truncated ? badge("truncated", "none") : null,
    r.recipe !== r.correct ? badge(`recipe says ${r.recipe ? "right" : "wrong"}`, "wrong") : null,
    isSuspect(group, r) ? badge("ends with the reference", "wrong") : null,
    el("pre", {}, ...(r.tokens ? tinted(r.tokens) : marked(r.text))),
    el("dl", { class: "facts" },
      ...fact("answer", r.answer === null ? "–" : r.answer), ...fact("reference", group.reference), ...fact("status", r.status),
      ...fact("reward", `${r.reward}` + (ofPaper ? ` = ${r.correct ? "+1" : "−1"} (Eq. 7) − ${Math.abs(punished)} (Eq. 13)` : "")),
      ...fact("advantage", group.kept ? String(r.advantage) : `${r.advantage}, not trained`), ...fact("length", `${r.length} tokens`)));
}

// Unlikely tokens are dark; a wave marks those that the clip stopped below, a double line above.
function tinted([texts, probs, clipped]) {
  return texts.map((text, i) => el("span", { title: `π_old ${probs[i]}${{ l: ", clipped low", h: ", clipped high" }[clipped[i]] || ""}`,
    class: { l: "low", h: "high" }[clipped[i]] || null, style: `background:rgba(var(--rgb-tint),${((1 - probs[i]) * 0.7).toFixed(2)})` }, text));
}

function marked(text) {
  const needle = state.search.toLowerCase(), lower = text.toLowerCase();
  if (!needle || lower.length !== text.length) return [text];
  const parts = [];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    parts.push(text.slice(from, at), el("mark", {}, text.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}
