"""The choices of a run's clients in its folder: a sealed table, and the one model beside it where one was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from moiety.errors import MoietyError, must
from moiety.evaluation.safeguard import Choice, Population
from moiety.files import remove_file, report_unreadable, write_file
from moiety.run.checkpoint import read_tensors
from moiety.run.folder import ONE_MODELS, SAFEGUARD
from moiety.run.safeguard import Safeguard
from moiety.seals import digest, read_sealed, write_sealed


def write_safeguard(folder: Path, run: str, guard: Safeguard) -> None:
    """Keep the choices in the folder of their run. Until they are whole, earlier ones stay, with their one model."""
    values = b"" if guard.one_model is None else save({k: v.contiguous() for k, v in guard.one_model.items()})
    name = ""
    if values:
        name = next(each for each in ONE_MODELS if each != _find_one_model(folder))
        write_file(folder / name, values)
    table = {
        "round": guard.round,
        "alpha": guard.alpha,
        "mix": guard.mix,
        "population": None if guard.population is None else guard.population.as_dict(),
        "choices": {client: list(each) for client, each in guard.choices.items()},
        "one_model": digest(values) if values else "",
        "file": name,
    }
    write_sealed(folder / SAFEGUARD, table, run)
    for other in ONE_MODELS:
        if other != name:
            remove_file(folder / other)


def _find_one_model(folder: Path) -> str:
    """The file of the one model that earlier choices were made with; empty where there is none."""
    try:
        return _name_file(read_sealed(folder / SAFEGUARD))
    except (MoietyError, OSError):
        return ""


def _name_file(table: Mapping[str, Any]) -> str:
    """The file of the one model, as the table of choices names it."""
    name = table.get("file") or ONE_MODELS[0]
    must(name in ONE_MODELS, SAFEGUARD, f"one that names {' or '.join(ONE_MODELS)}", f"{name!r:.60}")
    return str(name)


def read_safeguard(folder: Path, run: str, loss: str | None) -> Safeguard | None:
    """The choices that the folder of a run holds; None where there are none."""
    if not (folder / SAFEGUARD).exists():
        return None
    keys = ("round", "alpha", "mix", "population", "choices", "one_model")
    table = read_sealed(folder / SAFEGUARD, run, keys)
    with report_unreadable(folder / SAFEGUARD):
        population = table["population"] and Population.from_dict(table["population"])
        choices = {str(name): Choice(*each) for name, each in table["choices"].items()}
        model = read_tensors(folder / _name_file(table), table["one_model"]) if table["one_model"] else None
        return Safeguard(
            int(table["round"]), float(table["alpha"]), table["mix"], loss, population or None, choices, model
        )
