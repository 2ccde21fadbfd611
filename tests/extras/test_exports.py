"""Models taken out of a run in other formats: traced, through ``torch.export``, and ONNX, computed by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import peft
import polars
import pytest
import torch
from small_models import CASES, data, make
from torch import nn

import moiety as mo
from moiety.run.raw import RawModel

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters warn of their own affairs
ALGORITHM = mo.fedalt(shared=0.1, personal=0.3)


def as_tensors(columns: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def compute_onnx(model: nn.Module, columns: dict[str, np.ndarray], path: Path) -> list[np.ndarray]:
    """What the model says as an ONNX file: for all rows and for two, with one file, since rows may be any number."""
    tensors, rows = as_tensors(columns), {0: torch.export.Dim.AUTO}
    by_name = {"kwargs": tensors, "dynamic_shapes": dict.fromkeys(tensors, rows)}
    arguments: dict[str, Any] = {"args": (tensors["x"],), "dynamic_shapes": (rows,)} if "x" in tensors else by_name
    if isinstance(model, RawModel):  # whose arguments have no names
        arguments["dynamic_shapes"] = ((rows,),)
    torch.onnx.export(model, f=path, dynamo=True, verbose=False, **arguments)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert len(names) == len(columns)
    return [
        session.run(None, dict(zip(names, (column[:count] for column in columns.values()), strict=True)))[0]
        for count in (len(next(iter(columns.values()))), 2)
    ]


def check_onnx(run: mo.Run, columns: dict[str, np.ndarray], tmp_path: Path, *, merge: bool = False) -> None:
    """The ONNX model of client 1 says what ``predict`` says, and not what client 0's model says."""
    outputs = compute_onnx(run.export(1, merge=merge), columns, tmp_path / f"{merge}.onnx")
    for output in outputs:
        some = {name: column[: len(output)] for name, column in columns.items()}
        expected = run.predictive(1, some).mean
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(output, run.predictive(0, some).mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lora", "additive", "mixture", "adapters"])
def test_plain_models_with_personal_parts(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(12, 4)).astype(np.float32), "y": rng.integers(0, 2, 12)}
    fed = mo.data.from_arrays(columns, client=np.repeat([0, 1], 6))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        local = nn.Linear(2, 2)
    split = {
        "lora": lambda: mo.split.lora(model, rank=2),
        "additive": lambda: mo.split.additive(model, local, local_features=[0, 2]),
        "mixture": lambda: mo.split.additive(model, local, local_features=[1, 2], mixture="convex"),
        "adapters": lambda: mo.split.adapters(model, width=2, targets="0"),
    }[kind]()
    run = mo.fit(model, fed, ALGORITHM, split=split, rounds=2, engine="sequential")
    check_onnx(run, {"x": columns["x"]}, tmp_path)
    if kind == "lora":
        check_onnx(run, {"x": columns["x"]}, tmp_path, merge=True)
    x = torch.from_numpy(columns["x"])
    program = torch.export.export(run.export(1), (x,))
    output = program.module()(x).detach().numpy()
    np.testing.assert_allclose(output, run.predictive(1, columns["x"]).mean, rtol=1e-4, atol=1e-5)


def test_a_table_takes_its_preprocessing_along(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw = np.stack([rng.normal(50, 15, 40), rng.integers(0, 2, 40), rng.normal(size=40)], axis=1)
    raw[::7, 2] = np.nan
    frame = polars.DataFrame(
        {
            "site": np.arange(40) % 2,
            "age": raw[:, 0],
            "shift": np.where(raw[:, 1] == 0, "day", "night"),
            "dose": [None if np.isnan(dose) else dose for dose in raw[:, 2]],
            "outcome": rng.integers(0, 2, 40),
        }
    )
    fed = mo.data.from_frame(frame, client="site", target="outcome", standardise=True, missing="mean")
    model = mo.models.mlp(fed.columns["x"].shape[1], 2, hidden=(4,), seed=0)
    run = mo.fit(model, fed, ALGORITHM, split=mo.split.output_layer(model), rounds=2, engine="sequential")
    check_onnx(run, {"x": raw.astype(np.float32)}, tmp_path)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "timm ViT", "resnet18"])
def test_library_models_with_lora(name: str, tmp_path: Path) -> None:
    """With the update beside the weights and in them; through ``torch.export`` and traced as well."""
    case, model = CASES[name], make(name)
    if name == "GPT-2":
        model.config.use_cache = False  # the cache of earlier tokens is no tensor
    fed = data(case.column)
    split = mo.split.lora(model, rank=2, targets=case.lora)
    run = mo.fit(model, fed, ALGORITHM, split=split, rounds=1, engine="sequential")
    columns = {n: fed.columns[n][:5] for n in (case.column, "attention_mask") if n in fed.columns}
    check_onnx(run, columns, tmp_path)
    if name == "BERT":
        check_onnx(run, columns, tmp_path, merge=True)
    tensors, exported, merged = as_tensors(columns), run.export(1), run.export(1, merge=True)
    assert merged.state_dict().keys() == model.state_dict().keys()
    arguments = {"args": tuple(tensors.values())} if case.column == "x" else {"args": (), "kwargs": tensors}
    program = torch.export.export(exported, strict=False, **arguments).module()
    x = tensors[case.column]
    traced = torch.jit.trace(exported, x, strict=False)
    with torch.no_grad():
        for output, expected in (
            (program(*arguments["args"], **arguments.get("kwargs", {})), run.predictive(1, columns).mean),
            (traced(x), exported(x)),
        ):
            left, right = (each["logits"] if isinstance(each, dict) else each for each in (output, expected))
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_a_model_of_peft(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, target_modules=["q_lin"], modules_to_save=["classifier"])
        model = peft.get_peft_model(make("DistilBERT"), config)
    fed = data("input_ids")
    run = mo.fit(model, fed, mo.local_only(personal=0.5), split=mo.split.peft(model), rounds=2, engine="sequential")
    columns = {n: fed.columns[n][:5] for n in ("input_ids", "attention_mask")}
    check_onnx(run, columns, tmp_path, merge=True)
