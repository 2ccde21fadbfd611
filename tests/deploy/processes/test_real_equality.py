"""Four nodes, real processes, TLS and authentication: server and devices end as the simulation does, bit for bit."""

from __future__ import annotations

import os
import re

import pytest
import site_app
from harness import NODES, Trial, check_equals_simulation, leaf_bits, read_bits
from night import NIGHTLY
from test_deploy_readme import secrets_of

import moiety as mo
from moiety import deploy
from moiety.deploy.arrivals import read_arrivals
from moiety.deploy.journal import Journal
from moiety.run.folder import read_history, read_id
from moiety.run.safeguard_folder import read_safeguard

ALL = ["fedalt", "fedspa", "fedavg", "scaffold", "fedpop", "ffgg"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with Trial(tmp_path_factory.mktemp("equality") / "trial") as running:
        running.start()
        yield running


@pytest.mark.parametrize("algorithm", ALL)
def test_real_processes_equal_the_simulation(algorithm, trial):
    """The same nodes serve one app after another; fedspa's messages are sparse on the wire."""
    out = trial.submit(algorithm, algorithm=algorithm, rounds=4)
    trial.finish(out)
    cohorts = check_equals_simulation(out, trial.folder, algorithm, 4)
    assert [len(cohort) for cohort in cohorts] == [3, 3, 3, 3]


def test_devices_choose_as_the_clients_of_a_simulation(trial):
    """Do no harm: the choice is made on the device and stays there."""
    out = trial.submit("guarded", cohort=4, rounds=2, safeguard=True, share_metrics="per_client")
    trial.finish(out)
    model, method, split = site_app.make_parts("fedalt")
    options = {"split": split, "rounds": 2, "cohort": 4, "seed": 5, "engine": "sequential", "safeguard": True}
    with pytest.warns(UserWarning, match="shared part of fedalt"):
        simulated = mo.fit(model, site_app.make_data(), method, **options)
    assert len(simulated.choices) == 4
    for name, choice in simulated.choices.items():
        folder = trial.folder / "devices" / name / "runs" / read_id(out)
        guard = read_safeguard(folder, read_id(out), simulated._loss)
        assert guard.choices == {name: choice}
    assert not list(out.rglob("safeguard*"))


def test_real_arrivals_are_simulated_again_bit_for_bit(trial):
    """Asynchronous training: the network decides who arrives when, and a simulation of that order gives the same."""
    out = trial.submit("arrivals", rounds=10, active=3)
    trial.finish(out)
    (model, method, split), data = site_app.make_parts("fedalt"), site_app.make_data()
    clock = deploy.replay_clock(out, 3, [str(name) for name in data.ids])
    options = {"split": split, "rounds": 10, "seed": 5, "engine": "sequential", "settings": mo.Settings(clock=clock)}
    simulated = mo.fit(model, data, method, out=trial.folder / "simulated-arrivals", **options)
    newest = "checkpoint/round-00000010/server.safetensors"
    assert read_bits(simulated.folder / newest) == read_bits(out / newest)
    assert [row["staleness"] for row in simulated.history] == [row["staleness"] for row in read_history(out)]
    first = simulated._loop.problem.first_state(simulated._loop.algorithm)
    for name, turn in {row["client"]: int(row["turn"]) for row in read_arrivals(out)}.items():
        mine = Journal(trial.folder / "devices" / name, read_id(out)).read_state(turn, first)
        (state,) = simulated._loop.progress.store.get([data.index(name)])
        assert leaf_bits(mine) == leaf_bits(state), name


def test_no_process_has_printed_a_key(trial):
    """Whatever ran here: SuperLink, executor, server, nodes, workers, and the commands that register keys."""
    logs = sorted(trial.processes.folder.glob("*.log"))
    assert {"link", "executor", "register", NODES[0], f"{NODES[0]}-worker"} <= {path.stem for path in logs}
    text = re.sub(r"\s", "", "".join(path.read_text(errors="replace") for path in logs))
    assert len(text) > 1000
    assert not [piece for piece in secrets_of(trial.folder / "keys") if piece in text]


@pytest.mark.skipif(not NIGHTLY, reason="a process for every message: seconds each")
def test_flowers_own_way_equals_the_simulation_too(tmp_path):
    """No worker that stays: Flower starts a process for each message, by its public commands alone."""
    with Trial(tmp_path / "trial", persistent=False) as running:
        running.start()
        out = running.submit("public", algorithm="fedalt", rounds=2)
        running.finish(out)
        check_equals_simulation(out, running.folder, "fedalt", 2)


OTHER_VERSION = """
import importlib.metadata, sys
own = importlib.metadata.version
def version(name):
    asked_by = sys._getframe(1).f_globals["__name__"]
    return "9.9.9" if asked_by == "moiety.deploy.flower_private" else own(name)
importlib.metadata.version = version
"""


@pytest.mark.skipif(not NIGHTLY, reason="a process for every message: seconds each")
def test_another_version_of_flower_equals_the_simulation_too(tmp_path):
    """moiety takes Flower for another version everywhere: the same commands go the public way, with the same bits."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    with Trial(tmp_path / "trial") as running:
        path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
        running.environment["PYTHONPATH"] = os.pathsep.join(path)
        running.start()
        out = running.submit("other", algorithm="fedalt", rounds=2)
        running.finish(out)
        check_equals_simulation(out, running.folder, "fedalt", 2)
        for process in (NODES[0], f"{NODES[0]}-worker"):
            assert "flwr is 9.9.9, not 1.41.0" in running.processes.log(process)
