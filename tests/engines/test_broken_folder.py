"""A truncated, changed or foreign run folder is refused in one line, and the refusal changes nothing in it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import (
    StopHereError,
    federation,
    folder_contents,
    mlp,
    refused,
    reseal,
    same_folders,
    same_runs,
    stop_after,
    tree_hash,
)
from flat_options import flat
from run_settings import with_settings
from safetensors.torch import save

import moiety as mo
from moiety.run.folder import read_start
from moiety.seals import LINE_END, digest, seal

FED = federation()
ROUNDS = 4
Damage = Callable[[Path], Any]


def algorithm(**options: Any) -> mo.Algorithm:
    return flat(mo.fedalt, **{"shared_lr": 0.1, "personal_lr": 0.2, "batch_size": 5} | options)


def begin(out: Path, model_seed: int = 3, **options: Any) -> mo.Run:
    model = mo.models.mlp(4, 3, hidden=(5,), seed=model_seed)
    split = mo.split.by_name(model, personal=["head"])
    options = {"rounds": ROUNDS, "cohort": 3, "seed": 7, "engine": "sequential"} | options
    return mo.fit(model, FED, algorithm(), **with_settings(split=split, evaluate_every=1, out=out, **options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    begin(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after two of its four rounds."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(StopHereError):
        begin(folder, callbacks=[stop_after(2)])
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def file(folder: Path, name: str) -> Path:
    (checkpoint,) = (folder / "checkpoint").iterdir()
    return checkpoint / name if (checkpoint / name).exists() else folder / name


def cut(name: str, keep: float) -> Damage:
    """Keep a share of the file, or all but one byte."""

    def damage(folder: Path) -> None:
        path = file(folder, name)
        size = path.stat().st_size
        os.truncate(path, size - 1 if keep == 1 else int(size * keep))

    return damage


def flip(name: str, at: int) -> Damage:
    def damage(folder: Path) -> None:
        path = file(folder, name)
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(bytes(content))

    return damage


def flip_state(folder: Path) -> None:
    """Change the last byte of a state that the index names."""
    slots = np.fromfile(folder / "clients/index.bin", dtype="<u4").reshape(-1, 3)[:, 1]
    client = int(np.flatnonzero(slots)[-1])
    size = (folder / "clients/states.bin").stat().st_size // (2 * len(slots))
    flip("clients/states.bin", (2 * client + int(slots[client])) * size - 1)(folder)


def write(name: str, content: bytes | str) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: file(folder, name).write_bytes(data)


def remove(name: str) -> Damage:
    return lambda folder: file(folder, name).unlink()


def forge(name: str, change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change a JSON file, and give it a right checksum."""

    def damage(folder: Path) -> None:
        path = file(folder, name)
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        reseal(path)

    return damage


