"""Privacy on devices: central noise is the server's, local noise the device's; both as in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_equals_simulation import exact

import moiety as mo
from moiety.deploy.letters import read_message
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
    with pytest.raises(mo.MoietyError, match="one of the 3 that epsilon is for"):
        device.answer("train", more)


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
