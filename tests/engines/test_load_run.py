"""A run opened from its folder: it predicts as the one that was trained, without training, and without its data."""

from __future__ import annotations

import csv
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.errors import MoietyError

CHANCE = np.random.default_rng(0)
ROWS = {
    "site": [f"s{i % 4}" for i in range(80)],
    "age": CHANCE.normal(50, 10, 80).tolist(),
    "shift": CHANCE.choice(["day", "night"], 80).tolist(),
    "dose": CHANCE.normal(size=80).tolist(),
}
ROWS["outcome"] = ["well" if (dose > 0) != (i % 2 == 1) else "ill" for i, dose in enumerate(ROWS["dose"])]
NEW = {name: ROWS[name][:6] for name in ("age", "shift", "dose")}


def begin(out: Path | None, algorithm: Any = None, **options: Any) -> mo.Run:
    pd = pytest.importorskip("pandas")
    fed = mo.data.from_frame(pd.DataFrame(ROWS), client="site", target="outcome")
    model = mo.models.mlp(fed.columns["x"].shape[1], 2, hidden=(4,), seed=0)
    algorithm = algorithm or mo.fedalt(shared=0.3, personal=0.3)
    arguments = {"rounds": 4, "cohort": 3, "engine": "sequential", "settings": mo.Settings(evaluate_every=2), **options}
    split = mo.split.output_layer(model)
    return mo.fit(model, fed, algorithm, split=split, out=out, **arguments)


def test_without_the_data_it_predicts_exports_and_onboards(tmp_path):
    """The data came from a frame in memory, so no file can name them; nothing in the folder changes."""
    run = begin(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    copy = mo.load(tmp_path / "run")
    for client in run._loop.problem.data.ids:
        assert (copy.predict(str(client), NEW) == run.predict(str(client), NEW)).all()
        assert (copy.predict_proba(str(client), NEW) == run.predict_proba(str(client), NEW)).all()
        one, other = copy.export(str(client)), run.export(str(client))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    newcomer = {name: values[:12] for name, values in ROWS.items() if name != "site"}
    assert (copy.predict_proba(newcomer, NEW) == run.predict_proba(newcomer, NEW)).all()
    assert (copy.history, copy.clients, copy.ledger) == (run.history, run.clients, run.ledger)
    assert copy.summary() == run.summary()
    assert (copy.class_names, repr(copy)) == (("ill", "well"), repr(run))
    with pytest.raises(MoietyError, match="`data` must be given to load"):
        copy.evaluate()
    whole = mo.load(tmp_path / "run", data=run._loop.problem.data)
    assert whole.evaluate() == run.evaluate()
    assert {path: path.read_bytes() for path in before} == before


def test_probabilities_are_those_of_the_exported_model(tmp_path):
    """Softmax by hand over the logits of ``onboard``'s model; a newcomer's labels are the likelier ones."""
    run = begin(None)
    newcomer = {name: values[:12] for name, values in ROWS.items() if name != "site"}
    model = run.onboard(newcomer)
    raw = torch.tensor([[age, float(shift == "night"), dose] for age, shift, dose in zip(*NEW.values(), strict=True)])
    logits = model(raw).double().detach().numpy()
    by_hand = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    probabilities = run.predict_proba(newcomer, NEW)
    np.testing.assert_allclose(probabilities, by_hand, rtol=1e-6)
    assert run.predict(newcomer, NEW).tolist() == [run.class_names[k] for k in by_hand.argmax(1)]


def test_a_client_that_keeps_no_state_needs_its_rows(tmp_path):
    stateless = mo.fedalt(shared=0.3, personal=0.3, stateful=False)
    begin(tmp_path / "run", stateless)
    with pytest.raises(MoietyError, match="`data` must be given to load"):
        mo.load(tmp_path / "run").predict("s1", NEW)


def test_what_cannot_be_opened(tmp_path):
    run = begin(tmp_path / "run")
    with pytest.raises(MoietyError, match="`best` must be left out"):
        mo.load(tmp_path / "run", best=True)
    with pytest.raises(MoietyError, match=r"`folder` must be a run folder with a config\.toml"):
        mo.load(tmp_path)
    fed = run._loop.problem.data
    other = replace(fed, columns={**fed.columns, "x": fed.columns["x"] + 1})
    with pytest.raises(MoietyError, match="`data` must be as the run in"):
        mo.load(tmp_path / "run", data=other, model=run._model)


def test_summary_plot_and_notebook(tmp_path):
    run = begin(None)
    run.clients[0]["client"] = "<b>&"
    assert "clients helped" in run.summary()
    html = run._repr_html_()
    assert html.startswith("<table>")
    assert "<b>" not in html
    pytest.importorskip("matplotlib")
    assert run.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows of an object
    losses, metrics = run.plot().axes
    curves = {line.get_label(): line.get_xydata().tolist() for axes in (losses, metrics) for line in axes.lines}
    rows = run.history
    assert curves["while training"] == [[row["round"], row["train_loss"]] for row in rows]
    assert curves["personal models"] == [[row["round"], pytest.approx(100 * row["metric"])] for row in rows]


def test_csv_has_the_history_also_after_a_kill(tmp_path):
    def stop(run: mo.Run, record: Any) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path / "run", callbacks=[mo.callbacks.CSV(), stop])
    data = mo.data.from_frame(pytest.importorskip("pandas").DataFrame(ROWS), client="site", target="outcome")
    run = mo.resume(tmp_path / "run", data=data, callbacks=[mo.callbacks.CSV()])
    rows = list(csv.DictReader((tmp_path / "run/history.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in run.history]
    assert [int(row["round"]) for row in rows] == [2, 4]


def test_progress_and_log(tmp_path, capsys, caplog):
    """Nothing is shown where stderr is no terminal; asked for, there is a line for each evaluation."""
    with caplog.at_level(logging.INFO, "moiety"):
        begin(None)
    assert capsys.readouterr() == ("", "")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == ["checking model and data", "preparing round 1"]
    assert any(text.startswith("engine sequential") for text in messages)
    begin(None, progress=True)
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.split("  ")[0] for line in output.err.splitlines()[1:]] == ["round 2/4", "round 4/4"]
