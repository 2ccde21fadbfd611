"""Bad input to the Python interface ends in one line: `name` must be <constraint>, got <value>. <what to do>."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import batch_norm_net, dropout_net, federation, mlp, refused
from flat_options import flat
from run_settings import with_settings
from torch import Tensor, nn

import moiety as mo
from moiety import task as tasks

FED = federation()
NAN, INF = math.nan, math.inf


def personal(model: nn.Module) -> mo.Split:
    return mo.split.by_name(model, personal=["head"])


def alt(**options: Any) -> mo.Algorithm:
    return flat(mo.fedalt, **{"shared_lr": 0.1, "personal_lr": 0.1} | options)


def sim(**options: Any) -> mo.Algorithm:
    return flat(mo.fedsim, **{"shared_lr": 0.1, "personal_lr": 0.1} | options)


def avg(**options: Any) -> mo.Algorithm:
    return flat(mo.fedavg, **{"lr": 0.1} | options)


def fit(model: Any = None, data: Any = FED, algorithm: Any = None, **options: Any) -> mo.Run:
    """FedAvg on good data with a good model, but for what is given."""
    model = mlp() if model is None else model
    algorithm = avg() if algorithm is None else algorithm
    return mo.fit(model, data, algorithm, **with_settings(**{"rounds": 1, "engine": "sequential"} | options))


def fit_alt(split: Any, **options: Any) -> mo.Run:
    return fit(algorithm=alt(), split=split, **options)


def arrays(client: Any = (0, 0, 1, 1), **columns: Any) -> mo.FederatedData:
    table = {"x": np.zeros((4, 4), dtype=np.float32), "y": np.array([0, 1, 2, 0])} | columns
    return mo.data.from_arrays(table, list(client), test=0)


def raw(**columns: Any) -> mo.FederatedData:
    """Data made without the checks of ``from_arrays``: two clients of two rows."""
    table = {"x": np.zeros((4, 4), dtype=np.float32), "y": np.array([0, 1, 2, 0])} | columns
    return mo.FederatedData(table, np.array([[0, 2, 2, 2], [2, 4, 4, 4]]), ["ann", "bob"])


class Pair(nn.Module):
    """Returns a tuple, as recurrent layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), x


class FailsInTraining(Pair):
    """Cannot be called while training."""

    def forward(self, x: Tensor) -> Any:
        return self.head(x[:, :2] if self.training else x)


RUNS: dict[str, mo.Run] = {}


def run() -> mo.Run:
    """One good run for all questions that are asked of a run."""
    if "run" not in RUNS:
        RUNS["run"] = fit_alt(personal(mlp()))
    return RUNS["run"]


def onboard(data: Any = None, **options: Any) -> nn.Module:
    good = {"x": np.zeros((3, 4), dtype=np.float32), "y": np.array([0, 1, 2])}
    return run().onboard(good | data if isinstance(data, dict) else data, **options)


def scores_nothing(output: Tensor, batch: dict[str, Tensor]) -> Any:
    return (output.sum(1), batch)


