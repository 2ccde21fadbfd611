"""Metrics that weigh examples: tokens of texts, words of speech. Every engine, by hand and from exported models."""

import jiwer
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from oracle_problems import federated, split_of
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.evaluation import client_rows, summarise
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize(
    "engine", ["sequential", "vectorised", "processes:sequential", "processes:vectorised"]
)


def rows_of(*pairs):
    values, weights = np.array(pairs, dtype=float).T
    return {"y": values, "w": weights}


TRAIN = [rows_of((0, 1)), rows_of((0, 1), (0, 1)), rows_of((0, 1)), rows_of((0, 1))]
TEST = [rows_of((1, 3), (5, 1)), rows_of((4, 0), (5, 2), (8, 0)), rows_of((7, 0), (9, 0)), None]


def weighted_task(weight=lambda batch: batch["w"]):
    """A model that says v; the metric is the error |v - y|, counted w times."""
    metric = mo.Metric("error", False, lambda output, batch: (output - batch["y"]).abs(), weight)
    init = {"u": torch.zeros((), dtype=torch.float64), "v": torch.zeros((), dtype=torch.float64)}
    return from_functions(
        init,
        lambda p, b: (p["u"] + p["v"] - b["y"]).square(),
        lambda p, b: p["u"] + p["v"] + torch.zeros_like(b["y"]),
        metric,
    )


@ENGINES
def test_weights_by_hand(engine, tmp_path):
    """All training targets are 0, so both models stay at 0, and an example's error is its y.

    Client 1: (3 * 1 + 1 * 5) / 4 = 2, weight 4. Client 2: only the row with y = 5 counts: 5, weight 2. Client 3 has two
    rows and no weight, client 4 no rows: both count as untested. Mean by weight (4 * 2 + 2 * 5) / 6 = 3, plainly 7/2.
    Losses are by rows: client 1 (1 + 25) / 2 = 13, client 2 (16 + 25 + 64) / 3 = 35, all (2 * 13 + 3 * 35) / 5.
    """
    run = mo.fit(
        weighted_task(),
        federated(TRAIN, TEST),
        mo.fedalt(shared=0.1, personal=0.1),
        split=split_of(["u"], ["v"]),
        rounds=1,
        engine=engine,
        settings=mo.Settings(workers=2 if engine.startswith("processes") else None),
        out=tmp_path / "run",
    )
    one, two, three, four = run.clients
    assert (one["metric"], one["shared_metric"], one["weight"], one["n_test"], one["loss"]) == (2.0, 2.0, 4.0, 2, 13.0)
    assert (two["metric"], two["shared_metric"], two["weight"], two["n_test"], two["loss"]) == (5.0, 5.0, 2.0, 3, 35.0)
    assert [(r["weight"], r["n_test"], r["hurt"]) for r in (three, four)] == [(0.0, 2, False), (0.0, 0, False)]
    for row in (three, four):
        assert all(np.isnan(row[k]) for k in ("loss", "metric", "shared_loss", "shared_metric", "gain"))
    row = run.history[-1]
    assert (row["metric"], row["metric_unweighted"], row["clients"], row["loss"]) == (3.0, 3.5, 2, 131 / 5)
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    assert [r["weight"] for r in table] == [4.0, 2.0, 0.0, 0.0]


@ENGINES
def test_a_weight_of_one_each_is_no_weight(engine):
    plain, ones = (
        mo.fit(
            weighted_task(weight),
            federated(TRAIN, TEST),
            mo.fedalt(shared=0.1, personal=0.1),
            split=split_of(["u"], ["v"]),
            rounds=1,
            engine=engine,
            settings=mo.Settings(workers=2 if engine.startswith("processes") else None),
        )
        for weight in (None, lambda batch: torch.ones_like(batch["y"]))
    )
    np.testing.assert_equal(plain.clients, ones.clients)
    assert "weight" not in plain.clients[0]