def state(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return forge("state.json", change)


def index(changes: torch.Tensor, name: str = "changes") -> Damage:
    """Put another index into the checkpoint, with right checksums."""

    def damage(folder: Path) -> None:
        content = save({name: changes})
        file(folder, INDEX).write_bytes(content)
        state(lambda s: s["files"].update({INDEX: digest(content)}))(folder)

    return damage


def config(old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        text = (folder / "config.toml").read_text()
        assert old in text
        (folder / "config.toml").write_text(text.replace(old, new))
        reseal(folder / "config.toml")

    return damage


def without_section(name: str) -> Damage:
    def damage(folder: Path) -> None:
        parts = (folder / "config.toml").read_text().split("\n\n")
        rest = [p for p in parts if not p.lstrip().startswith((f"[{name}]", f"[{name}."))]
        assert sum(p.lstrip().startswith(f"[{name}]") for p in parts) == 1  # the table, and those within it
        (folder / "config.toml").write_text("\n\n".join(rest))
        reseal(folder / "config.toml")

    return damage


def without_key(name: str) -> Damage:
    def damage(folder: Path) -> None:
        lines = (folder / "config.toml").read_text().splitlines()
        run = lines.index("[run]")
        at = next(i for i, line in enumerate(lines) if i > run and line.startswith(f"{name} ="))
        end = at + 1 if not lines[at].endswith("[") else lines.index("]", at) + 1
        (folder / "config.toml").write_text("\n".join(lines[:at] + lines[end:]) + "\n")
        reseal(folder / "config.toml")

    return damage


def section_as_text(name: str) -> Damage:
    def damage(folder: Path) -> None:
        without_section(name)(folder)
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(f'{name} = "digits"\n\n{text}')
        reseal(folder / "config.toml")

    return damage


def clear(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


SERVER, INDEX, INITIAL = "server.safetensors", "index.safetensors", "initial.safetensors"
CASES: dict[str, tuple[Damage, str]] = {}
for tensors in (SERVER, INDEX, INITIAL):
    for share in (0, 0.01, 0.5, 0.9, 1):
        CASES[f"{tensors} cut to {share}"] = (cut(tensors, share), tensors)
    CASES[f"{tensors} header byte"] = (flip(tensors, 9), tensors)
    CASES[f"{tensors} last byte"] = (flip(tensors, -1), tensors)
    CASES[f"{tensors} removed"] = (remove(tensors), tensors)
    CASES[f"{tensors} of noise"] = (write(tensors, os.urandom(400)), tensors)
for share in (0, 0.1, 0.5, 0.99):
    CASES[f"state.json cut to {share}"] = (cut("state.json", share), "checkpoint")
for key in ("format", "round", "index", "before", "numbers", "ledger", "dropped", "identity", "files"):
    CASES[f"state.json without {key}"] = (state(lambda s, key=key: s.pop(key)), "checkpoint")  # type: ignore[misc]
for name, text in {"a list": "[]", "null": "null", "a number": "3", "words": "not JSON", "bytes": "\xff\xfe"}.items():
    CASES[f"state.json {name}"] = (write("state.json", text.encode("latin-1")), "checkpoint")
for section in ("data", "model", "split", "algorithm", "run"):
    CASES[f"config.toml without [{section}]"] = (without_section(section), rf"config\.toml.*{section}")
    CASES[f"config.toml with {section} as text"] = (section_as_text(section), section)
for key in (
    "rounds",
    "cohort",
    "seed",
    "engine",
    "evaluate_on",
    "evaluate_every",
    "checkpoint_every",
    "inputs",
    "device",
):
    CASES[f"config.toml without run.{key}"] = (without_key(key), key)
CASES |= {
    "state.json removed": (remove("state.json"), "checkpoint"),
    "state.json of format 4": (state(lambda s: s.update(format=4)), "of format 3, got format 4"),
    "state.json of another format": (state(lambda s: s.update(format="other")), "other"),
    "state.json of another run": (state(lambda s: s.update(run="0" * 16)), "a file of run .* one of run 0000"),
    "state.json of another round": (state(lambda s: s.update(round=3)), "of round 2, got round 3"),
    "state.json nested too deeply": (write("state.json", "[" * 100_000), "checkpoint"),
    "identity.json nested too deeply": (write("identity.json", '{"a": ' * 100_000), "identity.json"),
    "config.toml nested too deeply": (write("config.toml", "a = " + "[" * 100_000), "config.toml"),
    "state.json with round text": (state(lambda s: s.update(round="two")), "checkpoint|round"),
    "state.json with identity null": (state(lambda s: s.update(identity=None)), "checkpoint"),
    "state.json with a new identity": (state(lambda s: s["identity"].update(more=1)), "checkpoint"),
    "state.json of another algorithm": (state(lambda s: s["identity"]["algorithm"].update(name="fedsim")), "algorithm"),
    "state.json of another seed": (state(lambda s: s["identity"].update(seed=8)), "seed"),
    "state.json of other data": (state(lambda s: s["identity"].update(data="0" * 32)), "data"),
    "state.json of another split": (state(lambda s: s["identity"].update(personal=["hidden1.weight"])), "personal"),
    "state.json of other shapes": (state(lambda s: s["identity"]["model"].update({"head.bias": [4]})), "model"),
    "state.json with a strange ledger": (state(lambda s: s["ledger"].update(gifts=1)), "checkpoint|ledger"),
    "state.json with a table in the ledger": (state(lambda s: s["ledger"].update(rounds={})), "another ledger"),
    "state.json with a number for the checkpoint before": (state(lambda s: s.update(before=1.5)), "another before"),
    "state.json without its index": (state(lambda s: s["files"].pop(INDEX)), "another index.safetensors"),
    "state.json without its server": (state(lambda s: s["files"].pop(SERVER)), "another server.safetensors"),
    "index of floats": (index(torch.zeros(2, 4)), "another index.safetensors"),
    "index of one axis": (index(torch.zeros(4, dtype=torch.int64)), "another index.safetensors"),
    "index of negative numbers": (index(-torch.ones(2, 4, dtype=torch.int64)), "another index.safetensors"),
    "index of another name": (index(torch.zeros(0, 4, dtype=torch.int64), "other"), "another index.safetensors"),
    "index of an unknown client": (index(torch.tensor([[99, 2, 1, 5]])), "`clients` must be"),
    "identity.json with words in the probe": (
        forge("identity.json", lambda s: s["probe"]["output"].__setitem__(0, "x")),
        "`model` must be the one that the run",
    ),
    "identity.json with NaN in the probe": (
        forge("identity.json", lambda s: s["probe"]["output"].__setitem__(0, float("nan"))),
        "`model` must be the one that the run",
    ),
    "identity.json with a key of nothing": (
        forge("identity.json", lambda s: s["settings"].update(more=None)),
        "`more` must be nothing, as the run in",
    ),
    "config.toml with a list for a name": (config('name = "fedalt"', 'name = ["fedalt"]'), "`algorithm` must be given"),
    "layout.json with a size in words": (forge("clients/layout.json", lambda s: s.update(bytes="x")), "layout.json"),
    "layout.json with a size below 0": (forge("clients/layout.json", lambda s: s.update(bytes=-1)), "layout.json"),
    "config.toml removed": (remove("config.toml"), "run folder"),
    "config.toml empty": (write("config.toml", ""), "config.toml"),
    "config.toml of noise": (write("config.toml", b"\xff\x00\x01"), "config.toml"),
    "config.toml cut": (cut("config.toml", 0.3), "config.toml"),
    "config.toml not TOML": (write("config.toml", "a = [\n"), "config.toml"),
    "config.toml of another seed": (config("seed = 7", "seed = 8"), "seed"),
    "config.toml of another algorithm": (config('name = "fedalt"', 'name = "fedsim"'), "algorithm"),
    "config.toml of another rate": (config("lr = 0.1", "lr = 0.3"), "algorithm"),
    "config.toml of an unknown algorithm": (config('"fedalt"', '"fedlat"'), "algorithm.*given again.*fedlat"),
    "config.toml with an unknown key": (config("lr = 0.1", "rl = 0.1"), "algorithm.shared.*lr"),
    "config.toml with a rate in words": (config("lr = 0.1", 'lr = "fast"'), "algorithm.shared.lr"),
    "config.toml of an unknown engine": (config('engine = "sequential"', 'engine = "warp"'), "engine"),
    "config.toml of another split": (config('"head"', '"hidden1"'), "personal"),
    "config.toml with a pattern of nothing": (config('"head"', '"tail"'), "personal"),
    "config.toml of another width": (config("    5,", "    9,"), "shape|model|hidden"),
    "config.toml of an unknown model": (config('name = "mlp"', 'name = "lmp"'), "model.name"),
    "config.toml with rounds in words": (config("rounds = 4", 'rounds = "four"'), "rounds"),
    "config.toml with a wrong part": (config('evaluate_on = "test"', 'evaluate_on = "exam"'), "exam"),
    "config.toml with a wrong column": (config('    "x",', '    "z",'), "inputs"),
    "config.toml with a wrong loss": (config('loss = "cross_entropy"', 'loss = "crossentropy"'), "loss"),
    "clients removed": (
        lambda folder: shutil.rmtree(folder / "clients"),
        "layout.json.*remove checkpoint, progress.json, clients and",
    ),
    "the state of a client": (flip_state, r"states.bin.*another state of client \d"),
    "clients emptied": (lambda folder: os.truncate(folder / "clients/states.bin", 0), "clients.*states.bin"),
    "clients as at first": (lambda folder: clear(folder / "clients/index.bin"), "`clients` must be as the checkpoint"),
    "checkpoint removed": (
        lambda folder: shutil.rmtree(folder / "checkpoint"),
        r"`checkpoint` must be of round 2, which progress\.json names, got none in",
    ),
}


@pytest.mark.parametrize(("damage", "pattern"), CASES.values(), ids=CASES.keys())
def test_a_damaged_folder_is_refused_and_left_alone(damage: Damage, pattern: str, folder: Path) -> None:
    damage(folder)
    before = tree_hash(folder)
    refused(lambda: mo.resume(folder, data=FED), pattern)
    assert tree_hash(folder) == before


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("index of", "layout", "state.json without its"))]
)
def test_verify_names_what_is_wrong_with_right_checksums(name: str, folder: Path) -> None:
    CASES[name][0](folder)
    assert any(re.search(CASES[name][1], problem) for problem in mo.verify(folder))


