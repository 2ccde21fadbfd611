"""A publisher on this machine: files by address, and the ways in which one fails."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moiety.data.catalogue import DATA_SETS, DataSet

PAGE = b"<!DOCTYPE html><html><body>This page has moved.</body></html>"


class Publisher:
    """``files`` by path; ``broken`` paths break off half-way that many times; ``asked`` counts requests."""

    def __init__(self, port: int):
        self.address = f"http://127.0.0.1:{port}"
        self.files: dict[str, bytes] = {}
        self.broken: dict[str, int] = {}
        self.asked: list[str] = []

    def publish(self, name: str, files: dict[str, bytes], **changes: object) -> DataSet:
        """Offer those files of a data set that have an address; its row, with their addresses and checksums."""
        originals = []
        for original in DATA_SETS[name].originals:
            content = files.get(original.name, b"")
            if original.check:
                original = dataclasses.replace(original, check=f"sha256:{hashlib.sha256(content).hexdigest()}")
            if original.addresses:
                path = f"/{name}/{original.name}"
                self.files[path] = content
                size = original.size and len(content)
                original = dataclasses.replace(original, addresses=(self.address + path,), size=size)
            originals.append(original)
        return dataclasses.replace(DATA_SETS[name], originals=tuple(originals), lengths={}, **changes)  # type: ignore[arg-type]


@contextmanager
def serve() -> Iterator[Publisher]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            publisher.asked.append(self.path)
            content = publisher.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if publisher.broken.get(self.path, 0):
                publisher.broken[self.path] -= 1
                content = content[: len(content) // 2]
                self.close_connection = True
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    publisher = Publisher(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield publisher
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
