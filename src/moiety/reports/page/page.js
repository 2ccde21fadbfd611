// The page as a whole: colours, sizes, printing, and, while runs go on, news of them.
const THEMES = ["auto", "light", "dark"];
const WORDS = { auto: "as the system has them", light: "light", dark: "dark" };

function drawAll() {
  for (const draw of [drawPairs, drawCurves, drawHelped, drawPoints, drawSpread, drawReliability, drawDraws]) draw();
}

function setTheme(name) {
  const root = document.documentElement, button = document.getElementById("theme");
  if (name === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = name;
  button.textContent = name[0].toUpperCase() + name.slice(1);
  button.setAttribute("aria-label", `Colours: ${WORDS[name]}`);
  button.dataset.now = name;
  try { localStorage.setItem("moiety-theme", name); } catch (error) { /* pages from disk may not store anything */ }
  drawPoints();
}

function storedTheme() {
  try { const name = localStorage.getItem("moiety-theme"); return THEMES.includes(name) ? name : "auto"; } catch (error) { return "auto"; }
}

function start() {
  // Clients that all have as many rows would stand in one column.
  const different = new Set(DATA.clients.n).size;
  POINTS.across = DATA.views.length && different < 2 ? "rank" : POINTS.across;
  drawAll();
  startTable();
}

document.getElementById("theme").addEventListener("click", (event) => {
  setTheme(THEMES[(THEMES.indexOf(event.target.dataset.now) + 1) % THEMES.length]);
});
let width = innerWidth, waiting = 0;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar comes and goes
  width = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 80);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPoints);
// Paper is light, and nobody can unfold what is folded on it.
let before = null, folded = [];
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme || null;
  document.documentElement.dataset.theme = "light";
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
  drawAll();
});
addEventListener("afterprint", () => {
  if (before) document.documentElement.dataset.theme = before; else document.documentElement.removeAttribute("data-theme");
  for (const each of folded) each.open = false;
  drawAll();
});

// News of runs under way: the page asks its own server, and shows what has changed.
async function follow() {
  const status = document.getElementById("status");
  let stamp = DATA.stamp || "", wait = 1500;
  for (;;) {
    try {
      const answer = await fetch(`state?since=${encodeURIComponent(stamp)}`, { cache: "no-store" });
      if (answer.status === 200) {
        const news = await answer.json();
        stamp = news.stamp;
        DATA = news.data;
        document.title = news.title;
        document.getElementById("main").innerHTML = news.main;
        start();
        announce(document.querySelector("h1").textContent);
      }
      status.textContent = DATA.ended ? "Ended." : "Live: follows the run.";
      wait = DATA.ended ? 5000 : 1500;
    } catch (error) {
      status.textContent = "Not connected: what the page shows is the last that was known.";
      wait = 5000;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

setTheme(storedTheme());
start();
if (document.documentElement.dataset.live === "live") follow();