@pytest.mark.parametrize(
    "row",
    [
        '{"round": 1, "seconds": 1, "train_loss": "x"',
        '{"seconds": 1',
        '{"round": 1, "seconds": NaN',
        '{"a": ' + "[" * 9999,
    ],
)
def test_a_row_of_the_history_that_no_run_wrote_is_a_lost_one(row: str, folder: Path) -> None:
    path, run = folder / "history.jsonl", json.loads((folder / "identity.json").read_text())["run"]
    lines = path.read_bytes().splitlines()
    lines[0] = seal(f'{row}, "check": "'.encode(), LINE_END, run)
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert [problem.partition("`")[2].partition("`")[0] for problem in mo.verify(folder)] == ["history.jsonl"]
    with pytest.warns(UserWarning, match="has lost the rows of round 1. The models are not affected"):
        assert [row["round"] for row in mo.resume(folder, data=FED).history] == [2, 3, 4]


@pytest.mark.parametrize("text", ["evaluate_every = {a = 1}", "evaluate_every = -1", 'evaluate_every = "x"'])
def test_verify_reads_how_often_a_run_is_evaluated(text: str, folder: Path) -> None:
    config("evaluate_every = 1", text)(folder)
    assert any("`run.evaluate_every` must be" in problem for problem in mo.verify(folder))


