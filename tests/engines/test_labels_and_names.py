"""Labels of the wrong shape, clients whose names are numbers, and batches of one row: nothing goes wrong silently."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import batch_norm_net, federation, mlp, refused
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.engines.rows import has_lone_batch
from moiety.types import Phase

ENGINES = ("sequential", "vectorised", "processes:sequential", "auto")
CLIENTS = np.repeat(np.arange(1, 6), 12)  # names that do not count from 0


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(len(CLIENTS), 4)).astype(np.float32)
    return x, (x @ draw.normal(size=(4, 3))).argmax(1)


def number_clients(**columns: Any) -> mo.FederatedData:
    x, y = rows()
    return mo.data.from_arrays({"x": x, "y": y} | columns, CLIENTS, test=0.25)


def fit(data: mo.FederatedData, model: nn.Module | None = None, algorithm: Any = None, **options: Any) -> mo.Run:
    method = algorithm or mo.fedavg(shared=mo.sgd(0.1, batch_size=4))
    return mo.fit(
        model or mlp(), data, method, **with_settings(**{"rounds": 2, "engine": "sequential", "workers": 2} | options)
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_labels_with_an_axis_too_many_are_refused(engine: str) -> None:
    refused(
        lambda: fit(number_clients(y=rows()[1][:, None]), engine=engine), r"`y`.*\(\) per example.*\(1,\).*y\[:, 0\]"
    )


def test_labels_with_an_axis_too_many_are_refused_for_every_loss_and_metric_of_classes() -> None:
    """With a loss of one's own the metric of the house would compare (n,) with (n, 1), each with each."""

    def own(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(output, batch["y"][:, 0], reduction="none")

    data = number_clients(y=rows()[1][:, None])
    for options in ({"loss": "one_versus_all"}, {"loss": own, "metric": "accuracy"}):
        refused(lambda options=options: fit(data, **options), r"`y`.*y\[:, 0\]")
    assert fit(data, loss=own).history[-1]["metric_name"] == "loss"  # a loss of one's own may take them
    refused(lambda: fit(number_clients(y=np.eye(3, dtype=int)[rows()[1]])), r"`y`.*\(3,\).*argmax")


def test_a_new_client_has_labels_of_the_same_shape() -> None:
    x, y = rows(1)
    run = fit(number_clients())
    refused(lambda: run.onboard({"x": x, "y": y[:, None]}), r"'y'.*shape \(\) per example.*\(1,\)")
    refused(lambda: run.onboard({"x": x}), "^`data` must be columns with x, y, got x. Add y.$")


@pytest.mark.parametrize("engine", ENGINES)
def test_accuracy_is_that_of_the_exported_models(engine: str) -> None:
    """Counted by hand: the test rows of each client that its own exported model gets right."""
    data = number_clients()
    run = fit(data, algorithm=mo.local_only(personal=mo.sgd(0.2, batch_size=4)), engine=engine)
    right = {}
    for name in map(str, data.ids):
        test = data.client(name, "test")
        with torch.no_grad():
            guess = run.export(name)(torch.from_numpy(test["x"])).numpy().argmax(1)
        right[name] = float(np.mean(guess == test["y"]))
    assert {row["client"]: row["metric"] for row in run.clients} == pytest.approx(right)


class Tagger(nn.Module):
    """Three class scores at each of the positions of x [n, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[..., None])


def test_sequences_are_taken_and_counted_position_by_position() -> None:
    """Equal scores choose class 0, and lr is too small to change that by more than a bias for the commonest class."""
    y = np.tile([0, 0, 0, 1, -100], (8, 1))
    columns = {"x": np.zeros((8, 5), dtype=np.float32), "y": y}
    data = mo.data.from_arrays(columns, [0] * 4 + [1] * 4, test=0.5)
    for engine in ("sequential", "vectorised"):
        run = fit(data, Tagger(), engine=engine)
        assert run.history[-1]["metric"] == pytest.approx(3 / 4)  # of the four real positions
    long = mo.data.from_arrays(columns | {"y": y[..., None]}, [0] * 4 + [1] * 4, test=0.5)
    refused(lambda: fit(long, Tagger()), r"`y`.*\(5,\) per example.*\(5, 1\).*y\[\.\.\., 0\]")


def constants() -> mo.FederatedData:
    """Clients 1 to 5, and every target of a client is its number."""
    x = np.zeros((len(CLIENTS), 1), dtype=np.float32)
    return mo.data.from_arrays({"x": x, "y": CLIENTS.astype(np.float32)}, CLIENTS, test=0)


def test_clients_whose_names_are_numbers() -> None:
    """One step of lr 1/2 from 0 on (b - y)^2 is b = y: the bias says whose model it is."""
    data, model = constants(), nn.Linear(1, 1)
    nn.init.zeros_(model.bias)
    run = fit(data, model, mo.local_only(personal=mo.sgd(0.5, batch_size=12)), rounds=1)
    assert run.export("3").bias.item() == pytest.approx(3)
    assert run.export(data.ids[3]).bias.item() == pytest.approx(4)
    assert run.export(0).bias.item() == pytest.approx(1)  # no client is called 0
    text = refused(lambda: run.export(3), "`client`.*got 3.*client '4'")
    assert text.endswith('Say "3" for the name, or data.ids[3] for the position.')
    refused(lambda: run.parameters(np.int64(1)), "`client`.*got 1.*client '2'")
    refused(lambda: run.export(5), 'from 0 to 4, got 5.*as in "5"')


def test_ids_that_count_from_0_are_positions_and_names() -> None:
    x, y = rows()
    data = mo.data.from_arrays({"x": x, "y": y}, CLIENTS - 1)
    run = fit(data, algorithm=mo.local_only(personal=0.1))
    for one, other in itertools.product((3,), ("3", np.int64(3))):
        assert torch.equal(run.export(one).head.weight, run.export(other).head.weight)  # type: ignore[union-attr]


def test_attackers_whose_names_are_numbers() -> None:
    options: dict[str, Any] = {"attack": mo.attack.sign_flip(), "rounds": 1}
    refused(lambda: fit(number_clients(), attackers=[1, 2], **options), "`client`.*got 1.*client '2'")
    assert fit(number_clients(), attackers=["1", "2"], **options).config["run"]["attackers"] == ["1", "2"]


def test_what_counts_clients_is_not_asked_for_names() -> None:
    """Calibration goes through all clients by position; accuracy by hand, as above."""
    data = number_clients()
    run = fit(data)
    each, _ = run.calibration()
    model, accuracies = run.export(), {}
    for name in map(str, data.ids):
        test = data.client(name, "test")
        with torch.no_grad():
            accuracies[name] = float((model(torch.from_numpy(test["x"])).numpy().argmax(1) == test["y"]).mean())
    assert {row["client"]: row["accuracy"] for row in each} == pytest.approx(accuracies)


def test_which_clients_have_a_batch_of_one_row() -> None:
    """Against lists cut by hand: epochs one after the other, each in pieces of the batch size."""
    for n, size, steps in itertools.product(range(1, 14), range(1, 6), (None, 1, 2, 3, 7)):
        epoch = [len(range(n)[at : at + size]) for at in range(0, n, size)]
        batches = epoch * 2 if steps is None else list(itertools.islice(itertools.cycle(epoch), steps))
        phase = Phase(2 if steps is None else None, steps, size, shuffle=True)
        assert has_lone_batch(phase, np.array([n])).tolist() == [1 in batches], (n, size, steps)


def test_a_batch_of_one_row_is_found_before_training() -> None:
    """33 rows in batches of 32 leave one row; the other client's 65 rows leave one in batches of 64, too."""
    data = federation((33, 65), test=0)
    fedbn = {"split": mo.split.fedbn(batch_norm_net()), "rounds": 1}
    text = refused(
        lambda: fit(data, batch_norm_net(), mo.fedsim(shared=0.1, personal=0.1), **fedbn),
        "`batch_size`.*one row.*32 for the 33 rows of client c0. The next that fits is 33.",
    )
    assert "BatchNorm" in text
    fit(data, batch_norm_net(), mo.fedsim(shared=mo.sgd(0.1, batch_size=33), personal=0.1), **fedbn)
    refused(
        lambda: fit(data, batch_norm_net(), mo.fedavg(shared=mo.sgd(0.1, batch_size=64))),
        "64 for the 65 rows of client c1",
    )
    fit(
        data, batch_norm_net(), mo.fedavg(shared=mo.sgd(0.1, batch_size=500)), rounds=1
    )  # all rows of each in one batch
    fit(data, batch_norm_net(), mo.fedavg(shared=mo.sgd(0.1, steps=1)), rounds=1)  # the last batch is never reached
    refused(
        lambda: fit(data, batch_norm_net(), mo.fedavg(shared=mo.sgd(0.1, steps=2))), "32 for the 33 rows of client c0"
    )
    fit(data, mlp(), mo.fedavg(shared=0.1), rounds=1)  # no BatchNorm


def test_batch_norm_over_pixels_takes_one_row() -> None:
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)]
    fit(
        federation((5, 9), test=0, image=True),
        nn.Sequential(*layers),
        mo.fedavg(shared=mo.sgd(0.1, batch_size=4)),
        rounds=1,
    )


def test_a_batch_of_one_row_that_comes_later_is_named() -> None:
    """A walk through three rows by twos meets the last one in round 2; a new client may bring any number."""
    data = federation((3,), test=0)
    walk = mo.independent(personal=mo.online(0.1, batch_size=2))
    refused(lambda: fit(data, batch_norm_net(), walk), "`batch_size` must be .* got 2 for the 3 rows of client c0")
    run = fit(federation((8,), test=0), batch_norm_net(), mo.fedavg(shared=mo.sgd(0.1, batch_size=4)))
    new = {"x": np.zeros((5, 4), dtype=np.float32), "y": np.zeros(5, dtype=int)}
    refused(lambda: run.onboard(new), "client new client.*A batch has one row there")
