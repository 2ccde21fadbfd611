"""Running statistics: personal ones stay with their client, shared ones are the weighted mean of the clients'.

x is 1, 3 for one client (mean 2, unbiased variance 2) and 0, 3, 9 for the other (mean 4, variance 21). From mean 0
and variance 1 with torch's momentum of 0.1, one full batch makes 0.2 and 0.9 + 0.2 = 1.1 of the first, and 0.4 and
0.9 + 2.1 = 3.0 of the second. By examples, 2 : 3: mean (0.4 + 1.2) / 5 = 0.32, variance (2.2 + 9) / 5 = 2.24.
"""

import numpy as np
import pytest
import torch
from oracle_problems import federated
from torch import nn

import moiety as mo
from moiety.engines.processes import Processes
from moiety.errors import MoietyError

XS = [np.array([[1.0], [3.0]]), np.array([[0.0], [3.0], [9.0]])]
DATA = federated([{"x": x, "y": np.ones((len(x), 1))} for x in XS], names=["ann", "bob"])
MEAN, VARIANCE, COUNT = "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.head = nn.Linear(1, 1)

    def forward(self, x):
        return self.head(self.norm(x))


def model():
    torch.manual_seed(0)
    return Net().double()


def values(params):
    return [float(params[MEAN]), float(params[VARIANCE]), int(params[COUNT])]


def fit(algorithm, split, rounds=1, **options):
    return mo.fit(model(), DATA, algorithm, split=split, rounds=rounds, engine="sequential", **options)


def test_shared_statistics_are_the_weighted_mean():
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model(), running_stats="shared"))
    assert values(run.shared_parameters()) == pytest.approx([0.32, 2.24, 1], rel=1e-12)
    for client in ("ann", "bob"):
        assert values(run.parameters(client)) == pytest.approx([0.32, 2.24, 1], rel=1e-12)
    uniform = fit(mo.fedavg(shared=0.1, weighting="uniform"), mo.split.nothing(model(), running_stats="shared"))
    assert values(uniform.shared_parameters()) == pytest.approx([0.3, 2.05, 1], rel=1e-12)


def test_shared_statistics_go_on_from_the_servers():
    """Second round: 0.9 * 0.32 + 0.2 = 0.488 and 0.9 * 0.32 + 0.4 = 0.688; (2 * 0.488 + 3 * 0.688) / 5 = 0.608."""
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model(), running_stats="shared"), rounds=2)
    statistics = values(run.shared_parameters())
    assert statistics[0] == pytest.approx(0.608, rel=1e-12)
    assert statistics[1] == pytest.approx(0.9 * 2.24 + 0.1 * (2 * 2 + 3 * 21) / 5, rel=1e-12)
    assert statistics[2] == 2


@pytest.mark.parametrize(
    "server", [mo.server.adam(lr=0.5), mo.server.yogi(lr=0.5), mo.server.sgd(lr=0.5, momentum=0.9)]
)
def test_shared_statistics_never_go_through_the_servers_optimiser(server):
    for rounds, mean in ((1, 0.32), (2, 0.608)):
        run = fit(
            mo.fedavg(shared=0.1, server=server), mo.split.nothing(model(), running_stats="shared"), rounds=rounds
        )
        assert float(run.shared_parameters()[MEAN]) == pytest.approx(mean, rel=1e-12)


def test_personal_statistics_stay_with_their_client():
    """FedAvg by default: each has its own; the shared model alone has those of the start."""
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model()))
    assert values(run.parameters("ann")) == pytest.approx([0.2, 1.1, 1], rel=1e-12)
    assert values(run.parameters("bob")) == pytest.approx([0.4, 3.0, 1], rel=1e-12)
    assert values(run.shared_parameters()) == [0.0, 1.0, 0]
    for name in ("head.weight", "norm.weight"):
        assert torch.equal(run.parameters("ann")[name], run.parameters("bob")[name])


def test_personal_statistics_of_a_client_that_is_not_asked_do_not_move():
    records = []
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model()), cohort=1, callbacks=[lambda run, r: records.append(r)])
    (client,) = records[0].cohort
    expected = {0: [0.2, 1.1, 1], 1: [0.4, 3.0, 1]}[client]
    assert values(run.parameters(client)) == pytest.approx(expected, rel=1e-12)
    assert values(run.parameters(1 - client)) == [0.0, 1.0, 0]


@pytest.mark.parametrize("running_stats", ["personal", "shared"])
def test_fedalt_moves_them_in_both_phases(running_stats):
    """Two passes.

    0.9 * 0.2 + 0.2 = 0.38 and 0.9 * 0.4 + 0.4 = 0.76; shared, (0.76 + 2.28) / 5 = 0.608. Two batches counted.
    """
    split = mo.split.by_name(model(), personal=["head"], running_stats=running_stats)
    run = fit(mo.fedalt(shared=0.1, personal=0.1), split)
    statistics = [values(run.parameters(c))[::2] for c in ("ann", "bob")]
    if running_stats == "personal":
        assert np.array(statistics) == pytest.approx(np.array([[0.38, 2], [0.76, 2]]), rel=1e-12)
    else:
        assert np.array(statistics) == pytest.approx(np.array([[0.608, 2], [0.608, 2]]), rel=1e-12)