def test_verify_of_a_configuration_without_options(folder: Path) -> None:
    section_as_text("run")(folder)
    assert any("`run` must be a table in" in problem for problem in mo.verify(folder))


@pytest.mark.parametrize(
    "tensors",
    [
        {"v": torch.zeros(2, 3)},
        {"clients": torch.arange(2), "v": torch.zeros(1, 3)},
        {"clients": torch.arange(2)},
        {"clients": torch.arange(2), "v": torch.zeros(())},
        {"clients": torch.arange(2), "v": torch.zeros(2, 3), "w": torch.zeros(0, 3)},
        {"clients": torch.arange(2), "v": torch.zeros(0, 3), "w": torch.zeros(2, 3)},
    ],
)
def test_first_states_that_are_not_laid_out_as_states(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    content = save(tensors)
    (tmp_path / "start.safetensors").write_bytes(content)
    refused(
        lambda: read_start(
            tmp_path, digest(content), dict.fromkeys(set(tensors) - {"clients"} or {"v"}, torch.zeros(3))
        ),
        "start.safetensors",
    )


@pytest.mark.parametrize(
    "name", ["config.toml", "identity.json", "checkpoint", "clients", "initial.safetensors", "clients/states.bin"]
)
def test_what_is_of_another_run_is_refused_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    """The other run has the same algorithm and data, so nothing but its id and its values tells its files apart."""
    with pytest.raises(StopHereError):
        begin(tmp_path / "other", callbacks=[stop_after(2)], model_seed=4)
    place = folder / name
    (shutil.rmtree if place.is_dir() else os.unlink)(place)
    (shutil.copytree if (tmp_path / "other" / name).is_dir() else shutil.copy)(tmp_path / "other" / name, place)
    before = tree_hash(folder)
    pattern = {"clients": "layout.json", "identity.json": "config.toml"}.get(name, Path(name).name)
    refused(lambda: mo.resume(folder, data=FED), pattern)
    assert {k: v for k, v in tree_hash(folder).items() if "states" not in k} == {
        k: v for k, v in before.items() if "states" not in k
    }


def test_clients_of_an_older_checkpoint_are_refused(folder: Path, tmp_path: Path) -> None:
    older = shutil.copytree(folder / "clients", tmp_path / "older")
    with pytest.raises(StopHereError):
        mo.resume(folder, data=FED, callbacks=[stop_after(4)], rounds=6)
    shutil.rmtree(folder / "clients")
    shutil.copytree(older, folder / "clients")
    before = tree_hash(folder)
    refused(lambda: mo.resume(folder, data=FED), "`clients` must be as the checkpoint of round 4")
    assert tree_hash(folder) == before


HISTORIES: dict[str, tuple[Damage, list[int]]] = {
    "not text": (write("history.jsonl", b"\xff\xfe\n"), [1, 2]),
    "without rounds": (write("history.jsonl", '{"loss": 1}\n'), [1, 2]),
    "of numbers": (write("history.jsonl", "5\n"), [1, 2]),
    "too deep": (write("history.jsonl", "[" * 100_000), [1, 2]),
    "removed": (remove("history.jsonl"), [1, 2]),
    "a flipped bit": (flip("history.jsonl", 20), [1]),
    "a metric that was edited": (lambda folder: edit(folder / "history.jsonl", '"metric": 0.', '"metric": 9.'), [1, 2]),
    "cut": (cut("history.jsonl", 0.8), [2]),
}


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(("damage", "lost"), HISTORIES.values(), ids=HISTORIES)
def test_a_damaged_history_costs_its_rows_and_no_model(
    damage: Damage, lost: list[int], finished: Path, folder: Path
) -> None:
    damage(folder)
    with pytest.warns(UserWarning, match=f"has lost the rows of rounds? {', '.join(map(str, lost))}\\."):
        run = mo.resume(folder, data=FED)
    assert [row["round"] for row in run.history] == [t for t in (1, 2, 3, 4) if t not in lost]
    one, other = folder_contents(finished), folder_contents(folder)
    assert {k: v for k, v in one.items() if k != "history"} == {k: v for k, v in other.items() if k != "history"}


def other_data() -> mo.FederatedData:
    return federation(seed=1)


ARGUMENTS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "other data": (lambda: {"data": other_data()}, "data"),
    "fewer clients": (lambda: {"data": federation((9, 9, 9))}, "data"),
    "no data": (lambda: {"data": None}, "data.* given again"),
    "another algorithm": (
        lambda: {"data": FED, "algorithm": mo.fedsim(shared=mo.sgd(0.1, batch_size=5), personal=0.2)},
        "algorithm",
    ),
    "another rate": (lambda: {"data": FED, "algorithm": algorithm(shared_lr=0.5)}, "algorithm"),
    "another split": (lambda: {"data": FED, "split": mo.split.by_name(mlp(), personal=["hidden1"])}, "personal"),
    "frozen besides": (
        lambda: {"data": FED, "split": mo.split.by_name(mlp(), personal=["head"], frozen=["hidden1.bias"])},
        "shared|frozen",
    ),
    "another width": (lambda: {"data": FED, "model": mo.models.mlp(4, 3, hidden=(9,))}, "shape|model"),
    "another model": (lambda: {"data": FED, "model": mo.models.linear(4, 3)}, "split|model"),
    "fewer rounds": (lambda: {"data": FED, "rounds": 1}, "rounds"),
    "half a round": (lambda: {"data": FED, "rounds": 2.5}, "rounds"),
    "no rounds": (lambda: {"data": FED, "rounds": 0}, "rounds"),
    "an unknown engine": (lambda: {"data": FED, "engine": "warp"}, "engine"),
    "data of no kind": (lambda: {"data": {"x": 1}}, "data"),
    "an algorithm of no kind": (lambda: {"data": FED, "algorithm": "fedalt"}, "algorithm"),
    "a split of no kind": (lambda: {"data": FED, "split": "output_layer"}, "split"),
}


