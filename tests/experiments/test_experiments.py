"""The runner, the options, the page writer and the registry, on experiments of a few cells."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from failing_disk import Disk

import moiety as mo
from moiety import files
from moiety.cli import main
from moiety.experiments import CI_NOTICE, Cell, Experiment, Page, Section, parallel, registry
from moiety.experiments.judge import claim_row, count_verdicts, score_row
from moiety.experiments.plans import change_plan, plain_fields


@dataclass(frozen=True)
class Part:
    """Sizes of one part."""

    rows: int = 20
    rounds: int = 4
    later: int = 2

    def with_rounds(self, rounds):
        return replace(self, rounds=rounds, later=self.later * rounds // self.rounds)


@dataclass(frozen=True)
class Plan:
    """A plan with parts."""

    parts: tuple[Part, ...] = (Part(), Part(rows=30))
    seeds: int = 2
    lr: float = 0.1
    halved: bool = False
    rates: tuple[float, ...] = (0.1, 0.2)


WORKED: list[object] = []


def cells(plan, seeds):
    for seed in seeds:
        for name in ("a", "b, c"):
            yield Cell(key=(seed, name), work=partial(work, plan, seed, name))
    best = yield Cell(key=("best",), work=lambda: {"lr": plan.lr * 2})
    yield Cell(key=("last",), work=lambda: {"score": best["lr"]})


def work(plan, seed, name):
    WORKED.append((seed, name))
    return {"score": plan.lr + seed, "pair": (1, 2)}


def page(plan, seeds, results):
    rows = [score_row(name, [results[seed, name]["score"] for seed in seeds]) for name in ("a", "b, c")]
    rows.append({"row": "odd", "ours": math.nan})
    return Page(
        about="About.",
        rows=rows,
        sections=[
            Section(title="Table", text="Text.", rows=rows, columns={"row": "", "ours": "ours"}, notes=["Note."])
        ],
        sentence="It is so.",
        more={"last": results["last",]["score"]},
    )


TOY = Experiment(name="toy", summary="A toy.", plan=lambda scale: Plan(), cells=cells, page=page)


def test_cells_run_once_and_results_are_kept(tmp_path):
    WORKED.clear()
    outcome = TOY.run(out=tmp_path, seed=3)
    assert WORKED == [(3, "a"), (3, "b, c"), (4, "a"), (4, "b, c")]
    assert outcome.results[3, "a"]["pair"] == [1, 2]  # as it is read again
    assert (tmp_path / "seed-4/b-c.json").is_file()
    (tmp_path / "seed-4/a.json").unlink()
    WORKED.clear()
    again = TOY.run(out=tmp_path, resume=True)
    assert WORKED == [(4, "a")]
    assert {k: v["score"] for k, v in outcome.results.items() if "score" in v} == {
        k: v["score"] for k, v in again.results.items() if "score" in v
    }


def test_the_two_files_letter_by_letter(tmp_path, monkeypatch):
    monkeypatch.setattr("moiety.experiments.runner.find_commit", lambda: "0123456789ab")
    outcome = TOY.run(out=tmp_path, scale="laptop", seeds=1)
    table = json.loads((tmp_path / "table.json").read_text())
    rows = [
        {"row": "a", "paper": None, "ours": 0.1, "interval": None, "each": [0.1]},
        {"row": "b, c", "paper": None, "ours": 0.1, "interval": None, "each": [0.1]},
        {"row": "odd", "ours": None},
    ]
    assert table["rows"] == rows
    assert (table["recipe"], table["scale"], table["seeds"], table["last"]) == ("toy", "laptop", 1, 0.2)
    assert table["command"] == "moiety run toy --scale laptop --seeds 1"
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    assert (
        (tmp_path / "table.md").read_text()
        == outcome.page + "\n"
        == (
            "# toy, scale laptop\n"
            "\n"
            f"`moiety run toy --scale laptop --seeds 1`, {table['date']}; commit 0123456789ab; "
            f"no engine, but a loop of its own; {versions}; "
            "0.0 minutes in all.\n"
            "\n"
            "About.\n"
            "\n"
            "## Table\n"
            "\n"
            "Text.\n"
            "\n"
            "|  | ours |\n|:---|---:|\n| a | 0.10 |\n| b, c | 0.10 |\n| odd | - |\n"
            "\n"
            "- Note.\n"
        )
    )
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TOY.run().sentence == "It is so."
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("scale", "count"), [("ci", 1), ("laptop", 0), ("night", 0), ("paper", 0)])
def test_a_page_at_scale_ci_claims_nothing(scale, count):
    outcome = TOY.run(scale=scale)
    assert outcome.page.count(CI_NOTICE) == count
    assert outcome.sentence == (CI_NOTICE if count else "It is so.")
    assert outcome.page.count("has no sizes of its own for the scale night") == (scale == "night")
    own = replace(TOY, night=True, plan=lambda scale: Plan(seeds=1 if scale == "night" else 2))
    assert len(own.run(scale="night").results) == 4
    assert "has no sizes of its own" not in own.run(scale="night").page


def test_options_change_the_plan_wherever_it_has_the_field():
    plan = change_plan(Plan(), "rows", 7)
    assert [part.rows for part in plan.parts] == [7, 7]
    assert [(part.rounds, part.later) for part in change_plan(plan, "rounds", 8).parts] == [(8, 4), (8, 4)]
    assert change_plan(plan, "rates", [0.5]).rates == (0.5,)
    assert change_plan(plan, "lr", 1).lr == 1
    assert set(plain_fields(plan)) == {"seeds", "lr", "halved", "rates", "rows", "rounds", "later"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rowz", 3, "Did you mean rows?"),
        ("zzz", 3, "Known: halved, later, lr, rates, rounds, rows, seeds."),
        ("rows", 1.5, "`rows` must be of the kind of 30, got 1.5"),
        ("rows", "many", "`rows` must be of the kind"),
        ("halved", 1, "`halved` must be of the kind of False, got 1"),
        ("rows", True, "`rows` must be of the kind"),
        ("rates", 0.5, "`rates` must be a list, got 0.5"),
        ("rates", ["a"], "`rates` must be of the kind"),
        ("rounds", 0, "`rounds` must be >= 1, got 0"),
        ("seeds", 0, "`seeds` must be >= 1, got 0"),
        ("parts", 3, "a field of the plan"),
    ],
)
def test_bad_changes_are_one_clear_line(name, value, words, tmp_path):
    with pytest.raises(mo.MoietyError) as error:
        TOY.run(out=tmp_path / "out", changes={name: value})
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_honoured_is_refused():
    block = replace(TOY, refused={"engine": "Its runs are one block of tensors.", "seeds": "There is one."})
    with pytest.raises(mo.MoietyError, match=r"^`engine` must be left out for toy, got ray\. Its runs are one block"):
        block.run(engine="ray")
    with pytest.raises(mo.MoietyError, match=r"^`seeds` must be left out for toy, got 3\. There is one\.$"):
        block.run(changes={"seeds": 3})
    with pytest.raises(mo.MoietyError, match="`scale` must be one of the known names"):
        TOY.run(scale="large")
    with pytest.raises(mo.MoietyError, match="`engine`"):
        TOY.run(engine="fast")


def test_resuming_with_other_options_is_refused(tmp_path):
    TOY.run(out=tmp_path, scale="ci", changes={"rows": 9})
    with pytest.raises(mo.MoietyError, match="holds no run yet"):
        TOY.run(out=tmp_path)
    for options in ({"scale": "laptop"}, {"seed": 4}, {"seeds": 1}, {"rounds": 3}, {"changes": {"rows": 8}}):
        with pytest.raises(mo.MoietyError, match="as the recipe began"):
            TOY.run(out=tmp_path, resume=True, **options)
    assert "--set rows=9" in TOY.run(out=tmp_path, resume=True).page
    with pytest.raises(mo.MoietyError, match="`out` must be a folder of other, got one of toy"):
        replace(TOY, name="other").run(out=tmp_path, resume=True)


BAD = ["{", "[]", "[" * 100_000, "\xff", ""]


@pytest.mark.parametrize("text", BAD)
def test_a_damaged_recipe_is_one_clear_line(text, tmp_path):
    TOY.run(out=tmp_path)
    (tmp_path / "recipe.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(mo.MoietyError, match=r"^`recipe\.json` must be as it was written, got [^\n]*$"):
        TOY.run(out=tmp_path, resume=True)
    assert mo.verify(tmp_path)[0].startswith("`recipe.json` must be as it was written")


def test_a_damaged_result_is_computed_again_and_said(tmp_path):
    """Every byte counts: a flipped bit anywhere, as well as a file that is no table at all."""
    first = TOY.run(out=tmp_path, seeds=1)
    file = tmp_path / "seed-0/a.json"
    content = file.read_bytes()
    flips = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(content), 11)]
    for data in [text.encode("latin-1") for text in BAD] + flips + [content[:-1], content + b" "]:
        file.write_bytes(data)
        (problem,) = mo.verify(tmp_path)
        assert "a.json" in problem
        WORKED.clear()
        with pytest.warns(
            UserWarning, match=r"^[^\n]*seed-0/a.json is not as it was written: the cell seed 0 a is run"
        ):
            again = TOY.run(out=tmp_path, resume=True)
        assert WORKED == [(0, "a")]
        assert again.results[0, "a"]["score"] == first.results[0, "a"]["score"] == 0.1
        assert mo.verify(tmp_path) == []


def test_a_result_of_another_cell_or_experiment_is_refused(tmp_path):
    for name, changes in (("one", {}), ("other", {"lr": 0.5})):
        TOY.run(out=tmp_path / name, seeds=1, changes=changes)
    content = (tmp_path / "one/seed-0/a.json").read_bytes()
    shutil.copy(tmp_path / "other/seed-0/a.json", tmp_path / "one/seed-0/a.json")
    with pytest.raises(
        mo.MoietyError, match=r"^`a\.json` must be a file of run \w{16}, got one of run \w{16} in [^\n]*$"
    ):
        TOY.run(out=tmp_path / "one", resume=True)
    assert ["`a.json` must be a file of run" in line for line in mo.verify(tmp_path / "one")] == [True]
    (tmp_path / "one/seed-0/a.json").write_bytes(content)
    (tmp_path / "one/seed-0/b-c.json").write_bytes(content)
    with pytest.raises(
        mo.MoietyError, match=r"^`b-c\.json` must be the result of seed 0 b, c, got that of another cell"
    ):
        TOY.run(out=tmp_path / "one", resume=True)


def test_another_plan_for_the_same_options_is_refused(tmp_path):
    """As where a new version of the recipe has other sizes."""
    TOY.run(out=tmp_path)
    other = replace(TOY, plan=lambda scale: Plan(parts=(Part(rows=21),)))
    with pytest.raises(mo.MoietyError, match=r"^`plan` must be the one that the recipe in .* began with, got another"):
        other.run(out=tmp_path, resume=True)


def test_the_table_has_a_checksum(tmp_path):
    TOY.run(out=tmp_path)
    text = (tmp_path / "table.json").read_text()
    assert json.loads(text)["format"] == 2
    assert json.loads(text)["moiety"] == mo.__version__
    (tmp_path / "table.json").write_text(text.replace('"ours": 0.6', '"ours": 0.9', 1))
    assert (tmp_path / "table.json").read_text() != text
    (problem,) = mo.verify(tmp_path)
    assert problem.startswith("`table.json` must be as it was written, got another checksum")


def test_a_folder_of_an_older_format(tmp_path, capsys):
    """It was written before recipes had checksums: one line with both numbers, and nothing is touched."""
    old = Path(shutil.copytree(Path(__file__).parent / "format_1", tmp_path / "old"))
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    pattern = (
        r"`folder` must be of format 3, got format 1 in [^\n]*recipe.json\. Use the version of moiety that wrote it\."
    )
    with pytest.raises(mo.MoietyError, match=pattern):
        TOY.run(out=old, resume=True)
    assert main(["verify", str(old)]) == 2
    assert re.fullmatch(f"moiety: {pattern}\n", capsys.readouterr().err)
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


def test_results_are_for_their_owner_and_the_page_for_all(tmp_path):
    RUNS.run(out=tmp_path / "out")
    modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777 for p in (tmp_path / "out").rglob("*")}
    public = {"out/table.json", "out/table.md"}
    mask = os.umask(0)
    os.umask(mask)
    for name, mode in modes.items():
        private = 0o700 if (tmp_path / name).is_dir() else 0o600
        assert mode == (0o666 & ~mask if name in public else private), name
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_every_call_of_the_disk_may_fail(tmp_path, monkeypatch, for_good):
    """What ended stays, and the next try ends with the same results and a whole folder."""
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", disk)
        expected = TOY.run(out=tmp_path / "whole", seeds=1)
    assert len(disk.calls) > 30
    for n, call in enumerate(disk.calls):
        out = tmp_path / f"{n}"
        with monkeypatch.context() as patch:
            patch.setattr(files, "system_call", Disk(n, for_good=for_good))
            with pytest.raises(mo.MoietyError, match=r"^`out` must be a folder that can be written, got [^\n]*$"):
                TOY.run(out=out, seeds=1)
        again = TOY.run(out=out, seeds=1, resume=True)
        assert {k: v.get("score") for k, v in again.results.items()} == {
            k: v.get("score") for k, v in expected.results.items()
        }, call
        assert mo.verify(out) == []
        shutil.rmtree(out)


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(mo.MoietyError, match="`out` must be a folder that can be written"):
        TOY.run(out=tmp_path / "file")


def test_two_cells_of_one_key_are_refused():
    def twice(plan, seeds):
        for _ in range(2):
            yield Cell(key=("a",), work=lambda: {"score": 1})

    with pytest.raises(mo.MoietyError, match="`key` must be that of one cell only"):
        replace(TOY, cells=twice).run()


# Cells that are runs.


def fit_options(plan, name):
    model = mo.models.mlp(64, 10, hidden=(4,), seed=0)
    split = mo.split.output_layer(model)
    fed = mo.data.load("digits", clients=4, per_client=10, partition=mo.data.iid(), seed=0)
    algorithm = mo.fedavg(shared=0.1) if name == "base" else mo.finetune(personal=0.1)
    how = {"split": None if name == "base" else split, "rounds": 2, "seed": 0}
    return {"model": model, "data": fed, "algorithm": algorithm, **how}


def runs(plan, seeds):
    yield Cell(key=("base",), fit=partial(fit_options, plan, "base"), group="g")
    yield Cell(key=("tuned",), fit=partial(fit_options, plan, "tuned"), start=("base",), group="g", vectorise=False)
    yield Cell(key=("short",), fit=partial(fit_options, plan, "base"), stored=False, engine="vectorised")


def run_page(plan, seeds, results):
    rows = [{"row": key[0], "ours": row["clients"][0]["metric"]} for key, row in results.items()]
    return Page(about="", rows=rows, sections=[], sentence="")


RUNS = replace(TOY, cells=runs, page=run_page, engine="sequential")


def test_runs_start_from_each_other_and_are_continued(tmp_path):
    calls = []

    def watch(name, folder):
        return lambda run, record: calls.append((name, folder and folder.name, record.round))

    outcome = RUNS.run(out=tmp_path, watch=watch)
    assert calls == [(n, None if n == "short" else n, r) for n in ("base", "tuned", "short") for r in (1, 2)]
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"base", "tuned"}
    assert {k[0]: row["engine"] for k, row in outcome.results.items()} == {
        "base": "sequential",
        "tuned": "sequential",
        "short": "vectorised",
    }
    assert "engine sequential and vectorised;" in outcome.page
    for name in ("base", "tuned", "short"):
        (tmp_path / f"{name}.json").unlink()
    again = RUNS.run(out=tmp_path, resume=True)
    inside = RUNS.run()
    for key, row in outcome.results.items():
        assert row["clients"] == again.results[key]["clients"] == inside.results[key]["clients"]


def test_the_engine_is_measured_once_for_a_group_and_may_be_given(tmp_path):
    outcome = replace(RUNS, engine="auto").run()
    first = outcome.results["base",]["engine"]
    assert outcome.results["tuned",]["engine"] == first.replace("vectorised", "sequential")
    outcome = RUNS.run(engine="vectorised", out=tmp_path)
    assert [row["engine"] for row in outcome.results.values()] == ["vectorised", "sequential", "vectorised"]
    assert "--engine vectorised`" in outcome.page


def test_a_device_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(mo.MoietyError, match="device"):
        RUNS.run(device="cuda:99", out=tmp_path / "out")
    assert RUNS.run(device="cpu").page.count("--device cpu`") == 1


# The judge.


def test_verdicts_are_counted_and_rows_are_those_of_the_interval():
    """Two seeds, differences 1 and 3: mean 2, half width 12.706 * sqrt(2) / sqrt(2)."""
    row = claim_row("a", [1.0, 3.0], above=-20.0, paper=5.0)
    assert (row["ours"], row["paper"], row["verdict"], row["each"]) == (2.0, 5.0, "holds", [1.0, 3.0])
    assert row["interval"] == pytest.approx([2 - 12.7062, 2 + 12.7062], abs=1e-3)
    assert claim_row("a", [1.0, 3.0])["verdict"] == "not decided at this scale"
    assert claim_row("a", [1.0, 1.0], within=0.5)["verdict"] == "does not hold"
    text = "1 of 3 claims holds, 1 does not, 1 is not decided at this scale."
    rows = [row, claim_row("b", [1.0, 3.0]), claim_row("c", [-1.0, -1.0]), {"row": "d"}]
    assert count_verdicts(rows) == text


# The registry and the command.


def entries(*pairs):
    points = [importlib.metadata.EntryPoint(name, value, registry.GROUP) for name, value in pairs]
    return lambda group: [entry for entry in points if entry.group == group]


def test_one_bad_package_does_not_break_the_command(monkeypatch, capsys, tmp_path):
    good = ("quickstart", "moiety_recipes.quickstart:quickstart")
    bad = {"absent": "no_such_package:x", "no-recipe": "math:pi", "no-name": "moiety_recipes.quickstart:nothing"}
    monkeypatch.setattr(registry, "entry_points", entries(good, *bad.items()))
    assert main(["list", "recipes"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "FedAvg against FedAlt" in lines["quickstart"]
    for name, value in bad.items():
        assert "cannot be run" in lines[name]
        assert main(["run", name, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("moiety: `recipe` must be ")
        assert value in error
        assert error.count("\n") == 1
    assert main(["run", "quickstart", "--scale", "ci", "--out", str(tmp_path / "out"), "-q"]) == 0
    monkeypatch.setattr(registry, "entry_points", entries(good, ("quickstart", "other:quickstart")))
    assert main(["run", "quickstart", "--out", str(tmp_path / "two")]) == 2
    assert "brought by one package" in capsys.readouterr().err


def test_another_package_brings_its_own(monkeypatch, capsys, tmp_path):
    module = type(sys)("brought")
    module.toy = TOY
    monkeypatch.setitem(sys.modules, "brought", module)
    monkeypatch.setattr(registry, "entry_points", entries(("toy", "brought:toy")))
    words = ["run", "toy", "--set", "rows=9", "--set", "rates=[0.5]", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().out.endswith(f"\nIt is so.\nresults in {tmp_path / 'out'}\n")
    options = json.loads((tmp_path / "out/recipe.json").read_text())
    assert (options["changes"], options["seeds"]) == ({"rows": 9, "rates": [0.5]}, 1)
    assert main([*words, "--resume"]) == 0
    for words, text in (
        (["--set", "rows"], "of the form name=value"),
        (["--set", "zzz=1"], "Known: halved"),
        (["--workers", "2"], "`--workers` must be left out"),
    ):
        assert main(["run", "toy", *words, "--out", str(tmp_path / "bad")]) == 2
        assert text in capsys.readouterr().err


def test_a_file_imports_no_recipe_and_no_compiler(tmp_path):
    """PyTorch's compiler takes as long to import as the rest of PyTorch."""
    (tmp_path / "first.toml").write_text(
        'data = {name = "digits", clients = 5, partition = "iid"}\nmodel = "linear"\n'
        'algorithm = {name = "fedavg", shared = 0.1, server = {name = "adam", lr = 0.1}}\n'
        '[run]\nrounds = 1\nengine = "sequential"\n'
    )
    text = (
        "import sys; from moiety.cli import main; code = main(['run', 'first.toml', '-q']);"
        " from moiety.run.build import model_from; model_from({'name': 'transformer_lm', 'vocabulary': 9});"
        " print(code, sorted(n for n in sys.modules if n.startswith(('moiety_recipes', 'torch._dynamo'))))"
    )
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert process.stdout.splitlines()[-1] == "0 []", process.stderr
    for option in ("--scale", "--seeds"):
        code = main(["run", str(tmp_path / "first.toml"), option, "3"])
        assert code == 2


