"""Binary tasks out of many classes (appendix E.1), and principal components."""

import numpy as np
import pytest

import moiety as mo
from moiety.data.sources import SOURCES, Source
from moiety.errors import MoietyError

CLASSES, EACH = 10, 60


@pytest.fixture
def numbered(monkeypatch):
    """Ten classes of 60 rows whose feature is the row's number, 400 of them in a test set of the data's own."""
    y = np.arange(CLASSES * EACH) % CLASSES
    x = np.arange(CLASSES * EACH, dtype=np.float32)[:, None]
    first, rest = ({"x": x[s], "y": y[s]} for s in (slice(200), slice(200, None)))
    monkeypatch.setitem(SOURCES, "numbered", lambda: Source(first, CLASSES, test=rest))
    return y


def test_tasks_are_balanced_and_disjoint(numbered):
    sizes = {"per_class": 4, "validation_per_class": 2, "test_per_class": 3}
    fed = mo.data.binary_tasks("numbered", clients=12, **sizes, seed=3)
    assert len(fed) == 12
    rows = fed.columns["x"][:, 0].astype(int)
    assert len(set(rows)) == len(rows) == 12 * 2 * 9
    zeros, tasks = set(), []
    for client in range(12):
        classes = set()
        for part, size in (("train", 4), ("validation", 2), ("test", 3)):
            own = fed.client(client, part)
            assert np.bincount(own["y"]).tolist() == [size, size]
            original = numbered[own["x"][:, 0].astype(int)]
            zeros |= set(original[own["y"] == 0])
            classes |= set(original[own["y"] == 1])
            assert (own["task"] == original[own["y"] == 1][0]).all()
        assert len(classes) == 1
        tasks += classes
    assert len(zeros) == 3  # floor(0.3 * 10) classes are merged, and no client has one of them as its own
    assert not zeros & set(tasks)
    assert len(set(tasks)) > 1


def test_the_seed_draws_everything(numbered):
    def draw(seed):
        return mo.data.binary_tasks("numbered", clients=5, per_class=3, seed=seed).columns["x"].tolist()

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_merged_classes_are_drawn_until_they_have_enough_rows(monkeypatch):
    """Classes 0 and 1 have 4 rows each, class 2 has 40: only the latter can be class 0 for three clients."""
    y = np.repeat([0, 1, 2, 3], [4, 4, 40, 40])
    pool = {"x": np.zeros((len(y), 1), dtype=np.float32), "y": y}
    monkeypatch.setitem(SOURCES, "uneven", lambda: Source(pool, 4))
    for seed in range(8):
        fed = mo.data.binary_tasks("uneven", clients=3, per_class=2, merged=0.3, test_per_class=1, seed=seed)
        assert set(fed.columns["task"]) <= {2, 3}  # a bucket has 13 rows, and so does class 0 for each of three


def test_features_are_standardised_over_training_rows(monkeypatch):
    rng = np.random.default_rng(0)
    pool = {"x": rng.normal(5, 3, size=(400, 2)).astype(np.float32), "y": np.arange(400) % 8}
    monkeypatch.setitem(SOURCES, "table", lambda: Source(pool, 8, standardise=2))
    fed = mo.data.binary_tasks("table", clients=4, per_class=5)
    train = fed.columns["x"][fed.all_rows("train")]
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "`clients` must be >= 1, got 0."),
        ({"merged": 1.0}, "`merged` must be > 0 and < 1, got 1.0."),
        ({"merged": 0.05}, "`merged` must be a share that leaves classes on both sides of 10, got 0.05."),
        ({"clients": 40}, "`clients` must be such that 3 merged classes have 30 rows for each, got 40."),
        ({"per_class": 1.5}, "`per_class` must be a whole number, got 1.5."),
    ],
)
def test_one_line_for_wrong_arguments(numbered, options, words):
    with pytest.raises(MoietyError) as error:
        mo.data.binary_tasks("numbered", **options)
    assert str(error.value).startswith(words)


def test_texts_have_no_such_tasks(monkeypatch):
    pool = {"x": np.zeros((4, 3)), "y": np.zeros((4, 3), dtype=np.int64)}
    monkeypatch.setitem(SOURCES, "text", lambda: Source(pool, 4))
    with pytest.raises(MoietyError, match=r"^`source` must be a data set with features x and one label y a row"):
        mo.data.binary_tasks("text")


def test_principal_components_are_those_of_the_training_rows():
    """Against the eigenvectors of the covariance, up to the sign that makes the largest weight positive."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 5)) + 7
    fed = mo.data.from_arrays({"x": x, "y": np.zeros(60)}, client=np.arange(60) % 3, test=0.4)
    components = mo.data.principal_components(fed, 2)
    train = fed.columns["x"][fed.all_rows("train")]
    values, vectors = np.linalg.eigh(np.cov(train.T))
    axes = vectors[:, np.argsort(values)[::-1][:2]]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), [0, 1]])
    np.testing.assert_allclose(components.columns["x"], (fed.columns["x"] - train.mean(0)) @ axes, atol=1e-4)
    with pytest.raises(MoietyError, match=r"^`count` must be <= 5"):
        mo.data.principal_components(fed, 6)
