"""``moiety deploy status`` and ``export``, and apps from TOML files: on a federation in this process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from local_grid import LocalGrid, serve_here
from safetensors.torch import load_file

import moiety as mo
from moiety import deploy
from moiety.cli import main
from moiety.deploy.folders import load_app
from moiety.deploy.init import DEFAULT, write_app
from moiety.experiments.config import check_tables, make_parts
from moiety.files import read_toml

NAMES = ["node-1", "node-2", "node-3", "node-4"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Path:
    """The default app of ``init``, trained for three rounds."""
    folder = tmp_path_factory.mktemp("commands") / "trial"
    write_app(folder, ["localhost"], secure=False)
    app = load_app(folder / "app")
    nodes = {
        100 + k: {"name": name, "partition-id": k, "folder": str(folder / "devices" / name)}
        for k, name in enumerate(NAMES)
    }
    serve_here(app, LocalGrid(app, nodes), rounds=3, clients=4, out=folder / "federation", deadline=5.0)
    return folder


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> mo.Run:
    """The same file, as ``moiety run`` reads it, in a simulation."""
    file = tmp_path_factory.mktemp("file") / "federation.toml"
    file.write_text(DEFAULT)
    parts = make_parts(check_tables(read_toml(file)))
    return mo.fit(parts.model, parts.data, parts.algorithm, split=parts.split, rounds=3, seed=0, engine="sequential")


def test_an_exported_model_is_the_simulations(trial, simulated, tmp_path, capsys):
    """Every parameter, to the bit: the same file was simulated with the reference engine."""
    for k, name in enumerate(NAMES):
        target = tmp_path / f"{name}.safetensors"
        words = ("--app", trial / "app", "--node-config", f"partition-id={k}")
        assert main(["deploy", "export", *map(str, (trial / "devices" / name, target, *words))]) == 0
        expected = simulated.export(k).state_dict()
        model = load_file(target)
        assert model.keys() == expected.keys()
        assert all(torch.equal(model[key], expected[key]) for key in expected)


def test_status_of_server_and_device(trial, capsys):
    assert main(["deploy", "status", str(trial / "federation")]) == 0
    server = capsys.readouterr().out
    assert "3 of 3 rounds, ended" in server
    assert all(name in server for name in NAMES)
    assert main(["deploy", "status", str(trial / "devices" / "node-2")]) == 0
    device = capsys.readouterr().out
    assert "joined 1 run" in device
    assert "node-2" in device


def test_a_file_of_somebody_else_in_a_devices_folder_is_passed_over(trial, tmp_path, capsys):
    device = tmp_path / "device"
    shutil.copytree(trial / "devices" / "node-2", device)
    (device / "runs" / ".DS_Store").write_text("x")
    (device / "runs" / "old copy").mkdir()
    assert main(["deploy", "status", str(device)]) == 0
    assert "joined 1 run" in capsys.readouterr().out
    words = ["--app", str(trial / "app"), "--node-config", "partition-id=1"]
    assert main(["deploy", "export", str(device), str(tmp_path / "model"), *words]) == 0


def test_status_says_which_rows_of_the_history_are_lost(trial, tmp_path, capsys):
    shutil.copytree(trial / "federation", tmp_path / "copy")
    history = tmp_path / "copy" / "history.jsonl"
    history.write_bytes(history.read_bytes()[:-20])
    with pytest.warns(UserWarning, match=r"history.jsonl has lost the rows of round 3\."):
        assert main(["deploy", "status", str(tmp_path / "copy")]) == 0
    assert "3 of 3 rounds, ended" in capsys.readouterr().out


def test_an_app_that_ends_the_process_is_refused_in_one_line(trial, tmp_path, capsys):
    file = tmp_path / "leaves.py"
    file.write_text("raise SystemExit(5)\n")
    words = ["deploy", "export", str(trial / "devices" / "node-1"), str(tmp_path / "x"), "--app", str(file)]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`app` must be a file that can be run, got SystemExit: 5" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "nowhere"], "the folder of a federation's server or of a device"),
        (["export", "nowhere", "x.safetensors", "--app", "APP"], "the folder of a device"),
        (["export", "DEVICE", "x.safetensors", "--app", "nowhere"], "a folder with federation.py"),
        (["export", "DEVICE", "x.safetensors", "--app", "APP"], "`partition-id` must be a whole number from 0 to 3"),
        (
            ["export", "DEVICE", "x.safetensors", "--app", "APP", "--node-config", "partition-id=9"],
            "from 0 to 3, got 9",
        ),
        (["demo", "--rounds", "2"], "`rounds` must be > 3"),
    ],
)
def test_bad_input_is_one_line(words, message, trial, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"APP": str(trial / "app"), "DEVICE": str(trial / "devices" / "node-1")}
    assert main(["deploy", *(places.get(word, word) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data\n", "readable TOML"),
        ("[modle]\nname='mlp'\n" + DEFAULT, "Did you mean model?"),
        (DEFAULT.replace("rounds = 10\n", ""), "`run.rounds` must be given"),
        (DEFAULT + "start = 'runs/first'\n", "`run.start` must be left out on devices"),
        (DEFAULT + "[deploy]\nrounds = 3\n", "without what other sections say, got rounds"),
        ("data = 'digits'\n", "`model` must be a table of the file"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(text, message, tmp_path):
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(mo.MoietyError, match=message.replace("?", r"\?")) as error:
        deploy.read_file(tmp_path / "federation.toml")
    assert "\n" not in str(error.value)


def test_a_table_of_devices_can_be_named_in_a_file(tmp_path):
    text = DEFAULT.replace(
        'name = "digits"\nclients = 4\nseed = 0\n\n[data.partition]\nname = "dirichlet"\nalpha = 0.3', ""
    )
    text = text.replace("[data]", '[data]\ntarget = "outcome"\nstandardise = true').replace(
        "hidden = [32]", "hidden = [32]\ninputs = 5\noutputs = 2"
    )
    (tmp_path / "federation.toml").write_text(text + '\n[deploy]\nleast = 3\nshare_metrics = "histogram"\n')
    plan = deploy.app(**deploy.read_file(tmp_path / "federation.toml")).plan
    assert plan.data.options["target"] == "outcome"
    assert (plan.least, plan.share_metrics, plan.rounds) == (3, "histogram", 10)
