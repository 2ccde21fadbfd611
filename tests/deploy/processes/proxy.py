"""A proxy between nodes and server that writes down every byte, and can cut the line."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Listens at a port of its own and passes everything on to ``target``, another port of this machine.

    ``sent`` and ``received`` hold what went to the target and came from it, a piece for each connection. ``cut`` closes
    all lines and lets nobody through until ``mend``.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.sent: list[bytearray] = []
        self.received: list[bytearray] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.port = 0
        self.mend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Close every line; from now on whoever calls is refused."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            lines, self._open = list(self._open), set()
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def mend(self) -> None:
        """Let lines through, at the same port as before."""
        if self._listener is not None:
            return
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            up, down = bytearray(), bytearray()
            with self._lock:
                self._open |= {near, far}
                self.sent.append(up)
                self.received.append(down)
            for source, sink, record in ((near, far, up), (far, near, down)):
                threading.Thread(target=self._pass_on, args=(source, sink, record), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        try:
            while piece := source.recv(1 << 16):
                record += piece
                sink.sendall(piece)
        except OSError:
            pass
        for line in (source, sink):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