@pytest.mark.parametrize(("given", "pattern"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_what_does_not_belong_to_the_run_is_refused(
    given: Callable[[], dict[str, Any]], pattern: str, folder: Path
) -> None:
    before = tree_hash(folder)
    refused(lambda: mo.resume(folder, **with_settings(**given())), pattern)
    assert tree_hash(folder) == before


@pytest.mark.parametrize("name", ["other data", "another algorithm", "another rate", "another split"])
def test_what_does_not_belong_is_refused_before_the_first_checkpoint_too(name: str, folder: Path) -> None:
    """A run killed in its first round has a configuration and no checkpoint."""
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "clients")
    (folder / "history.jsonl").unlink()
    (folder / "progress.json").unlink()
    before = tree_hash(folder)
    make, pattern = ARGUMENTS[name]
    refused(lambda: mo.resume(folder, **with_settings(**make())), pattern)
    assert tree_hash(folder) == before


def test_a_folder_that_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("hello")
    (tmp_path / "file").write_text("hello")
    before = tree_hash(tmp_path)
    refused(lambda: mo.resume(tmp_path / "notes", data=FED), "run folder.*notes")
    refused(lambda: mo.resume(tmp_path / "nowhere", data=FED), "run folder.*nowhere")
    refused(lambda: mo.resume(tmp_path / "file", data=FED), "file")
    refused(lambda: mo.resume(tmp_path / "file" / "below", data=FED), "file")
    assert tree_hash(tmp_path) == before


@pytest.mark.parametrize("keep", [1, 20, -2, -1])
def test_a_last_line_cut_short_is_made_again(keep: int, finished: Path, folder: Path, tmp_path: Path) -> None:
    """A kill while the row of round 3 is written leaves a part of it; the checkpoint is of round 2."""
    row = (finished / "history.jsonl").read_text().splitlines()[2] + "\n"
    with open(folder / "history.jsonl", "a") as history:
        history.write(row[:keep])
    mo.resume(folder, data=FED)
    same_folders(finished, folder)


def test_the_advice_to_remove_a_broken_checkpoint_works(finished: Path, folder: Path) -> None:
    cut(SERVER, 0.5)(folder)
    text = refused(lambda: mo.resume(folder, data=FED), "remove checkpoint, progress.json, clients and history.jsonl")
    (checkpoint,) = (folder / "checkpoint").iterdir()
    assert str(checkpoint) in text
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "clients")
    (folder / "history.jsonl").unlink()
    (folder / "progress.json").unlink()
    mo.resume(folder, data=FED)
    same_folders(finished, folder)


