"use strict";
// What the page knows, and how it is written down. Text from a run enters as text only, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a"]; // Okabe and Ito
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 5", "12 4"];
const SVG = "http://www.w3.org/2000/svg";
const state = { x: "step", smooth: 0, bands: false, theme: "", hidden: [], zoom: null, run: 0, step: 0, group: 0,
  filter: "all", search: "", everywhere: false };

try { Object.assign(state, JSON.parse(decodeURIComponent(location.hash.slice(1)))); } catch { /* an anchor */ }

function keep() {
  history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(state)));
}

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function shown(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toFixed(2) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + " k";
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(1) : size >= 0.001 ? value.toPrecision(3) : value.toExponential(1);
}

function duration(seconds) {
  if (seconds < 120) return seconds.toFixed(0) + " s";
  return seconds < 7200 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

// A mean over the values so far, the recent ones weighing more; values that are missing stay missing.
function smoothed(values, weight) {
  let mean = 0, total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

const colourOf = (run) => COLOURS[run % COLOURS.length];
const visible = () => DATA.runs.map((_, i) => i).filter((i) => !state.hidden.includes(i));
