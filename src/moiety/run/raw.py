"""Raw rows of a user's table at both ends of a run: what goes into its models, and what their outputs are called."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from moiety import tree
from moiety.data import FederatedData, Preprocessing
from moiety.data.fitting import count_unknown, read_raw, warn_of_unknown
from moiety.data.tables import Table, open_table
from moiety.data.values import REMOVE, as_label, look_up, read_numbers, refuse_missing
from moiety.errors import as_array, must, refuse, report_errors
from moiety.evaluation.predictive import Predictive


class RawModel(nn.Module):
    """A model behind the preprocessing of its data: it takes raw rows, as ``Preprocessing`` describes them.

    Raw rows are a tensor [rows, features] of numbers: a category is the position of its name among the feature's
    ``categories``, and NaN is missing. A text must first be looked up in ``preprocessing``, as
    ``run.predict`` does. A number that may not be missing, and is, gives NaN. ``model`` is the model alone.
    """

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, place: int = 0):
        super().__init__()
        self.model, self.preprocessing, self.place = model, preprocessing, place

    def forward(self, *inputs: Tensor) -> Any:
        """The model's output; of the inputs, the one for ``x`` is raw."""
        columns = [self.prepare(rows) if k == self.place else rows for k, rows in enumerate(inputs)]
        return self.model(*columns)

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw rows as rows of ``x``, in the precision of the model; the arithmetic is that of ``transform``."""
        rows = raw.to(torch.float64)
        absent = torch.isnan(rows)
        pieces, flags = [], []
        for k, feature in enumerate(self.preprocessing.features):
            values = rows[:, k : k + 1]
            if feature.fill is not None:
                values = torch.where(absent[:, k : k + 1], feature.fill, values)
            if feature.kind != "category":
                values = (values - feature.mean) / feature.scale
            else:
                codes = torch.arange(len(feature.categories), dtype=torch.float64, device=rows.device)
                hot = (values == codes).to(torch.float64)
                valid = hot.any(dim=1, keepdim=True)
                values = hot if feature.encoding == "one-hot" else torch.where(valid, values, float(len(codes)))
            pieces.append(values)
            if feature.indicator:
                flags.append(absent[:, k : k + 1].to(torch.float64))
        x = torch.cat([*pieces, *flags], dim=1).to(getattr(torch, self.preprocessing.dtype))
        floating = [p.dtype for p in tree.module_tensors(self.model).values() if p.is_floating_point()]
        return x.to(floating[0]) if floating else x


def wrap_model(model: nn.Module, data: FederatedData, inputs: Sequence[str]) -> nn.Module:
    """The model as a user takes it away: with the preprocessing of the data in front, where there is any."""
    recipe = data.preprocessing
    if recipe is None or not recipe.features or "x" not in inputs:
        return model
    return RawModel(model, recipe, list(inputs).index("x")).eval()


def is_table(value: object) -> bool:
    """Whether this is a data frame, or the path of one."""
    import narwhals as nw  # not above: runs on arrays do without

    return isinstance(value, pa.RecordBatch | nw.DataFrame | os.PathLike) or nw.dependencies.is_into_dataframe(value)


def prepare_inputs(data: FederatedData, x: Any) -> Any:
    """The examples that a user gives as columns of the run: raw rows go through the data's preprocessing."""
    recipe = data.preprocessing
    if recipe is None or not recipe.features:
        return x
    if isinstance(x, Mapping) and "x" in x and "x" not in {feature.name for feature in recipe.features}:
        return {**x, "x": _transform(recipe, x["x"])}
    if isinstance(x, Mapping | str) or is_table(x):
        return {"x": recipe.transform(_read_features(recipe, _as_table(x)))}
    return {"x": _transform(recipe, x)}


