"""A headless Chromium for tests: console and requests are recorded, colours and sizes are set."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser that is closed at the end."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What tests ask of it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str | Path) -> None:
        """Open a file or an address, and forget what was recorded before."""
        self.driver.get("about:blank")
        self.messages()
        self.requests()
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)

    def messages(self) -> list[str]:
        """What the console has said since the last question."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last question."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def size(self, width: int, height: int) -> None:
        """Show the page as a screen of this size would."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, theme: str, media: str = "") -> None:
        """Let the system prefer light or dark colours; ``media`` may be ``print``."""
        preferences = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script, and give what it returns."""
        return self.driver.execute_script(script, *arguments)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a screenshot, of the whole page or of what the screen shows."""
        answer = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": whole, "format": "png"}
        )
        path.write_bytes(base64.b64decode(answer["data"]))
