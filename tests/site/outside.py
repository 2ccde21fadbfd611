"""Programs that are started as a user starts them: outside the repository, and without its environment."""

import os
import subprocess
from pathlib import Path


def call(*words: str, cwd: Path, folder: Path | None = None) -> str:
    """What a program prints, started outside the repository; ``folder`` has programs that are found first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOIETY", "VIRTUAL"))}
    if folder:
        kept["PATH"] = f"{folder}{os.pathsep}{kept['PATH']}"
    ended = subprocess.run(words, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
    return ended.stdout
