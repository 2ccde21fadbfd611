// Every client as a point on a canvas: ten thousand are drawn in a few milliseconds.
const POINTS = { view: 0, across: "n", chosen: new Set(), places: [], order: [], current: -1, mark: null, rings: null };
const HELPED = 0, UNCLEAR = 1, HURT = 2, UNKNOWN = 3;

function acrossChoices() {
  const choices = [
    { key: "n", label: "training rows" },
    { key: "rank", label: "clients in order of gain" },
    { key: "old", label: `${DATA.metric.name} before (${DATA.views[POINTS.view].names[1]})` },
  ];
  return choices.map((each) => ({ key: each.key, label: cut(each.label, 48) }));
}

function drawPoints() {
  const host = document.getElementById("plot-clients");
  if (!host || !DATA.views.length) return;
  const view = DATA.views[POINTS.view];
  const width = Math.max(280, host.clientWidth), height = width < 520 ? 330 : 400;
  const ratio = Math.min(2, devicePixelRatio || 1);
  const canvas = make("canvas", { width: width * ratio, height: height * ratio, tabindex: 0, role: "img" });
  canvas.setAttribute("aria-label", `Gain of ${DATA.clients.names.length} clients, ${view.label}. Arrow keys go from client to client, Enter selects; the table below has all of them.`);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const box = { left: 56, right: width - 12, top: 28, bottom: height - 48 };
  layPoints(view, box);
  paint(pen, view, box, width, ratio);
  POINTS.mark = make("div", { class: "mark", hidden: true });
  POINTS.rings = make("div", {});
  const inner = make("div", { class: "plot" }, canvas, POINTS.rings, POINTS.mark);
  const controls = make("div", { class: "controls" },
    DATA.views.length > 1 ? pick("compare", DATA.views.map((each, at) => ({ key: String(at), label: cut(each.label, 60) })), String(POINTS.view), (value) => { POINTS.view = Number(value); drawPoints(); fillTable(); }) : null,
    pick("against", acrossChoices(), POINTS.across, (value) => { POINTS.across = value; drawPoints(); }));
  host.replaceChildren(controls, inner, pointLegend(view));
  ringChosen();
  listen(canvas, width);
}

// Where each point stands. Those that would hide each other are moved apart sideways.
function layPoints(view, box) {
  const count = view.gain.length;
  const known = [...Array(count).keys()].filter((i) => view.gain[i] !== null);
  const sorted = known.slice().sort((a, b) => view.gain[a] - view.gain[b] || a - b);
  let xs;
  if (POINTS.across === "rank") { xs = Array(count).fill(null); sorted.forEach((i, at) => { xs[i] = at + 1; }); }
  else xs = POINTS.across === "old" ? view.old : DATA.clients.n;
  const [low, high] = extent(known.map((i) => xs[i]));
  const logarithmic = POINTS.across === "n" && low > 0 && high > 30 * low;
  const range = logarithmic ? [low * 0.85, high * 1.15] : widen([low, high], POINTS.across === "rank" ? 0.02 : 0.06);
  const x = scale(...range, box.left, box.right, logarithmic);
  const y = scale(...widen(extent([0, ...known.map((i) => view.gain[i])]), 0.07), box.bottom, box.top, false);
  const piles = new Map();
  for (const i of known) {
    const key = `${Math.round(x(xs[i]) / 7)} ${Math.round(y(view.gain[i]) / 7)}`;
    if (!piles.has(key)) piles.set(key, []);
    piles.get(key).push(i);
  }
  POINTS.places = Array(count).fill(null);
  const columns = new Set(known.map((i) => Math.round(x(xs[i])))).size;
  const room = Math.max(10, Math.min(0.4 * (box.right - box.left) / columns, 0.45 * (box.right - box.left)));
  for (const pile of piles.values()) {
    const step = Math.min(7, (2 * room) / pile.length);
    pile.forEach((i, at) => {
      const side = pile.length > 1 ? (at - (pile.length - 1) / 2) * step : 0;
      POINTS.places[i] = [Math.max(box.left, Math.min(box.right, x(xs[i]) + side)), y(view.gain[i])];
    });
  }
  POINTS.order = known.sort((a, b) => POINTS.places[a][0] - POINTS.places[b][0]);
  POINTS.x = x;
  POINTS.y = y;
}

