"""Several rounds on least squares against NumPy written from the pseudocode: uneven clients, all options at once."""

import numpy as np
import oracle_numpy as ref
import pytest
from flat_options import flat
from oracle_problems import federated, split_of, vector_clients, vector_task

import moiety as mo

SIZES = [1, 7, 3, 12]
CLIENTS = vector_clients(SIZES)
MATRICES = {"u": "a", "v": "b"}
U0, V0 = np.array([0.5, -1.0]), np.array([0.25, 2.0])
WIDTHS = {"u": 2, "v": 2}
CASES = [
    ("examples", {}),
    ("batches", {"momentum": 0.5}),
    ("uniform", {"weight_decay": 0.25}),
    ("examples", {"clip": 0.75}),
    ("batches", {"momentum": 0.9, "weight_decay": 0.05, "clip": 1.5}),
]
IDS = ["plain", "momentum", "decay", "clip", "all"]


def halving():
    return mo.schedule.exponential(halve_every=2)


def factor(t):
    return [1.0, 1.0, 0.5, 0.5][t]


def fit(algorithm, split, engine, rounds=4):
    task = vector_task(U0, V0)
    return mo.fit(
        task,
        federated(CLIENTS),
        algorithm,
        split=split,
        rounds=rounds,
        engine=engine,
        settings=mo.Settings(evaluate_every=rounds),
    )


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("weighting", "options"), CASES, ids=IDS)
def test_fedalt(engine, weighting, options):
    algorithm = flat(
        mo.fedalt,
        shared_lr=0.1,
        personal_lr=0.2,
        shared_epochs=2,
        personal_steps=3,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        schedule=halving(),
        **options,
    )
    run = fit(algorithm, split_of(["u"], ["v"], WIDTHS), engine)
    u, vs = {"u": U0}, [{"v": V0}] * 4
    for t in range(4):
        uploads, weights = [], []
        for i, data in enumerate(CLIENTS):
            index_u = ref.batches(SIZES[i], 4, epochs=2)
            index_v = ref.batches(SIZES[i], 4, steps=3)
            rates = {"gamma_u": 0.1 * factor(t), "gamma_v": 0.2 * factor(t)}
            up, vs[i], _ = ref.local_alt(
                u, vs[i], data, **rates, index_u=index_u, index_v=index_v, matrices=MATRICES, **options
            )
            uploads.append(up)
            weights.append(ref.weight_of(weighting, SIZES[i], len(index_u)))
        u = ref.aggregate(uploads, weights)
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), u["u"], rtol=1e-10, atol=1e-12)
    for i in range(4):
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), vs[i]["v"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("weighting", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("personal", [["v"], []], ids=["fedsim", "fedavg"])
def test_fedsim_and_fedavg(engine, weighting, options, personal):
    common = {"epochs": 2, "batch_size": 4, "shuffle": False, "weighting": weighting, "schedule": halving(), **options}
    rates = {"gamma_u": 0.1, "gamma_v": 0.2}
    if personal:
        algorithm = flat(mo.fedsim, shared_lr=0.1, personal_lr=0.2, **common)
    else:
        algorithm = flat(mo.fedavg, lr=0.1, **common)
    shared = [k for k in ("u", "v") if k not in personal]
    run = fit(algorithm, split_of(shared, personal, WIDTHS), engine)
    start = {"u": U0, "v": V0}
    u, vs = {k: start[k] for k in shared}, [{k: start[k] for k in personal} for _ in SIZES]
    for t in range(4):
        uploads, weights = [], []
        for i, data in enumerate(CLIENTS):
            index = ref.batches(SIZES[i], 4, epochs=2)
            scaled = {k: r * factor(t) for k, r in rates.items()}
            up, vs[i], _ = ref.local_sim(u, vs[i], data, **scaled, index=index, matrices=MATRICES, **options)
            uploads.append(up)
            weights.append(ref.weight_of(weighting, SIZES[i], len(index)))
        u = ref.aggregate(uploads, weights)
    for k in shared:
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), u[k], rtol=1e-10, atol=1e-12)
    for i in range(4):
        for k in personal:
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), vs[i][k], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("options", [options for _, options in CASES], ids=IDS)
def test_local_only(engine, options):
    """Momentum starts from 0 in each round; without it, rounds are no more than a longer walk."""
    algorithm = flat(mo.local_only, lr=0.1, epochs=2, batch_size=4, shuffle=False, schedule=halving(), **options)
    run = fit(algorithm, split_of([], ["u", "v"], WIDTHS), engine)
    for i, data in enumerate(CLIENTS):
        w = {"u": U0, "v": V0}
        for t in range(4):
            rates = dict.fromkeys(w, 0.1 * factor(t))
            w, _ = ref.descend(w, data, ref.batches(SIZES[i], 4, epochs=2), rates, MATRICES, **options)
        for k in w:
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), w[k], rtol=1e-10, atol=1e-12)
