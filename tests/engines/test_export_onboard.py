"""Models taken out of a run predict as the run says, and a new client is served by Algorithm 2, lines 2 to 5."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import batch_norm_net, contents, exact, federation, mlp, seeded, tree_hash
from flat_options import flat
from torch import nn
from torch.nn import functional

import moiety as mo

FED = federation((20, 30, 9, 40), test=0.4)


def by_hand(model: nn.Module, client: int | str, data: mo.FederatedData = FED) -> tuple[float, float]:
    """Loss and accuracy on a client's test rows, with torch alone."""
    rows = data.client(client, "test")
    x, y = torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])
    with torch.no_grad():
        output = model(x)
    return float(functional.cross_entropy(output, y)), float((output.argmax(1) == y).float().mean())


ALGORITHMS = {
    "fedavg": lambda: mo.fedavg(shared=mo.sgd(0.3, batch_size=5)),
    "fedalt": lambda: mo.fedalt(shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.5, batch_size=5)),
    "fedalt stateless": lambda: mo.fedalt(
        shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.5, batch_size=5), stateful=False
    ),
    "fedsim": lambda: mo.fedsim(shared=mo.sgd(0.3, batch_size=5), personal=0.5),
    "local only": lambda: mo.local_only(personal=mo.sgd(0.5, batch_size=5)),
    "finetune": lambda: mo.finetune(personal=mo.sgd(0.5, batch_size=5)),
    "ditto": lambda: mo.ditto(shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.5, pull=0.3, batch_size=5)),
    "pfedme": lambda: mo.pfedme(shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.3, pull=1.0, steps=2)),
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_exported_model_predicts_as_the_run_says(name: str, engine: str) -> None:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"]) if name.startswith(("fedalt", "fedsim", "fine")) else None
    run = mo.fit(model, FED, ALGORITHMS[name](), split=split, rounds=4, cohort=3, engine=engine)
    shared = run.export()
    assert not shared.training
    for at, row in enumerate(run.clients):
        personal = run.export(at)
        assert isinstance(personal, nn.Module)
        assert not any(m.training for m in personal.modules())
        loss, accuracy = by_hand(personal, at)
        assert row["loss"] == pytest.approx(loss, abs=1e-5)
        assert row["metric"] == pytest.approx(accuracy, abs=1e-6)
        assert (row["shared_loss"], row["shared_metric"]) == pytest.approx(by_hand(shared, at), abs=1e-5)
        assert row["gain"] == pytest.approx(row["metric"] - row["shared_metric"], abs=1e-9)
        assert row["n_test"] == len(FED.client(at, "test")["y"])
        by_name = run.export(row["client"])
        assert exact(by_name.state_dict()) == exact(personal.state_dict())
    sizes = FED.sizes("test")
    assert run.history[-1]["metric"] == pytest.approx(np.average([r["metric"] for r in run.clients], weights=sizes))


def test_batch_norm_is_exported_with_its_running_statistics() -> None:
    model = batch_norm_net()
    for where in ("personal", "shared"):
        split = mo.split.by_name(model, personal=["head"], running_stats=where)
        algorithm = mo.fedalt(shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.5, batch_size=5))
        run = mo.fit(model, FED, algorithm, split=split, rounds=3, engine="sequential")
        means = [run.export(at).norm.running_mean for at in range(len(FED))]
        assert torch.equal(means[0], means[1]) == (where == "shared")
        assert run.export(0).norm.num_batches_tracked > 0
        for at, row in enumerate(run.clients):
            assert (row["loss"], row["metric"]) == pytest.approx(by_hand(run.export(at), at), abs=1e-5)


def test_the_users_model_is_not_changed_by_anything() -> None:
    model = batch_norm_net().train()
    model.body.eval()
    before, modes = exact(model.state_dict()), [m.training for m in model.modules()]
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(shared=0.3, personal=0.5)
    run = mo.fit(model, FED, algorithm, split=split, rounds=2, engine="sequential")
    run.export(0)
    run.onboard(FED.client(1))
    assert exact(model.state_dict()) == before
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_an_exported_model_is_the_users_to_change() -> None:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    run = mo.fit(model, FED, mo.fedalt(shared=0.3, personal=0.5), split=split, rounds=2, engine="sequential")
    before = contents(run)
    twin = run.export(0)
    with torch.no_grad():
        for p in twin.parameters():
            p.fill_(9.0)
    new = run.onboard(FED.client(0))
    with torch.no_grad():
        for p in new.parameters():
            p.fill_(9.0)
    assert contents(run) == before


def test_parameters_that_were_handed_out_do_not_change_the_run() -> None:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    run = mo.fit(model, FED, mo.fedalt(shared=0.3, personal=0.5), split=split, rounds=2, engine="sequential")
    before = contents(run)
    for tensors in (run.parameters(0), run.shared_parameters()):
        for tensor in tensors.values():
            tensor.fill_(9.0)
    assert contents(run) == before


def test_a_frozen_layer_keeps_its_values() -> None:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"], frozen=["hidden1.bias"])
    run = mo.fit(model, FED, mo.fedalt(shared=0.3, personal=0.5), split=split, rounds=2, engine="sequential")
    assert torch.equal(run.export(1).hidden1.bias, model.hidden1.bias)
    assert not torch.equal(run.export(1).hidden1.weight, model.hidden1.weight)


