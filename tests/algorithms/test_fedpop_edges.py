"""FedPop at its edges: newcomers' chance and minibatches, refused proposals, codecs, names, chains that diverge."""

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, split_of, vector_clients, vector_task
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.run.predict import newcomer_state

SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 2})
CLIENTS = vector_clients((4, 7, 3), seed=3)


class Mean(nn.Module):
    """Predicts w x + z, whatever x is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.body.weight)

    def forward(self, x):
        return self.body(x) + self.head


def newcomers(kernel, count, rows, **options):
    """The mean of the draws of newcomers and of their rows; y ~ N(0, 1), the likelihood is N(y; z, 1), the prior flat.

    So the posterior is N(mean of y, 1 / rows).
    """
    prior = mo.prior.gaussian(scale=1e4, mean=0.0)
    algorithm = flat(
        mo.fedpop, kernel=kernel, shared_lr=1e-9, prior=prior, learn_prior=False, loss_weight=0.5, **options
    )
    one = {"x": np.zeros((4, 1)), "y": np.zeros((4, 1))}
    net = Mean().double()
    split = mo.split.by_name(net, personal=["head"])
    run = mo.fit(net, mo.data.from_clients({"a": one}, test=0.0), algorithm, split=split, rounds=1, engine="sequential")
    rng, pairs = np.random.default_rng(5), []
    for _ in range(count):
        y = rng.normal(size=(rows, 1))
        state = newcomer_state(run._loop, "mse", {"x": np.zeros((rows, 1)), "y": y}, 1)
        pairs.append((float(state.samples["head"].mean()), y.mean()))
    return np.array(pairs)


def test_a_newcomers_minibatches_come_from_all_its_rows():
    """z <- z + a (mean of the batch - z) + noise with a = step * rows = 0.08, batches of 2 rows of variance 1.

    In the end z is off the mean of all rows by a variance of at most a / (2 - a) / 2 = 0.0208 from the batches (drawn
    without replacement: less) and 2 step / (1 - (1 - a)^2) = 0.0052 from the noise, so by at most 0.161; the start is
    forgotten, (1 - a)^100 = 2e-4. A chain of 5 steps that goes through the same 10 rows 20 times is off by those rows'
    mean, sqrt(1 / 10 - 1 / 200) = 0.308, at least. Over 60 newcomers the root mean square has a standard error of
    0.161 / sqrt(120) = 0.015, in the wrong chain 0.028.
    """
    kernel = mo.kernel.sgld(step=4e-4, batch_size=2)
    pairs = newcomers(kernel, 60, 200, samples=1, thinning=5, burn_in=19)
    assert np.sqrt(np.mean((pairs[:, 0] - pairs[:, 1]) ** 2)) < 0.22


def test_newcomers_have_noise_of_their_own():
    """The error of the mean over 64 newcomers is that of one chain divided by 8: 0 with a deviation of 0.1 / 8.

    Langevin steps of 0.02 on 50 rows have a = 1, so each z is a fresh draw, N(mean of y, 2 * 0.02 = 0.2^2), and the
    mean of 4 of them has a deviation of 0.1. With one noise for all the errors would be the same number.
    """
    errors = np.diff(newcomers(mo.kernel.langevin(step=0.02), 64, 50, samples=4, burn_in=3))[:, 0]
    assert abs(errors.mean()) < 6.5 * 0.1 / 8
    assert 0.06 < errors.std() < 0.14  # 6.5 standard errors of 0.1 / sqrt(126) are 0.06; one noise for all gives 0


def test_a_chain_that_diverges_is_said():
    """a = step * rows = 3 doubles the distance in every step: 2^1110 is beyond float64."""
    with pytest.raises(MoietyError, match="`data` must be rows on which local work stays finite"):
        newcomers(mo.kernel.langevin(step=0.06), 1, 50, samples=10, burn_in=110)


def test_a_client_without_data_is_served_with_the_centre():
    prior = mo.prior.gaussian(scale=0.5, mean=0.25)
    algorithm = mo.fedpop(shared=1e-9, personal=mo.kernel.langevin(step=1e-6), prior=prior, learn_prior=False)
    one = {"x": np.ones((4, 1)), "y": np.ones((4, 1))}
    net = Mean().double()
    split = mo.split.by_name(net, personal=["head"])
    run = mo.fit(net, mo.data.from_clients({"a": one}, test=0.0), algorithm, split=split, rounds=1, engine="sequential")
    assert run.onboard(None).head.item() == 0.25


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_refused_proposal_may_be_anywhere(engine):
    """The loss is (v - log v)^2, NaN for v < 0: MALA refuses to go there, so every client stays in the round."""

    class Barrier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (self.v - self.v.log()) * x + 0 * self.u

    net = Barrier().double()
    split = mo.split.by_name(net, personal=["v"])
    data = mo.data.from_clients({f"c{i}": {"x": np.ones((3, 1)), "y": np.zeros((3, 1))} for i in range(3)}, test=0.0)
    prior = mo.prior.gaussian(scale=1.0, mean=1.0)
    algorithm = mo.fedpop(shared=0.01, personal=mo.kernel.mala(step=0.2), samples=8, prior=prior, learn_prior=False)
    dropouts = []
    options = {"evaluate_every": 4, "callbacks": [lambda run, record: dropouts.extend(record.dropped)]}
    run = mo.fit(net, data, algorithm, **with_settings(split=split, rounds=4, engine=engine, **options))
    assert dropouts == []
    assert all(float(state.samples["v"].min()) > 0 for state in run._loop.progress.store.get([0, 1, 2]))


@pytest.mark.parametrize("codec", [mo.codec.rand_k(k=1), mo.codec.qsgd(levels=1)])
def test_a_codec_leaves_beta_and_the_weights_of_the_average_alone(codec):
    """After one round the chains are those of the run without a codec, so beta is too; phi is not. Weights are 1."""

    def server(codec, rounds):
        algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.02), samples=3, averaged=True)
        task, data = vector_task([0.5, -0.3], [0.2, 0.1]), federated(CLIENTS)
        run = mo.fit(
            task, data, algorithm, split=SPLIT, rounds=rounds, engine="sequential", settings=mo.Settings(codec=codec)
        )
        return run._loop.progress.server

    plain, packed = server(None, 1), server(codec, 1)
    for name, value in plain.prior.items():
        assert torch.equal(value, packed.prior[name])
    assert not torch.equal(plain.shared["u"], packed.shared["u"])
    assert float(server(codec, 5).total) == 5.0


class Stepped(nn.Module):
    """A shared parameter called step."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.full((1,), 2.0))
        self.head = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.step * x + self.head


def test_a_parameter_may_be_called_step():
    """Averaging is beside the chain of iterates: the last iterate is the same with it."""
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.normal(size=(5, 1)), "y": rng.normal(size=(5, 1))} for i in range(3)}
    values = []
    for averaged in (False, True):
        algorithm = mo.fedpop(shared=0.01, personal=mo.kernel.langevin(step=0.01), averaged=averaged)
        net = Stepped().double()
        split = mo.split.by_name(net, personal=["head"])
        run = mo.fit(
            net, mo.data.from_clients(clients, test=0.0), algorithm, split=split, rounds=3, engine="sequential"
        )
        values.append(float(run._loop.progress.server.shared["step"]))
    assert values[0] == values[1] != 2.0


@pytest.mark.parametrize("name", ["learn_prior", "averaged", "stateful"])
def test_flags_are_true_or_false(name):
    with pytest.raises(MoietyError, match=f"`{name}` must be true or false"):
        flat(mo.fedpop, kernel=mo.kernel.langevin(step=0.01), shared_lr=0.1, **{name: "no"})


def test_a_range_of_scales_that_is_empty():
    with pytest.raises(MoietyError, match=r"`prior\.least` must be at most prior\.most"):
        mo.prior.gaussian(least=2.0, most=1.0)
