"""What this machine has: memory, as the system and its control group allow it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from moiety.errors import must

MEMORY = Path("/proc/meminfo")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
LITTLE = 1e6


def free_memory() -> int | None:
    """The bytes that this process could still use, or None where the system does not say (it is not Linux).

    What the machine has available, or less where a control group (a container) allows less.
    """
    rooms = [room for room in (_read_machine_room(), *map(_group_room, _group_folders())) if room is not None]
    return min(rooms, default=None)


def check_room(name: str, size: float, hint: str = "") -> None:
    """Raise where ``size`` bytes are more than there is room for; a megabyte is always there."""
    if size <= LITTLE:  # to ask the system takes longer than to make so little
        return
    room = free_memory()
    fits = room is None or size <= room
    must(fits, name, f"such that it fits the free memory, {format_bytes(room or 0)}", f"{format_bytes(size)}", hint)


def format_bytes(size: float) -> str:
    """As people read it: "3.2 GB".

    >>> format_bytes(3_210_000_000), format_bytes(1500)
    ('3.2 GB', '1.5 kB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} B"


def _read_machine_room() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _group_folders() -> list[Path]:
    """The folders of this process's control group and of those above it, in both versions of the system."""
    folders = []
    with contextlib.suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if controllers not in ("", "memory"):
                continue
            place = (GROUPS / controllers) / group.lstrip("/")
            folders += [place, *place.parents]
    return [folder for folder in dict.fromkeys(folders) if folder.is_relative_to(GROUPS)]


def _group_room(folder: Path) -> int | None:
    """What a control group may still use; what the system could drop at once (cached files) counts as free."""
    names = ("memory.max", "memory.current", "inactive_file")
    if not (folder / names[0]).is_file():
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    with contextlib.suppress(OSError, ValueError):  # without a limit the file says "max"
        limit, usage = (int((folder / name).read_text()) for name in names[:2])
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - usage + int(stat.get(names[2], 0)))
    return None
