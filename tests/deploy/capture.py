"""Looking for numbers in what crossed a wire: every window of eight bytes, at every offset."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WIDTH, DISTINCT = 8, 6


def windows(content: Iterable[bytes]) -> np.ndarray:
    """All windows of eight bytes, at every offset, that have at least six distinct values; as sorted whole numbers.

    Windows of fewer values (zeros, say) occur everywhere by chance.
    """
    pieces = []
    for each in content:
        if len(each) >= WIDTH:
            rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(each, np.uint8), WIDTH)
            values = np.sort(rows, axis=1)
            rows = rows[(np.diff(values, axis=1) != 0).sum(1) + 1 >= DISTINCT]
            pieces.append(np.ascontiguousarray(rows).view("<u8").ravel())
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, "<u8")


def count_found(patterns: np.ndarray, streams: Iterable[bytes | bytearray]) -> int:
    """How many of the windows occur in the streams, at any offset."""
    hits = np.zeros(len(patterns), dtype=bool)
    for stream in streams:
        for offset in range(WIDTH):
            size = (len(stream) - offset) // WIDTH * WIDTH
            if size > 0:
                values = np.frombuffer(bytes(stream[offset : offset + size]), "<u8")
                hits |= np.isin(patterns, values)
    return int(hits.sum())


def joined_bodies(stream: bytes) -> bytes:
    """What a stream of HTTP carries, with the marks of chunked bodies taken out, so that a message is in one piece."""
    out = bytearray()
    at = 0
    while at < len(stream):
        end = stream.find(b"\r\n\r\n", at)
        if end < 0:
            break
        head, at = stream[at:end].lower(), end + 4
        if b"transfer-encoding: chunked" in head:
            while True:
                line = stream.find(b"\r\n", at)
                if line < 0:
                    return bytes(out)
                size = int(stream[at:line].split(b";")[0] or b"0", 16)
                out += stream[line + 2 : line + 2 + size]
                at = line + 2 + size + 2
                if size == 0:
                    break
        else:
            sizes = [each.split(b":")[1] for each in head.split(b"\r\n") if each.startswith(b"content-length:")]
            size = int(sizes[0]) if sizes else 0
            out += stream[at : at + size]
            at += size
    return bytes(out)
