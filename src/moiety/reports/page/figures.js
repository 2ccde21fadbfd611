// Figures that are read at a glance: spread over clients, paired differences, reliability, draws.
// An upright line that leaves out the words above each row.
function drawUpright(svg, kind, x, places, bottom) {
  places.forEach((y, at) => {
    const end = at + 1 < places.length ? y + 16 : bottom;
    svg.append(vector("line", { class: kind, x1: x, x2: x, y1: y - 7, y2: end }));
  });
}

function drawSpread() {
  const host = document.getElementById("plot-spread");
  if (!host || !DATA.spread.length) return;
  const rows = DATA.spread.filter((row) => row.clients);
  const height = 40 + 46 * rows.length + 46;
  const { svg, width } = startSvg(host, height, "How the metric is spread over clients; the table below has the numbers");
  const box = { left: 14, right: width - 14, top: 14, bottom: height - 46 };
  let range = widen(extent(rows.flatMap((row) => [row.quantiles[0], row.quantiles[6], row.worst])), 0.03);
  if (DATA.metric.percent) range = [Math.max(0, range[0]), Math.min(1, range[1])];
  const x = scale(...range, box.left + 4, box.right - 4, false);
  const places = rows.map((_, at) => 46 + 46 * at);
  for (const value of ticks(x.low, x.high, Math.max(2, width / 75))) {
    drawUpright(svg, "grid", x(value), places, box.bottom);
    const text = DATA.metric.percent ? `${plain(100 * value)}%` : plain(value);
    svg.append(vector("text", { x: x(value), y: box.bottom + 18, "text-anchor": "middle" }, text));
  }
  svg.append(vector("text", { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, `${DATA.metric.name} of a client`));
  rows.forEach((row, at) => {
    const y = places[at], q = row.quantiles.map((value) => x(value)), shade = colour(row.group), faint = row.shared ? 0.45 : 1;
    svg.append(vector("text", { class: "title", x: box.left, y: y - 14 }, cut(row.label, Math.floor(width / 8))));
    svg.append(vector("line", { x1: q[0], x2: q[6], y1: y, y2: y, stroke: shade, "stroke-width": 1.5 }));
    svg.append(vector("rect", { x: q[1], y: y - 4, width: Math.max(1, q[5] - q[1]), height: 8, fill: shade, "fill-opacity": 0.35 * faint }));
    svg.append(vector("rect", { x: q[2], y: y - 8, width: Math.max(1, q[4] - q[2]), height: 16, fill: shade, "fill-opacity": 0.75 * faint }));
    svg.append(vector("line", { x1: q[3], x2: q[3], y1: y - 10, y2: y + 10, stroke: "var(--text)", "stroke-width": 2.5 }));
    const w = x(row.worst);
    svg.append(vector("path", { d: `M${w} ${y - 7}L${w + 6} ${y}L${w} ${y + 7}L${w - 6} ${y}Z`, fill: "var(--page)", stroke: shade, "stroke-width": 2 }));
  });
  host.replaceChildren(svg);
}

function drawHelped() {
  const host = document.getElementById("plot-helped");
  if (!host || !DATA.helped.length) return;
  const words = ["hurt beyond noise", "worse, within noise", "the same", "better, within noise", "helped beyond noise"];
  const shades = [["var(--bad)", 1], ["var(--bad)", 0.4], ["var(--faint)", 0.35], ["var(--good)", 0.4], ["var(--good)", 1]];
  const height = 50 * DATA.helped.length + 4;
  const { svg, width } = startSvg(host, height, "How many clients are helped and hurt; the table below has the numbers");
  DATA.helped.forEach((row, at) => {
    const total = row.counts.reduce((sum, count) => sum + count, 0) || 1;
    let x = 0;
    svg.append(vector("text", { class: "title", x: 0, y: 50 * at + 14 }, cut(row.label, Math.floor(width / 7.2))));
    row.counts.forEach((count, kind) => {
      const wide = (width * count) / total;
      if (!count) return;
      svg.append(vector("rect", { x, y: 50 * at + 20, width: Math.max(1, wide - 1), height: 24, fill: shades[kind][0], "fill-opacity": shades[kind][1] }));
      const full = shades[kind][1] === 1;
      if (wide > 9 * String(count).length + 6)
        svg.append(vector("text", { class: full ? "onto" : "title", x: x + wide / 2, y: 50 * at + 36, "text-anchor": "middle" }, count.toLocaleString("en")));
      x += wide;
    });
  });
  const items = words.map((word, kind) => {
    if (!DATA.helped.some((row) => row.counts[kind])) return null;
    const swatch = vector("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
    swatch.append(vector("rect", { x: 2, y: 0, width: 24, height: 12, fill: shades[kind][0], "fill-opacity": shades[kind][1] }));
    return make("li", {}, swatch, word);
  });
  host.replaceChildren(svg, make("ul", { class: "legend" }, ...items.filter((item) => item)));
}

function drawPairs() {
  const host = document.getElementById("plot-pairs");
  if (!host || !DATA.pairs.length) return;
  const rows = DATA.pairs;
  const height = 20 + 44 * rows.length + 46;
  const { svg, width } = startSvg(host, height, "Mean gain of each comparison with its interval; the table below has the numbers");
  const box = { left: 14, right: width - 14, top: 8, bottom: height - 46 };
  let range = widen(extent([0, ...rows.flatMap((row) => [row.low, row.high, row.mean])]), 0.06);
  if (DATA.metric.percent) range = [Math.max(-1, range[0]), Math.min(1, range[1])];
  const x = scale(...range, box.left + 6, box.right - 6, false);
  const places = rows.map((_, at) => 38 + 44 * at);
  for (const value of ticks(x.low, x.high, Math.max(2, width / 75))) {
    drawUpright(svg, "grid", x(value), places, box.bottom);
    svg.append(vector("text", { x: x(value), y: box.bottom + 18, "text-anchor": "middle" }, showGain(value)));
  }
  drawUpright(svg, "zero", x(0), places, box.bottom);
  svg.append(vector("text", { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, `mean gain in ${DATA.metric.unit}`));
  rows.forEach((row, at) => {
    const y = places[at];
    const decided = row.low !== null && (row.low > 0 || row.high < 0);
    const shade = !decided ? "var(--soft)" : row.mean > 0 ? "var(--good)" : "var(--bad)";
    svg.append(vector("text", { class: "title", x: box.left, y: y - 12 }, cut(row.label, Math.floor(width / 7.2))));
    if (row.low !== null) {
      const [a, b] = [x(Math.max(x.low, row.low)), x(Math.min(x.high, row.high))];
      svg.append(vector("line", { x1: a, x2: b, y1: y, y2: y, stroke: shade, "stroke-width": 3 }));
      for (const end of [a, b]) svg.append(vector("line", { x1: end, x2: end, y1: y - 5, y2: y + 5, stroke: shade, "stroke-width": 2 }));
    }
    svg.append(vector("circle", { cx: x(row.mean), cy: y, r: 5, fill: decided ? shade : "var(--page)", stroke: shade, "stroke-width": 2 }));
  });
  host.replaceChildren(svg);
}

function drawReliability() {
  const host = document.getElementById("plot-reliability");
  if (!host || !DATA.reliability.length) return;
  const side = Math.min(420, Math.max(280, host.clientWidth));
  const svg = vector("svg", { viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": "Accuracy against confidence; the table below has the numbers" });
  svg.style.maxWidth = `${side}px`;
  const box = { left: 52, right: side - 14, top: 26, bottom: side - 50 };
  const x = scale(0, 1, box.left, box.right, false), y = scale(0, 1, box.bottom, box.top, false);
  const percent = (value) => `${Math.round(100 * value)}%`;
  drawFrame(svg, box, x, y, { x: "confidence", y: "accuracy" }, { x: percent, y: percent });
  svg.append(vector("line", { class: "zero", x1: x(0), x2: x(1), y1: y(0), y2: y(1) }));
  DATA.reliability.forEach((each, at) => {
    const total = each.bins.reduce((sum, bin) => sum + bin.n, 0);
    const line = each.bins.map((bin, i) => `${i ? "L" : "M"}${x(bin.confidence)} ${y(bin.accuracy)}`).join("");
    svg.append(vector("path", { d: line, fill: "none", stroke: colour(at), "stroke-width": 1.5, "stroke-dasharray": DASHES[at % DASHES.length] }));
    for (const bin of each.bins)
      svg.append(vector("circle", { cx: x(bin.confidence), cy: y(bin.accuracy), r: 3 + 9 * Math.sqrt(bin.n / total), fill: colour(at), "fill-opacity": 0.55 }));
  });
  const lines = DATA.reliability.map((each, at) => ({ at, label: each.label, shared: false, seeds: 1 }));
  host.replaceChildren(svg, drawLegend(lines));
}

function drawDraws() {
  const host = document.getElementById("plot-draws");
  if (!host || !DATA.draws.length) return;
  const { svg, width } = startSvg(host, 300, "Effective draws and split R-hat of each client; the table below has the numbers");
  const box = { left: 52, right: width - 14, top: 26, bottom: 250 };
  const x = scale(...widen(extent(DATA.draws.flatMap((each) => each.effective)), 0.05), box.left, box.right, false);
  const y = scale(...widen(extent([1, 1.1, ...DATA.draws.flatMap((each) => each.rhat)]), 0.06), box.bottom, box.top, false);
  drawFrame(svg, box, x, y, { x: "effective draws", y: "split R-hat" }, { x: plain, y: plain });
  svg.append(vector("line", { class: "zero", x1: box.left, x2: box.right, y1: y(1.1), y2: y(1.1) }));
  DATA.draws.forEach((each, at) => each.effective.forEach((value, i) =>
    svg.append(vector("circle", { cx: x(value), cy: y(each.rhat[i]), r: 3.5, fill: colour(at), "fill-opacity": 0.5 }))));
  host.replaceChildren(svg, drawLegend(DATA.draws.map((each, at) => ({ at, label: each.label, shared: false, seeds: 1 }))));
}