def _write_and_keep(folder, name):
    (folder / f"{name}-{os.getpid()}").write_text("")
    return {"score": float(len(name)), "process": os.getpid()}


def test_cells_of_a_list_run_side_by_side_once_and_in_order(tmp_path, monkeypatch):
    """Each in a process of its own; what a list gives are its rows in order; a resume runs what is missing alone."""
    monkeypatch.setattr(parallel, "count_cores", lambda: 2)
    marks = tmp_path / "marks"
    marks.mkdir()

    def list_cells(plan, seeds):
        names = ["one", "seven", "thirteen"]
        rows = yield [Cell(key=(name,), work=partial(_write_and_keep, marks, name)) for name in names]
        assert [row["score"] for row in rows] == [3.0, 5.0, 8.0]
        yield Cell(key=("sum",), work=lambda: {"score": sum(row["score"] for row in rows)})

    def show(plan, seeds, results):
        return Page(about="", rows=[], sections=[], sentence=f"{results['sum',]['score']:g}")

    experiment = Experiment(name="listed", summary="A list.", plan=lambda scale: Plan(), cells=list_cells, page=show)
    outcome = experiment.run(out=tmp_path / "out")
    assert outcome.sentence == "16"
    processes = {outcome.results[name,]["process"] for name in ("one", "seven", "thirteen")}
    assert len(processes) == 3
    assert os.getpid() not in processes
    (tmp_path / "out/seven.json").unlink()
    again = experiment.run(out=tmp_path / "out", resume=True)
    assert again.sentence == "16"
    assert len(list(marks.glob("seven-*"))) == 2
    assert len(list(marks.iterdir())) == 4
    assert experiment.run().sentence == "16"  # without a folder: one after another


def test_how_many_cells_of_a_list_have_ended_is_said(tmp_path, caplog):
    def list_cells(plan, seeds):
        yield [Cell(key=(name,), work=dict) for name in ("a", "b")]

    experiment = Experiment(
        name="listed",
        summary="A list.",
        plan=lambda scale: Plan(),
        cells=list_cells,
        page=lambda *_: Page(about="", rows=[], sections=[], sentence=""),
    )
    with caplog.at_level("INFO", logger="moiety.cells"):
        experiment.run(out=tmp_path / "out")
    assert [re.sub(r"last ., .*", "", message) for message in caplog.messages] == [
        "1 of 2 cells ended; ",
        "2 of 2 cells ended; ",
    ]
