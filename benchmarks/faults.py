"""``python -m benchmarks.faults`` plants faults in the code, one at a time. A test must catch each of them.

``faults.toml`` holds the faults. Each has a sentence that says what is wrong, wherever the code is today. Then come the
file, the text to replace, the text in its place, and the tests that must fail. Where the text is no longer found, plant
the fault again by its sentence. A file with uncommitted changes is not touched.

A fault is caught when a test fails. It is not caught when a module cannot be imported, when a test does not exist, or
when a test does not end. Then the fault or the list of its tests must be mended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("faults.toml")
PATIENCE = 300
"""Tests that still run after so many seconds are ended."""
CAUGHT, SURVIVED = "caught", "SURVIVED"


@dataclass(frozen=True)
class Fault:
    """``old`` stands exactly once in ``file`` and becomes ``new``. Then one of ``tests`` must fail."""

    id: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / self.file

    def insert(self) -> str | None:
        """Make the file's text with the fault in it; None unless the text to replace stands there exactly once."""
        text = self.path.read_text() if self.path.exists() else ""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def read_table() -> list[Fault]:
    """Read all faults, in the order of the file."""
    rows = tomllib.loads(TABLE.read_text())["fault"]
    faults = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    if len({fault.id for fault in faults}) != len(faults):
        sys.exit("Two faults have one id.")
    return faults


def list_changes(files: Sequence[str]) -> str:
    """List the files that differ from the last commit, as git prints them."""
    command = ["git", "status", "--porcelain", "--", *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def run_tests(tests: Sequence[str], patience: float | None = PATIENCE) -> int | None:
    """Run tests and give what pytest returns, None where it did not end. Print its output unless tests ran."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    # Write no bytecode: that of a faulty text could pass for that of the real one, if length and second are the same.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=patience)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise
    if process.returncode not in (0, 1):
        sys.stderr.write(output.decode(errors="replace")[-2000:])
    return process.returncode


@contextmanager
def plant(path: Path, text: str) -> Iterator[None]:
    """Give a file another text for a while. Put back its bytes and its time at the end."""
    before, stamp = path.read_bytes(), path.stat()
    try:
        path.write_text(text)
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def judge(fault: Fault) -> str:
    """Plant a fault, run its tests, take it out again, and say what came of it."""
    text = fault.insert()
    if text is None:
        return "text not found"
    with plant(fault.path, text):
        code = run_tests(fault.tests)
    if code is None:
        return f"no end within {PATIENCE} s"
    return {0: SURVIVED, 1: CAUGHT}.get(code, f"tests could not be run (pytest: {code})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the faults that are asked for; 0 where all were caught."""
    parser = argparse.ArgumentParser(description="Plant faults one at a time and see whether tests catch them.")
    parser.add_argument("--only", metavar="ID,...", help="these faults alone")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a fault first")
    options = parser.parse_args(arguments)
    faults = read_table()
    if options.only:
        wanted = options.only.split(",")
        unknown = sorted(set(wanted) - {fault.id for fault in faults})
        if unknown:
            parser.error(f"unknown faults: {', '.join(unknown)}")
        faults = [fault for fault in faults if fault.id in wanted]
    if options.list:
        for fault in faults:
            print(f"{fault.id}: {fault.what}{'' if fault.insert() else ' (text not found)'}")
        return 0
    dirty = list_changes(sorted({fault.file for fault in faults}))
    if dirty:
        sys.exit(f"Commit or undo these changes first:\n{dirty}")
    for ending in (signal.SIGTERM, signal.SIGHUP):  # so that the files are put back
        signal.signal(ending, lambda *_: sys.exit("Ended."))
    start = time.monotonic()
    if not options.trust:
        code = run_tests(sorted({test for fault in faults for test in fault.tests}), patience=None)
        if code != 0:
            sys.exit(f"Tests fail without a fault (pytest: {code}).")
        print(f"No fault: tests pass ({time.monotonic() - start:.0f} s)", flush=True)
    verdicts = []
    for fault in faults:
        began = time.monotonic()
        verdicts.append(judge(fault))
        print(f"{fault.id}: {verdicts[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
        if verdicts[-1] != CAUGHT:
            print(f"    {fault.what}", flush=True)
    caught = verdicts.count(CAUGHT)
    print(f"{caught} of {len(faults)} caught ({time.monotonic() - start:.0f} s)")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
