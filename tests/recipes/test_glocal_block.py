"""The block of many online runs is, run by run, what ``moiety.fit`` does with the algorithms themselves."""

import numpy as np
import pytest
import torch

import moiety as mo
from moiety_recipes.glocal_block import Block, Trials, run_block, score_block, stack_trials

ROUNDS = 45


def linear(outputs=1):
    model = mo.models.linear(64, outputs)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return model


@pytest.fixture(scope="module")
def tasks():
    """Two trials of three clients with 10 rows: 4.5 passes."""
    return [mo.data.binary_tasks("digits", clients=3, per_class=5, seed=seed) for seed in (0, 1)]


def train(fed, method, lr, tau, alignment, seed, rounds=ROUNDS, outputs=1, rule="adagrad"):
    model = linear(outputs)
    clock, split = None, None
    online = mo.online(lr, rule=rule)
    if method == "independent":
        algorithm = mo.independent(personal=online)
    elif method == "central":
        algorithm = mo.central(shared=online)
        clock = mo.clock.delayed(down=tau, up=tau) if tau else None
    else:
        trip = 2 * tau if alignment == "aligned" else 0
        algorithm = mo.glocal_sgd(shared=online, personal=online, alignment=alignment, longest_round_trip=trip)
        split = mo.split.additive(model, linear(outputs))
        at = "arrival" if alignment == "misaligned" else "dispatch"
        clock = mo.clock.delayed(down=tau, up=tau, at=at) if tau else None
    losses = []
    run = mo.fit(
        model,
        fed,
        algorithm,
        split=split,
        rounds=rounds,
        seed=seed,
        settings=mo.Settings(clock=clock, evaluate_every=rounds, evaluate_on="test"),
        engine="vectorised",
        loss="one_versus_all",
        callbacks=[lambda run, record: losses.append(record.train_loss)],
    )
    return run, losses


def join(values, prefix):
    return torch.cat([values[f"{prefix}head.weight"], values[f"{prefix}head.bias"][:, None]], dim=1).T


CASES = [
    ("independent", 0, "aligned", "adagrad"),
    ("central", 0, "aligned", "adagrad"),
    ("glocal", 0, "aligned", "adagrad"),
    ("glocal", 3, "aligned", "adagrad"),
    ("glocal", 3, "misaligned", "adagrad"),
    ("glocal", 3, "asymmetric", "adagrad"),
    ("glocal", 3, "aligned", "normalised"),
]


@pytest.mark.parametrize(("method", "tau", "alignment", "rule"), CASES)
def test_a_group_is_a_run(tasks, method, tau, alignment, rule):
    """Groups of different trials, rates and delays side by side; each compared with a run of its own."""
    groups = [(0, 0.05, tau), (1, 0.02, 0), (1, 0.05, tau)]
    trial, lr, delay = (torch.tensor(each) for each in zip(*groups, strict=True))
    block = Block(trial, lr, delay, method, alignment, rule=rule)
    outcome = run_block(stack_trials(tasks, ROUNDS, (0, 1)), block)
    scores = score_block(tasks, "test", block, outcome)
    for k, (one, rate, late) in enumerate(groups):
        run, losses = train(tasks[one], method, rate, late, alignment, seed=one, rule=rule)
        np.testing.assert_allclose(outcome.losses[k], losses, rtol=2e-4, atol=1e-5)
        names = {"independent": ("", None), "central": (None, ""), "glocal": ("personal.", "shared.")}[method]
        if names[1] is not None:
            torch.testing.assert_close(outcome.shared[k], join(run.shared_parameters(), names[1]), rtol=0, atol=1e-5)
        if names[0] is not None:
            for i in range(3):
                own = join(run.parameters(i), names[0])
                torch.testing.assert_close(outcome.personal[k, i], own, rtol=0, atol=1e-5)
        assert float(scores[k]) == pytest.approx(run.history[-1]["metric"], abs=1e-6)


def test_several_classes_are_one_regression_each(tasks):
    x, y = (np.concatenate([fed.columns[c] for fed in tasks]) for c in ("x", "y"))
    y = np.where(np.arange(len(y)) % 7 == 0, 2, y)  # a third class, of some kind
    fed = mo.data.from_arrays({"x": x, "y": y}, client=np.arange(len(y)) % 3, test=0.5)
    block = Block(torch.tensor([0]), torch.tensor([0.05]), torch.tensor([0]))
    outcome = run_block(stack_trials([fed], ROUNDS, (0,)), block)
    run, _ = train(fed, "glocal", 0.05, 0, "aligned", seed=0, outputs=3)
    torch.testing.assert_close(outcome.shared[0], join(run.shared_parameters(), "shared."), rtol=0, atol=1e-5)
    assert float(score_block([fed], "test", block, outcome)[0]) == pytest.approx(run.history[-1]["metric"], abs=1e-6)


@pytest.mark.parametrize("rule", ["adagrad", "normalised"])
def test_labels_around_zero_are_a_start_at_one_half(tasks, rule):
    """Regression on -1/2 and 1/2 from 0 is regression on 0 and 1 from a constant of 1/2, up to that constant."""
    trials, groups = stack_trials(tasks, ROUNDS, (0, 1)), torch.tensor([0, 1])
    block = Block(groups, torch.tensor([0.05, 0.2]), torch.tensor([0, 2]), rule=rule)
    start = torch.zeros(65, 1)
    start[-1] = 0.5
    ours = run_block(trials, block, start=(start, torch.zeros(65, 1)))
    expected = run_block(Trials(trials.x, trials.y - 0.5, trials.rows), block)
    torch.testing.assert_close(ours.shared, expected.shared + start, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.personal, expected.personal, rtol=0, atol=1e-5)
