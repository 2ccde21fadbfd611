"""A program of a user's, for ``mypy --strict`` against the installed package: every type here is what a reader expects.

``assert_type`` fails where an annotation is missing (``Any``) or another one; at run time it does nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from torch import Tensor, nn

import moiety as mo
from moiety.types import RoundRecord


class Net(nn.Module):
    """A model of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Two layers."""
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]  # torch's modules are calls of Any


class Watch(mo.callbacks.Callback):
    """Stops once a metric is reached; overrides are checked against the protocol."""

    def __init__(self, enough: float) -> None:
        self.enough, self.seen = enough, 0

    def on_evaluate(self, run: mo.Run, row: mo.evaluation.Row) -> bool | None:
        """Count, and say whether it is enough."""
        self.seen += 1
        return float(row["metric"]) >= self.enough

    def on_end(self, run: mo.Run) -> None:
        """Say so."""
        print(run.summary())


def choose(name: str) -> mo.Algorithm:
    """An algorithm by name; local work is a rate or an optimiser."""
    work = mo.sgd(0.1, epochs=1, batch_size=8, momentum=0.5)
    builders: dict[str, Callable[[], mo.Algorithm]] = {
        "one": lambda: mo.fedavg(shared=work),
        "two": lambda: mo.fedalt(shared=work, personal=mo.adam(0.01)),
        "own": lambda: mo.local_only(personal=0.1),
    }
    return builders[name]()


def main(folder: Path) -> np.ndarray:
    """Train, look, keep, open again, predict."""
    chance = np.random.default_rng(0)
    x = chance.normal(size=(80, 3)).astype(np.float32)
    fed = assert_type(
        mo.data.from_arrays({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, client=np.arange(80) % 4), mo.FederatedData
    )
    model = Net()
    split = assert_type(mo.split.by_name(model, personal="head.*"), mo.Split)
    settings = mo.Settings(evaluate_every=1, codec=mo.codec.qsgd(levels=16), aggregator=mo.aggregator.median())
    watch, rounds = Watch(2.0), list[int]()

    def note(run: mo.Run, record: RoundRecord) -> None:
        rounds.append(record.round)

    run = assert_type(
        mo.fit(
            model, fed, choose("two"), split=split, rounds=3, out=folder, callbacks=[watch, note], settings=settings
        ),
        mo.Run,
    )
    assert_type(run.history, list[dict[str, Any]])
    assert_type(run.clients, list[dict[str, Any]])
    assert_type(run.export(0), nn.Module)
    assert_type(run.parameters(0), dict[str, Tensor])
    assert_type(run.report(folder / "page.html"), Path)
    assert_type(mo.load(folder, model=model, data=fed), mo.Run)
    algorithm = choose("two")
    more: mo.Run = mo.resume(folder, model=model, data=fed, algorithm=algorithm, rounds=4)  # a list, of a pipeline
    assert more.history[-1]["round"] == 4
    assert_type(algorithm.name, str)
    assert (watch.seen, rounds) == (3, [1, 2, 3])
    return assert_type(run.predict(0, x[:5]), np.ndarray)


if __name__ == "__main__":
    try:
        mo.fit(Net(), mo.data.from_arrays({"x": [[0.0]], "y": [0]}, client=[0]), choose("own"), rounds=0)
    except mo.MoietyError as problem:
        print(f"refused: {problem}")
    print("predicted", main(Path("run")).tolist())
