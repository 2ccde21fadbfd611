"""What ``auto`` chooses and says, which rounds have a row, and clients without test rows."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import batch_norm_net, dropout_net, federation, measure_always, mlp, seeded
from run_settings import with_settings
from torch import Tensor, nn

import moiety as mo
from moiety.engines import auto as choose
from moiety.run.folder import read_clients

FED = federation()


def fit(model: nn.Module | None = None, data: mo.FederatedData = FED, **options: Any) -> mo.Run:
    model = model or mlp()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    return mo.fit(model, data, algorithm, **with_settings(split=split, **{"rounds": 3, "engine": "auto"} | options))


def read_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = tomllib.loads((folder / "config.toml").read_text())["run"]
    return record


def close(one: mo.Run, other: mo.Run) -> None:
    for at in range(len(one.clients)):
        a, b = one.parameters(at), other.parameters(at)
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=2e-6, rtol=1e-5)
    for row, same in zip(one.clients, other.clients, strict=True):
        assert row["loss"] == pytest.approx(same["loss"], rel=1e-4, abs=1e-6)


def test_auto_records_choice_and_reason(tmp_path: Path) -> None:
    run = fit(out=tmp_path / "run")
    options = read_record(tmp_path / "run")
    assert options["engine"] == run.engine
    assert run.engine in choose.ENGINES
    assert options["engine_reason"].startswith("expected for a round, by size: ")
    assert "sequential" in options["engine_reason"]
    assert "vectorised" in options["engine_reason"]
    assert run.config["run"]["engine"] == run.engine


def test_an_engine_that_was_asked_for_is_recorded_as_such(tmp_path: Path) -> None:
    fit(engine="vectorised", out=tmp_path / "run")
    options = read_record(tmp_path / "run")
    assert (options["engine"], options["engine_reason"]) == ("vectorised", "as asked")


@pytest.mark.parametrize("quicker", ["sequential", "vectorised"])
def test_the_answer_does_not_depend_on_the_choice(quicker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever engine looks quicker is taken, and the numbers are those of that engine alone."""
    measure_always(monkeypatch)
    ticks = iter(range(10**6))
    slow = {"sequential": 1.0, "vectorised": 1.0} | {quicker: 0.0}
    owner = {"sequential": choose.Sequential, "vectorised": choose.Vectorised}
    clock = {"now": 0.0}
    for name, kind in owner.items():
        plain = kind.map

        def slowed(self: Any, *args: Any, name: str = name, plain: Any = plain, **kwargs: Any) -> Any:
            clock["now"] += slow[name]
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(kind, "map", slowed)
    monkeypatch.setattr(choose.time, "perf_counter", lambda: clock["now"] + next(ticks) * 1e-9)
    auto = fit(workers=1)
    assert auto.engine == quicker
    direct = fit(engine=quicker)
    other = fit(engine="sequential" if quicker == "vectorised" else "vectorised")
    for at in range(len(FED)):
        a, b = auto.parameters(at), direct.parameters(at)
        assert all(torch.equal(a[n], b[n]) for n in a)
    close(auto, other)


class Branch(nn.Module):
    """Asks the value of a tensor, which cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h if float(h.detach().sum()) > 0 else -h)


class Listed(Branch):
    """Leaves torch for a list of numbers on its way."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h * max(h.detach().flatten().tolist()))


