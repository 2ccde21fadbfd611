"""Privacy on devices: central noise is the server's, local noise the device's; both as in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_equals_simulation import exact

import moiety as mo
from moiety.deploy.letters import read_message
from moiety.transport import unpack
from moiety.transport.privacy import measure_norm


def run_both(where: str, folder: Path, **privacy: Any) -> tuple[mo.Run, mo.Run, LocalGrid]:
    data, model = federation((6, 9, 12, 17)), small_model()
    given = {"clip": 0.05, "delta": 0.01, "where": where, "insecure_seed": 3, **privacy}
    settings = mo.Settings(privacy=mo.privacy.gaussian(**given))
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
    used = int(run._loop.progress.store.get([letter.head["position"]])[0]["used"])
    more = letter._replace(head={**letter.head, "round": 3, "rounds": 9, "used": used})
    with pytest.raises(mo.MoietyError, match="one of the 3 that epsilon is for"):
        device.answer("train", more)
