"use strict";
// What all figures are drawn with: elements, numbers as people read them, scales and axes.
let DATA = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8;
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "14 3 3 3"];

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function vector(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== "") node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function colour(at) { return `var(--c${at % COLOURS})`; }

// A number as an axis or a table shows it.
function plain(value) {
  if (value === null || value === undefined || !isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toPrecision(3).replace(/\.?0+(e|$)/, "$1");
  return String(Number(value.toPrecision(4)));
}

function amount(value) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E"];
  let power = 0;
  while (Math.abs(value) >= 1000 && power < prefixes.length - 1) { value /= 1000; power += 1; }
  return `${Number(value.toPrecision(3))}${power ? " " + prefixes[power] : ""}`;
}

function showMetric(value, percent = DATA.metric.percent) {
  if (value === null || value === undefined) return "-";
  return percent ? `${(100 * value).toFixed(1)}%` : plain(value);
}

function showGain(value) {
  if (value === null || value === undefined) return "-";
  const text = DATA.metric.percent ? (100 * value).toFixed(1) : plain(value);
  if (Number(text) === 0) return text.replace("-", "");
  return value > 0 ? `+${text}` : text;
}

// Round values that span low to high, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999) || rough;
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) values.push(at * step);
  return values;
}

function logTicks(low, high, room) {
  const every = [1, 2, 5];
  let values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const k of every) values.push(k * 10 ** power);
  values = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return values.length > room ? values.filter((value) => /^1/.test(value.toExponential())) : values;
}

// A scale from numbers to pixels; a logarithmic one where sizes differ much.
function scale(low, high, from, to, logarithmic) {
  const turn = logarithmic ? Math.log : (value) => value;
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; logarithmic = false; }
  const a = turn(low), b = turn(high);
  const place = (value) => from + ((turn(value) - a) / (b - a)) * (to - from);
  return Object.assign(place, { low, high, logarithmic });
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null && isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  return low > high ? [0, 1] : [low, high];
}

function widen([low, high], share) {
  const more = (high - low) * share || Math.abs(high) * 0.05 || 0.5;
  return [low - more, high + more];
}

// The frame of a figure: grid, labels, titles of both axes. `box` is {left, top, right, bottom} in pixels.
function drawFrame(svg, box, x, y, titles, show) {
  const across = x.logarithmic ? logTicks(x.low, x.high, (box.right - box.left) / 60) : ticks(x.low, x.high, Math.max(2, (box.right - box.left) / 70));
  const up = y.logarithmic ? logTicks(y.low, y.high, 8) : ticks(y.low, y.high, Math.max(3, (box.bottom - box.top) / 45));
  for (const value of up) {
    const at = y(value);
    svg.append(vector("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
    svg.append(vector("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, show.y(value)));
  }
  for (const value of across) {
    const at = x(value);
    svg.append(vector("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
    const last = at > box.right - 16; // else the label would be cut off
    svg.append(vector("text", { x: last ? box.right + 12 : at, y: box.bottom + 18, "text-anchor": last ? "end" : "middle" }, show.x(value)));
  }
  svg.append(vector("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  svg.append(vector("text", { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, titles.x));
  svg.append(vector("text", { class: "title", x: 0, y: 12 }, titles.y));
}

function startSvg(host, height, label) {
  const width = Math.max(280, host.clientWidth);
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  return { svg, width };
}

function pick(label, options, value, onchange) {
  const select = make("select", { onchange: () => onchange(select.value) });
  for (const option of options) select.append(make("option", { value: option.key, selected: option.key === value }, option.label));
  return make("label", {}, label, select);
}

function cut(text, length) { return text.length <= length ? text : `${text.slice(0, length - 1)}…`; }

const TIP = document.getElementById("tip");
function showTip(text, x, y) {
  TIP.textContent = text;
  TIP.hidden = false;
  const room = TIP.getBoundingClientRect();
  TIP.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - room.width - 4))}px`;
  TIP.style.top = `${y + room.height + 20 > innerHeight ? y - room.height - 12 : y + 14}px`;
}
function hideTip() { TIP.hidden = true; }
function announce(text) { document.getElementById("announce").textContent = text; }