def test_fedalt_without_a_personal_parameter_has_one_phase_only():
    """Statistics alone are personal: the v-phase has nothing to train, so it makes no pass, as FedAvg does none."""
    run = fit(mo.fedalt(shared=0.1, personal=0.1), mo.split.nothing(model()))
    assert values(run.parameters("ann")) == pytest.approx([0.2, 1.1, 1], rel=1e-12)
    plain = fit(mo.fedavg(shared=0.1), mo.split.nothing(model()))
    for name, p in plain.parameters("bob").items():
        torch.testing.assert_close(run.parameters("bob")[name], p, rtol=1e-12, atol=0)


def test_the_training_step_uses_the_batchs_own_statistics():
    """The whole first step of FedAvg by an ordinary module in training mode."""
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model()))
    total = {}
    for x in XS:
        net = model().train()
        (net(torch.tensor(x)) - 1).square().mean().backward()
        for name, p in net.named_parameters():
            total[name] = total.get(name, 0) + len(x) / 5 * (p - 0.1 * p.grad).detach()
    for name, p in total.items():
        torch.testing.assert_close(run.shared_parameters()[name], p, rtol=1e-12, atol=1e-14)


def test_evaluation_uses_the_clients_running_statistics():
    run = fit(mo.fedavg(shared=0.1), mo.split.nothing(model()))
    for client, x in enumerate(XS):
        p = run.parameters(client)
        normal = (x - float(p[MEAN])) / np.sqrt(float(p[VARIANCE]) + 1e-5)
        output = (normal * float(p["norm.weight"]) + float(p["norm.bias"])) * float(p["head.weight"]) + float(
            p["head.bias"]
        )
        assert run.clients[client]["loss"] == pytest.approx(((output - 1) ** 2).mean(), rel=1e-10)


def test_vectorised_refuses_and_auto_falls_back():
    split = mo.split.nothing(model())
    with pytest.raises(MoietyError, match=r"^`engine` must be able to pad .*BatchNorm.* Use engine sequential\.$"):
        mo.fit(model(), DATA, mo.fedavg(shared=0.1), split=split, rounds=1, engine="vectorised")
    run = mo.fit(model(), DATA, mo.fedavg(shared=0.1), split=split, rounds=1, engine="auto")
    assert run.engine.endswith("sequential")
    assert values(run.parameters("ann")) == pytest.approx([0.2, 1.1, 1], rel=1e-12)


@pytest.mark.parametrize("running_stats", ["personal", "shared"])
def test_instance_norm_with_running_statistics_is_refused_or_right(running_stats):
    """Its running statistics are means over the batch, so padding rows must not enter them.

    Three rows of a client are padded to the four of the other. By hand: the row means are 0, 1, 2, 3 in order, so the
    running mean becomes 0.1 * 1 = 0.1 for the client with three and 0.1 * 1.5 = 0.15 for the one with four.
    """

    class Instance(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.InstanceNorm1d(1, track_running_stats=True)
            self.head = nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.norm(x).flatten(1))

    x = np.array([[-1.0, 1.0], [0, 2], [1, 3], [2, 4]], dtype=np.float32)[:, None]
    y = np.ones((4, 1), dtype=np.float32)
    data = federated([{"x": x[:3], "y": y[:3]}, {"x": x, "y": y}])
    net = Instance()
    split = mo.split.nothing(net, running_stats=running_stats)
    means = [0.1, 0.15] if running_stats == "personal" else [(3 * 0.1 + 4 * 0.15) / 7] * 2
    for engine in ("sequential", "vectorised"):
        try:
            run = mo.fit(net, data, mo.fedavg(shared=0.1), split=split, rounds=1, engine=engine)
        except MoietyError:
            assert engine == "vectorised"
            continue
        assert [float(run.parameters(c)[MEAN]) for c in (0, 1)] == pytest.approx(means, rel=1e-5), engine


def test_a_client_that_batchnorm_cannot_train_on_is_named():
    """One row is no batch for BatchNorm."""
    data = federated([{"x": np.ones((2, 1)), "y": np.ones((2, 1))}, {"x": np.ones((1, 1)), "y": np.ones((1, 1))}])
    with pytest.raises(MoietyError, match=r"`data` must be at least two training rows.*got 1 for client client-1"):
        mo.fit(model(), data, mo.fedavg(shared=0.1), rounds=1, engine="sequential")


def test_workers_score_the_shared_model_client_by_client(monkeypatch):
    calls, serve = set(), Processes.map

    def watch(self, function, *rest):
        calls.add(function)
        return serve(self, function, *rest)

    monkeypatch.setattr(Processes, "map", watch)
    algorithm, split = mo.fedalt(shared=0.1, personal=0.1), mo.split.by_name(model(), personal=["head"])
    here = mo.fit(model(), DATA, algorithm, split=split, rounds=2, engine="sequential")
    workers = mo.Settings(workers=2)
    there = mo.fit(model(), DATA, algorithm, split=split, rounds=2, engine="processes:sequential", settings=workers)
    assert "score_shared_apart" in calls
    assert there.clients == here.clients
    assert np.isfinite([row["shared_loss"] for row in there.clients]).all()