function paint(pen, view, box, width, ratio) {
  const style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  const line = (x1, y1, x2, y2, shade, dash = []) => {
    pen.strokeStyle = shade; pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke();
    pen.setLineDash([]);
  };
  const { x, y } = POINTS;
  pen.fillStyle = ink("--soft");
  pen.textAlign = "right";
  for (const value of ticks(y.low, y.high, 6)) {
    line(box.left, y(value), box.right, y(value), ink("--grid"));
    pen.fillText(showGain(value), box.left - 8, y(value) + 4);
  }
  line(box.left, y(0), box.right, y(0), ink("--soft"), [4, 3]);
  line(box.left, box.bottom, box.right, box.bottom, ink("--faint"));
  pen.textAlign = "center";
  const values = x.logarithmic ? logTicks(x.low, x.high, width / 60) : ticks(x.low, x.high, Math.max(2, width / 110));
  const whole = POINTS.across !== "old";
  for (const value of values.filter((v) => !whole || Number.isInteger(Number(v.toPrecision(12))))) {
    const text = whole ? plain(value) : DATA.metric.percent ? `${plain(100 * value)}%` : plain(value);
    pen.fillText(text, x(value), box.bottom + 18);
  }
  pen.fillStyle = ink("--text");
  pen.fillText(acrossChoices().find((each) => each.key === POINTS.across).label, (box.left + box.right) / 2, box.bottom + 38);
  pen.textAlign = "left";
  pen.fillText(`gain (${DATA.metric.unit})`, 0, 14);
  const many = view.gain.length > 1500, stamps = new Map();
  const shades = [ink("--good"), null, ink("--bad"), null];
  for (const wanted of [UNCLEAR, UNKNOWN, HELPED, HURT]) for (const i of POINTS.order) {
    if (view.verdict[i] !== wanted) continue;
    const [px, py] = POINTS.places[i];
    const shade = shades[wanted] || (view.gain[i] > 0 ? shades[HELPED] : view.gain[i] < 0 ? shades[HURT] : ink("--faint"));
    const down = wanted === HURT || (wanted === UNKNOWN && view.gain[i] < 0);
    const { canvas, side } = stamp(stamps, down, wanted !== UNCLEAR, shade, many ? 3 : 4.5, ratio);
    pen.drawImage(canvas, px - side / 2, py - side / 2, side, side);
  }
}

// Selected clients have rings, above the canvas: they come and go without drawing the points again.
function ringChosen() {
  POINTS.rings.replaceChildren(...[...POINTS.chosen].filter((i) => POINTS.places[i]).map((i) => {
    const ring = make("div", { class: "mark chosen" });
    ring.style.left = `${POINTS.places[i][0]}px`;
    ring.style.top = `${POINTS.places[i][1]}px`;
    return ring;
  }));
}

// A point of each kind is drawn once and then copied, which is much quicker than ten thousand paths.
function stamp(stamps, down, filled, shade, size, ratio) {
  const key = `${down} ${filled} ${shade}`;
  if (!stamps.has(key)) {
    const side = 2 * Math.ceil(size + 2), canvas = make("canvas", { width: side * ratio, height: side * ratio });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    drawPoint(pen, side / 2, side / 2, down, filled, shade, size);
    stamps.set(key, { canvas, side });
  }
  return stamps.get(key);
}

function drawPoint(pen, x, y, down, filled, shade, size) {
  pen.beginPath();
  if (down) { pen.moveTo(x - size, y - size * 0.8); pen.lineTo(x + size, y - size * 0.8); pen.lineTo(x, y + size); pen.closePath(); }
  else pen.arc(x, y, filled ? size : size * 0.8, 0, 7);
  pen.globalAlpha = filled ? 0.8 : 0.7;
  if (filled) { pen.fillStyle = shade; pen.fill(); } else { pen.strokeStyle = shade; pen.lineWidth = 1.2; pen.stroke(); }
}

