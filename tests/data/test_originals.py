"""Every converter on a small file of the publisher's format, and what archives of strangers may not do."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import small_originals as small

from moiety.data import SOURCES
from moiety.data.catalogue import DATA_SETS
from moiety.data.fetching import convert
from moiety.data.originals import archives
from moiety.data.originals.archives import read_compressed, read_member, read_members
from moiety.data.originals.compress import decompress_z
from moiety.data.originals.speech import draw_spectrogram
from moiety.data.originals.strokes import draw_strokes
from moiety.data.originals.tables import measure_signals
from moiety.data.sources.digests import DIGESTS
from moiety.data.sources.provenance import digest_arrays
from moiety.errors import MoietyError

needs_data = pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")


def write(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    """Write files; those in folders are named by the first of these."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {name.partition("/")[0]: folder / name.partition("/")[0] for name in files}


def row_for_small_files(name: str):
    return dataclasses.replace(DATA_SETS[name], lengths={})


def test_every_row_has_a_source_and_a_small_file() -> None:
    assert set(small.MAKERS) == set(DATA_SETS) <= set(SOURCES)


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_converter_gives_the_arrays_that_the_format_defines(name: str, tmp_path: Path) -> None:
    files, expected = small.MAKERS[name]()
    arrays = convert(row_for_small_files(name), write(tmp_path, files))
    pictures, colours = expected.pop("pictures", None), expected.pop("colours", None)
    for key, array in expected.items():
        np.testing.assert_array_equal(arrays[key], array, err_msg=key)
        assert arrays[key].dtype.kind == array.dtype.kind
        assert arrays[key].dtype == array.dtype or array.dtype.kind == "U"
    more = set(arrays) - set(expected)
    if name == "cifar10-jpeg":
        header = arrays["jpeg_header"].tobytes()
        pieces = []
        for part in ("train", "test"):
            body, offsets = arrays[f"jpeg_{part}"].tobytes(), arrays[f"off_{part}"]
            pieces += [header + body[a:b] for a, b in itertools.pairwise(offsets)]
        assert pieces == pictures
        more -= {"jpeg_header", "jpeg_train", "jpeg_test", "off_train", "off_test", "classes"}
    if name == "gldv2":
        assert arrays["x_train"].shape == (3, 64, 64, 3)
        np.testing.assert_allclose(arrays["x_train"].mean(axis=(1, 2)), colours, atol=3)
        more -= {"x_train", "x_test"}
    # Features that have tests of their own.
    assert more == {"audiomnist": {"X"}, "chars74k": {"X"}, "uci_har": {"F"}, "librispeech": {"features"}}.get(
        name, set()
    )


@pytest.mark.parametrize(
    ("name", "length"), [("mnist", "y_train"), ("sensorless", "y"), ("shakespeare-tff", "client_names")]
)
def test_another_number_of_rows_than_the_publisher_names_is_refused(name: str, length: str, tmp_path: Path) -> None:
    files, _ = small.MAKERS[name]()
    with pytest.raises(MoietyError, match=rf"`{name}: {length}` must be of {DATA_SETS[name].lengths[length]:,} rows"):
        convert(DATA_SETS[name], write(tmp_path, files))