def test_summary_by_hand():
    """The third client has rows but no weight.

    Metric: (3 * 0.5 + 1 * 0.9) / 4 = 0.6 by weight, 0.7 plainly; gain (3 * 0.1 - 1 * 0.3) / 4 = 0; loss by rows (1 * 2
    + 4 * 1) / 5.
    """
    rows = client_rows(
        ["a", "b", "c"],
        np.array([1, 1, 1]),
        np.array([1, 4, 2]),
        (np.array([2.0, 1.0, 9.0]), np.array([0.5, 0.9, np.nan])),
        (np.array([2.0, 1.0, 9.0]), np.array([0.4, 1.2, np.nan])),
        np.array([3.0, 1.0, 0.0]),
        higher_is_better=True,
    )
    summary = summarise(rows, higher_is_better=True)
    assert summary["metric"] == pytest.approx(0.6)
    assert summary["metric_unweighted"] == pytest.approx(0.7)
    assert summary["gain"] == pytest.approx(0.0)
    assert summary["loss"] == pytest.approx(6 / 5)
    assert (summary["clients"], summary["hurt"], summary["helped"]) == (2, 1, 1)
    assert summarise(rows[2:], higher_is_better=True) == {"clients": 0}


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(6, 5)
        self.head = nn.Linear(5, 6)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)))


