"""Privacy on devices: central noise is the server's, local noise the device's; both as in a simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from scipy.optimize import brentq
from scipy.stats import norm
from test_equals_simulation import exact
from test_faults import KilledError

import moiety as mo
from moiety.deploy.device import Device
from moiety.deploy.folders import read_status
from moiety.deploy.letters import Letter, LetterError, read_message
from moiety.run.privacy import read_counted
from moiety.transport import unpack
from moiety.transport.privacy import measure_norm


def run_both(where: str, folder: Path, **privacy: Any) -> tuple[mo.Run, mo.Run, LocalGrid]:
    data, model = federation((6, 9, 12, 17)), small_model()
    arguments = {"clip": 0.05, "delta": 0.01, "where": where, "insecure_seed": 3, **privacy}
    settings = mo.Settings(privacy=mo.privacy.gaussian(**arguments))
    options = {"split": mo.split.output_layer(model), "rounds": 3, "seed": 5, "settings": settings}
    algorithm = mo.fedalt(shared=0.1, personal=0.05, weighting="uniform")
    simulated = mo.fit(model, data, algorithm, engine="sequential", **options)
    app = make_app(model, data, algorithm, folder, **options)
    grid = LocalGrid(app, nodes_of(data, folder))
    return simulated, serve_here(app, grid), grid


@pytest.mark.parametrize("where", ["central", "local"])
def test_noise_on_devices_equals_the_simulations_where_the_seed_is_known(where: str, tmp_path: Path) -> None:
    simulated, run, grid = run_both(where, tmp_path, noise=0.7)
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    assert simulated.ledger["epsilon"] == run.ledger["epsilon"] > 0
    norms = [
        measure_norm(unpack(read_message(answer, 1 << 30).body))
        for kind, _, _, answer in grid.log
        if kind == "train" and answer is not None
    ]
    assert all(norm > 0 for norm in norms)


def test_without_noise_no_upload_that_leaves_is_longer_than_the_clip(tmp_path: Path) -> None:
    _, _, grid = run_both("local", tmp_path, noise=0.0)
    for kind, _, _, answer in grid.log:
        if kind == "train" and answer is not None:
            assert measure_norm(unpack(read_message(answer, 1 << 30).body)) <= 0.05 * (1 + 1e-6)


def test_a_device_gives_no_more_noisy_answers_than_its_epsilon_is_for(tmp_path: Path) -> None:
    _, run, grid = run_both("local", tmp_path, epsilon=5.0)
    node, letter = [(n, read_message(m, 1 << 30)) for kind, n, m, _ in grid.log if kind == "train"][-1]
    device = grid.app.device(grid.nodes[node])
    turn = int(run._loop.progress.store.get([letter.head["position"]])[0]["used"])
    more = letter._replace(head={**letter.head, "round": 3, "rounds": 9, "used": turn})
    with pytest.raises(mo.MoietyError, match="one of the 3 that epsilon 5 is for"):
        device.answer("train", more)


def epsilon_of(noise: float, uploads: int, delta: float) -> float:
    """What so many uploads of one client cost, each in the place of any other of norm ``clip``: a closed form.

    Together they are one Gaussian mechanism. Its delta at an epsilon is Phi(mu / 2 - e / mu) - exp(e) Phi(-mu / 2 -
    e / mu), with mu = 2 sqrt(uploads) / noise (Balle and Wang 2018).
    """
    mu = 2 * math.sqrt(uploads) / noise

    def exceed(e: float) -> float:
        return float(norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)) - delta

    return float(brentq(exceed, 0, 100, xtol=1e-12))


def noise_of_devices(folder: Path) -> list[tuple[int, float]]:
    """How many uploads each device counted, and the noise of all of them."""
    tables = [json.loads(path.read_text()) for path in sorted(folder.glob("devices/*/runs/*/noise.json"))]
    return [(each["drawn"], each["noise"]) for each in tables]


def local_app(folder: Path, rounds: int, **privacy: Any) -> LocalGrid:
    """A grid of four devices whose file says so many rounds."""
    data, model = federation((6, 9, 12, 17)), small_model()
    arguments = {"clip": 0.05, "delta": 0.01, "where": "local", "insecure_seed": 3, **privacy}
    settings = mo.Settings(privacy=mo.privacy.gaussian(**arguments), evaluate_every=1)
    algorithm = mo.fedalt(shared=0.1, personal=0.05, weighting="uniform")
    split = mo.split.output_layer(model)
    app = make_app(model, data, algorithm, folder, split=split, rounds=rounds, seed=5, settings=settings)
    return LocalGrid(app, nodes_of(data, folder))


@pytest.mark.parametrize(("declared", "rounds"), [(3, 5), (4, 2), (2, 1)])
def test_noise_is_for_the_rounds_that_the_run_has(declared: int, rounds: int, tmp_path: Path) -> None:
    """``flwr run -c "rounds=5"`` changes the server's rounds alone: devices still add the noise that is reported."""
    grid = local_app(tmp_path, declared, epsilon=5.0)
    run = serve_here(grid.app, grid, rounds=rounds)
    assert [len(row["dropped"]) for row in run.history] == [0] * rounds
    assert noise_of_devices(tmp_path) == [(rounds, run.ledger["noise"])] * 4
    status = read_status(tmp_path / "devices" / "c0")
    assert [row[status.head.index("noisy uploads")] for row in status.rows] == [str(rounds)]
    for t, row in enumerate(run.history, 1):
        assert row["epsilon"] == pytest.approx(epsilon_of(row["noise"], t, 0.01), rel=1e-6)
    assert 4.99 < run.ledger["epsilon"] <= 5.0


