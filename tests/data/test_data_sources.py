"""Each data set: its file format on a small file made here, and the real file where MOIETY_DATA names its folder."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moiety.data import SOURCES, load
from moiety.errors import MoietyError

pytestmark = pytest.mark.filterwarnings("ignore:.*results are not of that data set")

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write an npz file into the folder that MOIETY_DATA names."""
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    return lambda file, **arrays: np.savez(tmp_path / file, **arrays)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8)


def labels(n: int, classes: int) -> np.ndarray:
    return (np.arange(n) % classes).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "file", "side"),
    [("mnist", "mnist.npz", 28), ("fashion_mnist", "fashion_mnist.npz", 28), ("usps", "usps.npz", 16)],
)
def test_images_with_a_test_set(write: Write, name: str, file: str, side: int) -> None:
    a = {"x_train": pixels(40, side, side), "x_test": pixels(200, side, side)}
    write(file, **a, y_train=labels(40, 10), y_test=labels(200, 10))
    source = SOURCES[name]()
    assert source.test is not None
    for x, raw in ((source.columns["x"], a["x_train"]), (source.test["x"], a["x_test"])):
        assert x.dtype == np.float32
        assert x.shape == (len(raw), 1, side, side)
        np.testing.assert_allclose(x[:, 0] * 255, raw, atol=1e-4)
    assert source.columns["y"].tolist() == labels(40, 10).tolist()
    fed = load(name, clients=4, test_per_client=10)
    assert (fed.sizes("train").tolist(), fed.sizes("test").tolist()) == ([10] * 4, [10] * 4)


@pytest.mark.parametrize(
    ("name", "file", "shape", "classes"),
    [
        ("chars74k", "chars74k_hnd_28.npz", (28, 28), 62),
        ("audiomnist", "audiomnist_mel32.npz", (32, 32), 10),
    ],
)
def test_images_with_clients(write: Write, name: str, file: str, shape: tuple[int, int], classes: int) -> None:
    x = pixels(30, *shape)
    write(file, X=x, y=labels(30, classes), client=np.repeat([0, 1, 2], 10).astype(np.uint8))
    fed = load(name, test=0)
    assert len(fed) == 3
    assert fed.classes == classes
    assert fed.columns["x"].dtype == np.float32
    np.testing.assert_allclose(fed.client(1)["x"][:, 0] * 255, x[10:20], atol=1e-4)


@pytest.mark.parametrize(("name", "features", "classes"), [("pendigits", 16, 10), ("satimage", 36, 6)])
def test_tables_with_a_test_set(write: Write, name: str, features: int, classes: int) -> None:
    a = {"x_train": pixels(40, features), "x_test": pixels(20, features)}
    write(f"{name}.npz", **a, y_train=labels(40, classes), y_test=labels(20, classes))
    source = SOURCES[name]()
    assert source.test is not None
    assert source.standardise == features
    np.testing.assert_array_equal(source.test["x"], a["x_test"].astype(np.float32))
    assert load(name, clients=2, test_per_client=5).columns["x"].dtype == np.float32


@pytest.mark.parametrize(("name", "features", "classes"), [("letter", 16, 26), ("shuttle", 9, 7)])
def test_tables_whose_first_rows_train(write: Write, name: str, features: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-900, 900, (60, features)).astype(np.int16)
    write(f"{name}.npz", X=x, y=labels(60, classes), n_train=np.int64(45))
    source = SOURCES[name]()
    assert source.test is not None
    np.testing.assert_array_equal(source.columns["x"], x[:45])
    np.testing.assert_array_equal(source.test["x"], x[45:])
    assert source.test["y"].tolist() == labels(60, classes)[45:].tolist()
    write(f"{name}.npz", X=x, y=labels(60, classes), n_train=np.int64(60))
    with pytest.raises(MoietyError, match="n_train` must be from 1 to below 60, got 60"):
        SOURCES[name]()


def test_isolet(write: Write) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 617)).astype(np.float32)
    write("isolet1.npz", X=x, y=labels(20, 26), client=np.repeat([0, 1], 10).astype(np.uint8))
    assert SOURCES["isolet"]().standardise == 617
    assert load("isolet").columns["x"].shape == (20, 617)