WIDE = nn.Linear(5, 3)
FROZEN = mlp().requires_grad_(False)
REGRESSION = arrays(y=np.zeros((4, 2), dtype=np.float32))
HOLE = mo.FederatedData(
    {"x": np.zeros((2, 4)), "y": np.array([0, 1])}, np.array([[0, 1, 1, 1], [1, 1, 1, 2]]), ["a", "b"]
)
ONE_ROW = federation((6, 1), test=0.0)

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    # learning rates and other numbers of an algorithm
    "lr negative": (lambda: avg(lr=-0.1), "`lr`.*> 0.*-0.1"),
    "lr zero": (lambda: avg(lr=0), "`lr`.*> 0.*got 0"),
    "lr nan": (lambda: avg(lr=NAN), "`lr`.*nan"),
    "lr infinite": (lambda: avg(lr=INF), "`lr`.*inf"),
    "lr text": (lambda: avg(lr="0.1"), "`lr`.*0.1"),
    "lr nothing": (lambda: mo.fedavg(shared=mo.sgd(None)), "`lr`.*None"),
    "shared lr negative": (lambda: alt(shared_lr=-1), "`lr`.*-1"),
    "shared negative": (lambda: mo.fedalt(shared=-1, personal=0.1), "`shared`.*> 0.*-1"),
    "shared text": (lambda: mo.fedalt(shared="0.1", personal=0.1), "`shared`.*0.1"),
    "shared nothing": (lambda: mo.fedavg(shared=None), "`shared`.*None"),
    "personal lr zero": (lambda: alt(personal_lr=0.0), "`lr`.*got 0"),
    "personal zero": (lambda: mo.fedalt(shared=0.1, personal=0.0), "`personal`.*> 0.*got 0"),
    "personal lr nan": (lambda: sim(personal_lr=NAN), "`lr`.*nan"),
    "personal nan": (lambda: mo.fedsim(shared=0.1, personal=NAN), "`personal`.*nan"),
    "shared lr infinite": (lambda: sim(shared_lr=INF), "`lr`.*inf"),
    "shared infinite": (lambda: mo.fedsim(shared=INF, personal=0.1), "`shared`.*inf"),
    "local lr negative": (lambda: mo.local_only(personal=-1), "`personal`.*-1"),
    "momentum one": (lambda: avg(momentum=1), "`momentum`.*< 1"),
    "momentum negative": (lambda: alt(momentum=-0.5), "`momentum`"),
    "momentum nan": (lambda: sim(momentum=NAN), "`momentum`"),
    "momentum text": (lambda: sim(momentum="much"), "`momentum`"),
    "weight decay negative": (lambda: avg(weight_decay=-1e-3), "`weight_decay`"),
    "weight decay infinite": (lambda: avg(weight_decay=INF), "`weight_decay`"),
    "clip zero": (lambda: avg(clip=0), "`clip`.*> 0"),
    "clip nan": (lambda: avg(clip=NAN), "`clip`"),
    "epochs and steps": (lambda: avg(epochs=1, steps=1), "`epochs`.*steps"),
    "shared epochs and steps": (lambda: alt(shared_epochs=1, shared_steps=1), "`epochs`.*steps"),
    "epochs zero": (lambda: avg(epochs=0), "`epochs`.*>= 1"),
    "epochs one and a half": (lambda: fit(algorithm=avg(epochs=1.5)), "`epochs`.*1.5"),
    "steps zero": (lambda: sim(steps=0), "`steps`.*>= 1"),
    "steps one and a half": (lambda: fit(algorithm=avg(steps=1.5)), "`steps`.*1.5"),
    "personal steps negative": (lambda: alt(personal_steps=-3), "`steps`.*>= 1.*-3"),
    "batch size zero": (lambda: avg(batch_size=0), "`batch_size`.*>= 1"),
    "batch size two and a half": (lambda: fit(algorithm=avg(batch_size=2.5)), "`batch_size`.*2.5"),
    "batch size text": (lambda: fit(algorithm=avg(batch_size="8")), "`batch_size`.*8"),
    "weighting unknown": (lambda: avg(weighting="example"), "`weighting`.*examples"),
    "server momentum one": (lambda: mo.server.sgd(momentum=1.0), "momentum"),
    "server lr zero": (lambda: mo.server.adam(lr=0), "lr"),
    "server lr infinite": (lambda: mo.server.adam(lr=INF), "lr"),
    "server beta two": (lambda: mo.server.yogi(lr=0.1, beta1=2), "beta1"),
    "server eps negative": (lambda: mo.server.adagrad(lr=0.1, eps=-1), "eps"),
    "server a text": (lambda: fit(algorithm=avg(server="adam")), "server"),
    "schedule a text": (lambda: fit(algorithm=avg(schedule="linear")), "schedule"),
    "warmup one": (lambda: mo.schedule.linear(warmup=1), "warmup"),
    "halve every zero": (lambda: mo.schedule.exponential(halve_every=0), "halve_every"),
    # options of fit
    "engine unknown": (lambda: fit(engine="vectorized"), "`engine`.*vectorised"),
    "engine nothing": (lambda: fit(engine=None), "`engine`"),
    "rounds zero": (lambda: fit(rounds=0), "`rounds`.*>= 1"),
    "rounds negative": (lambda: fit(rounds=-5), "`rounds`.*>= 1"),
    "rounds two and a half": (lambda: fit(rounds=2.5), "`rounds`.*whole.*2.5"),
    "rounds text": (lambda: fit(rounds="3"), "`rounds`.*whole"),
    "rounds true": (lambda: fit(rounds=True), "`rounds`.*whole"),
    "cohort zero": (lambda: fit(cohort=0), "`cohort`.*>= 1"),
    "cohort too large": (lambda: fit(cohort=7), "`cohort`.*<= 6.*got 7"),
    "cohort half": (lambda: fit(cohort=0.5), "`cohort`.*whole"),
    "seed negative": (lambda: fit(seed=-1), "`seed`.*>= 0"),
    "seed text": (lambda: fit(seed="a"), "`seed`"),
    "evaluate_every zero": (lambda: fit(evaluate_every=0), "`evaluate_every`.*>= 1"),
    "checkpoint_every zero": (lambda: fit(checkpoint_every=0), "`checkpoint_every`.*>= 1"),
    "evaluate_on unknown": (lambda: fit(evaluate_on="tset"), "`evaluate_on`.*test"),
    "evaluate_on a part without rows": (lambda: fit(evaluate_on="validation"), "`evaluate_on`.*validation"),
    "loss unknown": (lambda: fit(loss="crossentropy"), "`loss`.*cross_entropy"),
    "loss a number": (lambda: fit(loss=5), "`loss`"),
    "metric unknown": (lambda: fit(metric="acuracy"), "`metric`.*accuracy"),
    "device unknown": (lambda: fit(device="gpuu"), "`device`.*gpuu"),
    "beyond float32": (
        lambda: fit(data=raw(x=np.full((4, 4), -1e300))),
        "`columns.x` must be within the range of torch.float32, got 1e\\+300",
    ),
    "device beyond numbers": (lambda: fit(device=10**400), "`device` must be a device of this machine"),
    "out no path": (lambda: fit(out="\ud800"), "`out` must be a folder's path"),
    "device not there": (lambda: fit(device="cuda:7"), "`device`.*cuda"),
    "out a number": (lambda: fit(out=5), "`out`"),
    "out with a null": (lambda: fit(out="a\0b"), "`out`"),
    # model, data and algorithm that are none
    "model a function": (lambda: fit(model=lambda x: x), "`model`.*Module"),
    "model a class": (lambda: fit(model=Pair), "`model`.*Module"),
    "data a dict": (lambda: fit(data={"x": [1]}), "`data`.*FederatedData"),
    "algorithm a text": (lambda: fit(algorithm="fedavg"), "`algorithm`.*builder"),
    "algorithm a builder": (lambda: fit(algorithm=mo.fedavg), "`algorithm`.*builder"),
    "split a text": (lambda: fit_alt("output_layer"), "`split`.*output_layer"),
    # data that do not fit
    "label out of range": (lambda: fit(data=arrays(y=[0, 1, 2, 3])), "`y`.*0 to 2.*3 for client 1"),
    "label negative": (lambda: fit(data=raw(y=np.array([0, 1, -1, 0]))), "`y`.*0 to 2.*-1 for client bob"),
    "labels 0 and 1 for one output": (lambda: fit(nn.Linear(4, 1), arrays(y=[0, 1, 1, 0])), "`y`.*0 to 0.*two outputs"),
    "labels for no classes": (
        lambda: fit(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), arrays(y=[0, 1, 1, 0])),
        "`model`.*output for each class",
    ),
    "labels floating without a loss": (lambda: fit(data=arrays(y=[0.0, 1, 2, 0])), "`model`.*mse.*astype"),
    "targets for more outputs": (lambda: fit(data=arrays(y=[0.5, 1, 2, 0])), "`model`.*mse.*output for each number"),
    "labels and squares": (lambda: fit(loss="mse"), "`model`.*mse.*cross_entropy"),
    "label negative from arrays": (lambda: arrays(y=[0, 1, -1, 0]), "y.*labels from 0"),
    "labels floating": (lambda: fit(data=arrays(y=np.zeros(4)), loss="cross_entropy"), "`y`.*whole.*float.*astype"),
    "no labels": (lambda: fit(data=mo.data.from_arrays({"x": np.zeros((4, 4))}, [0, 0, 1, 1])), "`data`.*y"),
    "input too narrow": (lambda: fit(model=nn.Linear(3, 3)), "`model`.*x \\(4,\\)"),
    "target of another shape": (lambda: fit(data=REGRESSION), "`model`.*\\(2,\\) of y.*mse.*\\(3,\\)"),
    "column missing": (lambda: fit(inputs=["z"]), "`inputs`.*z"),
    "columns none": (lambda: fit(inputs=[]), "`model`|`inputs`"),
    "columns numbers": (lambda: fit(inputs=[0]), "`inputs` must be a list of column names, got 0"),
    "columns lists": (lambda: fit(inputs=[["x"]]), "`inputs` must be a list of column names, got .'x'."),
    "columns a number": (lambda: fit(inputs=5), "`inputs`"),
    "loss a scalar": (lambda: fit(loss=lambda o, b: o.mean()), "`loss`.*one number per example.*reduction"),
    "loss a module": (
        lambda: fit(loss=nn.CrossEntropyLoss()),
        r"`loss`.*a name or a function of \(output, batch\).*'y'",
    ),
    "loss of torch": (lambda: fit(loss=nn.functional.cross_entropy), r"`loss`.*a function of \(output, batch\)"),
    "loss a tuple": (lambda: fit(loss=scores_nothing), "`loss`.*one number per example"),
    "loss of a missing column": (lambda: fit(loss=lambda o, b: b["weight"]), "`loss`.*weight"),
    "metric a scalar": (
        lambda: fit(metric=mo.Metric("m", True, lambda o, b: o.mean())),
        "`metric`.*one number per example",
    ),
    "model that fails in training": (lambda: fit(model=FailsInTraining()), "`model`"),
    "empty client": (lambda: fit(data=HOLE), "`data`.*training example.*client b"),
    "empty client from clients": (
        lambda: mo.data.from_clients({"a": {"x": [1.0]}, "b": {"x": []}}),
        "at least one row.*'b'",
    ),
    "nan in x": (lambda: arrays(x=np.full((4, 4), NAN)), "x.*finite.*nan.*client '0'"),
    "infinity in y": (lambda: arrays(y=np.array([0.0, 1.0, INF, 0.0])), "y.*finite.*inf.*client '1'"),
    # splits that do not fit
    "fedalt without split": (lambda: fit(algorithm=alt()), "`split`.*fedalt.*output_layer"),
    "split of another model": (lambda: fit_alt(mo.split.by_name(WIDE, personal=["bias"])), "`split`.*this model"),
    "fedavg with personal": (lambda: fit(split=personal(mlp())), "`split`.*nothing personal.*fedavg"),
    "local with shared": (
        lambda: fit(algorithm=mo.local_only(personal=0.1), split=personal(mlp())),
        "`split`.*nothing shared.*local_only",
    ),
    "pattern of nothing": (lambda: mo.split.by_name(mlp(), personal=["haed.*"]), "`personal`.*haed.*head"),
    "frozen everything": (lambda: fit(model=FROZEN, split=mo.split.nothing(FROZEN)), "`split`.*something to train"),
    # models that an engine cannot serve
    "batch norm with one row": (
        lambda: fit(model=batch_norm_net(), data=ONE_ROW),
        "`data`.*two training rows.*1 for client c1",
    ),
    "batch norm with batches of one": (
        lambda: fit(model=batch_norm_net(), algorithm=avg(batch_size=1)),
        "`batch_size`.*one row.*1 for the 3 rows of client c0.*fits is",
    ),
    "dropout vectorised": (lambda: fit(model=dropout_net(), engine="vectorised"), "`engine`.*dropout.*sequential"),
    "batch norm vectorised": (lambda: fit(model=batch_norm_net(), engine="vectorised"), "`engine`.*BatchNorm"),
    # questions to a run
    "export unknown": (lambda: run().export("c22"), "`client`.*c22.*c2"),
    "export beyond": (lambda: run().export(6), "`client`.*0 to 5.*6"),
    "export negative": (lambda: run().export(-1), "`client`.*-1"),
    "export half": (lambda: run().export(1.5), "`client`.*1.5"),
    "parameters unknown": (lambda: run().parameters("d1"), "`client`.*d1"),
    "onboard without y": (lambda: run().onboard({"x": np.zeros((2, 4))}), "`data`.*columns with x, y, got x. Add y"),
    "onboard without columns": (lambda: run().onboard({}), "column"),
    "onboard a number": (lambda: onboard(5), "`data`|`columns`"),
    "onboard another shape": (lambda: onboard({"x": np.zeros((3, 5))}), "x.*\\(4,\\).*\\(5,\\)"),
    "onboard nan": (lambda: onboard({"x": np.full((3, 4), NAN)}), "x.*finite.*nan"),
    "onboard no rows": (lambda: onboard({"x": np.zeros((0, 4)), "y": []}), "row"),
    "onboard uneven columns": (lambda: onboard({"y": [0]}), "one length"),
    "onboard label out of range": (lambda: onboard({"y": [0, 1, 7]}), "`y`.*0 to 2.*7"),
    "onboard floating labels": (lambda: onboard({"y": [0.0, 1.0, 2.0]}), "y.*(int|whole|label)"),
    "onboard no passes": (lambda: onboard({}, passes=0), "`passes`.*>= 1"),
    "onboard a pass and a half": (lambda: onboard({}, passes=1.5), "`passes`.*1.5"),
    "task without parameters": (lambda: tasks.from_functions({}, lambda p, b: b["x"]), "`init`"),
}


