"""What the report of a run needs beyond its rows: intervals from every test row, and calibration of a posterior."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moiety.errors import MoietyError, must
from moiety.evaluation import Row
from moiety.evaluation.calibration import reliability
from moiety.evaluation.paired import measure_change
from moiety.reports.noise import ENDS
from moiety.reports.result import Result
from moiety.run.folder import read_calibration
from moiety.run.identity import environment
from moiety.run.predict import draw_client, input_columns, predict_draws, predicting_state
from moiety.run.safeguard import Chooser, weight_of
from moiety.run.settings import check_part

if TYPE_CHECKING:
    from moiety.run.result import Run
    from moiety.run.serving import Serving

SCORED, PREDICTED = 2000, 200
"""The most clients that are scored row by row, and the most whose predictions are used for calibration."""


def examine(run: Run) -> Result:
    """The result of a run, its clients with the ends of their intervals, and its calibration.

    The ends need the clients' rows. Without them, and for metrics of whole sets, clients have no ends.
    """
    result = replace(run.result(), versions=environment(run._loop.problem.device.type))
    if run._without_data:
        rows = read_calibration(run.folder, run._loop.progress.run) if run.folder else []
        return replace(result, calibration=rows)
    if len(run.clients) <= SCORED and not run._loop.problem.task.set_decides:
        result = replace(result, clients=_add_ends(run, str(run.last["part"])))
    return replace(result, calibration=measure_calibration(run))


def measure_calibration(run: Run) -> list[Row]:
    """The bins of a reliability diagram, over clients; none without a posterior, or without classes to predict."""
    loop = run._loop
    if loop.algorithm.posterior is None or run._loss != "cross_entropy" or loop.on_devices or run._without_data:
        return []
    with contextlib.suppress(MoietyError):  # several labels in one row, or numbers that are not finite
        predictions = list(predict_part(run, run.config["run"]["evaluate_on"], most=PREDICTED).values())
        must(len(predictions) > 0, "clients", "some with rows", "none")
        probabilities, labels = (np.concatenate(column) for column in zip(*predictions, strict=True))
        return reliability(probabilities, labels)
    return []


def _add_ends(run: Run, part: str) -> list[dict[str, Any]]:
    """The rows of clients, each with the interval of its gain over the shared model alone."""
    own, shared = run.score_rows(part), run.score_rows(part, shared=True)
    higher = run._loop.problem.task.deciding.higher_is_better
    rows = []
    for row in run.clients:
        ends = (np.nan, np.nan)
        if row["client"] in own:
            mine, theirs = own[row["client"]], shared[row["client"]]
            change = measure_change(mine.metric, theirs.metric, mine.weight, higher_is_better=higher)
            ends = (change.low, change.high)
        rows.append({**row, **dict(zip(ENDS, ends, strict=True))})
    return rows


def predict_part(
    run: Serving, part: str, *, draws: int | None = None, fresh: bool = False, most: int | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Probabilities and labels of the rows of every client, by client.

    Args:
        run: with its clients' rows.
        part: ``train``, ``validation`` or ``test`` rows.
        draws: as in ``Run.predictive``.
        fresh: as in ``Run.predictive``.
        most: take at most so many clients, evenly from all.
    """
    loop, data, inputs = run._loop, run._loop.problem.data, run._list_inputs()
    run._need_data()
    check_part(data, part, "part")
    chooser, predictions = Chooser.of(loop, run._loss, run._guard), {}
    clients = np.flatnonzero(data.sizes(part))
    for at in clients if most is None else clients[:: -(-len(clients) // most) or 1]:
        rows = data.at(int(at), part)
        columns = input_columns(loop.problem, inputs, {name: rows[name] for name in inputs or rows})
        several = draws is not None and loop.algorithm.posterior is not None
        state = draw_client(loop, int(at), draws or 1) if several else predicting_state(loop, int(at), fresh)
        weight = weight_of(run._guard, data.ids[int(at)])
        outputs = chooser.mix_prediction(predict_draws(loop, state, columns), state, columns, weight)
        predictions[str(data.ids[int(at)])] = (replace(outputs, loss=run._loss).probabilities, rows["y"])
    return predictions
