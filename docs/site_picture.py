"""The picture of the site for the docs: `python docs/site_picture.py`, in .venv/docs after `make docs`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build" / "site" / "tutorials" / "hospital.html"
SIZE = (1280, 660)
sys.path.insert(0, str(ROOT / "tests" / "in_browser"))
from browser import open_browser  # noqa: E402

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        browser.size(*SIZE)
        halves = []
        for theme in ("light", "dark"):
            browser.prefer(theme)
            browser.open(PAGE)
            browser.picture(Path(name) / f"{theme}.png", whole=False)
            with Image.open(Path(name) / f"{theme}.png") as picture:
                halves.append(picture.convert("RGB"))
    left = Image.new("1", SIZE)
    ImageDraw.Draw(left).polygon([(0, 0), (0.6 * SIZE[0], 0), (0.4 * SIZE[0], SIZE[1]), (0, SIZE[1])], fill=1)
    light, dark = halves
    whole = Image.composite(light, dark, left).resize((1000, round(1000 * SIZE[1] / SIZE[0])), Image.Resampling.LANCZOS)
    whole.quantize(128).save(ROOT / "docs" / "pictures" / "site.png", optimize=True)
