"""``fit(start=...)``: a run that takes over from another, in memory, from a folder, and after kills and losses."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import (
    StopHereError,
    batch_norm_net,
    exact,
    federation,
    mlp,
    refused,
    reseal,
    same_runs,
    stop_after,
    tree_hash,
)
from flat_options import flat
from run_settings import with_settings
from safetensors.torch import load_file

import moiety as mo
from moiety.clients import uniform_cohort

FED = federation()
RATES = {"lr": 0.1, "personal_lr": 0.1, "pull": 0.5}


def alt(**options: Any) -> mo.Algorithm:
    return flat(mo.fedalt, **{"shared_lr": 0.1, "personal_lr": 0.2, "batch_size": 5} | options)


def fit(algorithm: mo.Algorithm, split: str | None = "output_layer", **options: Any) -> mo.Run:
    model = options.pop("model", None) or mlp()
    division = None if split is None else getattr(mo.split, split)(model)
    options = {"rounds": 3, "cohort": 3, "seed": 7, "engine": "sequential", "evaluate_every": 1} | options
    return mo.fit(model, FED, algorithm, **with_settings(split=division, **options))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> mo.Run:
    return fit(alt(), out=tmp_path_factory.mktemp("earlier") / "run", rounds=1)


def states(run: mo.Run) -> dict[int, Any]:
    """The personal values of the clients that have some of their own."""
    store = run._loop.progress.store
    return {i: exact(store.get([i])[0].personal) for i in store.owners()}


def test_a_folder_and_a_run_are_the_same_start(earlier, tmp_path):
    one = fit(alt(), start=earlier)
    other = fit(alt(), start=earlier.folder, out=tmp_path / "run")
    same_runs(one, other)
    assert one.config["run"]["start"] == str(earlier.folder)
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["run"]["start"] == str(earlier.folder)
    memory = fit(alt(), start=fit(alt(), rounds=1))
    same_runs(one, memory)
    assert memory.config["run"]["start"] == "a run in memory"


def test_what_the_folder_holds_is_where_the_earlier_run_ended(earlier, tmp_path):
    """First values: the earlier server's body and the first head. States: the heads of the three clients asked."""
    fit(alt(), start=earlier, out=tmp_path / "run")
    first, own = (load_file(tmp_path / f"run/{name}.safetensors") for name in ("initial", "start"))
    assert exact(first) == exact(earlier.shared_parameters())
    assert own["clients"].tolist() == list(states(earlier))
    assert len(own["clients"]) == 3
    untrained = dict(mlp().named_parameters())
    heads = [name for name in first if name.startswith("head")]
    for name in heads:
        assert torch.equal(first[name], untrained[name])
        for row, client in enumerate(own["clients"].tolist()):
            assert torch.equal(own[f"personal/{name}"][row], earlier.parameters(client)[name])
            assert not torch.equal(own[f"personal/{name}"][row], untrained[name])
    assert any(not torch.equal(first[name], untrained[name]) for name in first if name not in heads)


@pytest.mark.parametrize("stop", [1, 2])
def test_interrupted_and_without_the_earlier_folder(earlier, tmp_path, stop):
    before = Path(shutil.copytree(earlier.folder, tmp_path / "before"))
    whole = fit(alt(), start=earlier)
    with pytest.raises(StopHereError):
        fit(alt(), start=before, out=tmp_path / "run", callbacks=[stop_after(stop)])
    shutil.rmtree(before)
    same_runs(whole, mo.resume(tmp_path / "run", data=FED))


