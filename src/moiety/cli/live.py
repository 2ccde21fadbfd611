"""``moiety watch`` and ``moiety run --live``: a page on this machine that follows the folder of runs.

The server listens on 127.0.0.1 alone, answers two addresses, and refuses requests for any other host's name: a page
elsewhere that lets its name point here cannot read from it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from moiety.cli.output import say
from moiety.cli.results import read_current
from moiety.errors import MoietyError, must, whole
from moiety.reports.groups import Group, group_results
from moiety.reports.page import make_parts
from moiety.reports.page.document import escape, fill_template, round_numbers
from moiety.run.folder import HISTORY, LEDGER
from moiety.run.verify import list_runs
from moiety.seals import CONFIG

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
LAST_WAIT = 4.0
"""How long the end of a run waits, in seconds, for an open page to ask for the results."""


class Watch:
    """What the page of a folder shows now; read again only where a file has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.stamp, self.parts = "", ("", "", dict[str, Any]())
        self.poll_time, self.poll_stamp = 0.0, ""

    def refresh(self) -> tuple[str, tuple[str, str, dict[str, Any]]]:
        """The stamp of what is there now, and the parts of the page."""
        with self.lock:
            runs = [run for run in list_runs(self.folder) if (run / CONFIG).is_file()]
            stamp = _stamp(runs)
            if stamp != self.stamp or not self.parts[0]:
                self.parts = self._read(runs)
                self.stamp = stamp
            title, main, data = self.parts
            return self.stamp, (title, main, {**data, "stamp": self.stamp})

    def _read(self, runs: list[Path]) -> tuple[str, str, dict[str, Any]]:
        try:
            groups = _read_groups(runs)
            if not groups:
                return _wait(f"Nothing has begun in {self.folder} yet.")
            title, main, data = make_parts(groups, live=True)
        except (MoietyError, OSError) as error:  # a file is being replaced, or runs cannot be shown on one page
            return _wait(str(error))
        ended = all(result.clients for group in groups for result in group.results.values())
        return title, main, {**data, "ended": ended}


def _wait(text: str) -> tuple[str, str, dict[str, Any]]:
    empty: dict[str, Any] = {
        "curves": {"groups": [], "measures": [], "across": []},
        "clients": {"names": [], "n": [], "n_test": []},
    }
    lists: dict[str, Any] = {
        name: [] for name in ("views", "helped", "spread", "pairs", "reliability", "draws", "verdicts")
    }
    metric = {"name": "", "percent": False, "higher": True, "unit": ""}
    return "moiety", f'<header class="top"><h1>{escape(text)}</h1></header>', {"metric": metric, **empty, **lists}


def _stamp(runs: list[Path]) -> str:
    """What changes when a file of the runs does."""
    marks = []
    for run in runs:
        for name in (CONFIG, HISTORY, LEDGER):
            with contextlib.suppress(OSError):
                at = (run / name).stat()
                marks.append(f"{at.st_mtime_ns:x}.{at.st_size:x}")
    return f"{len(runs)}-{abs(hash(tuple(marks))):x}"


def _read_groups(runs: list[Path]) -> list[Group]:
    labels = [run.resolve().name for run in runs]
    unique = len(set(labels)) == len(labels)
    results = [read_current(run, label if unique else str(run)) for run, label in zip(runs, labels, strict=True)]
    return group_results(runs, results)


def make_server(folder: Path, port: int = 0) -> tuple[ThreadingHTTPServer, Watch]:
    """A server for the page of a folder, not yet serving."""
    whole("port", port, 0, 65_535)
    watch = Watch(folder)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "moiety", ""

        def do_GET(self) -> None:
            names = {f"{name}:{self.server.server_port}" for name in NAMES}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in names:
                self._answer(403, b"This server answers to its own name alone.\n", "text/plain")
                return
            address = urlsplit(self.path)
            if address.path == "/":
                stamp, (title, main, data) = watch.refresh()
                page = fill_template(title, main, data, live=True).encode("utf-8", "replace")
                self._answer(200, page, "text/html; charset=utf-8")
            elif address.path == "/state":
                stamp, (title, main, data) = watch.refresh()
                watch.poll_time, watch.poll_stamp = time.monotonic(), stamp
                if parse_qs(address.query).get("since") == [stamp]:
                    self._answer(204, b"", "text/plain")
                    return
                news = {"stamp": stamp, "title": title, "main": main, "data": round_numbers(data)}
                content = json.dumps(news, allow_nan=False).encode("utf-8", "replace")
                self._answer(200, content, "application/json")
            else:
                self._answer(404, b"There is nothing here.\n", "text/plain")

        def _answer(self, code: int, content: bytes, kind: str) -> None:
            self.send_response(code)
            headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
            headers |= {
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "X-Frame-Options": "DENY",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the page was closed meanwhile
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing: the terminal shows the run."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        must(False, "port", "a free one", f"{port} ({error.strerror})", "Leave it out to take any.")
        raise
    server.daemon_threads = True
    return server, watch


def watch_folder(folder: Path, port: int = 0) -> None:
    """Serve the page of a folder until it is interrupted."""
    must(folder.is_dir(), "folder", "a folder with runs", folder)
    server, _ = make_server(folder, port)
    with server:
        say(f"watch {folder} at http://{HOST}:{server.server_port}/ (end with Ctrl-C)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


@contextlib.contextmanager
def show_live(folder: Path) -> Iterator[None]:
    """Serve the page of a folder meanwhile. At the end an open page gets the time to ask for the results."""
    server, watch = make_server(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    say(f"live at http://{HOST}:{server.server_port}/")
    try:
        yield
        until = time.monotonic() + LAST_WAIT
        while time.monotonic() < until and time.monotonic() - watch.poll_time < LAST_WAIT:
            if watch.poll_stamp == watch.refresh()[0]:
                break
            time.sleep(0.1)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