def prepare_examples(data: FederatedData, examples: Any) -> Any:
    """The same for training columns of a new client: with the target and, where the data has any, weights."""
    recipe = data.preprocessing
    if recipe is None or not recipe.features or examples is None:
        return examples
    if isinstance(examples, Mapping) and "x" in examples and "y" in examples:
        table = {"x": _transform(recipe, examples["x"]), "y": _encode(recipe, _as_arrow("y", examples["y"]), "y")}
        if "weight" in examples:
            table["weight"] = read_numbers("weight", _as_arrow("weight", examples["weight"]), "row {}".format)
            table["weight"] = (table["weight"] / recipe.weight_mean).astype(recipe.dtype)
        return table
    source = _as_table(examples)
    columns = {"x": recipe.transform(_read_features(recipe, source))}
    columns["y"] = np.concatenate([_encode(recipe, column, recipe.target) for column in _read(source, recipe.target)])
    if recipe.weights:
        weights = [read_numbers(recipe.weights, each, "row {}".format) for each in _read(source, recipe.weights)]
        columns["weight"] = (np.concatenate(weights) / recipe.weight_mean).astype(recipe.dtype)
    return columns


def _transform(recipe: Preprocessing, raw: Any) -> np.ndarray:
    rows = raw.detach().cpu().numpy() if isinstance(raw, Tensor) else raw
    return recipe.transform(as_array("x", rows))


def _as_table(data: Any) -> Table:
    if isinstance(data, Mapping):
        data = pa.table({str(name): _as_arrow(str(name), values) for name, values in data.items()})
    return open_table(data)


def _as_arrow(name: str, values: Any) -> pa.Array:
    values = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    with report_errors(f"column {name!r}", "a list of numbers or texts", (pa.ArrowException, TypeError, ValueError)):
        array = pa.array(values, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _read(table: Table, name: str) -> list[pa.Array]:
    must(name in table.types, "data", f"a table with the column {name!r}", ", ".join(table.types))
    return [block.columns[name] for block in table.read([name])]


def _read_features(recipe: Preprocessing, table: Table) -> np.ndarray:
    """The raw rows of a table."""
    names = [feature.name for feature in recipe.features]
    missing = [name for name in names if name not in table.types]
    must(not missing, "x", f"a table with the columns {', '.join(names)}", f"none called {', '.join(missing)}")
    blocks = [read_raw(recipe.features, block.columns, block.place) for block in table.read(names)]
    must(sum(map(len, blocks)) > 0, "x", "at least one example", "no rows")
    raw = np.concatenate(blocks)
    warn_of_unknown(recipe.features, count_unknown(recipe.features, raw))
    return raw


def _encode(recipe: Preprocessing, column: pa.Array, name: str) -> np.ndarray:
    """The target as the run has it: labels by the names of their classes, or numbers."""
    if not recipe.class_names:
        return read_numbers(name, column, "row {}".format).astype(recipe.dtype)
    codes = look_up(column, {label: code for code, label in enumerate(recipe.class_names)}, missing=-2, unknown=-1)
    if (codes == -2).any():
        refuse_missing(name, f"row {int(np.argmax(codes == -2))}", REMOVE)
    if (codes == -1).any():
        row = int(np.argmax(codes == -1))
        classes = ", ".join(recipe.class_names[:8])
        refuse(f"column {name!r}", f"one of the classes {classes}", f"{as_label(column[row].as_py())!r} at row {row}")
    return codes


def name_outputs(data: FederatedData, outputs: Predictive, loss: str | None) -> np.ndarray:
    """What a model's outputs say: names of classes, labels where these have no names, or numbers."""
    y, mean, names = data.columns.get("y"), outputs.mean, data.class_names
    labels = None
    if loss in ("cross_entropy", "next_token"):
        flat = outputs.outputs.ndim == 3 and outputs.outputs.shape[2] > 1
        labels = (outputs.probabilities if flat else mean).argmax(-1)
    elif loss == "one_versus_all":
        labels = mean.argmax(-1) if mean.shape[-1] > 1 else (mean[..., 0] > 0.5).astype(np.int64)
    if labels is None:
        same = loss == "mse" and y is not None and mean[0].size == int(np.prod(y.shape[1:]))
        return mean.reshape(len(mean), *y.shape[1:]) if same and y is not None else mean
    if not names:
        return np.asarray(labels)
    output_names = np.array([*names, *(f"output {k}" for k in range(len(names), mean.shape[-1]))])
    return np.asarray(output_names[labels])
