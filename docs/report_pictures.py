"""Pictures of the report and of the live page for the docs: `python docs/report_pictures.py`, in .venv/browser."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import moiety as mo
from moiety.cli import main
from moiety.cli.live import make_server

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "tests" / "in_browser"))
from browser import Browser, open_browser  # noqa: E402

FILE = """
[data]
name = "digits"
clients = 20
partition = { name = "dirichlet", alpha = 0.1, balanced = false, min_examples = 10 }

[model]
name = "mlp"
hidden = [32]

[split]
name = "SPLIT"

[algorithm]
name = "METHOD"
shared = { name = "sgd", lr = 0.1, batch_size = 8 }
PERSONAL

[run]
rounds = 60
cohort = 10
engine = "vectorised"
"""
METHODS = {
    "fedavg": ("nothing", ""),
    "fedalt": ("output_layer", 'personal = { name = "sgd", lr = 0.1, batch_size = 8 }'),
}


def train(folder: Path) -> Path:
    """Two methods with five seeds each, and the report of both."""
    for name, (split, personal) in METHODS.items():
        file = folder / f"{name}.toml"
        file.write_text(FILE.replace("SPLIT", split).replace("METHOD", name).replace("PERSONAL", personal))
        assert main(["sweep", str(file), "--seeds", "5", "--out", str(folder / name)]) == 0
    page = folder / "report.html"
    assert main(["report", *(str(folder / name) for name in METHODS), "--out", str(page)]) == 0
    return page


def take(browser: Browser, path: Path, top: float, bottom: float, width: int = 1000, scale: int = 1) -> None:
    """A picture of a part of the page, given by its upper and lower edge."""
    metrics = {"width": width, "height": round(bottom) + 10, "deviceScaleFactor": scale, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.run("scrollTo(0, 0)")
    browser.picture(path, whole=False)
    from PIL import Image

    with Image.open(path) as picture:
        part = picture.crop((0, round(scale * top), scale * width, round(scale * bottom))).quantize(128)
    part.save(path, optimize=True)


def edge(browser: Browser, place: str, side: str) -> float:
    """Where a part of the page begins or ends."""
    return float(browser.run(f"return document.querySelector('{place}').getBoundingClientRect().{side} + scrollY"))


class Wait(mo.callbacks.Callback):
    """Holds a run after a round, while its picture is taken."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address

    def on_evaluate(self, run: mo.Run, row: mo.evaluation.Row) -> None:
        """Take the picture at round 42."""
        if row["round"] == 42:
            self.browser.open(self.address)
            take(self.browser, PICTURES / "report-live.png", 0, edge(self.browser, "#figure-curves", "bottom") + 12)


def follow(browser: Browser, folder: Path) -> None:
    """The live page of a run that has come to round 42 of 60."""
    server, _ = make_server(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fed = mo.data.load("digits", clients=20, partition=mo.data.dirichlet(0.1, balanced=False, min_examples=10))
    model = mo.models.mlp(64, 10, hidden=(32,), seed=0)
    work = mo.sgd(0.1, batch_size=8)
    mo.fit(
        model,
        fed,
        mo.fedalt(shared=work, personal=work),
        split=mo.split.output_layer(model),
        rounds=60,
        cohort=10,
        engine="vectorised",
        out=folder / "fedalt",
        callbacks=[Wait(browser, f"http://127.0.0.1:{server.server_port}/")],
        settings=mo.Settings(evaluate_every=2),
    )
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        page = train(Path(name))
        browser.prefer("light")
        browser.size(480, 900)  # in the README it is 340 wide
        browser.open(page)
        top, bottom = edge(browser, ".kicker", "top") - 12, edge(browser, ".cards", "bottom") + 12
        take(browser, PICTURES / "report-top.png", top, bottom, width=480, scale=2)
        browser.size(1000, 900)
        browser.open(page)
        take(browser, PICTURES / "report.png", 0, edge(browser, "#curves", "bottom"))
        browser.prefer("dark")
        browser.open(page)
        start = edge(browser, "#clients", "top") - 16
        take(
            browser,
            PICTURES / "report-clients.png",
            start,
            edge(browser, "#client-table tbody tr:nth-child(8)", "bottom"),
        )
        browser.prefer("light")
        follow(browser, Path(name) / "live")