@pytest.mark.parametrize(
    "name", ["mnist", "cifar10", "svhn", "usps", "femnist", "letter", "covtype", "shakespeare-tff"]
)
def test_damaged_originals_are_one_line(name: str, tmp_path: Path) -> None:
    files, _ = small.MAKERS[name]()
    for damage in (lambda content: content[: len(content) // 2], lambda content: b"\0" * 100, lambda content: b""):
        paths = write(tmp_path, {file: damage(content) for file, content in files.items()})
        with pytest.raises(MoietyError) as error:
            convert(row_for_small_files(name), paths)
        assert "\n" not in str(error.value)


# --- features ---


def test_statistics_of_signals_by_hand() -> None:
    time = np.arange(64)
    x = np.stack([np.full(64, 2.0), 3 * np.cos(2 * np.pi * 5 * time / 64)])[None]
    f = measure_signals(x).reshape(12, 2)
    nothing = np.log(1e-6)
    np.testing.assert_allclose(f[:, 0], [2, 0, 2, 2, 2, 0, np.log(4 + 1e-6), *[nothing] * 5], atol=1e-5)
    # A wave of 5 periods: the third band (4 to 6) has |a n / 2|^2 / n = 144, the mean square is 4.5.
    wave = np.sort(3 * np.cos(2 * np.pi * 5 * time / 64))
    middle = (wave[31] + wave[32]) / 2
    spread = (wave[47] + 0.25 * (wave[48] - wave[47])) - (wave[15] + 0.75 * (wave[16] - wave[15]))
    expected = [0, 3 / np.sqrt(2), -3 * np.cos(np.pi / 64 * 0), 3, middle, spread, np.log(4.5 + 1e-6)]
    np.testing.assert_allclose(f[:7, 1], expected, atol=1e-2)
    np.testing.assert_allclose(f[9, 1], np.log(144 + 1e-6), atol=1e-5)
    np.testing.assert_allclose(f[[7, 8, 10, 11], 1], nothing, atol=1e-3)


@needs_data
def test_statistics_are_those_of_the_file_that_results_are_of() -> None:
    with np.load(Path(os.environ["MOIETY_DATA"]) / "uci_har_inertial.npz") as file:
        x, expected = file["X"][::50].astype(np.float64), file["F"][::50]
    # The file has signals in half precision, and statistics of the signals in full precision.
    np.testing.assert_allclose(measure_signals(x)[:, :63], expected[:, :63], atol=2e-3)


def test_a_spectrogram_by_the_definition_of_its_parts() -> None:
    rng = np.random.default_rng(1)
    sound = (rng.normal(size=6 * 1000) * 3000).astype(np.int16)  # an eighth of a second
    ours = draw_spectrogram(sound).astype(int)
    assert ours.shape == (32, 32)
    assert ours.max() == 255
    from scipy.signal import resample_poly

    samples = np.concatenate([resample_poly(sound.astype(float), 1, 6), np.zeros(8000)])
    n = np.arange(256)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / 255)
    mel = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + 4000 / 700), 34)
    edges = 700 * (10 ** (mel / 2595) - 1)
    level = np.zeros((32, 32))
    for frame in range(32):
        piece = samples[248 * frame : 248 * frame + 256] * window
        power = [abs(np.sum(piece * np.exp(-2j * np.pi * k * n / 256))) ** 2 for k in range(129)]
        for band in range(32):
            left, middle, right = edges[band : band + 3]
            hertz = np.arange(129) * 8000 / 256
            weight = np.where(hertz <= middle, (hertz - left) / (middle - left), (right - hertz) / (right - middle))
            weight = np.maximum(weight, 0)
            level[band, frame] = np.dot(weight, power) / weight.sum() if weight.any() else 0
    decibels = 10 * np.log10(np.maximum(level / level.max(), 1e-6))
    np.testing.assert_array_equal(ours, np.round(255 * (decibels + 60) / 60))
    assert not draw_spectrogram(np.zeros(100, np.int16)).any()


def test_a_stroke_is_drawn_in_the_middle_two_pixels_wide() -> None:
    picture = draw_strokes([[[0, 50], [100, 50]]]).astype(int)
    assert picture.sum() == picture[12:16].sum()  # the edge may be one part of a pixel off
    assert picture[13:15, 5:23].min() > 200
    assert picture[:, :3].sum() == picture[:, 26:].sum() == 0


DRAWING = [[[489, 218], [439, 193], [420, 199], [410, 204], [400, 210], [384, 224], [378, 231], [369, 246], [367, 253],
            [367, 260], [384, 285], [393, 291], [402, 297], [414, 301], [439, 314], [451, 321], [463, 329], [483, 344],
            [490, 352], [494, 359], [496, 372], [494, 377], [490, 382], [484, 386], [478, 388], [470, 390], [461, 392],
            [452, 392], [442, 391], [433, 390], [424, 388], [416, 385], [408, 382]]]  # fmt: skip
"""The S of the fifth writer, from the publisher's file."""


@needs_data
def test_a_drawing_is_the_picture_of_the_file_that_results_are_of() -> None:
    with np.load(Path(os.environ["MOIETY_DATA"]) / "chars74k_hnd_28.npz") as file:
        at = np.flatnonzero((file["client"] == 4) & (file["y"] == 28))
        np.testing.assert_array_equal(draw_strokes(DRAWING), file["X"][at[0]])


# --- the publishers' own files, rebuilt from arrays: their text has the published checksum ---

PUBLISHED = {
    "pendigits.tra": "e2b9eb9f0d0467e2b64a4816a3420edf2b8043447576f4b84337aba44a9f97d3",
    "pendigits.tes": "8bd03229c5c5291fefe43e45465dd948d2645bf23328b9d993e0b777666b2015",
    "sat.trn": "e896dc88a960fa2404160fc4c3cb3dc53fcf4afd80ba920bf2d261bd42d12613",
    "sat.tst": "4b9167b8a92baafafed7c8809aef86d0683a5e685c19d98d119fa6974f0f2479",
    "letter-recognition.data": "2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",
}


@needs_data
@pytest.mark.parametrize("name", ["pendigits", "satimage", "letter"])
def test_the_publishers_own_text_becomes_the_known_arrays(name: str, tmp_path: Path) -> None:
    import hashlib

    row = DATA_SETS[name]
    with np.load(Path(os.environ["MOIETY_DATA"]) / row.file) as file:
        a = {key: file[key] for key in file.files}
    if name == "letter":
        lines = [f"{chr(65 + k)},{','.join(map(str, x))}\n" for k, x in zip(a["y"], a["X"].tolist(), strict=True)]
        members = {"letter-recognition.data": "".join(lines).encode()}
    elif name == "pendigits":
        members = {}
        for part, member in (("train", "pendigits.tra"), ("test", "pendigits.tes")):
            rows = zip(a[f"x_{part}"].tolist(), a[f"y_{part}"].tolist(), strict=True)
            members[member] = "".join(",".join(f"{v:3}" for v in x) + f", {k}\n" for x, k in rows).encode()
    else:
        members = {}
        for part, member in (("train", "sat.trn"), ("test", "sat.tst")):
            rows = zip(a[f"x_{part}"].tolist(), a[f"y_{part}"].tolist(), strict=True)
            members[member] = "".join(f"{' '.join(map(str, x))} {[1, 2, 3, 4, 5, 7][k]}\n" for x, k in rows).encode()
    for member, content in members.items():
        assert hashlib.sha256(content).hexdigest() == PUBLISHED[member]
    archive = tmp_path / row.originals[0].name
    archive.write_bytes(small.zip_of(members))
    assert digest_arrays(convert(row, {archive.name: archive})) == DIGESTS[row.file]


