// The course of training: a line for each group of runs, bands over seeds, and what a place on it says.
const CURVES = { measure: null, across: "round" };

function drawCurves() {
  const host = document.getElementById("plot-curves");
  if (!host || !DATA.curves.groups.length) return;
  const { groups, measures, across } = DATA.curves;
  if (!measures.some((each) => each.key === CURVES.measure)) CURVES.measure = measures[0].key;
  if (!across.some((each) => each.key === CURVES.across)) CURVES.across = "round";
  const measure = measures.find((each) => each.key === CURVES.measure);
  const lines = listLines(groups, measure.key);
  host.replaceChildren();
  const controls = make("div", { class: "controls" },
    pick("show", measures, measure.key, (value) => { CURVES.measure = value; drawCurves(); }),
    pick("against", across, CURVES.across, (value) => { CURVES.across = value; drawCurves(); }));
  const { svg, width } = startSvg(host, 340, `${measure.label} against ${CURVES.across}; the table below has the numbers`);
  const box = { left: 58, right: width - 14, top: 26, bottom: 290 };
  const known = lines.flatMap((line) => line.points);
  const x = scale(...extent(known.map((p) => p.x)), box.left, box.right, false);
  let range = widen(extent(known.flatMap((p) => [p.low, p.high])), 0.06);
  if (measure.percent) range = [Math.max(0, range[0]), Math.min(1, range[1])];
  const y = scale(...range, box.bottom, box.top, false);
  const name = across.find((each) => each.key === CURVES.across).label;
  const showX = CURVES.across === "round" ? plain : amount;
  const showY = (value) => measure.percent ? `${plain(100 * value)}%` : plain(value);
  drawFrame(svg, box, x, y, { x: name, y: measure.label }, { x: showX, y: showY });
  for (const line of lines) drawLine(svg, line, x, y);
  const cross = vector("line", { class: "zero", y1: box.top, y2: box.bottom, visibility: "hidden" });
  svg.append(cross);
  host.append(controls, svg, drawLegend(lines));
  followPointer(svg, host, { x, lines, cross, measure, width, box });
}

function listLines(groups, key) {
  const lines = [];
  groups.forEach((group, at) => {
    const keys = key === "metric" && group.columns.shared_metric ? ["metric", "shared_metric"] : [key];
    for (const each of keys) {
      const column = group.columns[each];
      if (!column) continue;
      const places = group.columns[CURVES.across];
      const points = column.map(([mean, low, high], i) => ({ x: places[i][0], y: mean, low, high })).filter((p) => p.y !== null && p.x !== null);
      const shared = each === "shared_metric" && key === "metric";
      const label = shared ? `${group.name}, shared alone` : group.name;
      if (points.length) lines.push({ at, label, points, shared, seeds: group.seeds });
    }
  });
  return lines;
}

function drawLine(svg, line, x, y) {
  const path = (values) => values.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");
  if (line.seeds > 1 && !line.shared) {
    const back = line.points.map((p) => `L${x(p.x).toFixed(1)} ${y(p.low).toFixed(1)}`).reverse().join("");
    const band = path(line.points.map((p) => ({ x: p.x, y: p.high }))) + back + "Z";
    svg.append(vector("path", { class: "band", d: band, fill: colour(line.at), "fill-opacity": 0.18 }));
  }
  const dash = line.shared ? "3 4" : DASHES[line.at % DASHES.length];
  svg.append(vector("path", { class: "line", d: path(line.points), fill: "none", stroke: colour(line.at), "stroke-width": line.shared ? 1.6 : 2.2, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
  if (line.points.length <= 20) for (const p of line.points)
    svg.append(vector("circle", { cx: x(p.x), cy: y(p.y), r: line.shared ? 2 : 3, fill: colour(line.at) }));
}

function drawLegend(lines) {
  return make("ul", { class: "legend" }, ...lines.map((line) => {
    const swatch = vector("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
    swatch.append(vector("line", { x1: 0, x2: 28, y1: 6, y2: 6, stroke: colour(line.at), "stroke-width": line.shared ? 1.6 : 2.4, "stroke-dasharray": line.shared ? "3 4" : DASHES[line.at % DASHES.length] }));
    const seeds = line.seeds > 1 && !line.shared ? ` (${line.seeds} seeds)` : "";
    return make("li", {}, swatch, cut(line.label, 60) + seeds);
  }));
}

// The values at the place of the pointer, or at the one that the arrow keys have reached.
function followPointer(svg, host, figure) {
  const places = [...new Set(figure.lines.flatMap((line) => line.points.map((p) => p.x)))].sort((a, b) => a - b);
  let current = places.length - 1;
  const say = (at) => {
    current = Math.max(0, Math.min(places.length - 1, at));
    const place = places[current];
    figure.cross.setAttribute("visibility", "visible");
    figure.cross.setAttribute("x1", figure.x(place));
    figure.cross.setAttribute("x2", figure.x(place));
    const rows = figure.lines.map((line) => {
      const p = line.points.reduce((a, b) => (Math.abs(b.x - place) < Math.abs(a.x - place) ? b : a));
      return `${cut(line.label, 40)}: ${showMetric(p.y, figure.measure.percent)}`;
    });
    const where = CURVES.across === "round" ? `round ${plain(place)}` : `${amount(place)} ${CURVES.across}`;
    return `${where}\n${rows.join("\n")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const room = svg.getBoundingClientRect();
    const at = ((event.clientX - room.left) / room.width) * figure.width;
    const nearest = places.reduce((best, p, i) => (Math.abs(figure.x(p) - at) < Math.abs(figure.x(places[best]) - at) ? i : best), 0);
    showTip(say(nearest), event.clientX, event.clientY);
  });
  const leave = () => { hideTip(); figure.cross.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const text = say(current + step);
    const room = svg.getBoundingClientRect();
    showTip(text, room.left + (figure.x(places[current]) / figure.width) * room.width, room.top + 40);
    announce(text);
  });
}
