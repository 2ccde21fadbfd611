"""``python -m benchmarks.start_up``: what a user waits for before the first round, as a terminal shows it.

CPU seconds are those of the command and all that it started. They say more than the clock where others use the machine.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import results
from benchmarks.bounds import FIRST_ROUND
from benchmarks.source import START_UP
from benchmarks.turns import Turn, keep_turns
from benchmarks.variants import EARLIER, unpack

FIRST = re.compile(rb"(?<!\d)[1-9]\d*/100")
"""What the bar of the command shows when its first round has ended; it may pass over some rounds."""


def commands(folder: Path) -> dict[str, list[str]]:
    """What a user waits for; the last one up to the end of its first round."""
    page = (results.ROOT / "docs" / "command.md").read_text()
    config = folder / "first.toml"
    config.write_text(page.partition("```toml\n")[2].partition("```")[0])
    command = [sys.executable, "-m", "moiety"]
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "import moiety": [sys.executable, "-c", "import moiety"],
        "moiety --help": [*command, "--help"],
        FIRST_ROUND: [*command, "run", str(config), "--out", str(folder / "run")],
    }


def commands_before(now: dict[str, list[str]]) -> dict[str, list[str]]:
    """The commands that an earlier commit is asked for, too: what became slower shows."""
    return {f"{name}, commit {EARLIER}": now[name] for name in ("import moiety", "moiety --help")}


def time_start(command: list[str], environ: dict[str, str], *, trains: bool) -> dict[str, float]:
    """Seconds until a command ends, or its first round does if it ``trains``, by the clock and of the processor."""
    leader, follower = pty.openpty()
    began, used = time.perf_counter(), _cpu_of_children()
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | environ  # users' Python keeps what it compiled
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environ)
    os.close(follower)
    seen = b""
    while not (trains and FIRST.search(seen)):
        try:
            part = os.read(leader, 4096)
        except OSError:  # the command has ended
            if trains:
                raise SystemExit(f"no round was seen: {seen.decode(errors='replace')}") from None
            break
        seen += part
    seconds = time.perf_counter() - began
    process.kill()
    process.wait()
    os.close(leader)
    return {"whole": seconds, "cpu": _cpu_of_children() - used}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_turn(turn: int) -> Turn:
    """All commands, one after the other."""
    found = {}
    with TemporaryDirectory() as folder:
        now = commands(Path(folder))
        before = {"PYTHONPATH": str(unpack(EARLIER) / "src")}
        here = {"PYTHONPATH": str(results.ROOT / "src")}
        for name, command in (commands_before(now) | now).items():
            found[name] = one = time_start(command, here if name in now else before, trains=name == FIRST_ROUND)
            print(f"turn {turn + 1}  {name:44} {one['whole']:.2f} s, {one['cpu']:.2f} s of CPU", flush=True)
    return found


def main() -> None:
    """All commands in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="nothing kept or written: a look")
    options = parser.parse_args()
    turns = keep_turns(None if options.quick else START_UP, {}, options.turns, run_turn)
    if not options.quick:
        found = {name: [turn[name] for turn in turns] for name in turns[0]}
        results.update("start_up", found, sum(one["whole"] for runs in found.values() for one in runs) / 60)


if __name__ == "__main__":
    main()
