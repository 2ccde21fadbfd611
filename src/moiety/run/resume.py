"""``resume``: a run or a pipeline goes on from its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from moiety import task as tasks
from moiety.data import FederatedData
from moiety.errors import must
from moiety.files import check_path
from moiety.run.pipeline import Stage, continue_pipeline
from moiety.run.protocol import CallbackList, Callbacks
from moiety.run.reopen import RunParts, continue_run
from moiety.run.settings import Settings
from moiety.seals import PIPELINE
from moiety.split import Split
from moiety.types import Algorithm, Task


def resume(
    folder: str | os.PathLike[str],
    *,
    rounds: int | None = None,
    model: nn.Module | Task | None = None,
    data: FederatedData | None = None,
    algorithm: Algorithm | None = None,
    split: Split | None = None,
    stages: Sequence[Stage] | None = None,
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    engine: str | None = None,
    callbacks: CallbackList = (),
    progress: bool | None = None,
    settings: Settings | None = None,
) -> Any:
    """Continue a run or a pipeline from its folder, bit for bit as if it had never stopped.

    What the folder can name (data sets, models, splits and algorithms of the library) is made again; what was the
    user's own must be given again, and is checked against the folder. Of a pipeline, stages that have ended stay as
    they are, the one under way goes on, and the rest begin.

    Args:
        folder: the folder of the run or of the pipeline.
        rounds: train up to this round in all; by default as far as was asked at first. Schedules that depend on the
            number of rounds use the new number from here on. Not for a pipeline.
        model: as given to ``fit``, where it was of the user's own.
        data: likewise.
        algorithm: likewise, of a run.
        split: likewise, of a run.
        stages: as given to ``pipeline``, where an algorithm or a split was of the user's own.
        loss: as given to ``fit``, where it was of the user's own.
        metric: likewise.
        engine: by default the engine the run began with.
        callbacks: as for ``fit``. They derive what they know from the folder, so give those that the run began with.
            A run that ``EarlyStopping`` stopped goes on if it is left out, or has more patience.
        progress: as for ``fit``.
        settings: ``workers`` may change. An aggregator, codec, attack or clock of the user's own is given here again;
            any other setting that is given must be as the run began.

    Returns:
        The ``Run``; for a pipeline, a list with a run for each stage.

    >>> import tempfile
    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, algorithm = mo.models.linear(1, 2), mo.local_only(personal=0.5)
    ...     _ = mo.fit(model, fed, algorithm, rounds=2, engine="sequential", out=f"{folder}/run")
    ...     mo.resume(f"{folder}/run", data=fed, rounds=3)
    Run(local_only, 3 rounds, 2 clients; test accuracy 1)
    """
    check_path("folder", folder, "the folder of a run or of a pipeline")
    path, parts = Path(folder), RunParts(model, data, algorithm, split, loss, metric, settings)
    listeners = Callbacks(callbacks)
    if not (path / PIPELINE).is_file():
        must(stages is None, "stages", "left out for a single run", "some")
        return continue_run(path, parts, listeners, rounds=rounds, engine=engine, progress=progress)
    for name, value in {"rounds": rounds, "algorithm": algorithm, "split": split}.items():
        must(value is None, name, "left out for a pipeline", "one", "What was of your own is given as stages=[...].")
    return continue_pipeline(path, parts, stages, listeners, engine=engine, progress=progress)