def test_an_interrupted_checkpoint_beside_the_whole_one_does_no_harm(finished: Path, folder: Path) -> None:
    """What a kill leaves: a folder being written, with half a file in it."""
    draft = folder / "checkpoint" / ".new.moiety"
    draft.mkdir()
    (draft / SERVER).write_bytes(b"half")
    (folder / ".config.toml.moiety").write_bytes(b"half")
    mo.resume(folder, data=FED)
    same_folders(finished, folder)
    assert not draft.exists()
    assert not (folder / ".config.toml.moiety").exists()


def test_files_of_the_users_own_stay(finished: Path, folder: Path) -> None:
    """Names that look like what is left of a write, and files in folders of ours."""
    (old,) = (folder / "checkpoint").iterdir()
    names = [".env.2024-backup", ".thesis.tex.2", ".config.toml.12345", "checkpoint/notes.txt", "clients/.a.1"]
    names += [f"checkpoint/{old.name}/notes.txt", ".x.1/file"]
    (folder / ".x.1").mkdir()
    for name in names:
        (folder / name).write_text("mine")
    mo.resume(folder, data=FED)
    assert [name for name in names if (folder / name).read_text() != "mine"] == []
    same_folders(finished, folder)
    assert mo.resume(folder, data=FED, rounds=6)._loop.progress.round == 6


def test_only_the_owner_can_read_a_run(finished: Path) -> None:
    places = [finished, *finished.rglob("*")]
    assert {place.stat().st_mode & 0o777 for place in places if place.is_dir()} == {0o700}
    assert {place.stat().st_mode & 0o777 for place in places if place.is_file()} == {0o600}


def test_a_folder_that_lost_its_configuration_does_not_mix_two_runs(finished: Path, folder: Path) -> None:
    """``fit`` into what is left of another run must not append to its history, nor be resumed from its checkpoint."""
    (folder / "config.toml").unlink()
    try:
        run = begin(folder, seed=8)
    except mo.MoietyError:
        return
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [row["round"] for row in run.history] == [1, 2, 3, 4]


def test_a_moved_folder_can_be_resumed(finished: Path, folder: Path, tmp_path: Path) -> None:
    place = folder.rename(tmp_path / "elsewhere")
    mo.resume(place, data=FED)
    same_folders(finished, place)


def test_a_run_written_twice_says_the_same(finished: Path, tmp_path: Path) -> None:
    same_runs(begin(tmp_path / "again"), mo.resume(shutil.copytree(finished, tmp_path / "copy"), data=FED))
    same_folders(finished, tmp_path / "again")