class Arrayed(Branch):
    """Leaves torch for NumPy on its way."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h * float(np.abs(h.detach().numpy()).max()))


@pytest.mark.parametrize("build", [Branch, Listed, Arrayed])
def test_a_model_that_cannot_be_vectorised_falls_back(build: type[nn.Module], tmp_path: Path) -> None:
    run = fit(seeded(build), out=tmp_path / "run")
    assert run.engine.endswith("sequential")
    assert "vectorised cannot" in read_record(tmp_path / "run")["engine_reason"]


@pytest.mark.parametrize("build", [dropout_net, batch_norm_net])
def test_dropout_and_batch_norm_fall_back(build: Any, tmp_path: Path) -> None:
    run = fit(build(), out=tmp_path / "run")
    assert run.engine.endswith("sequential")
    reason = read_record(tmp_path / "run")["engine_reason"]
    assert "vectorised cannot" in reason
    assert "\n" not in reason
    plain = fit(build(), engine="sequential")
    assert all(torch.equal(p, plain.parameters(0)[n]) for n, p in run.parameters(0).items())


def test_a_metric_that_cannot_be_vectorised_does_not_end_an_auto_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training can be vectorised and looks quicker so, but the user's own metric asks the value of a tensor."""

    def hits(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return torch.tensor([float(a == b) for a, b in zip(output.argmax(-1), batch["y"], strict=True)])

    measure_always(monkeypatch)
    plain = choose.Sequential.map
    clock = {"now": 0.0}

    def slowed(self: Any, *args: Any, **kwargs: Any) -> Any:
        clock["now"] += 1
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(choose.Sequential, "map", slowed)
    monkeypatch.setattr(choose.time, "perf_counter", lambda: clock["now"])
    run = fit(metric=mo.Metric("hits", True, hits))
    assert run.history[-1]["metric_name"] == "hits"


@pytest.mark.parametrize(
    ("rounds", "every", "wanted"),
    [
        (5, 2, [2, 4, 5]),
        (4, 2, [2, 4]),
        (3, 7, [3]),
        (1, 1, [1]),
        (3, None, [1, 2, 3]),
        (45, None, [*range(2, 45, 2), 45]),
    ],
)
def test_rows_are_at_every_interval_and_at_the_end(
    rounds: int, every: int | None, wanted: list[int], tmp_path: Path
) -> None:
    calls = []
    run = fit(
        rounds=rounds,
        cohort=1,
        evaluate_every=every,
        checkpoint_every=rounds,
        engine="sequential",
        out=tmp_path / "run",
        callbacks=[
            lambda run, record: calls.append((record.round, run.config["run"]["rounds"], record.evaluation is not None))
        ],
    )
    assert [row["round"] for row in run.history] == wanted
    assert calls == [(t, rounds, t in wanted) for t in range(1, rounds + 1)]
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == wanted
    assert [{k: v for k, v in json.loads(line).items() if k != "check"} for line in lines] == run.history


def test_a_row_of_the_history_says_what_happened_so_far() -> None:
    run = fit(rounds=2, cohort=2, engine="sequential")
    first, last = run.history
    assert last["rounds"] == 2
    assert last["client_updates"] == 4
    assert last["up_values"] == 2 * first["up_values"] == 4 * 4 * (5 * 4 + 5)  # 4 uploads of 25 float32 shared values
    assert last["down_values"] == last["up_values"]
    assert {k: last[k] for k in run.ledger} == run.ledger
    assert last["part"] == "test"
    assert last["seconds"] >= first["seconds"] > 0


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_clients_without_test_rows(engine: str, tmp_path: Path) -> None:
    """A client of one row keeps it for training: it has no score, and counts in no mean."""
    data = federation((1, 12, 1, 20))
    assert data.sizes("test").tolist()[::2] == [0, 0]
    run = fit(data=data, engine=engine, out=tmp_path / "run")
    for at in (0, 2):
        row = run.clients[at]
        assert row["n_test"] == 0
        assert math.isnan(row["loss"])
        assert math.isnan(row["metric"])
        assert not row["hurt"]
    rows = [run.clients[1], run.clients[3]]
    last = run.history[-1]
    assert last["clients"] == 2
    assert last["metric_unweighted"] == pytest.approx(np.mean([r["metric"] for r in rows]))
    sizes = [r["n_test"] for r in rows]
    assert last["loss"] == pytest.approx(np.average([r["loss"] for r in rows], weights=sizes))
    assert last["hurt"] + last["helped"] <= 2
    assert json.dumps(read_clients(tmp_path / "run")) == json.dumps(run.clients)
    assert run.export(0)(torch.zeros(1, 4)).shape == (1, 3)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_no_client_with_test_rows_is_evaluated_on_training_rows(engine: str) -> None:
    data = federation((3, 12), test=0)
    run = fit(data=data, engine=engine)
    assert run.history[-1]["part"] == "train"
    assert [row["n_test"] for row in run.clients] == [3, 12]


def test_evaluation_on_a_part_that_was_asked_for() -> None:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(40, 4)).astype(np.float32), "y": np.arange(40) % 3}
    data = mo.data.from_arrays(columns, np.arange(40) % 2, test=0.2, validation=0.2)
    for part in ("train", "validation", "test"):
        run = fit(data=data, evaluate_on=part, engine="sequential")
        assert run.history[-1]["part"] == part
        assert [row["n_test"] for row in run.clients] == data.sizes(part).tolist()


def diverging(out: Path | None = None) -> mo.Run:
    """A learning rate so large that the loss overflows while every parameter is finite."""
    draw = np.random.default_rng(0)
    rows = {
        f"c{i}": {"x": draw.normal(size=(6, 4)).astype(np.float32), "y": draw.normal(size=(6, 1))} for i in range(3)
    }
    model = mo.models.linear(4, 1)
    data = mo.data.from_clients(rows, test=0.5)
    split = mo.split.by_name(model, personal=["head.bias"])
    algorithm = mo.fedsim(shared=1e10, personal=1e10)
    settings = mo.Settings(on_divergence="warn")
    return mo.fit(model, data, algorithm, split=split, rounds=3, engine="sequential", out=out, settings=settings)


def test_a_run_that_diverges_says_so_and_no_more() -> None:
    with pytest.warns(
        UserWarning, match=r"^.updates. must be finite for some client of a round, got none in round \d+ "
    ) as records:
        run = diverging()
    assert len(records) == 1
    assert run.history[-1]["dropped"]


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_the_history_of_a_run_that_diverges_is_json(tmp_path: Path) -> None:
    """JSON has neither NaN nor Infinity; other readers than Python's refuse them."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    diverging(tmp_path / "run")
    for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