LONG = "x" * 300
READERS: dict[str, Callable[[Any], Any]] = {
    "resume": mo.resume,
    "load": mo.load,
    "verify": mo.verify,
    "open": mo.data.open_folder,
    "save": FED.save,
}
for reader, read in READERS.items():
    for what, place in {"long name": LONG, "character 0": "a\0", "half a character": "\ud800", "number": 3}.items():
        CASES[f"{reader} a {what}"] = (lambda read=read, place=place: read(place), "`folder` must be")


@pytest.mark.parametrize(("call", "pattern"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_one_line(call: Callable[[], Any], pattern: str) -> None:
    refused(call, pattern)


def test_whole_numbers_for_the_inputs_of_a_new_client_are_taken() -> None:
    """The run's own columns are floating: a list of whole numbers means the same values."""
    new = {"x": [[1, 2, 3, 4], [0, 1, 0, 1]], "y": [0, 1]}
    floating = new | {"x": np.array(new["x"], dtype=np.float32)}
    one, other = run().onboard(new), run().onboard(floating)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


W = mo.Split(("w",), (), (), frozenset(), {"w": 4})


def test_a_task_of_functions_is_not_exported() -> None:
    task = tasks.from_functions({"w": torch.zeros(4)}, lambda p, b: (b["x"] @ p["w"] - b["y"]).square())
    run = mo.fit(task, arrays(y=np.ones(4)), avg(), split=W, rounds=1, engine="sequential")
    refused(lambda: run.export(0), "`model`.*Module")
    assert run.parameters(0)["w"].shape == (4,)


def test_a_task_of_functions_has_a_loss_of_its_own_whatever_the_labels_are() -> None:
    """Its predictions are no class scores: whole-numbered y say nothing about them."""
    task = tasks.from_functions({"w": torch.zeros(4)}, lambda p, b: (b["x"] @ p["w"] - b["y"]).square())
    run = mo.fit(task, FED, avg(), split=W, rounds=1, engine="sequential")
    assert run.history[-1]["metric_name"] == "loss"


def test_a_task_of_functions_needs_no_labels() -> None:
    """Columns are free: a quadratic has a and b and no y."""
    data = mo.data.from_arrays({"a": np.ones((4, 4), dtype=np.float32)}, [0, 0, 1, 1], test=0)
    task = tasks.from_functions({"w": torch.zeros(4)}, lambda p, b: (p["w"] - b["a"]).square().sum(1) / 2)
    run = mo.fit(task, data, avg(lr=0.5), split=W, rounds=1, engine="sequential")
    assert run.parameters(0)["w"].tolist() == [0.5] * 4  # w - lr (w - a)


def test_resume_with_fewer_rounds_than_trained(tmp_path: Path) -> None:
    fit(rounds=3, out=tmp_path / "run")
    refused(lambda: mo.resume(tmp_path / "run", data=FED, rounds=2), "`rounds`.*>= 3.*got 2")


def test_nothing_is_written_when_the_input_is_bad(tmp_path: Path) -> None:
    bad: list[dict[str, Any]] = [
        {"rounds": 0},
        {"cohort": 99},
        {"inputs": ["z"]},
        {"loss": "no"},
        {"data": HOLE},
        {"model": nn.Linear(3, 3)},
        {"split": personal(mlp())},
        {"algorithm": alt()},
        {"data": replace(FED, columns={**FED.columns, "y": FED.columns["y"] + 5})},
    ]
    for options in bad:
        with pytest.raises(mo.MoietyError):
            fit(out=tmp_path / "run", **options)
        assert not (tmp_path / "run").exists(), options
