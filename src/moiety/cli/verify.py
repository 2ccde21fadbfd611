"""``moiety verify``: what is wrong with the files of a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from moiety.cli.output import say
from moiety.run.verify import holds_data, list_runs, verify


def verify_folder(folder: Path, *, data: bool) -> bool:
    """Print a line for each file that is not as it was written, or one that says all is well; whether it is."""
    problems = verify(folder, data=data)
    for problem in problems:
        print(f"moiety: {problem}", file=sys.stderr)
    if not problems:
        count = len(list_runs(folder))
        what = "data" if holds_data(folder) else f"{count} {'run' if count == 1 else 'runs'}{' with data' * data}"
        say(f"{folder}: every file is as it was written ({what})")
    return not problems
