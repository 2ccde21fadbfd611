"""Converters of tables: text files of numbers in the archives of UCI, some of them packed by Unix ``compress``."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from moiety.data.federated import Array
from moiety.data.originals.archives import read_compressed, read_member, unpack_z
from moiety.data.originals.pictures import Arrays, Files
from moiety.errors import must


def _read_numbers(name: str, content: bytes, columns: int, dtype: type = np.int64) -> Array:
    """Rows of numbers between blanks or commas."""
    text = content.replace(b",", b" ").decode("ascii")
    must(bool(text.strip()), name, f"{columns} numbers a row", "nothing")
    rows: Array = np.loadtxt(io.StringIO(text), dtype=dtype, ndmin=2)
    must(rows.shape[1] == columns, name, f"{columns} numbers a row", rows.shape[1])
    return rows


def convert_letter(files: Files) -> Arrays:
    """A letter and 16 numbers a row; the first 16,000 are for training."""
    (archive,) = files.values()
    (content,) = read_member(archive, "letter-recognition.data")
    lines = [line.partition(",") for line in content.decode("ascii").split()]
    y = np.array([ord(letter) - ord("A") for letter, _, _ in lines], np.uint8)
    x = _read_numbers("letter-recognition.data", "\n".join(rest for _, _, rest in lines).encode(), 16)
    return {"X": x.astype(np.uint8), "y": y, "n_train": np.array(16_000, np.int64)}


def convert_pendigits(files: Files) -> Arrays:
    """16 numbers and the digit a row."""
    (archive,) = files.values()
    return _read_two_parts(archive, ("pendigits.tra", "pendigits.tes"), 16, np.arange(10))


def convert_satimage(files: Files) -> Arrays:
    """36 numbers and the class a row. There is no class 6."""
    (archive,) = files.values()
    return _read_two_parts(archive, ("sat.trn", "sat.tst"), 36, np.array([1, 2, 3, 4, 5, 7]))


def _read_two_parts(archive: Path, names: tuple[str, str], features: int, classes: Array) -> Arrays:
    arrays = {}
    for part, name, content in zip(("train", "test"), names, read_member(archive, *names), strict=True):
        rows = _read_numbers(name, content, features + 1)
        must(bool(np.isin(rows[:, -1], classes).all()), name, f"of classes {classes.tolist()}", "others")
        arrays[f"x_{part}"] = rows[:, :-1].astype(np.uint8)
        arrays[f"y_{part}"] = np.searchsorted(classes, rows[:, -1]).astype(np.uint8)
    return arrays


_SHUTTLE_CLASSES = ("Rad.Flow", "Fpv.Close", "Fpv.Open", "High", "Bypass", "Bpv.Close", "Bpv.Open")


def convert_shuttle(files: Files) -> Arrays:
    """Nine numbers and the class a row; the training rows are packed by ``compress``."""
    (archive,) = files.values()
    packed, test = read_member(archive, "shuttle.trn.Z", "shuttle.tst")
    train = _read_numbers("shuttle.trn", unpack_z("shuttle.trn.Z", packed), 10)
    rows = np.concatenate([train, _read_numbers("shuttle.tst", test, 10)])
    arrays: Arrays = {"X": rows[:, :9].astype(np.int16), "y": (rows[:, 9] - 1).astype(np.uint8)}
    return {**arrays, "n_train": np.array(len(train), np.int64), "classes": np.array(_SHUTTLE_CLASSES)}


_COVTYPE_FEATURES = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)


def convert_covtype(files: Files) -> Arrays:
    """The first 15,120 rows: 10 numbers, one flag for each of 4 areas and 40 soils, and the class from 1."""
    (path,) = files.values()
    lines = read_compressed(path).split(b"\n", 15_120)[:15_120]
    rows = _read_numbers(path.name, b"\n".join(lines), 55)
    one = bool((rows[:, 10:14].sum(axis=1) == 1).all() and (rows[:, 14:54].sum(axis=1) == 1).all())
    must(one, path.name, "rows of one area and one soil each", "others")
    return {
        "X": rows[:, :10].astype(np.int16),
        "soil": rows[:, 14:54].argmax(axis=1).astype(np.uint8),
        "client": rows[:, 10:14].argmax(axis=1).astype(np.uint8),
        "y": (rows[:, 54] - 1).astype(np.uint8),
        "features": np.array(_COVTYPE_FEATURES),
    }


def _read_isolet(files: Files, name: str) -> tuple[Array, Array]:
    (archive,) = files.values()
    (packed,) = read_member(archive, f"{name}.Z")
    rows = _read_numbers(name, unpack_z(f"{name}.Z", packed), 618, np.float64)
    return rows[:, :617].astype(np.float32), (rows[:, 617] - 1).astype(np.uint8)


def convert_isolet(files: Files) -> Arrays:
    """The first 1,560 rows, sorted by letter: 30 blocks of one speaker, who says each letter twice in a row."""
    x, y = _read_isolet(files, "isolet1+2+3+4.data")
    x, y = x[:1560], y[:1560]
    blocks = len(y) // 52
    expected = np.tile(np.repeat(np.arange(26), 2), blocks)
    must(np.array_equal(y, expected), "isolet1+2+3+4.data", "speakers who say each letter twice in a row", "others")
    client = np.repeat(np.arange(blocks), 52)
    order = np.argsort(y, kind="stable")
    return {"X": x[order], "y": y[order], "client": client[order].astype(np.uint8)}


def convert_isolet_all(files: Files) -> Arrays:
    """All rows in the publisher's two parts."""
    (x, y), (x_test, y_test) = (_read_isolet(files, name) for name in ("isolet1+2+3+4.data", "isolet5.data"))
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def convert_sensorless(files: Files) -> Arrays:
    """48 numbers and the class from 1 a row."""
    (archive,) = files.values()
    (content,) = read_member(archive, "Sensorless_drive_diagnosis.txt")
    rows = _read_numbers("Sensorless_drive_diagnosis.txt", content, 49, np.float64)
    return {"X": rows[:, :48].astype(np.float32), "y": (rows[:, 48] - 1).astype(np.uint8)}


