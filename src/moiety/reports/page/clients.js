// The table of clients: sorted, searched, filtered, a page at a time; what is selected is ringed among the points.
const TABLE = { sort: "gain", down: false, search: "", verdict: "all", page: 0, only: false };
const ROWS = 20;
const NAMES = new Intl.Collator("en", { numeric: true });

function clientColumns() {
  const view = DATA.views[POINTS.view], { names, n, n_test } = DATA.clients;
  const columns = [
    { key: "name", head: "client", value: (i) => names[i], show: (i) => names[i] },
    { key: "n", head: "training rows", value: (i) => n[i], show: (i) => n[i].toLocaleString("en") },
    { key: "n_test", head: "test rows", value: (i) => n_test[i], show: (i) => n_test[i].toLocaleString("en"), wide: true },
    { key: "new", head: view.names[0], value: (i) => view.new[i], show: (i) => showMetric(view.new[i]), wide: true },
    { key: "old", head: view.names[1], value: (i) => view.old[i], show: (i) => showMetric(view.old[i]), wide: true },
    { key: "gain", head: "gain", value: (i) => view.gain[i], show: (i) => showGain(view.gain[i]) },
  ];
  if (view.low) columns.push({ key: "low", head: "95% interval", value: (i) => view.low[i], wide: true,
    show: (i) => (view.gain[i] === null || view.low[i] === null ? "-" : `${showGain(view.low[i])} to ${showGain(view.high[i])}`) });
  columns.push({ key: "verdict", head: "beyond noise?", value: (i) => view.verdict[i], show: (i) => splitVerdict(verdictOf(view, i)), text: true });
  return columns;
}

// "helped beyond noise" under "beyond noise?": a phone shows the first word.
function splitVerdict(words) {
  const [first, ...rest] = words.split(/(?= beyond noise$)/);
  return [first, ...rest.map((part) => make("span", { class: "wide" }, part))];
}

function listClients(columns) {
  const wanted = TABLE.search.trim().toLowerCase(), view = DATA.views[POINTS.view];
  const rows = [];
  DATA.clients.names.forEach((name, i) => {
    if (wanted && !name.toLowerCase().includes(wanted)) return;
    if (TABLE.verdict !== "all" && (view.gain[i] === null || view.verdict[i] !== Number(TABLE.verdict))) return;
    if (TABLE.only && !POINTS.chosen.has(i)) return;
    rows.push(i);
  });
  const column = columns.find((each) => each.key === TABLE.sort) || columns[0];
  const sign = TABLE.down ? -1 : 1;
  const compare = column.key === "name"
    ? (a, b) => sign * NAMES.compare(column.value(a), column.value(b))
    : (a, b) => sign * (column.value(a) - column.value(b));
  const known = rows.filter((i) => column.value(i) !== null), rest = rows.filter((i) => column.value(i) === null);
  return [...known.sort((a, b) => compare(a, b) || a - b), ...rest];
}

// The controls stay where they are while rows change, so that the search keeps its focus.
function startTable() {
  const host = document.getElementById("client-table");
  if (!host || !DATA.views.length) return;
  const again = () => { TABLE.page = 0; fillTable(); };
  const search = make("input", { type: "search", id: "client-search", placeholder: "name of a client", oninput: () => { TABLE.search = search.value; again(); } });
  const kinds = [{ key: "all", label: "all clients" }, ...DATA.verdicts.map((word, at) => ({ key: String(at), label: at === 0 || at === 2 ? `${word} beyond noise` : word }))];
  const filter = pick("show", kinds, TABLE.verdict, (value) => { TABLE.verdict = value; again(); });
  const only = make("button", { type: "button", id: "only-chosen", "aria-pressed": "false", onclick: () => { TABLE.only = !TABLE.only; only.setAttribute("aria-pressed", TABLE.only); again(); } }, "Selected only");
  const clear = make("button", { type: "button", id: "clear-chosen", onclick: clearChosen }, "Clear selection");
  const all = make("button", { type: "button", id: "all-columns", class: "narrow", "aria-pressed": "false", onclick: () => all.setAttribute("aria-pressed", host.classList.toggle("all")) }, "All columns");
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of clients" }, make("table", { "aria-label": "Clients" }));
  host.replaceChildren(
    make("div", { class: "controls" }, make("label", {}, "search", search), filter, only, clear, all),
    scroll, make("div", { class: "pages" }));
  fillTable();
}

