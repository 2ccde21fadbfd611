"""The quickstart: what it says is what its runs show, whichever way it went."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from recipe_runs import call_command

from moiety.errors import MoietyError
from moiety.experiments import list_recipes, load_recipe
from moiety.run.folder import read_clients, read_config
from moiety.seals import write_sealed
from moiety_recipes.quickstart import quickstart, write_sentence


def rows(*metrics: float) -> list[dict[str, object]]:
    return [{"client": f"c{i}", "n_test": 5, "metric": m} for i, m in enumerate(metrics)]


RAISED = "raised test accuracy from 50.0% (FedAvg) to 75.0% (FedAlt)"
LOWERED = "lowered test accuracy from 75.0% (FedAvg) to 50.0% (FedAlt)"
LEFT = "left test accuracy at 50.0% (FedAvg and FedAlt alike)"


@pytest.mark.parametrize(
    ("before", "after", "change", "who"),
    [
        ((0.5, 0.5), (1.0, 0.5), RAISED, "1 client was helped, 1 unchanged, 0 hurt."),
        ((1.0, 0.5), (0.5, 0.5), LOWERED, "0 clients were helped, 1 unchanged, 1 hurt: c0."),
        ((0.5, 0.5), (1.0, 0.0), LEFT, "1 client was helped, 0 unchanged, 1 hurt: c1."),
    ],
)
def test_the_sentence_stays_true(before, after, change, who):
    text = f"Personal output layers {change} on average over 2 clients; {who}"
    assert write_sentence(rows(*before), rows(*after)) == text


def test_many_hurt_are_cut_short():
    text = write_sentence(rows(*[1.0] * 12), rows(*[0.5] * 12))
    assert text.endswith("12 hurt: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 2 more.")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("quickstart") / "out"
    return out, quickstart.run(out=out, rounds=4, engine="vectorised")


def test_both_runs_are_alike_but_for_the_algorithm(outcome):
    out, _ = outcome
    fedavg, fedalt = (read_config(out / name) for name in ("fedavg", "fedalt"))
    assert fedavg["data"] == fedalt["data"]
    assert fedavg["model"] == fedalt["model"]
    assert fedavg["data"]["clients"] == 50
    assert fedavg["data"]["partition"]["name"] == "dirichlet"
    same = ("rounds", "cohort", "seed", "evaluate_on", "loss")
    assert [fedavg["run"][k] for k in same] == [fedalt["run"][k] for k in same] == [4, 10, 0, "test", "cross_entropy"]
    shared, personal, both = (
        fedalt["algorithm"]["shared"],
        fedalt["algorithm"]["personal"],
        fedavg["algorithm"]["shared"],
    )
    assert both["epochs"] == shared["epochs"] + personal["epochs"]
    assert both["batch_size"] == shared["batch_size"] == personal["batch_size"]


def test_the_sentence_comes_from_the_folders(outcome):
    out, result = outcome
    clients = [read_clients(out / name) for name in ("fedavg", "fedalt")]
    means = [f"{100 * sum(r['metric'] for r in each) / 50:.1f}%" for each in clients]
    assert f"{means[0]} (FedAvg)" in result.sentence
    assert f"{means[1]} (FedAlt)" in result.sentence
    helped = sum(b["metric"] > a["metric"] + 1e-6 for a, b in zip(*clients, strict=True))
    assert f"{helped} clients were helped" in result.sentence


def test_resume_begins_what_has_not_begun_with_the_same_options(tmp_path):
    calls = []

    def watch(name, folder):
        return lambda run, record: calls.append((name, record.round, run.config["run"]["rounds"]))

    quickstart.run(out=tmp_path, rounds=2, seed=5, engine="vectorised")
    (tmp_path / "fedalt").rename(tmp_path / "gone")
    (tmp_path / "fedalt.json").unlink()
    outcome = quickstart.run(out=tmp_path, engine="vectorised", resume=True, watch=watch)
    assert calls == [("fedalt", 1, 2), ("fedalt", 2, 2)]
    assert read_config(tmp_path / "fedalt")["run"]["seed"] == 5
    assert read_clients(tmp_path / "fedalt") == read_clients(tmp_path / "gone")
    assert outcome.results["fedavg",]["clients"] == read_clients(tmp_path / "fedavg")
    calls.clear()
    quickstart.run(out=tmp_path, rounds=3, resume=True, watch=watch)
    assert calls == [("fedavg", 3, 3), ("fedalt", 3, 3)]


def test_what_would_mix_runs_is_refused(outcome):
    out, _ = outcome
    with pytest.raises(MoietyError, match="holds no run yet"):
        quickstart.run(out=out)
    with pytest.raises(MoietyError, match="`seed` must be 0"):
        quickstart.run(out=out, seed=1, resume=True)


def test_a_folder_that_was_tampered_with_is_refused(tmp_path):
    options = {"recipe": "quickstart", "scale": "laptop", "rounds": "many", "seed": 0, "seeds": None}
    write_sealed(tmp_path / "recipe.json", {**options, "plan": "", "changes": {}, "device": None}, "id")
    with pytest.raises(MoietyError, match="`rounds` must be a whole number"):
        quickstart.run(out=tmp_path, resume=True)


def test_the_table_of_recipes_is_light():
    text = "import sys, moiety.experiments as e; e.list_recipes(); e.load_recipe('quickstart')"
    text += "; print('torch' in sys.modules, 'numpy' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert process.stdout == "False False\n"
    assert all(load_recipe(name).summary for name in list_recipes())


def test_the_command_prints_table_sentence_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = call_command("run", "quickstart", "--rounds", "2", "--engine", "vectorised")
    assert (code, errors) == (0, "")
    assert "\x1b" not in output
    assert "\r" not in output
    lines = output.splitlines()
    assert not any(line.endswith(" ") for line in lines)
    assert lines[-2].startswith("Personal output layers ")
    assert lines[-1] == "results in runs/quickstart"
    assert sum(line.startswith("round ") for line in lines) == 4
    assert any(line.startswith("| FedAlt |") for line in lines)
    files = {"fedavg", "fedalt", "fedavg.json", "fedalt.json", "recipe.json", "report.html", "table.json", "table.md"}
    assert {p.name for p in (tmp_path / "runs/quickstart").iterdir()} == files
