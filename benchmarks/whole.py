"""``python -m benchmarks.whole``: whole runs from the start of the process to its end, and what happens before round 1.

moiety chooses its engine by itself. The bare loop runs beside it where that takes minutes and not hours.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import results, work
from benchmarks.run import run_turns
from benchmarks.variants import BASE, MOIETY, variants

RUNS = [(name, 100) for name in "abcdfgh"] + [("a", 10_000), ("d", 10_000)]
"""Works and rounds. One round of (e) visits all its clients: it is whole in the table of works."""
BESIDE = {("a", 100), ("b", 100), ("d", 100), ("a", 10_000)}
"""Where the bare loop runs too."""
FIRST = b"1/100"
"""What the bar of the command shows when its first round has ended."""


def commands(folder: Path) -> dict[str, list[str]]:
    """What a user waits for; the last one up to the end of its first round."""
    readme = (results.ROOT / "README.md").read_text()
    config = folder / "first.toml"
    config.write_text(readme.partition("```toml\n")[2].partition("```")[0])
    command = [sys.executable, "-m", "moiety"]
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "import moiety": [sys.executable, "-c", "import moiety"],
        "moiety --help": [*command, "--help"],
        "moiety run first.toml, to the end of round 1": [*command, "run", str(config), "--out", str(folder / "run")],
    }


def time_start(command: list[str]) -> float:
    """Seconds until a command ends, or its first round does."""
    leader, follower = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while FIRST not in seen:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the command has ended
            break
        seen += part
    seconds = time.perf_counter() - began
    process.kill()
    process.wait()
    os.close(leader)
    return seconds


def time_starts(turns: int) -> dict[str, list[float]]:
    """All commands in turn."""
    found: dict[str, list[float]] = {}
    for turn in range(turns):
        with TemporaryDirectory() as folder:
            for name, command in commands(Path(folder)).items():
                found.setdefault(name, []).append(time_start(command))
                print(f"turn {turn + 1}  {name:44} {found[name][-1]:.2f} s", flush=True)
    return found


def main() -> None:
    """Start-up, then whole runs; a run that was stopped goes on where it was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--start-up", action="store_true", help="only what happens before round 1, nothing written")
    options = parser.parse_args()
    starts = time_starts(max(5, options.turns))
    if options.start_up:
        return
    results.update("start_up", starts)
    for name, rounds in RUNS:
        wanted = (MOIETY, BASE) if (name, rounds) in BESIDE else (MOIETY,)
        rows = [v for v in variants([]) if v.name in wanted]
        work.make(name, rounds)
        runs = run_turns(name, rows, rounds, options.turns, kept_as=f"{name} x {rounds}")
        results.update("whole", {f"{name} x {rounds}": {"work": name, "rounds": rounds, "runs": runs}})


if __name__ == "__main__":
    main()
