"""What is FedAlt's own; its numbers are in tests/oracles, its row in tests/conformance."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, problem_of, scalar_task, serve, split_of

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.errors import MoietyError
from moiety.task import from_module
from moiety.types import Work


def test_the_shared_steps_see_the_new_v_and_the_personal_steps_the_old_u():
    """One row (1, 1, 1) from u = v = 0, rates 1/2: v = 1/2 first, then u moves by 1/2 (1 - 1/2) = 1/4.

    Were both at the old point (FedSim) u would be 1/2; were u first, v would be 1/4.
    """
    data = federated([{"a": np.ones(1), "b": np.ones(1), "y": np.ones(1)}])
    split = split_of(["u"], ["v"])
    for build, u, v in ((mo.fedalt, 0.25, 0.5), (mo.fedsim, 0.5, 0.5)):
        algorithm = build(shared=0.5, personal=0.5)
        run = mo.fit(scalar_task(0.0, 0.0), data, algorithm, split=split, rounds=1, engine="sequential")
        assert (float(run.parameters(0)["u"]), float(run.parameters(0)["v"])) == (u, v)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("build", "u", "v"), [(mo.fedalt, 25 / 64, 3 / 16), (mo.fedsim, 5 / 8, 1 / 8)])
def test_a_client_that_restarts_is_evaluated_with_the_v_of_its_last_turn(build, u, v, engine):
    """One row (1, 1, 1) from u = v = 0, rates 1/2 in the first round and 1/4 in the second; v begins at 0 in both.

    FedAlt: v = 1/2, u = 1/4; then v = 1/4 (1 - 1/4) = 3/16, u = 1/4 + 1/4 (1 - 1/4 - 3/16) = 25/64. A v that went on
    would be 9/16; one made on the spot at the full rate (stateful=False) is 1/2 (1 - 25/64) = 39/128.
    FedSim: u = v = 1/2; then u = 1/2 + 1/4 (1 - 1/2) = 5/8 and v = 1/4 (1 - 1/2) = 1/8; on the spot 1/2 (1 - 5/8).
    """
    row = {"a": np.ones(1), "b": np.ones(1), "y": np.ones(1)}
    how = {"split": split_of(["u"], ["v"]), "rounds": 2, "engine": engine}
    options = {"shared": 0.5, "personal": 0.5, "schedule": mo.schedule.exponential(halve_every=1)}
    run = mo.fit(scalar_task(0.0, 0.0), federated([row]), build(**options, restart=True), **how)
    assert (float(run.parameters(0)["u"]), float(run.parameters(0)["v"])) == (u, v)
    assert run.clients[0]["loss"] == pytest.approx((1 - u - v) ** 2 / 2)
    adapted = mo.fit(scalar_task(0.0, 0.0), federated([row]), build(**options, stateful=False), **how)
    assert (float(adapted.parameters(0)["u"]), float(adapted.parameters(0)["v"])) == (u, (1 - u) / 2)
    half = mo.fit(scalar_task(0.0, 0.0), federated([row, row]), build(**options, restart=True), cohort=1, **how)
    never = {int(client) for client in (0, 1)} - set(half._loop.progress.store.owners())
    assert all(float(half.parameters(client)["v"]) == 0 for client in never)
    with pytest.raises(MoietyError, match="`restart` must be left out with stateful=False"):
        build(**options, stateful=False, restart=True)
    with pytest.raises(MoietyError, match="keep_state"):
        build(shared=0.5, personal=mo.sgd(0.5, keep_state=True), restart=True)


def test_each_phase_has_its_own_steps_and_its_own_shuffle():
    """The gradients asked for, in order: tau_v of v, then tau_u of u, on rows drawn apart."""
    net = mo.models.mlp(4, 3, hidden=(5,))
    data = federated(image_clients([30]))
    problem = problem_of(from_module(net, loss="cross_entropy"), data, mo.split.output_layer(net))
    algorithm = mo.fedalt(shared=mo.sgd(0.1, epochs=2, batch_size=10), personal=mo.sgd(0.1, epochs=3, batch_size=10))
    job = problem.make_jobs(algorithm.phases, [0], [problem.first_state(algorithm)], "train", 0, part="train")
    calls = []

    def client_update(work: Work, received, state):
        inner = work.gradient

        def gradient(objective, at):
            calls.append(sorted(at))
            return inner(objective, at)

        object.__setattr__(work, "gradient", gradient)
        return algorithm.client_update(work, received, state)

    received = algorithm.broadcast(problem.first_server(algorithm))
    serve(Sequential, problem, client_update, job, received, RoundInfo())
    assert calls == [["head.bias", "head.weight"]] * 9 + [["hidden1.bias", "hidden1.weight"]] * 6
    personal, shared = (job[0].rows[name].order for name in ("personal", "shared"))
    assert not np.array_equal(personal[:30], shared[:30])


def test_momentum_starts_anew_in_each_phase_and_round():
    """F = ((u - 1)^2 + (v - 1)^2) / 4 from two rows (1, 0, 1) and (0, 1, 1), full batches.

    Gradients (u - 1)/2 and (v - 1)/2. Rate 1, momentum 1/2, two steps a phase: with d = 1 - v, first step m = d/2, d
    -> d/2; second m = d/4 + d/4 = d/2, d -> 0. So u = v = 1 after one round, and since nothing is left of the
    momentum, they stay there for good.
    """
    data = federated([{"a": np.array([1.0, 0]), "b": np.array([0, 1.0]), "y": np.ones(2)}])
    algorithm = mo.fedalt(shared=mo.sgd(1.0, steps=2, momentum=0.5), personal=mo.sgd(1.0, steps=2, momentum=0.5))
    for rounds in (1, 2):
        run = mo.fit(
            scalar_task(0.0, -1.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=rounds, engine="sequential"
        )
        assert {k: float(p) for k, p in run.parameters(0).items()} == {"u": 1.0, "v": 1.0}


def test_weight_decay_is_on_the_block_being_trained():
    """No data pull (a = b = y = 0): decay 1/2 with rate 1 halves v in the v-phase and u in the u-phase, once each."""
    data = federated([{k: np.zeros(1) for k in "aby"}])
    algorithm = mo.fedalt(shared=mo.sgd(1.0, weight_decay=0.5), personal=mo.sgd(1.0, weight_decay=0.5))
    run = mo.fit(scalar_task(8.0, 4.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=1, engine="sequential")
    assert {k: float(p) for k, p in run.parameters(0).items()} == {"u": 4.0, "v": 2.0}


def test_onboarding_is_the_personal_phase_from_the_first_v():
    """A linear model y = w x + c with c personal; the new client's rule moves c alone.

    One client with x = 0, y = 4 (so w has no gradient and stays 0). Onboard x = 0, y = 10 with rate 1/4: the loss is
    (c - y)^2, dc = 2 (c - 10), so c: 0 -> 5 -> 7.5 in two passes.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    algorithm = mo.fedalt(shared=0.25, personal=0.25)
    run = mo.fit(line, data, algorithm, split=mo.split.by_name(line, personal=["bias"]), rounds=1, engine="sequential")
    assert float(run.parameters(0)["bias"]) == 2.0
    before = run.parameters(0)
    for passes, bias in ((1, 5.0), (2, 7.5)):
        new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)}, passes=passes)
        assert (float(new.bias.detach()), float(new.weight.detach())) == (bias, 0.0)
    assert all(torch.equal(run.parameters(0)[n], p) for n, p in before.items()), "nothing of a guest is kept"


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda algorithm: algorithm(shared=0, personal=0.1)),
        ("lr", lambda algorithm: algorithm(shared=mo.sgd(0), personal=0.1)),
        ("personal", lambda algorithm: algorithm(shared=0.1, personal=-1)),
        ("lr", lambda algorithm: algorithm(shared=0.1, personal=mo.sgd(-1))),
        ("epochs", lambda algorithm: algorithm(shared=mo.sgd(0.1, epochs=1, steps=1), personal=0.1)),
        ("steps", lambda algorithm: algorithm(shared=0.1, personal=mo.sgd(0.1, steps=0))),
        ("weighting", lambda algorithm: algorithm(shared=0.1, personal=0.1, weighting="size")),
        ("momentum", lambda algorithm: algorithm(shared=mo.sgd(0.1, momentum=1.0), personal=0.1)),
        ("clip", lambda algorithm: algorithm(shared=mo.sgd(0.1, clip=0.0), personal=0.1)),
        ("shared.pull", lambda algorithm: algorithm(shared=mo.sgd(0.1, pull=1.0), personal=0.1)),
    ],
)
@pytest.mark.parametrize("algorithm", [mo.fedalt, mo.fedsim], ids=["fedalt", "fedsim"])
def test_wrong_hyper_parameters_are_one_line(name, build, algorithm):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build(algorithm)