_HAR_SIGNALS = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
_HAR_CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
_BANDS = ((1, 2), (2, 4), (4, 7), (7, 13), (13, 33))
"""First and last but one of the frequencies that are summed."""


def convert_uci_har(files: Files) -> Arrays:
    """The second half of each window of nine signals; its statistics; subjects and activities from 1."""
    (outer,) = files.values()
    (inner,) = read_member(outer, "UCI HAR Dataset.zip")
    signals, subjects, activities, flags = [], [], [], []
    for part in ("train", "test"):
        names = [f"{signal}_{part}.txt" for signal in _HAR_SIGNALS] + [f"subject_{part}.txt", f"y_{part}.txt"]
        *windows, subject, activity = read_member(io.BytesIO(inner), *names)
        pairs = zip(names, windows, strict=False)
        signals.append(np.stack([_read_numbers(name, each, 128, np.float64) for name, each in pairs], axis=1))
        subjects.append(_read_numbers(f"subject_{part}.txt", subject, 1)[:, 0])
        activities.append(_read_numbers(f"y_{part}.txt", activity, 1)[:, 0])
        flags.append(np.full(len(subjects[-1]), part == "test", np.uint8))
    half = np.concatenate(signals)[:, :, 64:]
    return {
        "X": half.astype(np.float16),
        "F": measure_signals(half),
        "y": (np.concatenate(activities) - 1).astype(np.uint8),
        "client": (np.concatenate(subjects) - 1).astype(np.uint8),
        "is_test": np.concatenate(flags),
        "classes": np.array(_HAR_CLASSES),
        "channels": np.array([signal.replace("body_gyro", "gyro") for signal in _HAR_SIGNALS]),
    }


def measure_signals(x: Array) -> Array:
    """Twelve statistics of each channel of signals [n, channels, samples], as float32 [n, 12 channels].

    Mean, standard deviation, minimum, maximum, median, the range of the middle half; the logarithm of the power, and of
    the power in five bands of frequencies.
    """
    lower, median, upper = np.quantile(x, [0.25, 0.5, 0.75], axis=2)
    power = np.abs(np.fft.rfft(x, axis=2)) ** 2 / x.shape[2]
    moments = [x.mean(axis=2), x.std(axis=2), x.min(axis=2), x.max(axis=2), median, upper - lower]
    energies = [(x**2).mean(axis=2), *(power[:, :, low:high].sum(axis=2) for low, high in _BANDS)]
    return np.concatenate([*moments, *(np.log(e + 1e-6) for e in energies)], axis=1).astype(np.float32)