def texts(n, seed):
    """Sequences of 2 to 5 tokens; labels 0 to 3 count, 4 and 5 do not."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, (2, n, 5))
    y = np.where(np.arange(5) < rng.integers(2, 6, (n, 1)), y, -100)
    return {"x": x, "y": y, "counted": (y >= 0) & (y < 4)}


@ENGINES
def test_token_accuracy_of_a_run_is_the_share_of_all_tokens(engine):
    """From exported models by NumPy: a client's right tokens over its tokens, and over all clients likewise.

    300 test rows take more than one batch of evaluation. Losses are means over sequences of means over tokens.
    """
    net = NextToken()
    train, test = [texts(n, i) for i, n in enumerate((7, 3, 12))], [texts(n, 9 + i) for i, n in enumerate((300, 2, 9))]
    data = federated(train, test)
    run = mo.fit(
        net,
        data,
        mo.fedsim(shared=mo.sgd(0.5, batch_size=4), personal=0.5),
        split=mo.split.output_layer(net),
        rounds=2,
        engine=engine,
        settings=mo.Settings(workers=2 if engine.startswith("processes") else None),
        metric="token_accuracy",
    )
    right = tokens = 0
    for i, row in enumerate(run.clients):
        columns = test[i]
        with torch.no_grad():
            output = run.export(i)(torch.tensor(columns["x"])).numpy().astype(float)
        hits = (output.argmax(-1) == columns["y"]) & columns["counted"]
        assert row["weight"] == columns["counted"].sum()
        assert row["metric"] == pytest.approx(hits.sum() / columns["counted"].sum(), abs=1e-6)
        log_p = output - np.log(np.exp(output).sum(-1, keepdims=True))
        nll = -np.take_along_axis(log_p, np.maximum(columns["y"], 0)[..., None], -1)[..., 0]
        real = columns["y"] >= 0
        assert row["loss"] == pytest.approx(((nll * real).sum(1) / real.sum(1)).mean(), rel=1e-5)
        right, tokens = right + hits.sum(), tokens + columns["counted"].sum()
    last = run.history[-1]
    assert last["metric"] == pytest.approx(right / tokens, abs=1e-6)
    assert last["metric_name"] == "token_accuracy"


class Ears(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Conv1d(3, 8, 3, 2, 1)
        self.second = nn.Conv1d(8, 8, 3, 2, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x.transpose(1, 2))))).transpose(1, 2))


def utterances(n, seed):
    """Each label is eight frames of a pattern of its own, with noise."""
    rng = np.random.default_rng(seed)
    patterns = np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 3]])
    x, y, frames = np.zeros((n, 24, 3), np.float32), np.full((n, 3), -100), np.zeros(n, dtype=np.int64)
    for i in range(n):
        labels = rng.integers(1, 4, rng.integers(1, 4))
        frames[i], y[i, : len(labels)] = 8 * len(labels), labels
        x[i, : frames[i]] = np.repeat(patterns[labels - 1], 8, axis=0) + rng.normal(size=(frames[i], 3)) / 4
    return {"x": x, "y": y, "frames": frames}


SPEECH = federated([utterances(n, i) for i, n in enumerate((12, 5, 20))], [utterances(6, 9 + i) for i in range(3)])


def run_speech(rounds, engine, **options):
    net = Ears()
    algorithm = mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.2, batch_size=4))
    split = mo.split.output_layer(net)
    return mo.fit(
        net, SPEECH, algorithm, **with_settings(split=split, rounds=rounds, engine=engine, loss="ctc", **options)
    )


@pytest.mark.parametrize("engine", ["sequential", "processes:sequential"])
def test_word_error_rate_of_a_run_is_that_of_the_corpus(engine):
    """Greedy decoding of exported models written anew, scored by jiwer, for each client and for all."""
    run = run_speech(3, engine, workers=2 if engine.startswith("processes") else None)
    assert run.history[-1]["metric_name"] == "word_error_rate"
    references, hypotheses = [], []
    for i, row in enumerate(run.clients):
        columns = SPEECH.client(i, "test")
        with torch.no_grad():
            best = run.export(i)(torch.tensor(columns["x"])).argmax(-1).tolist()
        ours = [" ".join(f"w{k}" for k in y if k > 0) for y in columns["y"]]
        real = [best[j][: (n + 3) // 4] for j, n in enumerate(columns["frames"])]
        theirs = [" ".join(f"w{k}" for j, k in enumerate(p) if k and (j == 0 or p[j - 1] != k)) for p in real]
        assert row["metric"] == pytest.approx(jiwer.wer(ours, theirs))
        assert row["weight"] == sum(len(text.split()) for text in ours)
        references, hypotheses = references + ours, hypotheses + theirs
    assert run.history[-1]["metric"] == pytest.approx(jiwer.wer(references, hypotheses))
    rates = [row["metric"] for row in run.clients]
    assert run.history[-1]["worst_decile"] == pytest.approx(max(rates))


def test_speech_is_learnt():
    """Patterns that are plain to see: most words are heard in the end, unlike at first."""
    first, last = run_speech(1, "sequential").history[-1], run_speech(15, "sequential", evaluate_every=15).history[-1]
    assert first["metric"] > 0.6
    assert last["metric"] < 0.3


def test_speech_is_not_vectorised():
    with pytest.raises(MoietyError) as error:
        run_speech(1, "vectorised")
    text = "able to vectorise this loss and metric, got CTC, which torch computes for one client at a time"
    assert str(error.value) == f"`engine` must be {text}. Use engine sequential."
    run = run_speech(1, "auto", workers=1)
    assert run.engine == "sequential"
    assert "vectorised cannot run it" in run.config["run"]["engine_reason"]


def change_columns(**columns):
    return federated([{**utterances(4, 0), **columns}])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (change_columns(y=np.zeros((4, 3), dtype=np.int64)), "`y` must be labels from 1 for ctc, got 0"),
        (change_columns(y=np.full((4, 3), 4)), "`y` must be a label from 0 to 3, the model's outputs, got 4"),
        (change_columns(y=np.array([[1, -100, 2]] * 4)), "`y` must be padded at its end for ctc"),
        (change_columns(y=np.full((4, 3), -100)), "`y` must be labels, of which some are not padding, got none"),
        (change_columns(frames=np.array([24, 25, 1, 1])), "`frames` must be from 1 to 24, the frames of x, got 25"),
        (change_columns(frames=np.array([24, 0, 1, 1])), "`frames` must be from 1 to 24, the frames of x, got 0"),
        (
            federated([{k: c for k, c in utterances(4, 0).items() if k != "frames"}]),
            "`data` must be a column frames for ctc, got none",
        ),
    ],
)
def test_columns_that_ctc_cannot_read(data, message):
    net = Ears()
    with pytest.raises(MoietyError, match=message):
        mo.fit(net, data, mo.fedavg(shared=0.1), rounds=1, loss="ctc")


def test_a_new_speaker_is_heard_or_refused():
    run = run_speech(2, "sequential")
    voice = utterances(5, 40)
    x = torch.tensor(voice["x"])
    assert run.onboard(voice)(x).shape == (5, 6, 4)
    with pytest.raises(MoietyError, match="`y` must be labels from 1 for ctc, got 0"):
        run.onboard({**voice, "y": np.zeros((5, 3), dtype=np.int64)})


def test_a_weight_that_is_none_is_refused():
    task = weighted_task(lambda batch: batch["w"].sum())
    with pytest.raises(MoietyError, match=r"`metric.weight` must be one number per example, got shape \(\) for 2"):
        mo.fit(task, federated(TRAIN, TEST), mo.fedavg(shared=0.1), split=split_of(["u", "v"]), rounds=1)
    task = weighted_task(lambda batch: batch["weights"])
    with pytest.raises(MoietyError, match=r"`metric.weight` must be a function of a batch with the columns"):
        mo.fit(task, federated(TRAIN, TEST), mo.fedavg(shared=0.1), split=split_of(["u", "v"]), rounds=1)
