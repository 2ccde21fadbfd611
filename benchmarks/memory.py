"""The memory of a process and of all below it. Pages that several of them share count once. Linux only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil


class Memory(NamedTuple):
    """In MB: all that is resident, and the part of it that only mirrors files (which the system can take back)."""

    resident: float
    mapped: float


def family(pid: int) -> Memory:
    """The memory of a process and its descendants; those that are gone by now count nothing."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.Error:
        return Memory(0.0, 0.0)
    found = [one for one in map(_of, members) if one]
    return Memory(sum(m.resident for m in found), sum(m.mapped for m in found))


def _of(process: psutil.Process) -> Memory | None:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    kilobytes = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines)}
    return Memory(kilobytes["Pss"] / 1024, kilobytes["Pss_File"] / 1024)
