"""Glocal.SGD against numbers by hand and against NumPy, written here from Algorithms 3 and 4 and section 3.2.1."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, scalar_task, split_of, vector_clients, vector_task

import moiety as mo
from moiety.errors import MoietyError

PAIR = split_of(["u"], ["v"], {"u": 2, "v": 2})
START = {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}


def fit_run(clients, rounds, *, engine="sequential", clock=None, online=None, **options):
    algorithm = flat(mo.glocal_sgd, **{"shared_lr": 0.02, "personal_lr": 0.05, "shuffle": False, **options})
    task = vector_task(START["u"], START["v"])
    return mo.fit(
        task,
        federated(clients),
        algorithm,
        split=PAIR,
        rounds=rounds,
        engine=engine,
        settings=mo.Settings(clock=clock, evaluate_every=rounds),
        callbacks=[] if online is None else [online],
    )


def test_two_rounds_by_hand_without_delay():
    """f = (a u + b v - y)^2 / 2, u = 1, v = 0, eta = 1/10, eta_i = 1/2; rows in data order, one a round.

    Client 0 has (a, b, y) = (1, 1, 0), (2, 1, 1); client 1 has (1, 2, 3), (0, 1, 1).
    Round 1: residuals 1 - 0 = 1 and 1 - 3 = -2. g^g = 1 and -2, their sum -1: u = 1 + 1/10.
             g^l = 1 and -4: v_0 = -1/2, v_1 = 2.
    Round 2: residuals 2 u + v_0 - 1 = 11/5 - 1/2 - 1 = 7/10 and v_1 - 1 = 1. g^g = 7/5 and 0: u = 11/10 - 7/50.
             g^l = 7/10 and 1: v_0 = -1/2 - 7/20, v_1 = 2 - 1/2.
    """
    rows = [{"a": [1.0, 2.0], "b": [1.0, 1.0], "y": [0.0, 1.0]}, {"a": [1.0, 0.0], "b": [2.0, 1.0], "y": [3.0, 1.0]}]
    clients = [{k: np.array(c) for k, c in r.items()} for r in rows]
    algorithm = mo.glocal_sgd(shared=mo.online(0.1, shuffle=False), personal=0.5)
    losses = []
    run = mo.fit(
        scalar_task(),
        federated(clients),
        algorithm,
        split=split_of(["u"], ["v"]),
        rounds=2,
        callbacks=[lambda run, record: losses.append(record.train_loss)],
    )
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(Fraction(11, 10) - Fraction(7, 50)))
    assert [float(run.parameters(i)["v"]) for i in (0, 1)] == pytest.approx([-0.5 - 0.35, 1.5])
    assert losses == pytest.approx([(Fraction(1, 2) + 2) / 2, (Fraction(49, 200) + Fraction(1, 2)) / 2])


def simulate(clients, rounds, down, up, *, rule="sgd", alignment="aligned", radii=(None, None), lam=None, batch=1):
    """Every quantity with its own time index, w^g[t] and w_i[t] for t = 0 .. T, and updates as they are printed."""
    eta, eta_i = 0.02, 0.05
    count = len(clients)
    lam = np.ones(count) if lam is None else lam
    wg, wl = [START["u"]], [[START["v"]] * count]
    sg, sl = np.zeros(2), [np.zeros(2) for _ in clients]

    def example(i, t):
        """Batch t of a walk in data order."""
        n = len(clients[i]["y"])
        batches = [slice(k, min(k + batch, n)) for k in range(0, n, batch)]
        rows = batches[t % len(batches)]
        return [clients[i][k][rows] for k in "aby"]

    def gradients(i, t, u, v):
        a, b, y = example(i, t)
        residual = a @ u + b @ v - y
        return a.T @ residual / len(y), b.T @ residual / len(y), float((residual**2).mean() / 2)

    def model(t):
        return wg[max(0, t)]

    def step(w, g, squares, lr, radius):
        if rule == "adagrad":
            squares += g**2
            g = np.divide(g, np.sqrt(squares), out=np.zeros(2), where=squares > 0)
        w = w - lr * g
        return w if radius is None else w * min(1.0, radius / np.linalg.norm(w))

    losses = []
    for t in range(rounds):
        total = np.zeros(2)
        any_arrived = False
        for i in range(count):
            s = t - up[i]
            if s >= 0:
                any_arrived = True
                at = wg[t] if alignment == "misaligned" else model(s - down[i])
                total = total + lam[i] * gradients(i, s, at, wl[s][i])[0]
        new = []
        now = []
        for i in range(count):
            now.append(gradients(i, t, model(t - down[i]), wl[t][i])[2])
            s = t - (down[i] + up[i] if alignment == "aligned" else 0)
            g = gradients(i, s, model(s - down[i]), wl[s][i])[1] if s >= 0 else np.zeros(2)
            new.append(step(wl[t][i], g, sl[i], eta_i, radii[1]))
        losses.append(np.average(now, weights=lam))
        wg.append(step(wg[t], total, sg, eta, radii[0]) if any_arrived else wg[t])
        wl.append(new)
    return wg[-1], wl[-1], losses


CASES = {
    "no delay": {},
    "tau 1": {"down": [1] * 3, "up": [1] * 3},
    "tau 4": {"down": [4] * 3, "up": [4] * 3},
    "different": {"down": [0, 3, 1], "up": [2, 0, 5]},
    "adagrad": {"down": [2] * 3, "up": [2] * 3, "rule": "adagrad"},
    "ball": {"down": [1, 2, 0], "up": [1, 1, 2], "radii": (0.9, 1.5)},
    "ball, adagrad": {"down": [1] * 3, "up": [1] * 3, "radii": (0.9, 1.5), "rule": "adagrad"},
    "batches": {"down": [1] * 3, "up": [2] * 3, "batch": 2},
    "asymmetric": {"down": [2, 0, 1], "up": [1, 2, 3], "alignment": "asymmetric"},
    "misaligned": {"down": [2, 0, 1], "up": [1, 2, 3], "alignment": "misaligned"},
    "weights": {"down": [1] * 3, "up": [1] * 3, "lam": np.array([5.0, 3.0, 4.0])},
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_delays_are_those_of_the_formulas(case, engine):
    clients = vector_clients([5, 3, 4])
    down, up = case.get("down", [0] * 3), case.get("up", [0] * 3)
    expected = simulate(clients, 23, down, up, **{k: v for k, v in case.items() if k not in ("down", "up")})
    alignment = case.get("alignment", "aligned")
    at = "arrival" if alignment == "misaligned" else "dispatch"
    radii = case.get("radii", (None, None))
    trip = max(a + b for a, b in zip(down, up, strict=True))
    losses = []
    run = fit_run(
        clients,
        23,
        engine=engine,
        clock=mo.clock.delayed(down=down, up=up, at=at) if "down" in case else None,
        online=lambda run, record: losses.append(record.train_loss),
        rule=case.get("rule", "sgd"),
        alignment=alignment,
        longest_round_trip=trip + 1 if alignment == "aligned" and trip else 0,  # room to spare changes nothing
        shared_radius=radii[0],
        personal_radius=radii[1],
        batch_size=case.get("batch", 1),
        weighting="examples" if "lam" in case else "uniform",
    )
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), expected[0], rtol=1e-9)
    for i in range(3):
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), expected[1][i], rtol=1e-9)
    np.testing.assert_allclose(losses, expected[2], rtol=1e-9)


def test_the_three_rules_differ_under_delay_and_are_one_without():
    clients = vector_clients([5, 3, 4])
    ends = {}
    for alignment in ("aligned", "misaligned", "asymmetric"):
        ends[alignment] = [simulate(clients, 23, [k] * 3, [k] * 3, alignment=alignment)[0] for k in (0, 2)]
    first = ends["aligned"]
    for name in ("misaligned", "asymmetric"):
        np.testing.assert_allclose(ends[name][0], first[0], rtol=1e-12)
        assert np.abs(ends[name][1] - first[1]).max() > 1e-4
    assert np.abs(ends["misaligned"][1] - ends["asymmetric"][1]).max() > 1e-4


def test_weights_may_stand_in_a_column():
    """lambda = 5, 3, 4 in a column are the same as weighting by the numbers of examples 5, 3, 4."""
    clients = vector_clients([5, 3, 4])
    rows = [{**c, "lam": np.full(len(c["y"]), float(n))} for c, n in zip(clients, (5, 3, 4), strict=True)]
    one = fit_run(clients, 9, weighting="examples")
    other = fit_run(rows, 9, weight_column="lam")
    torch.testing.assert_close(one.shared_parameters()["u"], other.shared_parameters()["u"], rtol=1e-12, atol=0)
    with pytest.raises(MoietyError, match=r"`weight_column` must be a column of the data, got lam\."):
        fit_run(clients, 2, weight_column="lam")


def test_opposite_preferences():
    """Example 2: y = u x + v x for half of the clients and u x - v x for the others, x = ±1, u = 1, v = 2.

    The best single model is w = u, and every example still costs (v x)^2 / 2 = 2 (the loss here has the factor 1/2).
    With personal models there is a pair without loss for every client; the shared part and the mean of the personal
    ones are determined up to what one can take from the other.
    """
    sign = np.array([1.0, -1.0, 1.0, -1.0])
    rows = [{"a": x[:, None], "b": x[:, None], "y": x * 1 + s * x * 2} for s in (1, 1, -1, -1) for x in [sign]]
    start = np.zeros(1)
    pair = split_of(["u"], ["v"], {"u": 1, "v": 1})
    glocal = mo.glocal_sgd(shared=0.05, personal=0.2)
    run = mo.fit(
        vector_task(start, start),
        federated(rows),
        glocal,
        split=pair,
        rounds=150,
        settings=mo.Settings(evaluate_every=150),
    )
    u = float(run.shared_parameters()["u"])
    assert [u + float(run.parameters(i)["v"]) for i in range(4)] == pytest.approx([3, 3, -1, -1], abs=1e-6)
    assert run.history[-1]["loss"] == pytest.approx(0, abs=1e-10)
    common = split_of(["u", "v"], [], {"u": 1, "v": 1})
    central = mo.central(shared=0.05)
    run = mo.fit(
        vector_task(start, start),
        federated(rows),
        central,
        split=common,
        rounds=150,
        settings=mo.Settings(evaluate_every=150),
    )
    assert sum(float(run.shared_parameters()[k]) for k in "uv") == pytest.approx(1, abs=1e-6)
    assert run.history[-1]["loss"] == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shared_radius": 0.0}, "`radius` must be > 0 and finite, got 0.0."),
        ({"personal_radius": float("inf")}, "`radius` must be > 0 and finite, got inf."),
        ({"longest_round_trip": -1}, "`longest_round_trip` must be >= 0, got -1."),
        ({"longest_round_trip": 2, "alignment": "asymmetric"}, "`longest_round_trip` must be left out, got 2."),
        ({"alignment": "align"}, "`alignment` must be one of the known names, got 'align'. Did you mean aligned?"),
        ({"rule": "adam"}, "`rule` must be one of the known names, got 'adam'."),
        ({"shared_lr": 0}, "`lr` must be > 0 and finite, got 0."),
        ({"shared_lr": None, "shared": 0}, "`shared` must be > 0 and finite, got 0."),
        ({"personal_steps": 2}, "`personal.steps` must be left out for this algorithm, got 2."),
    ],
)
def test_one_line_for_a_wrong_option(options, words):
    with pytest.raises(MoietyError) as error:
        flat(mo.glocal_sgd, **{"shared_lr": 0.1, "personal_lr": 0.1, **options})
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


def test_one_line_for_a_clock_that_is_too_slow_or_of_the_other_kind():
    clients = vector_clients([3, 3])
    with pytest.raises(MoietyError, match=r"^`[^\n]*must be[^\n]*3[^\n]*$"):
        fit_run(clients, 4, longest_round_trip=3, clock=mo.clock.delayed(down=2, up=2))
    with pytest.raises(MoietyError, match=r"^`[^\n]*must be[^\n]*arrival[^\n]*$"):
        fit_run(clients, 4, alignment="misaligned", clock=mo.clock.delayed(down=1, up=1))


def test_a_run_that_is_continued_has_its_past_gradients(tmp_path):
    """7 rounds, then 16 in all, against 16 at once: gradients that wait, uploads under way, sums of squares."""
    data = mo.data.binary_tasks("digits", clients=3, per_class=4)
    model = mo.models.linear(64, 1)

    def begin(rounds, out):
        return mo.fit(
            model,
            data,
            mo.glocal_sgd(
                shared=mo.online(0.02, rule="adagrad"), personal=mo.online(0.02, rule="adagrad"), longest_round_trip=7
            ),
            split=mo.split.additive(model, mo.models.linear(64, 1)),
            rounds=rounds,
            settings=mo.Settings(clock=mo.clock.delayed(down=[1, 2, 3], up=[3, 1, 4])),
            engine="sequential",
            loss="one_versus_all",
            out=out,
        )

    whole = begin(16, None)
    begin(7, tmp_path / "run")
    split = mo.split.additive(model, mo.models.linear(64, 1))
    again = mo.resume(tmp_path / "run", rounds=16, data=data, model=model, split=split)
    for i in range(3):
        for name, p in whole.parameters(i).items():
            assert torch.equal(again.parameters(i)[name], p), name
