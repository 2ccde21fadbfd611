"""Programs that are started as a user starts them: outside the repository, and without its environment."""

import os
import subprocess
from pathlib import Path


def call(*words: str, cwd: Path, folder: Path | None = None) -> str:
    """What a program prints, started outside the repository; ``folder`` has programs that are found first."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOIETY", "VIRTUAL"))
    }
    if folder:
        environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    process = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, (words, process.stdout, process.stderr)
    return process.stdout