function fillTable() {
  const host = document.getElementById("client-table");
  if (!host || !host.querySelector("table")) return;
  const columns = clientColumns(), rows = listClients(columns);
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  TABLE.page = Math.max(0, Math.min(pages - 1, TABLE.page));
  const shown = rows.slice(TABLE.page * ROWS, (TABLE.page + 1) * ROWS);
  const heads = columns.map((column, at) => {
    const sorted = column.key === TABLE.sort ? (TABLE.down ? "descending" : "ascending") : "none";
    const kind = `${at && !column.text ? "number" : ""}${column.wide ? " wide" : ""}`;
    const button = make("button", { type: "button", "data-key": column.key, onclick: () => sortBy(column.key) }, cut(column.head, 32).replace(/[.=]/g, "$&\u200b"));
    return make("th", { scope: "col", class: kind, "aria-sort": sorted }, button);
  });
  const body = shown.map((i) => clientRow(i, columns));
  const corner = make("th", { scope: "col" }, make("span", { class: "unseen" }, "selected"));
  host.querySelector("table").replaceChildren(make("thead", {}, make("tr", {}, corner, ...heads)), make("tbody", {}, ...body));
  const turn = (by) => () => { TABLE.page += by; fillTable(); };
  host.querySelector(".pages").replaceChildren(
    make("button", { type: "button", disabled: TABLE.page === 0, onclick: turn(-1) }, "Previous"),
    make("span", { role: "status", id: "client-count" }, `${rows.length.toLocaleString("en")} clients, page ${TABLE.page + 1} of ${pages}; ${POINTS.chosen.size} selected`),
    make("button", { type: "button", disabled: TABLE.page >= pages - 1, onclick: turn(1) }, "Next"));
}

function clientRow(i, columns) {
  const view = DATA.views[POINTS.view], chosen = POINTS.chosen.has(i);
  const box = make("input", { type: "checkbox", "aria-label": `select client ${DATA.clients.names[i]}`, "data-client": i, onchange: () => toggleClient(i) });
  box.checked = chosen;
  const cells = columns.map((column, at) => {
    const tone = column.key === "gain" && view.gain[i] !== null && view.gain[i] !== 0 ? (view.gain[i] > 0 ? " good" : " bad") : "";
    const kind = `${at && !column.text ? "number" : ""}${column.wide ? " wide" : ""}${tone}`;
    return make(at ? "td" : "th", { class: kind, scope: at ? null : "row" }, ...[column.show(i)].flat());
  });
  return make("tr", { "aria-selected": String(chosen), onclick: (event) => { if (event.target !== box) toggleClient(i); } }, make("td", {}, box), ...cells);
}

function sortBy(key) {
  TABLE.down = TABLE.sort === key ? !TABLE.down : false;
  TABLE.sort = key;
  TABLE.page = 0;
  fillTable();
  document.querySelector(`#client-table [data-key="${key}"]`).focus();
}

function toggleClient(i) {
  if (POINTS.chosen.has(i)) POINTS.chosen.delete(i); else POINTS.chosen.add(i);
  const box = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.client : null;
  ringChosen();
  fillTable();
  announce(`${POINTS.chosen.has(i) ? "selected" : "no longer selected"}: client ${DATA.clients.names[i]}`);
  if (box) { const again = document.querySelector(`#client-table [data-client="${box}"]`); if (again) again.focus(); }
}

function clearChosen() {
  POINTS.chosen.clear();
  TABLE.only = false;
  const only = document.getElementById("only-chosen");
  if (only) only.setAttribute("aria-pressed", "false");
  ringChosen();
  fillTable();
}