def kill_in_round(grid: LocalGrid, t: int) -> tuple[Device, Letter]:
    """Kill the server when it has sent the letters of a round; one of them, and the device that it is for."""
    letters = []

    def deliver(message: Any, call: Any) -> Any:
        if (message.metadata.message_type, message.metadata.group_id) == ("train", str(t)):
            letters.append((message.metadata.dst_node_id, read_message(message, 1 << 30)))
            raise KilledError
        return call(message)

    grid.deliver = deliver
    with pytest.raises(KilledError):
        serve_here(grid.app, grid)
    ((node, letter),) = letters
    return grid.app.device(grid.nodes[node]), letter


def test_a_run_that_goes_on_with_fewer_rounds_keeps_its_noise(tmp_path: Path) -> None:
    """Two of six rounds are done when the file is changed to four: all uploads have the noise that six need."""
    kill_in_round(local_app(tmp_path, 6, epsilon=5.0), 2)
    again = local_app(tmp_path, 4, epsilon=5.0)
    run = serve_here(again.app, again)
    assert [len(row["dropped"]) for row in run.history] == [0] * 4
    assert epsilon_of(run.ledger["noise"], 6, 0.01) == pytest.approx(5.0, rel=1e-3)
    assert noise_of_devices(tmp_path) == [(4, run.ledger["noise"])] * 4
    assert run.ledger["epsilon"] == pytest.approx(epsilon_of(run.ledger["noise"], 4, 0.01), rel=1e-6)


@pytest.mark.parametrize("where", ["central", "local"])
def test_a_run_that_goes_on_has_no_more_rounds_than_its_epsilon_allows(where: str, tmp_path: Path) -> None:
    kill_in_round(local_app(tmp_path, 3, epsilon=5.0, where=where), 2)
    again = local_app(tmp_path, 4, epsilon=5.0, where=where)
    with pytest.raises(mo.MoietyError, match="`rounds` must be at most 3 for epsilon 5"):
        serve_here(again.app, again)
    last = local_app(tmp_path, 3, epsilon=5.0, where=where)
    assert 4.99 < serve_here(last.app, last).ledger["epsilon"] <= 5.0


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (1e-9, "`turn` must be one of the 0 that epsilon 5 is for, got 1"),
        (0.0, "`noise` must be a number > 0"),
        (None, "`noise` must be a number > 0"),
        ("2", "`noise` must be a number > 0"),
    ],
)
def test_a_device_keeps_to_its_epsilon_whatever_noise_the_server_asks_for(
    noise: Any, words: str, tmp_path: Path
) -> None:
    grid = local_app(tmp_path, 3, epsilon=5.0)
    device, letter = kill_in_round(grid, 0)
    with pytest.raises(LetterError, match=words):
        device.answer("train", letter._replace(head={**letter.head, "noise": noise}))
    assert noise_of_devices(tmp_path) == []


