"""Federated data on disk: a folder of NumPy files that is read by memory mapping.

``columns/NAME.npy`` for each column, ``bounds.npy``, ``ids.npy`` where clients have names of their own, and
``meta.json``. No pickle: a folder from a stranger cannot run code.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from moiety.data.federated import Array, FederatedData, Numbered
from moiety.errors import MoietyError, message, must

_FORMAT = "moiety data 1"
FOLDER = "folder"
"""In the place of a data set's name: data that lies in the folder ``path``."""


def save(fed: FederatedData, folder: str | Path) -> None:
    """Write ``fed`` to a new folder: whole, or not at all."""
    target = Path(folder)
    must(not target.exists(), "folder", "a new one", target, "Remove it first or choose another name.")
    must(target.parent.is_dir(), "folder", "inside a folder that exists", target)
    meta = {
        "format": _FORMAT,
        "columns": list(fed.columns),
        "classes": fed.classes,
        "spec": {} if fed.spec.get("name") == FOLDER else fed.spec,  # it lies in another folder now
        "named": not isinstance(fed.ids, Numbered),
        "fingerprint": fed.fingerprint(),
    }
    # Written under another name beside the target, then renamed: a killed process leaves no half-written folder.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        whole = Path(temporary) / "whole"
        (whole / "columns").mkdir(parents=True)
        for name, column in fed.columns.items():
            np.save(whole / "columns" / f"{name}.npy", column, allow_pickle=False)
        np.save(whole / "bounds.npy", fed.bounds, allow_pickle=False)
        if meta["named"]:
            np.save(whole / "ids.npy", np.asarray(fed.ids, dtype=np.str_), allow_pickle=False)
        (whole / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        whole.rename(target)


def open_folder(folder: str | Path) -> FederatedData:
    """The data that ``FederatedData.save`` wrote, memory-mapped: rows are read from disk when they are used.

    A file can name it: ``[data]`` with ``name = "folder"`` and ``path``.
    """
    path = Path(folder)
    must(path.is_dir(), "folder", "a folder written by FederatedData.save", f"{path}, which is no folder")
    meta = _meta(path)
    bounds = np.asarray(_mapped(path, "bounds.npy"))
    fed = FederatedData(
        columns={str(name): _mapped(path, f"columns/{name}.npy") for name in meta["columns"]},
        bounds=bounds,
        ids=_mapped(path, "ids.npy") if meta["named"] else Numbered(len(bounds)),
        classes=meta["classes"],
        spec=meta["spec"] or {"name": FOLDER, "path": str(path)},
    )
    found = fed.fingerprint()
    hint = "A file was changed or replaced: save the data again."
    must(found == meta["fingerprint"], "folder", f"as it was saved ({meta['fingerprint']})", f"{found} in {path}", hint)
    return fed


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise _refused(path, "meta.json is missing or damaged") from None
    known = isinstance(meta, dict) and meta.get("format") == _FORMAT
    if not known or not {"columns", "named", "classes", "spec", "fingerprint"} <= set(meta):
        raise _refused(path, f"meta.json is not of format '{_FORMAT}'")
    return meta


def _mapped(path: Path, file: str) -> Array:
    try:
        array: Array = np.load(path / file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise _refused(path, f"{file} is missing, truncated or damaged") from None
    return array


def _refused(path: Path, reason: str) -> MoietyError:
    text = message("folder", "one that FederatedData.save wrote", f"{path}: {reason}", "Save the data again.")
    return MoietyError(text)
