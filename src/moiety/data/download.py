"""Downloads of the publisher's files: checked, bounded, tried again, whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

from moiety.data.catalogue import Original
from moiety.errors import refuse
from moiety.files import make_folder, open_stream

RETRIES = 3
"""How often a download is tried again; pooch waits a second longer each time."""
_CHUNK = 2**18
_TIMEOUT = 60
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
HINT = "Fetch the file yourself, and give its folder with --from."


class Bar(Protocol):
    """Shows how a download goes on."""

    total: float

    def update(self, amount: float) -> None:
        """Count so many bytes more."""

    def reset(self) -> None:
        """Count from 0 again."""

    def close(self) -> None:
        """The download has ended."""


def download(original: Original, folder: Path, bar: Bar | None = None) -> Path:
    """The publisher's file in ``folder``, fetched from the first of its addresses that gives it.

    A file that is there with the right checksum is not fetched again.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    make_folder(folder, private=False)
    problem = ""
    for address in original.addresses:
        registry = {original.name: original.check or None}
        store = pooch.create(
            path=folder, base_url="", registry=registry, urls={original.name: address}, retry_if_failed=RETRIES
        )
        try:
            return Path(store.fetch(original.name, downloader=_Downloader(original, bar)))
        except _NotTheFileError as error:
            problem = f"{error} from {address}"
        except requests.RequestException as error:
            problem = f"{type(error).__name__} from {address}"
        except OSError as error:
            reason = f"{error.strerror or error} at {folder}"
            refuse("data folder", "one that can be written", reason, "Make room, or set MOIETY_DATA to another.")
        except ValueError:  # pooch's word for another checksum
            problem = f"a file of another checksum than {original.check} from {address}"
    return refuse(original.name, "a file that can be fetched", problem, HINT)


class _NotTheFileError(Exception):
    """What came cannot be the file, and trying again would not help. (Pooch tries again after a ``ValueError``.)"""


class _Downloader:
    """Pooch's downloader, which writes through ``moiety.files`` and stops where a file cannot be the one asked for."""

    def __init__(self, original: Original, bar: Bar | None):
        self.original, self.bar = original, bar

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        from pooch import HTTPDownloader

        # As they are: a server that packs files on the way would change their checksum.
        options: dict[str, Any] = {"timeout": _TIMEOUT, "headers": {"Accept-Encoding": "identity"}}
        fetch = HTTPDownloader(progressbar=self.bar or False, chunk_size=_CHUNK, **options)
        with open_stream(Path(output_file), private=False) as stream:
            fetch(url, _LimitedStream(stream, self.original), pooch)
        with open(output_file, "rb") as file:
            start = file.read(64).lstrip().lower()
        if start.startswith(_PAGES):
            raise _NotTheFileError("a web page in its place")


class _LimitedStream:
    """A file that refuses more bytes than the original may have."""

    def __init__(self, stream: io.RawIOBase, original: Original):
        self.stream, self.left, self.original = stream, original.most, original

    def write(self, content: bytes) -> None:
        """Write what is not too much."""
        self.left -= len(content)
        if self.left < 0:
            raise _NotTheFileError(f"more than {self.original.most:,} bytes")
        self.stream.write(content)

    def flush(self) -> None:
        """Nothing is kept back."""