def test_uci_har(write: Write) -> None:
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(12, 9, 64)).astype(np.float16)
    statistics = rng.normal(5, 3, size=(12, 108)).astype(np.float32)
    client = np.repeat([0, 1], 6).astype(np.uint8)
    write("uci_har_inertial.npz", X=signals, F=statistics, y=labels(12, 6), client=client)
    raw = load("uci_har", test=0)
    assert raw.columns["x"].dtype == np.float32
    np.testing.assert_array_equal(raw.columns["x"], signals.astype(np.float32))
    fed = load("uci_har", features="statistics", test=0)
    expected = (statistics - statistics.mean(0)) / statistics.std(0)
    np.testing.assert_allclose(fed.columns["x"], expected, atol=1e-5)
    assert fed.spec["features"] == "statistics"


def test_covtype(write: Write) -> None:
    """Ten numbers are standardised, and a constant one becomes 0; soil 3 is flag 3 of forty and stays 0 or 1."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 500, (8, 10)).astype(np.int16)
    x[:, 0] = 7
    soil, client = np.array([3, 0, 39, 3, 1, 1, 2, 0], dtype=np.uint8), np.repeat([0, 1], 4).astype(np.uint8)
    write("covtype15k.npz", X=x, soil=soil, y=labels(8, 7), client=client)
    features = load("covtype", test=0).columns["x"]
    assert features.shape == (8, 50)
    assert features[:, 0].tolist() == [0.0] * 8
    np.testing.assert_allclose(features[:, 1:10], (x[:, 1:] - x[:, 1:].mean(0)) / x[:, 1:].std(0), atol=1e-5)
    assert features[:, 10:].argmax(axis=1).tolist() == soil.tolist()
    assert features[:, 10:].sum(axis=1).tolist() == [1.0] * 8
    write("covtype15k.npz", X=x, soil=soil + 1, y=labels(8, 7), client=client)
    with pytest.raises(MoietyError, match=r"soil` must be integers from 0 to 39, got others. Get the file again."):
        load("covtype")


def test_shakespeare_by_hand(write: Write) -> None:
    """Length 2: "abcabcab" is ab|ca|bc (followed by bc, ab, ca); "abc" has one sequence only and is dropped."""
    codes = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2, 2, 2, 1, 1, 0], dtype=np.uint8)
    arrays: dict[str, Any] = {
        "codes": codes,
        "offsets": np.array([0, 8, 11, 16]),
        "client_names": np.array(["play::A", "play::B", "play::C"]),
        "vocab": np.array("abc"),
    }
    write("shakespeare_roles.npz", **arrays)
    fed = load("shakespeare", length=2, test=0)
    assert [str(name) for name in fed.ids] == ["play::A", "play::C"]
    assert fed.client("play::A")["x"].tolist() == [[0, 1], [2, 0], [1, 2]]
    assert fed.client("play::A")["y"].tolist() == [[1, 2], [0, 1], [2, 0]]
    assert fed.client("play::C")["x"].tolist() == [[2, 2], [1, 1]]
    assert fed.client("play::C")["y"].tolist() == [[2, 1], [1, 0]]
    assert fed.classes == 3
    assert fed.columns["x"].dtype == fed.columns["y"].dtype == np.int64
    one = load("shakespeare", length=2, test=0, clients=1)
    assert str(one.ids[0]) in ("play::A", "play::C")
    with pytest.raises(MoietyError, match="`length` must be such that some role has two sequences, got 9"):
        load("shakespeare", length=9)
    with pytest.raises(MoietyError, match="`length` must be >= 1, got 0"):
        load("shakespeare", length=0)
    write("shakespeare_roles.npz", **{**arrays, "offsets": np.array([0, 8, 11, 17])})
    with pytest.raises(MoietyError, match="offsets` must be ascending"):
        load("shakespeare", length=2)
    write("shakespeare_roles.npz", **{**arrays, "vocab": np.array("ab")})
    with pytest.raises(MoietyError, match="codes` must be integers from 0 to 1"):
        load("shakespeare", length=2)


def test_cifar10(write: Write) -> None:
    """Areas of one colour survive JPEG almost unchanged; the lower half is black. The header is stored once."""
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [20, 90, 200]], dtype=np.uint8)
    files = []
    for colour in colours:
        buffer = io.BytesIO()
        picture = np.zeros((32, 32, 3), dtype=np.uint8)
        picture[:16] = colour
        Image.fromarray(picture).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    header = files[0][: next(i for i in range(len(files[0])) if len({file[i] for file in files}) > 1)]
    bodies = [file[len(header) :] for file in files]
    arrays: dict[str, Any] = {"jpeg_header": np.frombuffer(header, dtype=np.uint8)}
    for part in ("train", "test"):
        arrays[f"jpeg_{part}"] = np.frombuffer(b"".join(bodies), dtype=np.uint8)
        arrays[f"off_{part}"] = np.cumsum([0, *map(len, bodies)])
        arrays[f"y_{part}"] = labels(4, 10)
    write("cifar10_jpeg.npz", **arrays)
    source = SOURCES["cifar10"]()
    assert source.test is not None
    for x in (source.columns["x"], source.test["x"]):
        assert x.shape == (4, 3, 32, 32)
        assert x.dtype == np.float32
        # JPEG keeps colour at half resolution, so the two rows on each side of the border are blends.
        np.testing.assert_allclose(x[:, :, :14].mean(axis=(2, 3)) * 255, colours, atol=4)
        np.testing.assert_allclose(x[:, :, 18:] * 255, 0, atol=4)
    write("cifar10_jpeg.npz", **{**arrays, "off_test": arrays["off_test"][:-1]})
    with pytest.raises(MoietyError, match="must be 4 JPEG pictures of 32 x 32, got picture 3 that does not decode"):
        SOURCES["cifar10"]()


def test_missing_folder_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "To make the file, run: moiety data fetch letter."
    for value, problem in [
        (None, "nothing: it is not set"),
        ("", "nothing: it is not set"),
        (str(tmp_path / "none"), f"{tmp_path / 'none'}, which is no folder"),
        (str(tmp_path), f"{tmp_path}, which does not"),
    ]:
        if value is None:
            monkeypatch.delenv("MOIETY_DATA", raising=False)
        else:
            monkeypatch.setenv("MOIETY_DATA", value)
        with pytest.raises(MoietyError) as error:
            load("letter", clients=2)
        assert str(error.value) == f"`MOIETY_DATA` must be a folder that holds letter.npz, got {problem}. {hint}"


@pytest.mark.parametrize("end", [0, 10, 300, -30])
def test_damaged_files(tmp_path: Path, write: Write, end: int) -> None:
    write("letter.npz", X=pixels(60, 16), y=labels(60, 26), n_train=np.int64(40))
    path = tmp_path / "letter.npz"
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(MoietyError) as error:
        load("letter", clients=2)
    assert (
        str(error.value)
        == f"`letter.npz` must be a readable npz archive, got a damaged one, {path}. Get the file again."
    )


def test_a_damaged_head_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    stream = io.BytesIO()
    np.save(stream, pixels(60, 16))
    for head in (b"'shape': )60, 16)", b"'shape': (60, 16,", b" 'shape'(60, 16)\n"):
        content = re.sub(rb"'shape': \(60, 16\)", head.ljust(17), stream.getvalue())
        with zipfile.ZipFile(tmp_path / "letter.npz", "w") as archive:
            for name in ("X", "y", "n_train"):
                archive.writestr(f"{name}.npy", content)
        with pytest.raises(MoietyError, match=r"^`letter.npz` must be a readable npz archive, got a damaged one"):
            load("letter", clients=2)


def test_foreign_files(tmp_path: Path, write: Write) -> None:
    write("letter.npz", X=pixels(60, 16), n_train=np.int64(40))
    with pytest.raises(
        MoietyError, match=r"must be an archive of X \[n, 16\], y \[n\], n_train \[\], got none called y"
    ):
        load("letter", clients=2)
    write("letter.npz", X=pixels(60, 15), y=labels(60, 26), n_train=np.int64(40))
    with pytest.raises(MoietyError, match=r"`letter.npz: X` must be of shape \[n, 16\] .* got \[60, 15\]"):
        load("letter", clients=2)
    write("letter.npz", X=pixels(60, 16), y=labels(59, 26), n_train=np.int64(40))
    with pytest.raises(MoietyError, match=r"`letter.npz: y` must be of shape \[n\] with {'n': 60}, got \[59\]"):
        load("letter", clients=2)
    write("letter.npz", X=pixels(60, 16), y=labels(60, 27), n_train=np.int64(40))
    with pytest.raises(MoietyError, match=r"`letter.npz: labels` must be integers from 0 to 25, got others"):
        load("letter", clients=2)
    write("letter.npz", X=np.array([{}]), y=labels(60, 26), n_train=np.int64(40))  # needs pickle, which is refused
    with pytest.raises(MoietyError, match="must be a readable npz archive"):
        load("letter", clients=2)
    with (tmp_path / "letter.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(MoietyError, match="must be a readable npz archive"):
        load("letter", clients=2)


# Rows, test rows, classes, fewest and most rows of a label (over all rows without a test set), clients, shape of x:
# from the data's own descriptions.
REAL = {
    "audiomnist": (30000, None, 10, 3000, 3000, 60, (1, 32, 32)),
    "chars74k": (3410, None, 62, 55, 55, 55, (1, 28, 28)),
    "covtype": (15120, None, 7, 2160, 2160, 4, (50,)),
    "fashion_mnist": (60000, 10000, 10, 6000, 6000, None, (1, 28, 28)),
    "isolet": (1560, None, 26, 60, 60, 30, (617,)),
    "letter": (16000, 4000, 26, None, None, None, (16,)),
    "mnist": (60000, 10000, 10, 5421, 6742, None, (1, 28, 28)),
    "pendigits": (7494, 3498, 10, 719, 780, None, (16,)),
    "satimage": (4435, 2000, 6, 415, 1072, None, (36,)),
    "shuttle": (43500, 14500, 7, None, None, None, (9,)),
    "uci_har": (10299, None, 6, 1406, 1944, 30, (9, 64)),
    "usps": (7291, 2007, 10, 542, 1194, None, (1, 16, 16)),
}
needs_data = pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")


@needs_data
@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    rows, test, classes, fewest, most, clients, shape = REAL[name]
    source = SOURCES[name]()
    x, y = source.columns["x"], source.columns["y"]
    assert x.shape == (rows, *shape)
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert (None if source.test is None else len(source.test["y"])) == test
    assert source.classes == classes == int(y.max()) + 1
    counts = np.bincount(y)
    if fewest is not None:
        assert (counts.min(), counts.max()) == (fewest, most)
    assert (None if source.client is None else len(np.unique(source.client))) == clients


@needs_data
def test_real_shakespeare() -> None:
    fed = load("shakespeare")
    assert len(fed) == 773
    assert fed.classes == 82
    assert fed.sizes("test").min() >= 1
    source = SOURCES["shakespeare"]()
    np.testing.assert_array_equal(source.columns["x"][:, 1:], source.columns["y"][:, :-1])
    with np.load(Path(os.environ["MOIETY_DATA"]) / "shakespeare_roles.npz") as file:
        vocabulary, start, text = str(file["vocab"]), int(file["offsets"][5]), file["codes"]
    first = np.flatnonzero(source.client == 5)[0] if source.client is not None else 0
    excerpt = "".join(vocabulary[c] for c in text[start : start + 80])
    assert "".join(vocabulary[c] for c in source.columns["x"][first]) == excerpt


@needs_data
def test_real_cifar10_opens() -> None:
    with np.load(Path(os.environ["MOIETY_DATA"]) / "cifar10_jpeg.npz") as file:
        assert file["off_train"].shape == (50001,)
        header, body = file["jpeg_header"].tobytes(), file["jpeg_test"][: int(file["off_test"][1])].tobytes()
    with Image.open(io.BytesIO(header + body)) as picture:
        assert np.asarray(picture).shape == (32, 32, 3)