class Regression(nn.Module):
    """Shared features tanh(U x + b), personal head v h + c."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.body(x)))


def regression_run(**options: Any) -> tuple[mo.Run, nn.Module]:
    draw = np.random.default_rng(4)
    rows = {f"c{i}": {"x": draw.normal(size=(8 + i, 3)), "y": draw.normal(size=(8 + i, 1))} for i in range(4)}
    model = seeded(Regression).double()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = flat(mo.fedalt, **{"shared_lr": 0.2, "personal_lr": 0.1} | options.pop("algorithm", {}))
    data = mo.data.from_clients(rows, test=0.25)
    return mo.fit(model, data, algorithm, split=split, rounds=3, engine="sequential", **options), model


def algorithm_2(
    body: tuple[np.ndarray, np.ndarray], head: tuple[np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lines 2 to 5 in NumPy: v <- v - gamma_v grad_v F(u, v) on the whole data, u held fixed, gamma_v = 0.1.

    F = mean (v h + c - y)^2 with h = tanh(U x + b): the gradients are 2 mean (r h) and 2 mean (r), r the residual.
    """
    h = np.tanh(x @ body[0].T + body[1])
    v, c = head[0].copy(), head[1].copy()
    for _ in range(steps):
        r = h @ v.T + c - y
        v, c = v - 0.1 * 2 * (r * h).mean(0, keepdims=True), c - 0.1 * 2 * r.mean(0)
    return v, c


@pytest.mark.parametrize(("steps", "passes"), [(1, 1), (4, 1), (4, 3)])
def test_onboarding_is_lines_2_to_5_of_algorithm_2(steps: int, passes: int) -> None:
    run, model = regression_run(algorithm={"personal_steps": steps, "batch_size": 100})
    draw = np.random.default_rng(9)
    x, y = draw.normal(size=(11, 3)), draw.normal(size=(11, 1))
    new = run.onboard({"x": x, "y": y}, passes=passes)
    u = run.shared_parameters()
    body = (u["body.weight"].numpy(), u["body.bias"].numpy())
    first = (model.head.weight.detach().numpy(), model.head.bias.detach().numpy())
    v, c = algorithm_2(body, first, x, y, steps * passes)
    np.testing.assert_allclose(new.head.weight.detach().numpy(), v, rtol=1e-12)
    np.testing.assert_allclose(new.head.bias.detach().numpy(), c, rtol=1e-12)
    # u is the trained one, and it did not move.
    np.testing.assert_array_equal(new.body.weight.detach().numpy(), body[0])
    assert not np.allclose(body[0], model.body.weight.detach().numpy())
    assert not new.training


def test_onboarding_walks_through_batches() -> None:
    """Batches of 4 out of 9 rows in their order, by plain torch."""
    run, model = regression_run(algorithm={"batch_size": 4, "shuffle": False, "personal_epochs": 2})
    draw = np.random.default_rng(9)
    x, y = torch.from_numpy(draw.normal(size=(9, 3))), torch.from_numpy(draw.normal(size=(9, 1)))
    hand = run.export()
    hand.head.load_state_dict(model.head.state_dict())
    optimiser = torch.optim.SGD(hand.head.parameters(), lr=0.1)
    for _ in range(2):
        for at in (0, 4, 8):
            optimiser.zero_grad()
            functional.mse_loss(hand(x[at : at + 4]), y[at : at + 4]).backward()
            optimiser.step()
    new = run.onboard({"x": x, "y": y})
    for name, p in new.state_dict().items():
        torch.testing.assert_close(p, hand.state_dict()[name], rtol=1e-12, atol=1e-14)


def test_onboarding_leaves_run_and_folder_as_they_were(tmp_path: Path) -> None:
    run, _ = regression_run(out=tmp_path / "run")
    before, files = copy.deepcopy(contents(run)), tree_hash(tmp_path)
    data = {"x": np.ones((5, 3)), "y": np.ones((5, 1))}
    one, other = run.onboard(data, passes=2), run.onboard(data, passes=2)
    assert exact(one.state_dict()) == exact(other.state_dict())
    assert contents(run) == before
    assert tree_hash(tmp_path) == files


def test_onboarding_for_fedavg_is_the_shared_model() -> None:
    run = mo.fit(mlp(), FED, mo.fedavg(shared=0.3), rounds=2, engine="sequential")
    new = run.onboard(FED.client(0))
    assert exact(new.state_dict()) == exact(run.export().state_dict())


def test_a_resumed_run_exports_and_onboards_the_same(tmp_path: Path) -> None:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(shared=mo.sgd(0.3, batch_size=5), personal=mo.sgd(0.5, batch_size=5))
    run = mo.fit(model, FED, algorithm, split=split, rounds=2, cohort=2, engine="sequential", out=tmp_path / "run")
    again = mo.resume(tmp_path / "run", data=FED)
    for at in range(len(FED)):
        assert exact(run.export(at).state_dict()) == exact(again.export(at).state_dict())
    data = FED.client(2)
    assert exact(run.onboard(data).state_dict()) == exact(again.onboard(data).state_dict())


def test_an_exported_model_is_a_warm_start() -> None:
    """Its values are the first ones of the next run: with nothing yet trained there, they are the shared model."""
    run = mo.fit(mlp(), FED, mo.fedavg(shared=0.3), rounds=3, engine="sequential")
    warm = run.export()
    split = mo.split.by_name(warm, personal=["head"])
    algorithm = mo.fedalt(shared=1e-30, personal=1e-30)
    later = mo.fit(warm, FED, algorithm, split=split, rounds=1, engine="sequential")
    assert exact(later.export(1).state_dict()) == exact(warm.state_dict())
