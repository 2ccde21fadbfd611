"""An environment for each peer, built once under ``.envs``: torch first and pinned, then the peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = Path(__file__).parent / ".envs"
PEERS = {"pfl": "pfl[pytorch]==0.6.0", "fluke": "fluke-fl==0.8.1", "flower": "flwr[simulation]==1.42.0"}
LEFT_OUT = {"certifi"}
"""flwr 1.42.0 asks for a newer certifi than there is, and works with the newest."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is built where it is missing."""
    folder, wanted = ENVIRONMENTS / peer, PEERS[peer]
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"building the environment of {wanted} ...", flush=True)
    _run(sys.executable, "-m", "venv", "--clear", folder)
    _pip(python, "--constraint", ROOT / "constraints.txt", "torch", "numpy")
    # From here on only torch is held: a peer may need other versions of the rest.
    held = folder / "torch.txt"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    held.write_text("\n".join(line for line in pins if line.startswith("torch==")))
    if peer == "flower":
        _pip(python, "--no-deps", wanted)
        _pip(python, "--constraint", held, *LEFT_OUT, *_requirements(python, wanted))
    else:
        _pip(python, "--constraint", held, wanted)
    stamp.write_text(wanted)
    return python


def _requirements(python: Path, wanted: str) -> list[str]:
    """What an installed package asks for in this environment, but for what is left out."""
    asked = Requirement(wanted)
    code = f"import importlib.metadata as m, json; print(json.dumps(m.requires({asked.name!r})))"
    lines = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    found = [Requirement(line) for line in lines]
    extras = [{"extra": extra} for extra in ("", *asked.extras)]
    kept = [r for r in found if r.name not in LEFT_OUT and (not r.marker or any(map(r.marker.evaluate, extras)))]
    return [f"{r.name}{'[' + ','.join(r.extras) + ']' if r.extras else ''}{r.specifier}" for r in kept]


def _pip(python: Path, *arguments: str | Path) -> None:
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
