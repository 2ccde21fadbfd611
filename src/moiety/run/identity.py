"""What makes a run this one and no other: compared before a resume touches anything."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moiety.clients.clock import trace_digests
from moiety.data import FederatedData
from moiety.data.digest import explain_difference
from moiety.engines.problem import Problem
from moiety.errors import must, refuse
from moiety.run.probe import NAMES, find_difference, probe
from moiety.run.settings import MAY_DIFFER, Options, option_tables
from moiety.types import Algorithm

MAY_CHANGE = (*MAY_DIFFER, "rounds", "engine", "device", "start", "seed", "clock", "loss", "metric")
"""Options that may change, or that the identity has elsewhere: the probe has the values of loss and metric."""
OF_TRAINING = ("settings", "metric", "clock", "traces")
"""What need not be the same where a run is only read."""
HINT = "Give what the run began with, or begin another run."


def run_identity(problem: Problem, algorithm: Algorithm, options: Options) -> dict[str, Any]:
    """What must be the same for a run to be continued, as JSON holds it; the options are complete.

    The probe and the environment are apart: these are not compared for equality.
    """
    task, split, clock = problem.task, problem.split, options.settings.clock
    kinds = {name: f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}" for name, p in task.init.items()}
    tables = option_tables(options)
    tables |= tables.pop("run")
    identity = {
        "algorithm": algorithm.spec or {"name": algorithm.name},
        "shared": list(split.shared),
        "personal": list(split.personal),
        "frozen": list(split.frozen),
        "model": {name: kind + ", buffer" * (name in task.buffers) for name, kind in kinds.items()},
        "metric": "; ".join(
            f"{metric.name}, {'higher' if metric.higher_is_better else 'lower'} is better"
            for metric in dict.fromkeys([task.deciding, task.metric, *task.sets])
        ),
        "settings": {key: value for key, value in tables.items() if key not in MAY_CHANGE},
        "seed": problem.seed,
        "data": problem.data.digest(),
    }
    if clock is not None:  # a file of times may have changed though its name has not
        identity |= {"clock": clock.spec, "traces": trace_digests(clock)}
    normal: dict[str, Any] = json.loads(json.dumps(identity))
    return normal


def new_identity(problem: Problem, algorithm: Algorithm, options: Options) -> dict[str, Any]:
    """All that a run's folder says about what the run is, as it begins."""
    identity = run_identity(problem, algorithm, options)
    return {**identity, "probe": probe(problem), "environment": environment(options.settings.device)}


def check_identity(
    stored: Mapping[str, Any],
    identity: Mapping[str, Any],
    path: Path,
    data: FederatedData | None = None,
    *,
    ignored: tuple[str, ...] = (),
) -> None:
    """Raise unless what is stored in ``path`` belongs to the problem at hand; what differs is named."""
    for key in sorted({*stored, *identity} - {*ignored}):
        was: Any = stored.get(key)
        now: Any = identity.get(key)
        if was == now:
            continue
        if key == "data" and data is not None and _is_digest(was):
            odd = explain_difference(was, now, data.bounds, data.ids)
            refuse("data", f"as the run in {path} began", odd or "other data", HINT)
        place, was, now = _find_place(key, was, now)
        place = place.removeprefix("settings.")
        refuse(place, f"{_show(was)}, as the run in {path} began", _show(now), HINT)


def check_probe(identity: Mapping[str, Any], problem: Problem, path: Path, *, only_model: bool = False) -> None:
    """Raise unless model, loss and metric give what they gave on the probe when the run in ``path`` began."""
    was = identity.get("probe")
    must(isinstance(was, dict), "identity.json", "as it was written", f"no probe in {path}")
    odd = find_difference(was, probe(problem))  # type: ignore[arg-type]
    if odd is not None and not (only_model and odd != "output"):
        fault = f"one with another {odd} for the same rows and parameters"
        refuse(NAMES[odd], f"the one that the run in {path} began with", fault, HINT)


@cache
def _read_version() -> str:
    return version("moiety")


def environment(device: str) -> dict[str, str]:
    """All that bits depend on besides the engine: versions, the instructions of the processor, and the device."""
    kind = torch.device(device)
    return {
        "moiety": _read_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name(kind) if kind.type == "cuda" else str(kind),
    }


def warn_elsewhere(identity: Mapping[str, Any], device: str, path: Path) -> None:
    """Warn, once for all of it, where the run goes on in another environment than it began in."""
    was, now = identity.get("environment"), environment(device)
    record = was if isinstance(was, dict) else {}
    odd = [f"{key} {record.get(key, 'unknown')}, now {value}" for key, value in now.items() if record.get(key) != value]
    if odd:
        agree = "Its numbers agree with those of an uninterrupted run up to rounding, not bit for bit."
        warnings.warn(f"The run in {path} began with {'; '.join(odd)}. {agree}", stacklevel=2)


def _is_digest(was: Any) -> bool:
    """Whether this is laid out as ``FederatedData.digest`` is."""
    columns = was.get("columns") if isinstance(was, dict) else None
    kinds = {"type": str, "shape": list, "edges": str, "blocks": str}
    return isinstance(columns, dict) and all(
        isinstance(c, dict) and all(isinstance(c.get(key), kind) for key, kind in kinds.items())
        for c in columns.values()
    )


def _find_place(key: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """Where two values first differ, as a dotted name, and what is there."""
    if isinstance(was, dict) and isinstance(now, dict):
        odd = next(k for k in sorted({*was, *now}) if (k in was, was.get(k)) != (k in now, now.get(k)))
        return _find_place(f"{key}.{odd}", was.get(odd), now.get(odd))
    if isinstance(was, list) and isinstance(now, list) and len(was) + len(now) > 4:
        was, now = [x for x in was if x not in now] or was, [x for x in now if x not in was] or now
    return key, was, now


def _show(value: Any) -> str:
    return "nothing" if value is None else f"{value!s:.60}"
