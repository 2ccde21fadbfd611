"""Trackers against the real libraries: what they wrote is read back with the libraries' own readers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moiety as mo

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries warn of their own affairs
ROUNDS = 4


def data() -> mo.FederatedData:
    draw = np.random.default_rng(0)
    clients = {}
    for i, size in enumerate((8, 12, 16, 20)):
        x = draw.normal(size=(size, 4)).astype(np.float32)
        clients[f"c{i}"] = {"x": x, "y": (x @ draw.normal(size=(4, 3))).argmax(1)}
    return mo.data.from_clients(clients, test=0.25)


FED = data()


def begin(callback: Any, out: Path, **options: Any) -> mo.Run:
    model = mo.models.mlp(4, 3, hidden=(5,), seed=0)
    arguments = {"rounds": ROUNDS, "engine": "sequential", "settings": mo.Settings(evaluate_every=1), **options}
    split = mo.split.output_layer(model)
    algorithm = mo.fedalt(shared=0.3, personal=0.3)
    return mo.fit(model, FED, algorithm, split=split, out=out, callbacks=[callback], **arguments)


class KilledError(Exception):
    """In the place of a kill."""


def killed_after(round: int, callback: Any) -> Any:
    """The callback, which raises after that round; ``on_end`` is never called."""

    class Killed(type(callback)):  # type: ignore[misc]
        def on_round(self, run: Any, record: Any) -> None:
            if record.round == round:
                raise KilledError

    callback.__class__ = Killed
    return callback


def test_tensorboard_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KilledError):
        begin(killed_after(2, mo.callbacks.TensorBoard()), tmp_path / "run")
    run = mo.resume(tmp_path / "run", data=FED, callbacks=[mo.callbacks.TensorBoard()])
    events = EventAccumulator(str(tmp_path / "run/tensorboard"), {"histograms": 0, "tensors": 0, "scalars": 0})
    events.Reload()
    for name in ("loss", "metric", "train_loss", "worst_decile", "up_payload"):
        values = [(each.step, each.value) for each in events.Scalars(f"history/{name}")]
        assert values == [(row["round"], pytest.approx(row[name], rel=1e-6)) for row in run.history], name
    histograms = events.Histograms("clients/metric")
    assert [each.step for each in histograms] == [1, 2, 3, 4]
    metrics = [row["metric"] for row in run.clients]
    last = histograms[-1].histogram_value
    assert (last.num, last.min, last.max) == (4, pytest.approx(min(metrics)), pytest.approx(max(metrics)))
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "| run.rounds | 4 |" in texts["parameters/text_summary"]
    assert f"| up_payload | {run.ledger['up_payload']} |" in texts["ledger/text_summary"]
    assert "clients helped" in texts["summary/text_summary"]


def test_mlflow_in_sqlite(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    make = lambda: mo.callbacks.MLflow("mine", uri=store)  # noqa: E731
    with pytest.raises(KilledError):
        begin(killed_after(2, make()), tmp_path / "run")
    run = mo.resume(tmp_path / "run", data=FED, callbacks=[make()])
    client = mlflow.MlflowClient(tracking_uri=store)
    (entry,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])  # resumed, not begun anew
    assert (entry.info.run_name, entry.info.status) == ("run", "FINISHED")
    assert entry.data.params["run.rounds"] == "4"
    assert entry.data.params["algorithm.name"] == "fedalt"
    for name in ("loss", "metric", "worst_decile"):
        values = {each.step: each.value for each in client.get_metric_history(entry.info.run_id, name)}
        assert values == {row["round"]: pytest.approx(row[name]) for row in run.history}, name
    assert entry.data.metrics["ledger.up_payload"] == run.ledger["up_payload"]
    place = Path(client.download_artifacts(entry.info.run_id, "", None))
    assert (place / "clients.parquet").read_bytes() == (tmp_path / "run/clients.parquet").read_bytes()
    spread = json.loads((place / "clients.json").read_text())
    metrics = [row["metric"] for row in run.clients]
    assert sum(spread["4"]["counts"]) == 4
    assert (spread["4"]["edges"][0], spread["4"]["edges"][-1]) == pytest.approx((min(metrics), max(metrics)))


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = begin(mo.callbacks.WandB("mine", mode="offline", dir=tmp_path), tmp_path / "run", rounds=2)
    wandb.teardown()  # its service, a process of its own, may still be writing
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = read_records(file)
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["_step"] for row in rows] == [1, 2]
    for row, scores in zip(rows, run.history, strict=True):
        for name in ("loss", "metric", "worst_decile"):
            assert row[f"history/{name}"] == pytest.approx(scores[name])
        assert (row["clients/metric/_type"], sum(row["clients/metric/values"])) == ("histogram", 4)
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.WhichOneof("record_type") in ("run", "config")
        for item in (record.run.config.update if record.HasField("run") else record.config.update)
    }
    assert (config["run.rounds"], config["algorithm.name"]) == (2, "fedalt")
    summary = {
        "/".join(item.nested_key) or item.key: item.value_json
        for record in records
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    assert json.loads(summary["ledger/up_payload"]) == run.ledger["up_payload"]
    names = {entry.path for record in records for entry in record.request.log_artifact.artifact.manifest.contents}
    names |= {entry.path for record in records for entry in record.artifact.manifest.contents}
    assert {"clients.parquet", "ledger.json", "config.toml"} <= names


def read_records(file: Path) -> list[Any]:
    """All records of an offline run: W&B's messages in a log of LevelDB's format, after a header of 7 bytes.

    A block has 32,768 bytes. Each piece has a checksum (4 bytes), its length (2) and its kind (1): whole, first, middle
    or last.
    """
    from wandb.proto import wandb_internal_pb2

    content, at, records, parts = file.read_bytes(), 7, [], b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts = content[at + 7 : at + 7 + length] if kind in (1, 2) else parts + content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(parts))
    return records
