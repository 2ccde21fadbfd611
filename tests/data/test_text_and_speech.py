"""Words of Shakespeare and connected digits: small files by hand, and the real ones where MOIETY_DATA names them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moiety.data import FederatedData, from_arrays, from_spec, load
from moiety.errors import MoietyError

pytestmark = pytest.mark.filterwarnings("ignore:.*results are not of that data set")

Write = Callable[..., None]
needs_data = pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    return lambda file, **arrays: np.savez(tmp_path / file, **arrays)


def plays(write: Write, texts: dict[str, str]) -> None:
    alphabet = "".join(sorted({c for text in texts.values() for c in text}))
    whole = "".join(texts.values())
    write(
        "shakespeare_roles.npz",
        codes=np.array([alphabet.index(c) for c in whole], dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, texts.values())]),
        client_names=np.array(list(texts)),
        vocab=np.array(alphabet),
    )


TEXTS = {
    "ann": "Go, go! Do not say 'no'.\nGo not--I say't.",
    "bob": "Say go.",
    "eve": "No? No, no do go do not go\nI do.",
}


def test_words_by_hand(write: Write) -> None:
    """Sentences: ann: go go | do not say no | go not i say't; bob has one only; eve: no | no no do go do not go | i do.

    Four tokens of x, and labels one further on: a sentence of four words has no end, and of eve's long one four words
    are left. All train (test=0): go 4, no 4, do 3, i 2, not 2, say 1, say't 1. With four words and equals by alphabet:
    go 0, no 1, do 2, i 3; 4 is any other, 5 padding, 6 begin, 7 end.
    """
    plays(write, TEXTS)
    fed = load("shakespeare", unit="word", length=4, vocabulary=4, test=0)
    assert [str(name) for name in fed.ids] == ["ann", "eve"]
    assert fed.classes == 8
    ann, eve = fed.client("ann"), fed.client("eve")
    assert ann["x"].tolist() == [[6, 0, 0, 7], [6, 2, 4, 4], [6, 0, 4, 3]]
    assert ann["y"].tolist() == [[0, 0, 7, -100], [2, 4, 4, 1], [0, 4, 3, 4]]
    assert ann["counted"].astype(int).tolist() == [[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0]]
    assert eve["x"].tolist() == [[6, 1, 7, 5], [6, 1, 1, 2], [6, 3, 2, 7]]
    assert eve["y"].tolist() == [[1, 7, -100, -100], [1, 1, 2, 0], [3, 2, 7, -100]]
    assert eve["counted"].tolist() == [[True, False, False, False], [True] * 4, [True, True, False, False]]
    assert list(fed.columns) == ["x", "y", "counted"]


def test_vocabulary_is_that_of_the_training_rows(write: Write) -> None:
    """Whatever a test row alone has is out of the vocabulary, however large that is; ids go by training frequency."""
    plays(write, {"ann": "a b. b c. c d. e f. g h.", "eve": "b b. a i. j k. l m. b n."})
    fed = load("shakespeare", unit="word", length=3, vocabulary=50, test=0.4, validation=0.2, seed=3)
    rows = {
        part: np.concatenate([fed.client(i, part)["y"] for i in range(2)]) for part in ("train", "validation", "test")
    }
    counts = Counter(rows["train"][(rows["train"] >= 0) & (rows["train"] < 50)].tolist())
    assert sorted(counts) == list(range(len(counts)))
    assert [counts[i] for i in range(len(counts))] == sorted(counts.values(), reverse=True)
    others = np.concatenate([rows["validation"], rows["test"]])
    assert others[(others >= 0) & (others < 50)].max() < len(counts)
    assert (others == 50).any()
    assert fed.classes == 54
    assert fed.with_validation_in_train().columns["y"] is fed.columns["y"]


def test_roles_with_most_text(write: Write) -> None:
    plays(write, {"a": "one. two.", "b": "much more. said here.", "c": "most. is said by her. of all."})
    for unit in ("word", "character"):
        fed = load("shakespeare", unit=unit, length=3, roles=2, test=0)
        assert [str(name) for name in fed.ids] == ["b", "c"]
        assert from_spec(fed.spec).fingerprint() == fed.fingerprint()
    with pytest.raises(MoietyError, match="`roles` must be at most the 3 there are, got 4"):
        load("shakespeare", roles=4)


def test_words_refused(write: Write) -> None:
    plays(write, {"a": "one two.", "b": "..."})
    with pytest.raises(MoietyError, match="`roles` must be such that some role has two sentences, got none"):
        load("shakespeare", unit="word")
    with pytest.raises(MoietyError, match=r"`unit` must be one of the known names, got 'words'. Did you mean word\?"):
        load("shakespeare", unit="words")
    with pytest.raises(MoietyError, match="`vocabulary` must be left out for characters, got 9"):
        load("shakespeare", vocabulary=9)
    with pytest.raises(MoietyError, match="`vocabulary` must be >= 1, got 0"):
        load("shakespeare", unit="word", vocabulary=0)


def clips(write: Write, counts: list[int], lengths: Callable[[int], int] = lambda i: 10 + i % 20) -> dict[str, Any]:
    """Clip i of a speaker is a run of frames of value i + 1 (so that a frame tells its clip), then silence."""
    total = sum(counts)
    x = np.zeros((total, 32, 32), dtype=np.uint8)
    client = np.repeat(np.arange(len(counts)), counts).astype(np.uint8)
    for i in range(total):
        x[i, :, : lengths(i)] = i + 1
    arrays = {"X": x, "y": (np.arange(total) * 7 % 10).astype(np.uint8), "client": client}
    write("audiomnist_mel32.npz", **arrays)
    return arrays


def clips_in(x: np.ndarray, frames: int) -> list[int]:
    """The clips that a sequence is made of, read from its frames."""
    values = np.rint(x[:frames, 0] * 255).astype(int) - 1
    return [int(v) for i, v in enumerate(values) if i == 0 or v != values[i - 1]]


def check_sequences(fed: FederatedData, arrays: dict[str, Any], shortest: int, longest: int) -> list[int]:
    """Every sequence against its clips; the clips that were used."""
    indices: list[int] = []
    for i in range(len(fed)):
        for part in ("train", "validation", "test"):
            for x, y, frames in zip(*(fed.client(i, part)[k] for k in ("x", "y", "frames")), strict=True):
                sequence = clips_in(x, frames)
                assert shortest <= len(sequence) <= longest
                assert (x[frames:] == 0).all()
                assert (x[frames - 1] > 0).all()
                sound = np.concatenate([arrays["X"][c, :, : 10 + c % 20].T for c in sequence])
                np.testing.assert_allclose(x[:frames] * 255, sound, atol=1e-4)
                assert y.tolist() == [*(int(arrays["y"][c]) + 1 for c in sequence), *[-100] * (longest - len(sequence))]
                assert {str(arrays["client"][c]) for c in sequence} == {str(fed.ids[i])}
                indices += sequence
    return indices


def test_connected_digits(write: Write) -> None:
    """Clips tell themselves by their values: each is in one sequence, whole, in the mouth of its speaker."""
    arrays = clips(write, [100, 60, 80])
    fed = load("connected_digits", shortest=2, longest=4, test=0.2, validation=0.1)
    assert fed.columns["x"].shape[1:] == (128, 32)
    assert fed.columns["x"].dtype == np.float32
    assert fed.columns["frames"].dtype == fed.columns["y"].dtype == np.int64
    assert fed.classes == 11
    assert [str(name) for name in fed.ids] == ["0", "1", "2"]
    indices = check_sequences(fed, arrays, 2, 4)
    assert len(indices) == len(set(indices))
    assert len(indices) >= 240 - 3  # at most one clip is left over for each speaker
    assert (fed.sizes("validation") > 0).all()
    lengths = Counter((fed.columns["y"] != -100).sum(1).tolist())
    assert set(lengths) == {2, 3, 4}


def test_connected_digits_follow_the_seed(write: Write) -> None:
    clips(write, [40, 40])
    one, same, other = (load("connected_digits", seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() == from_spec(one.spec).fingerprint()
    assert one.fingerprint() != other.fingerprint()
    # A speaker's sequences do not depend on who else there is.
    clips(write, [40])
    rows = load("connected_digits", seed=1, test=0).client("0")
    clips(write, [40, 40])
    np.testing.assert_array_equal(rows["x"], load("connected_digits", seed=1, test=0).client("0")["x"])


def test_connected_digits_at_the_edges(write: Write) -> None:
    """Sequences of one length use all clips where it divides them; a silent clip has one frame."""
    arrays = clips(write, [12])
    fed = load("connected_digits", shortest=3, longest=3, test=0)
    assert sorted(check_sequences(fed, arrays, 3, 3)) == list(range(12))
    clips(write, [12], lengths=lambda i: 0)
    assert load("connected_digits", shortest=3, longest=3, test=0).columns["frames"].tolist() == [3] * 4
    with pytest.raises(MoietyError, match="`shortest` must be at most 2, the longest, got 3"):
        load("connected_digits", shortest=3, longest=2)
    with pytest.raises(MoietyError, match="`shortest` must be such that some speaker has as many clips, got 13"):
        load("connected_digits", shortest=13, longest=20)
    with pytest.raises(MoietyError, match="`longest` must be >= 1, got 0"):
        load("connected_digits", longest=0)


def test_few_rows_of_each_client(write: Write) -> None:
    """10 of 100 rows with ten equally frequent labels are one of each; a client with fewer keeps all."""
    rng = np.random.default_rng(0)
    write(
        "audiomnist_mel32.npz",
        X=rng.integers(1, 255, (205, 32, 32)).astype(np.uint8),
        y=(np.arange(205) % 10).astype(np.uint8),
        client=np.repeat([0, 1, 2], [100, 100, 5]).astype(np.uint8),
    )
    fed = load("audiomnist", per_client=10, test=0)
    assert fed.sizes("train").tolist() == [10, 10, 5]
    assert sorted(fed.client("0")["y"]) == sorted(fed.client("1")["y"]) == list(range(10))
    assert fed.spec["per_client"] == 10
    assert from_spec(fed.spec).fingerprint() == fed.fingerprint()
    assert load("audiomnist", per_client=10, test=0, seed=1).fingerprint() != fed.fingerprint()
    assert load("audiomnist", per_client=100, test=0).fingerprint() == load("audiomnist", test=0).fingerprint()
    split = load("audiomnist", per_client=10, test=0.2, validation=0.3)
    assert [split.sizes(p).tolist() for p in ("train", "validation", "test")] == [[5, 5, 2], [3, 3, 2], [2, 2, 1]]
    with pytest.raises(MoietyError, match="`per_client` must be >= 1, got 0"):
        load("audiomnist", per_client=0)


def test_few_rows_with_a_test_set(write: Write) -> None:
    """Test rows of the data set's own do not count."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (400, 28, 28)).astype(np.uint8), (np.arange(400) % 10).astype(np.uint8)
    write("fashion_mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    fed = load("fashion_mnist", clients=4, per_client=20, validation=0.1, test_per_client=30)
    assert [fed.sizes(p).tolist() for p in ("train", "validation", "test")] == [[18] * 4, [2] * 4, [30] * 4]


def test_padding_in_data_of_ones_own() -> None:
    """-100 marks padding in rows of labels; other labels below 0, and padding instead of a label, are refused."""
    y = np.array([[1, 2, -100], [0, -100, -100]])
    assert from_arrays({"x": y, "y": y}, client=[0, 0], test=0).columns["y"].tolist() == y.tolist()
    with pytest.raises(MoietyError, match=r"`columns.y` must be labels from 0, or -100 for padding, got -1 \(row 1\)"):
        from_arrays({"y": np.array([[1, 2], [0, -1]])}, client=[0, 0])
    with pytest.raises(MoietyError, match=r"`columns.y` must be labels from 0, got -100 \(row 1\)"):
        from_arrays({"y": np.array([1, -100])}, client=[0, 0])


@needs_data
def test_real_words() -> None:
    """The first sentence of the file is the first of its first role: its words by rank, from plain counting."""
    fed = load("shakespeare", unit="word", test=0)
    assert len(fed) == 773
    assert fed.classes == 10_004
    x, y = fed.columns["x"], fed.columns["y"]
    assert x.shape[1] == y.shape[1] == 20
    assert (x[:, 0] == 10_002).all()
    shifted = np.where(x[:, 1:] == 10_001, -100, x[:, 1:])
    np.testing.assert_array_equal(shifted, y[:, :-1])
    np.testing.assert_array_equal(fed.columns["counted"], (y >= 0) & (y < 10_000))
    counts = np.bincount(y[(y >= 0) & (y < 10_000)], minlength=10_000)
    assert (np.diff(counts) <= 0).all()
    with np.load(Path(os.environ["MOIETY_DATA"]) / "shakespeare_roles.npz") as file:
        text = "".join(str(file["vocab"])[c] for c in file["codes"][: file["offsets"][1]])
    assert text.startswith("In delivering my son from me, I bury a second husband.\n")
    first = fed.client(0)
    assert (first["y"][0] != -100).sum() == 12  # eleven words and the end
    assert first["y"][0][11] == 10_003
    assert first["y"][0][2] == first["x"][0][3]  # my
    assert len({*first["y"][0][:11].tolist()}) == 11


@needs_data
def test_real_connected_digits() -> None:
    """500 clips of each of 60 speakers; every sequence has room for its labels at a quarter of its frames."""
    fed = load("connected_digits", validation=0.1)
    assert len(fed) == 60
    y, frames, x = (fed.columns[k] for k in ("y", "frames", "x"))
    labels = y != -100
    for i in range(60):
        mine = np.concatenate([fed.client(i, part)["y"] for part in ("train", "validation", "test")])
        assert (mine != -100).sum() >= 498  # at most two clips are left over
        assert np.bincount(mine[mine > 0], minlength=11)[1:].max() <= 50
    assert set(labels.sum(1).tolist()) == {3, 4, 5, 6}
    repeats = (labels[:, 1:] & (y[:, 1:] == y[:, :-1])).sum(1)
    assert (labels.sum(1) + repeats <= (frames + 3) // 4).all()
    assert (x[np.arange(len(x)), frames - 1].max(axis=1) > 0).all()
    assert all((x[i, frames[i] :] == 0).all() for i in range(0, len(x), 50))


@needs_data
@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("chars74k", {}, (44, 6, 12)),
        ("audiomnist", {"per_client": 50, "clients": 10}, (35, 5, 10)),
        ("fashion_mnist", {"per_client": 50, "clients": 10, "test_per_client": 20}, (45, 5, 20)),
    ],
)
def test_real_data_with_validation(name: str, options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    fed = load(name, validation=0.1, **options)
    counts = [set(fed.sizes(part).tolist()) for part in ("train", "validation", "test")]
    assert counts == [{size} for size in sizes]
