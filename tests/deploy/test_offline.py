"""A device on its own: it predicts what the simulation's client predicts, offline; tables agree on one recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model

import moiety as mo
from moiety import deploy


def test_a_device_predicts_offline_what_its_client_predicts_in_the_simulation(tmp_path: Path) -> None:
    data, model = federation(), small_model()
    algorithm = mo.fedalt(shared=0.1, personal=0.05)
    options = {"split": mo.split.output_layer(model), "rounds": 3, "seed": 5}
    simulated = mo.fit(model, data, algorithm, engine="sequential", **options)
    app = make_app(model, data, algorithm, tmp_path, **options)
    nodes = nodes_of(data, tmp_path)
    serve_here(app, LocalGrid(app, nodes))
    x = data.columns["x"][:7]
    again = make_app(model, data, algorithm, tmp_path, **options)  # another process, the server is away
    for config in nodes.values():
        device = again.device(config)
        own = device.own_run()
        assert np.array_equal(own.predict_proba(device.name, x), simulated.predict_proba(device.name, x))
        assert device.folder.stat().st_mode & 0o777 == 0o700
        for path in device.folder.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path


def write_parquet(table: pa.Table, path: Path) -> None:
    """As others write it: dictionaries for words, in several groups of rows."""
    place = table.schema.get_field_index("ward")
    coded = table.set_column(place, "ward", table["ward"].dictionary_encode())
    pa.parquet.write_table(coded, path, row_group_size=7)


@pytest.mark.parametrize(("ending", "write"), [("csv", pa.csv.write_csv), ("parquet", write_parquet)])
def test_tables_agree_by_sums_and_names_on_what_all_rows_together_give(
    ending: str, write: Callable[[pa.Table, Path], None], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    parts = []
    for k, words in enumerate((["a", "b"], ["b", "c"], ["a", "c"])):
        count = 30 + 10 * k
        age = draw.normal(50 + 5 * k, 10, count)
        parts.append(
            pa.table(
                {
                    "age": age,
                    "ward": draw.choice(words, count),
                    "held": draw.random(count) < 0.25,
                    "outcome": np.where(age + draw.normal(0, 5, count) > 55, "ill", "well" if k else "fair"),
                    "site": [f"s{k}"] * count,
                }
            )
        )
        write(parts[-1].drop_columns(["site"]), tmp_path / f"s{k}.{ending}")
    options = {"target": "outcome", "standardise": True, "test": "held"}
    central = mo.data.from_frame(pa.concat_tables(parts), client="site", **options)
    model = mo.models.mlp(4, 3, hidden=(5,), seed=3)
    app = deploy.app(
        model,
        mo.fedavg(shared=0.1),
        rounds=2,
        data=deploy.table(**options),
        clients=3,
        out=tmp_path / "server",
        share_metrics="per_client",
    )
    nodes = {
        10 + k: {"name": f"s{k}", "folder": str(tmp_path / f"d{k}"), "data": str(tmp_path / f"s{k}.{ending}")}
        for k in (2, 0, 1)
    }
    run = serve_here(app, LocalGrid(app, nodes))
    agreed, together = run._loop.problem.data.preprocessing, central.preprocessing
    assert agreed is not None
    assert together is not None
    assert agreed.class_names == together.class_names == ("fair", "ill", "well")
    assert agreed.names == together.names
    assert agreed.features[0].mean == pytest.approx(together.features[0].mean, rel=1e-14)
    assert agreed.features[0].scale == pytest.approx(together.features[0].scale, rel=1e-12)
    for config in nodes.values():
        device = app.device(config)
        own = device.own_run()._loop.problem.data.at(run._loop.problem.data.index(device.name), "train")
        theirs = central.client(device.name, "train")
        assert np.allclose(own["x"], theirs["x"], rtol=1e-6, atol=1e-7)
        assert np.array_equal(own["y"], theirs["y"])
    simulated = mo.fit(model, central, mo.fedavg(shared=0.1), rounds=2, engine="sequential")
    for name, value in simulated.shared_parameters().items():
        assert np.allclose(value, run.shared_parameters()[name], atol=1e-6)
    raw = pa.table({"age": [40.0, 70.0], "ward": ["a", "zzz"]})
    device = app.device(nodes[10])
    with pytest.warns(UserWarning, match="which count as unknown"):
        assert set(device.own_run().predict(device.name, raw)) <= {"fair", "ill", "well"}


def test_a_model_of_another_size_than_the_tables_is_refused_in_one_line(tmp_path: Path) -> None:
    """Age and three wards are four columns. Each device has a ward that no other has, so each could be the odd one."""
    for k, ward in enumerate(("day", "night", "eye")):
        rows = [f"{30 + row},{ward},{('ill', 'well')[row % 2]}" for row in range(20)]
        (tmp_path / f"{k}.csv").write_text("\n".join(["age,ward,outcome", *rows]) + "\n")
    data, model = mo.deploy.table(target="outcome"), mo.models.mlp(5, 2, hidden=(5,), seed=3)
    app = mo.deploy.app(model, mo.fedavg(shared=0.1), data=data, rounds=2, clients=3, out=tmp_path / "server")
    nodes = {
        9 - k: {"name": f"s{k}", "folder": str(tmp_path / f"d{k}"), "data": str(tmp_path / f"{k}.csv")}
        for k in range(3)
    }
    with pytest.raises(mo.MoietyError, match=r"takes the data's columns \(x \(4,\)") as error:
        serve_here(app, LocalGrid(app, nodes))
    assert "\n" not in str(error.value)
