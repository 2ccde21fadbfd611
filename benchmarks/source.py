"""What tells measured code, and the machine it ran on, from any other."""

from __future__ import annotations

import hashlib
from functools import cache

from benchmarks import results
from benchmarks.environments import PEERS

UNUSED = ("analysis", "cli", "deploy", "experiments", "reports")
"""Packages of moiety that no round uses: what was measured stays right where these change."""
START_UP = "start-up"
"""The part that starts the command line, and so uses them all."""
BESIDE = ("benchmarks/work.py", "benchmarks/variants.py")


@cache
def source(kept_as: str) -> str:
    """A sum over the files that a part of the bench runs, as they lie here, the versions of others, and the machine.

    The same files in another checkout have the same sum, and so have those of a commit and its working tree.
    """
    root = results.ROOT
    package = root / "src" / "moiety"
    files = [
        *package.rglob("*.py"),
        *(root / "benchmarks" / "runners").rglob("*.py"),
        *(root / name for name in BESIDE),
    ]
    if kept_as != START_UP:
        files = [file for file in files if not any((package / name) in file.parents for name in UNUSED)]
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    total.update(repr((results.stamp()["machine"], sorted(PEERS.values()))).encode())
    return total.hexdigest()[:16]