def test_the_noise_of_a_device_stays_in_a_run(tmp_path: Path) -> None:
    """Fewer and noisier uploads at first, then a larger one at once: each would be within epsilon, not all together."""
    grid = local_app(tmp_path, 3, epsilon=5.0)
    device, letter = kill_in_round(grid, 0)
    device.answer("train", letter)
    once = {**letter.head, "round": 1, "noise": letter.head["noise"] / 3**0.5}
    with pytest.raises(LetterError, match="as in earlier rounds of the run"):
        device.answer("train", letter._replace(head=once))
    assert noise_of_devices(tmp_path) == [(1, letter.head["noise"])]


def test_a_device_that_lost_its_count_sends_no_more(tmp_path: Path) -> None:
    """Else a device whose file is gone would begin to count anew, and cost twice its epsilon."""
    grid = local_app(tmp_path, 3, epsilon=5.0)
    device, letter = kill_in_round(grid, 0)
    device.answer("train", letter)
    (count,) = device.folder.glob("runs/*/noise.json")
    count.unlink()
    later = letter._replace(head={**letter.head, "round": 1})
    with pytest.raises(mo.MoietyError, match=r"`noise\.json` must be there"):
        device.answer("train", later)
    assert not count.exists()


def run_with_newcomer(folder: Path, *, joins: int, rounds: int, **privacy: Any) -> tuple[mo.Run, LocalGrid]:
    """Three devices of which two are expected in a round; a fourth is there from round ``joins`` on."""
    data, model = federation((6, 9, 12, 17)), small_model()
    arguments = {"clip": 0.05, "delta": 0.01, "noise": 1.3, "insecure_seed": 3, **privacy}
    settings = mo.Settings(
        privacy=mo.privacy.gaussian(**arguments), participation="bernoulli", evaluate_every=1, on_divergence="warn"
    )
    algorithm = mo.fedalt(shared=0.1, personal=0.05, weighting="uniform")
    options = {"split": mo.split.output_layer(model), "rounds": rounds, "seed": 5, "settings": settings}
    app = make_app(model, data, algorithm, folder, cohort=2, clients=3, deadline=1.0, **options)
    nodes = nodes_of(data, folder)
    late = next(node for node, config in nodes.items() if config["name"] == "c3")
    grid = LocalGrid(app, {node: config for node, config in nodes.items() if node != late})

    def deliver(message: Any, call: Any) -> Any:
        if message.metadata.group_id == f"evaluate {joins}":
            grid.nodes[late] = nodes[late]
        return call(message)

    grid.deliver = deliver
    return serve_here(app, grid), grid


def test_epsilon_counts_each_sum_at_the_chance_that_it_was_drawn_with(tmp_path: Path) -> None:
    """Three sums at the rate 2/3 and four at 2/4, composed here by dp-accounting itself."""
    import dp_accounting as dp

    run, _ = run_with_newcomer(tmp_path, joins=3, rounds=7)
    assert [len(row["dropped"]) for row in run.history] == [0] * 7
    assert len(run._loop.problem.data) == 4

    def compose(*sums: tuple[float, int]) -> float:
        accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3)
        for rate, count in sums:
            accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1.3)), count)
        return float(accountant.get_epsilon(0.01))

    epsilons = [compose((2 / 3, min(t, 3)), *([(0.5, t - 3)] if t > 3 else [])) for t in range(1, 8)]
    assert [row["epsilon"] for row in run.history] == pytest.approx(epsilons, rel=2e-3)
    assert run.ledger["epsilon"] > 1.01 * compose((0.5, 7))  # what the number of clients in the end would say
    assert run.ledger["epsilon"] < 0.99 * compose((2 / 3, 7))
    assert read_counted(tmp_path / "server", run._loop.progress.run).rates == ((2 / 3, 3), (0.5, 4))


def test_no_more_devices_join_than_delta_allows(tmp_path: Path) -> None:
    """With delta 0.3 the third client is the last for which delta is below one over their number."""
    run, grid = run_with_newcomer(tmp_path, joins=1, rounds=3, delta=0.3)
    assert [str(name) for name in run._loop.problem.data.ids] == ["c0", "c1", "c2"]
    assert any(kind == "query.hello" and grid.nodes[node]["name"] == "c3" for kind, node, *_ in grid.log)