@pytest.mark.parametrize("names", [("checkpoint", "clients"), ("checkpoint", "clients", "history.jsonl")])
def test_a_run_that_starts_again_starts_from_the_same_states(earlier, tmp_path, names):
    """Without its checkpoints a run begins anew, and its clients with the states they began with."""
    whole = fit(alt(), start=earlier)
    fit(alt(), start=earlier, out=tmp_path / "run", rounds=2)
    for name in (*names, "progress.json"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = mo.resume(tmp_path / "run", data=FED, rounds=3)
    same_runs(whole, again)


def test_states_that_a_kill_tore_before_the_first_checkpoint(earlier, tmp_path):
    """A kill while the first states were being written to their records leaves any bytes there, some not marked."""
    whole = fit(alt(), start=earlier)
    with pytest.raises(StopHereError):
        fit(alt(), start=earlier, out=tmp_path / "run", callbacks=[stop_after(1)], checkpoint_every=3)
    records, index = (tmp_path / f"run/clients/{name}.bin" for name in ("states", "index"))
    records.write_bytes(bytes(i % 251 for i in range(records.stat().st_size)))
    entries = np.fromfile(index, dtype="<u4").reshape(-1, 3)
    entries[np.flatnonzero(entries[:, 1])[0]] = 0
    entries.tofile(index)
    same_runs(whole, mo.resume(tmp_path / "run", data=FED))


def test_a_changed_file_of_states_is_refused(earlier, tmp_path):
    fit(alt(), start=earlier, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoint")
    shutil.rmtree(tmp_path / "run/clients")
    (tmp_path / "run/progress.json").unlink()
    file = tmp_path / "run/start.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    refused(lambda: mo.resume(tmp_path / "run", data=FED), "start.safetensors.*as it was written")
    file.unlink()
    refused(lambda: mo.resume(tmp_path / "run", data=FED), "start.safetensors.*as it was written")


def test_more_that_is_personal_than_before(earlier):
    """A client's own head stays its own, the rest begins with the shared value: it starts with the model it had."""
    run = fit(mo.local_only(personal=1e-30), None, start=earlier, rounds=1)
    for client in range(len(FED)):
        assert exact(run.parameters(client)) == exact(earlier.parameters(client))


def test_less_that_is_personal_than_before(tmp_path):
    """From whole models to heads: the own head stays; the body is the first one, for nothing was ever shared."""
    local = fit(mo.local_only(personal=0.2), None)
    run = fit(mo.finetune(personal=1e-30), start=local, rounds=1)
    untrained = dict(mlp().named_parameters())
    for client in range(len(FED)):
        values, before = run.parameters(client), local.parameters(client)
        for name, value in values.items():
            assert torch.equal(value, before[name] if name.startswith("head") else untrained[name]), name


def test_nothing_personal_takes_the_shared_model_alone(earlier):
    run = fit(mo.fedavg(shared=1e-30), None, start=earlier, rounds=1)
    assert exact(run.parameters(0)) == exact(earlier.shared_parameters())
    assert run._loop.progress.store.owners() == []


def test_clients_without_state_start_from_the_first_values(earlier):
    """Before: nobody has anything of its own to give. After: nobody keeps what it was given."""
    stateless = fit(alt(stateful=False), rounds=1)
    run = fit(mo.finetune(personal=1e-30), start=stateless, rounds=1)
    assert all(exact(run.parameters(i)) == exact(stateless.shared_parameters()) for i in range(len(FED)))
    run = fit(alt(stateful=False), start=earlier, rounds=1)
    assert run._loop.progress.store.owners() == []
    assert {k: v for k, v in exact(run.shared_parameters()).items() if k.startswith("head")} == {
        k: v for k, v in exact(earlier.shared_parameters()).items() if k.startswith("head")
    }


@pytest.mark.parametrize(
    "build", [lambda: flat(mo.ditto, **RATES), lambda: flat(mo.pfedme, **RATES)], ids=["ditto", "pfedme"]
)
def test_whole_models_of_their_own(earlier, tmp_path, build):
    """A state that is more than the personal part: never asked yet, so a client has the shared model; and back."""
    run = fit(build(), None, start=earlier, rounds=1, cohort=1, out=tmp_path / "run")
    owners = run._loop.progress.store.owners()
    assert len(owners) == 1
    for client in set(range(len(FED))) - set(owners):
        assert exact(run.parameters(client)) == exact(run.shared_parameters())
    # The paper, baseline (iii): "Finally the resulting model w is finetuned locally": w, not the client's own.
    last = fit(mo.finetune(personal=1e-30), "everything", start=tmp_path / "run", rounds=1)
    for client in range(len(FED)):
        assert exact(last.parameters(client)) == exact(run.shared_parameters())


def test_own_running_statistics_go_on():
    """FedAvg of a model with BatchNorm: what is a client's own is its statistics."""
    before = fit(mo.fedavg(shared=0.1), None, model=batch_norm_net(), rounds=1)
    run = fit(alt(), "norms", model=batch_norm_net(), start=before, rounds=1, cohort=1)
    (member,) = uniform_cohort(len(FED), 1, seed=7, round=0).tolist()
    assert len(before._loop.progress.store.owners()) == 3
    for client in range(len(FED)):
        mean, first = (each.parameters(client)["norm.running_mean"] for each in (run, before))
        assert torch.equal(mean, first) == (client != member)


def test_other_rows_of_the_same_clients(earlier, tmp_path):
    """After tuning, validation rows are counted as training rows: the clients are the same."""
    more = mo.FederatedData(FED.columns, FED.bounds, list(FED.ids))
    bounds = FED.bounds.copy()
    bounds[:, 1] -= 1
    bounds[:, 1] = np.maximum(bounds[:, 1], bounds[:, 0] + 1)
    fewer = mo.FederatedData(FED.columns, bounds, list(FED.ids))
    once = {"rounds": 1, "engine": "sequential"}
    for data in (more, fewer):
        model = mlp()
        run = mo.fit(
            model,
            data,
            mo.finetune(personal=1e-30),
            **with_settings(split=mo.split.output_layer(model), start=earlier, **once),
        )
        assert exact(run.parameters(1)) == exact(earlier.parameters(1))


def test_in_another_precision(earlier):
    run = fit(mo.finetune(personal=1e-30), start=earlier, rounds=1, model=mlp().double())
    for name, value in run.parameters(1).items():
        assert value.dtype == torch.float64
        assert torch.equal(value, earlier.parameters(1)[name].double())


# What is refused, in one line, with nothing written.


def other_clients(rename: bool) -> mo.FederatedData:
    ids = [f"d{i}" if rename and i == 4 else f"c{i}" for i in range(len(FED))]
    fed = mo.FederatedData(FED.columns, FED.bounds, ids)
    return fed if rename else federation((4, 9, 12))


def start_from(start: Any, *, data: mo.FederatedData = FED, model: Any = None, out: Path | None = None) -> mo.Run:
    model = model or mlp()
    return mo.fit(model, data, alt(), split=mo.split.output_layer(model), rounds=1, start=start, out=out)


def test_bad_starts(earlier, tmp_path):
    before = tree_hash(tmp_path)
    out = tmp_path / "run"
    refused(lambda: start_from(3, out=out), "`start` must be a run that has ended, or its folder")
    refused(lambda: start_from(tmp_path / "away", out=out), "a run folder with a config.toml")
    refused(lambda: start_from(earlier, data=other_clients(True), out=out), "`data`.*clients.*d4 in the place of c4")
    refused(lambda: start_from(earlier, data=other_clients(False), out=out), "`data`.*3 clients, not 6")
    other = mo.FederatedData({"x": FED.columns["x"] + 1, "y": FED.columns["y"]}, FED.bounds, FED.ids)
    refused(lambda: start_from(earlier.folder, data=other, out=out), "`start`.*on this data.*moiety.resume")
    wide = mo.models.mlp(4, 3, hidden=(7,), seed=3)
    refused(lambda: start_from(earlier, model=wide, out=out), r"`model`.*of shape \(5, 4\).*got \(7, 4\)")
    deep = mo.models.mlp(4, 3, hidden=(), seed=3)
    refused(lambda: start_from(earlier, model=deep, out=out), "`model`.*every name.*export")
    model = mlp()
    additive = mo.split.additive(model, mo.models.linear(4, 3))  # renames the model's parameters, and it is untrained
    call = lambda: mo.fit(model, FED, alt(), split=additive, rounds=1, start=earlier, out=out)  # noqa: E731
    refused(call, "`model`.*every name.*make the split from it")
    assert tree_hash(tmp_path) == before


def test_a_run_that_has_not_ended_is_refused(tmp_path):
    with pytest.raises(StopHereError):
        fit(alt(), out=tmp_path / "run", callbacks=[stop_after(2)])
    before = tree_hash(tmp_path)
    refused(lambda: start_from(tmp_path / "run"), "`start` must be a run that has ended, got round 2 of 3.*Resume")
    assert tree_hash(tmp_path) == before


def test_folders_that_cannot_name_what_they_were_of(tmp_path):
    """A model or a split of the user's own: the given one serves if it is the same. An algorithm: a run is needed."""
    model = batch_norm_net()
    by_hand = mo.split.by_name(model, personal=["head"])
    own = mo.Split(**{k: v for k, v in vars(by_hand).items() if k != "spec"})
    run = mo.fit(model, FED, alt(), split=own, rounds=1, cohort=3, engine="sequential", out=tmp_path / "run")
    assert json.loads((tmp_path / "run/identity.json").read_text())["personal"] == list(own.personal)
    options = {"split": own, "rounds": 1, "engine": "sequential"}
    again = mo.fit(model, FED, mo.finetune(personal=1e-30), **with_settings(start=tmp_path / "run", **options))
    for client in range(len(FED)):
        assert all(torch.equal(again.parameters(client)[n], run.parameters(client)[n]) for n in own.trained_personal)
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(text.replace('name = "fedalt"', 'own = "mine"\nname = "fedalt"'))
    reseal(tmp_path / "run/config.toml")
    call = lambda: mo.fit(model, FED, mo.finetune(personal=0.1), **with_settings(start=tmp_path / "run", **options))  # noqa: E731
    refused(call, "`start`.*names its algorithm.*moiety.resume")