def test_flac_files_give_the_features_of_the_same_wav_files(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    from scipy.io import wavfile

    files, _ = small.librispeech()
    row, paths = DATA_SETS["librispeech"], write(tmp_path, files)
    features = convert(row, paths)["features"]
    for wav in tmp_path.rglob("*.wav"):
        rate, sound = wavfile.read(wav)
        soundfile.write(wav.with_suffix(".flac"), sound, rate, subtype="PCM_16")
        wav.unlink()
    np.testing.assert_array_equal(convert(row, paths)["features"], features)


# --- archives ---


@pytest.mark.parametrize(
    ("size", "kinds", "widest", "clear"), [(10, 3, 16, 9**9), (30_000, 4, 16, 9**9), (40_000, 250, 12, 2_000)]
)
def test_files_of_unix_compress(size: int, kinds: int, widest: int, clear: int) -> None:
    content = np.random.default_rng(size).integers(0, kinds, size).astype(np.uint8).tobytes()
    packed = small.compress(content, widest, clear)
    if shutil.which("gzip"):  # another program reads it the same way
        process = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)
        assert process.stdout == content
    assert decompress_z("x.Z", packed, 10**6) == content
    with pytest.raises(MoietyError, match="when unpacked, got more"):
        decompress_z("x.Z", packed, size - 1)


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x9d", b"\x1f\x9d\x90", b"\x1f\x8b\x90abc", b"\x1f\x9d\x90\xff\xff\xff\xff"]
)
def test_damaged_files_of_unix_compress(content: bytes) -> None:
    with pytest.raises(MoietyError, match=r"`x.Z` must be"):
        decompress_z("x.Z", content, 100)


def zip_with(**info: object) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo(str(info.get("name", "a.txt")))
        member.external_attr = int(info.get("mode", 0o100644)) << 16  # type: ignore[call-overload]
        archive.writestr(member, info.get("content", b"x"))  # type: ignore[arg-type]
    return stream.getvalue()


def tar_with(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size, "/etc/passwd"
        archive.addfile(info, io.BytesIO(b"\0" * size))
    return stream.getvalue()


UNSAFE = {
    "zip, up": zip_with(name="../a.txt"),
    "zip, absolute": zip_with(name="/a.txt"),
    "zip, drive": zip_with(name="C:/a.txt"),
    "zip, backslashes": zip_with(name="x\\..\\..\\a.txt"),
    "zip, link": zip_with(mode=0o120777),
    "tar, up": tar_with("x/../../a.txt"),
    "tar, absolute": tar_with("/a.txt"),
    "tar, symbolic link": tar_with("a.txt", tarfile.SYMTYPE),
    "tar, hard link": tar_with("a.txt", tarfile.LNKTYPE),
    "tar, device": tar_with("a.txt", tarfile.CHRTYPE),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_archives_that_lead_out_of_their_folder_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "x.archive"
    path.write_bytes(UNSAFE[case])
    with pytest.raises(MoietyError, match="must be an archive of plain files in their folder"):
        list(read_members(path, lambda name: True))


def test_archives_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 5000)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    for name, content in {
        "bomb.zip": zip_with(content=b"\0" * 5001),
        "bomb.tar.gz": tar_with("a", size=5001),
        "many.zip": small.zip_of({f"{i}": b"" for i in range(4)}),
        "many.tar.gz": small.tar_of({f"{i}": b"" for i in range(4)}),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(MoietyError, match=r"must be (an archive of )?at most .* got more"):
            list(read_members(path, lambda name: False))
    for name, content in {"bomb.gz": gzip.compress(b"\0" * 5001), "bomb.lzma": lzma.compress(b"\0" * 5001)}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(MoietyError, match=r"must be at most 5,000 bytes when unpacked, got more"):
            read_compressed(path)


def test_a_zip_file_that_says_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    content = zip_with(content=b"\0" * 5000).replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little"))
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    with pytest.raises((MoietyError, zipfile.BadZipFile)):
        read_member(path, "a.txt")


def test_a_member_that_is_missing_or_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(small.zip_of({"one/a.txt": b"1", "two/a.txt": b"2"}))
    with pytest.raises(MoietyError, match=r"`a.txt` must be in the archive once, got twice"):
        read_member(path, "a.txt")
    with pytest.raises(MoietyError, match=r"one that holds b.txt, got one without b.txt"):
        read_member(path, "b.txt")
