"""``run.evaluate``: scores on another part of the data, client by client."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.errors import MoietyError

SIZES, TEST_SIZES = (6, 30, 3), (4, 2, 9)
FED = federated(image_clients(SIZES), image_clients(TEST_SIZES, seed=5))


def fit_run(engine="sequential", data=FED, algorithm=None, **options):
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1)
    algorithm = algorithm or mo.fedalt(shared=0.5, personal=0.5)
    return mo.fit(
        net, data, algorithm, **with_settings(split=mo.split.output_layer(net), rounds=2, engine=engine, **options)
    )


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:sequential"])
def test_training_rows_are_scored_by_the_exported_models(engine):
    run = fit_run(engine, workers=2 if engine.startswith("processes") else None)
    rows = run.evaluate("train")
    assert [row["client"] for row in rows] == [row["client"] for row in run.clients]
    assert [row["n_test"] for row in rows] == list(SIZES)
    for i, row in enumerate(rows):
        columns = FED.client(i, "train")
        x, y = torch.tensor(columns["x"]), torch.tensor(columns["y"])
        for prefix, module in (("", run.export(i)), ("shared_", run.export())):
            with torch.no_grad():
                output = module(x)
            assert row[f"{prefix}loss"] == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-4)
            assert row[f"{prefix}metric"] == pytest.approx(float((output.argmax(1) == y).double().mean()))
        assert row["gain"] == pytest.approx(row["metric"] - row["shared_metric"])


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("stateful", [True, False])
def test_on_its_own_part_it_gives_the_rows_of_the_run(engine, stateful):
    """Clients without a state adapt with the same draws as in the run's last evaluation."""
    run = fit_run(engine, algorithm=mo.fedalt(shared=0.5, personal=0.5, stateful=stateful))
    assert run.evaluate() == run.clients
    assert run.evaluate("test") == run.clients


def test_the_same_few_clients_are_asked():
    run = fit_run(evaluate_clients=2)
    assert [row["client"] for row in run.evaluate("train")] == [row["client"] for row in run.clients]
    assert len(run.clients) == 2


def test_a_run_goes_on_as_before(tmp_path):
    """Scoring changes neither models nor threads."""
    run = fit_run(out=tmp_path / "run")
    before, threads = run.parameters(1), torch.get_num_threads()
    run.evaluate("train")
    assert torch.get_num_threads() == threads
    after = run.parameters(1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row["round"] for row in mo.resume(tmp_path / "run", data=FED, rounds=3).history] == [1, 2, 3]


def test_parts_that_are_none():
    run = fit_run()
    with pytest.raises(MoietyError, match=r"`part` must be one of the known names, got 'tests'. Did you mean test\?"):
        run.evaluate("tests")
    with pytest.raises(MoietyError, match="`part` must be a part of the data that has rows, got validation"):
        run.evaluate("validation")


def test_validation_rows():
    data = mo.data.from_arrays(
        {"x": np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), "y": np.arange(60) % 3},
        client=np.arange(60) % 4,
        validation=0.2,
    )
    run = fit_run(data=data)
    assert [row["n_test"] for row in run.evaluate("validation")] == data.sizes("validation").tolist() == [3] * 4