function pointLegend(view) {
  const words = ["helped beyond noise", "within noise", "hurt beyond noise", "noise not known"];
  const counts = [0, 0, 0, 0];
  view.verdict.forEach((kind, i) => { if (view.gain[i] !== null) counts[kind] += 1; });
  const items = words.map((word, kind) => {
    if (!counts[kind]) return null;
    const swatch = vector("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
    if (kind === HURT) swatch.append(vector("path", { d: "M9 2L19 2L14 11Z", fill: "var(--bad)" }));
    else swatch.append(vector("circle", { cx: 14, cy: 6, r: 4.5, fill: kind === HELPED ? "var(--good)" : "none", stroke: kind === HELPED ? "var(--good)" : "var(--faint)" }));
    return make("li", {}, swatch, `${word}: ${counts[kind].toLocaleString("en")}`);
  });
  return make("ul", { class: "legend" }, ...items.filter((item) => item));
}

function describeClient(i) {
  const view = DATA.views[POINTS.view], { names, n, n_test } = DATA.clients;
  const ends = view.low && view.low[i] !== null ? `, 95% from ${showGain(view.low[i])} to ${showGain(view.high[i])}` : "";
  const unit = DATA.metric.percent ? " points" : "";
  return `client ${names[i]}\ngain ${showGain(view.gain[i])}${unit}${ends}: ${verdictOf(view, i)}\n`
    + `${view.names[0]} ${showMetric(view.new[i])}, ${view.names[1]} ${showMetric(view.old[i])}\n`
    + `${n[i].toLocaleString("en")} training rows, ${n_test[i].toLocaleString("en")} test rows`;
}

function verdictOf(view, i) {
  if (view.gain[i] === null) return "not tested";
  return [`helped beyond noise`, "within noise", "hurt beyond noise", "noise not known"][view.verdict[i]];
}

function nearest(px, py) {
  let best = -1, least = 18 * 18;
  POINTS.places.forEach((place, i) => {
    if (!place) return;
    const far = (place[0] - px) ** 2 + (place[1] - py) ** 2;
    if (far < least) { least = far; best = i; }
  });
  return best;
}

function markClient(i) {
  POINTS.current = i;
  POINTS.mark.hidden = i < 0;
  if (i < 0) return;
  POINTS.mark.style.left = `${POINTS.places[i][0]}px`;
  POINTS.mark.style.top = `${POINTS.places[i][1]}px`;
}

function listen(canvas, width) {
  const place = (event) => {
    const room = canvas.getBoundingClientRect(), size = width / room.width;
    return nearest((event.clientX - room.left) * size, (event.clientY - room.top) * size);
  };
  canvas.addEventListener("pointermove", (event) => {
    const i = place(event);
    markClient(i);
    if (i < 0) hideTip(); else showTip(describeClient(i), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => { hideTip(); markClient(-1); });
  canvas.addEventListener("blur", () => { hideTip(); markClient(-1); });
  canvas.addEventListener("click", (event) => { const i = place(event); if (i >= 0) toggleClient(i); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 50, PageUp: -50 };
    if (event.key === "Enter" && POINTS.current >= 0) { event.preventDefault(); toggleClient(POINTS.current); return; }
    if (event.key === "Escape") { clearChosen(); return; }
    if (!(event.key in steps) || !POINTS.order.length) return;
    event.preventDefault();
    const at = POINTS.order.indexOf(POINTS.current);
    const next = at < 0 ? 0 : Math.max(0, Math.min(POINTS.order.length - 1, at + steps[event.key]));
    markClient(POINTS.order[next]);
    const room = canvas.getBoundingClientRect(), [px, py] = POINTS.places[POINTS.current];
    showTip(describeClient(POINTS.current), room.left + (px * room.width) / width, room.top + (py * room.width) / width);
    announce(describeClient(POINTS.current));
  });
}
