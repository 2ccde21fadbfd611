"""The protocol of callbacks: what a run calls as it goes on, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moiety.errors import kind, must
from moiety.evaluation import Row
from moiety.types import RoundRecord

if TYPE_CHECKING:
    from moiety.run.result import Run


class Callback:
    """What a run calls as it goes on: a subclass has those methods that it needs.

    Where ``on_start``, ``on_round`` or ``on_evaluate`` gives True, the run stops cleanly: it evaluates the round that
    has just ended, writes a checkpoint and its results, and can be resumed. ``run`` is the run as it is then, with
    ``run.history``, ``run.clients`` and ``run.folder``. In a pipeline all stages call the same callbacks.

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": y}}, test=0.25)
    >>> class Enough(mo.callbacks.Callback):
    ...     def on_evaluate(self, run, row):
    ...         return row["metric"] == 1.0
    >>> options = {"rounds": 50, "engine": "sequential", "callbacks": [Enough()]}
    >>> mo.fit(mo.models.linear(1, 2), fed, mo.fedavg(shared=0.5), **options).stopped
    'as Enough asked'
    """

    def on_start(self, run: Run) -> bool | None:
        """Before the first round that is trained; of a resumed run, ``run.history`` has the rows of earlier rounds."""

    def on_round(self, run: Run, record: RoundRecord) -> bool | None:
        """After every round."""

    def on_evaluate(self, run: Run, row: Row) -> bool | None:
        """After every evaluation, before ``on_round``; ``row`` is the new row of the history."""

    def on_end(self, run: Run) -> None:
        """When the run has ended, and its results are in ``run`` and in its folder; not after an error."""


class _Function(Callback):
    """A function of (run, record), called after every round."""

    def __init__(self, function: Callable[[Run, RoundRecord], Any]) -> None:
        self.on_round = function  # type: ignore[method-assign, assignment]
        self.name = getattr(function, "__name__", type(function).__name__)


CallbackList = Sequence[Callback | Callable[["Run", RoundRecord], Any]]
"""Callbacks as a user gives them: a bare function stands for its ``on_round``."""


class Callbacks:
    """All callbacks of a run, in order."""

    def __init__(self, callbacks: CallbackList = ()) -> None:
        kind("callbacks", callbacks, (list, tuple), "a list", "As in callbacks=[moiety.callbacks.EarlyStopping(5)].")
        for each in callbacks:
            fits = isinstance(each, Callback) or (callable(each) and not isinstance(each, type))
            must(fits, "callbacks", "a list of moiety.callbacks.Callback or of functions of (run, record)", repr(each))
        self.all = [each if isinstance(each, Callback) else _Function(each) for each in callbacks]

    def and_also(self, more: Sequence[Callback]) -> Callbacks:
        """These callbacks and ``more`` after them."""
        return Callbacks([*self.all, *more])

    def tell(self, event: str, run: Run, *details: Any) -> bool:
        """Call every callback; whether one of them asks the run to stop."""
        stop = False
        for each in self.all:
            answer = getattr(each, event)(run, *details)
            if isinstance(answer, bool | np.bool_) and answer:
                stop = True
                run.stopped = run.stopped or f"as {getattr(each, 'name', type(each).__name__)} asked"
        return stop
