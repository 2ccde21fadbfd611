"""Converters of recordings: mel spectrograms of spoken digits, and of read sentences with their letters."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import numpy as np

from moiety.data.federated import Array
from moiety.data.originals.archives import read_members
from moiety.data.originals.pictures import Arrays, Files
from moiety.errors import must, refuse

_FLOOR = -60.0
"""The quietest level that is kept, in decibels below the loudest of a recording."""


def convert_audiomnist(files: Files) -> Arrays:
    """Recordings ``data/01/7_01_42.wav``: digit, speaker from 1, repetition. They become spectrograms."""
    (archive,) = files.values()
    place = re.compile(r"(?:.*/)?data/\d+/(\d)_(\d+)_(\d+)\.wav")
    rows: list[tuple[int, int, int, Array]] = []
    for name, content in read_members(archive, lambda name: place.fullmatch(name) is not None):
        digit, speaker, repetition = map(int, place.fullmatch(name).groups())  # type: ignore[union-attr]
        rate, sound = _read_wav(name, content)
        must(rate == 48_000, name, "of 48,000 samples a second", rate)
        rows.append((speaker, digit, repetition, draw_spectrogram(sound)))
    must(bool(rows), archive.name, "an archive of recordings data/01/7_01_42.wav", "one without any")
    rows.sort(key=lambda row: row[:3])
    return {
        "X": np.stack([row[3] for row in rows]),
        "y": np.array([row[1] for row in rows], np.uint8),
        "client": np.array([row[0] - 1 for row in rows], np.uint8),
        "rep": np.array([row[2] for row in rows], np.uint8),
    }


def draw_spectrogram(sound: Array) -> Array:
    """The first second of a recording of 48 kHz, as uint8 [32 bands, 32 frames] from the floor to the loudest."""
    from scipy.signal import resample_poly

    width, step, frames = 256, 248, 32
    samples = resample_poly(sound.astype(np.float64), 1, 6)
    whole = np.zeros(width + step * (frames - 1))
    samples = samples[: len(whole)]
    whole[: len(samples)] = samples
    power = _compute_mel_power(whole, width, step, 8_000, 32)
    return _scale_levels(power).T


def _compute_mel_power(samples: Array, width: int, step: int, rate: int, bands: int) -> Array:
    """The power [frames, bands] in mel bands of windows that overlap."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, width)[::step] * np.hanning(width)
    return (np.abs(np.fft.rfft(windows, axis=1)) ** 2) @ _make_mel_filters(width, rate, bands).T


def _scale_levels(power: Array) -> Array:
    """Power as whole numbers: 255 for the loudest, 0 for 60 decibels less, or for silence."""
    top = float(power.max(initial=0.0))
    if top == 0.0:
        return np.zeros(power.shape, np.uint8)
    levels = 10 * np.log10(np.maximum(power / top, 10 ** (_FLOOR / 10)))
    return np.rint(255 * (levels - _FLOOR) / -_FLOOR).astype(np.uint8)


@cache
def _make_mel_filters(width: int, rate: int, bands: int) -> Array:
    """Triangles [bands, width / 2 + 1] from 60 Hz to half the rate, evenly spaced in mel, each of sum 1."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (60.0, rate / 2))
    corners = 700 * (10 ** (np.linspace(low, high, bands + 2) / 2595) - 1)
    hertz = np.fft.rfftfreq(width, 1 / rate)
    left, middle, right = (corners[i : i + bands, None] for i in range(3))
    filters = np.maximum(np.minimum((hertz - left) / (middle - left), (right - hertz) / (right - middle)), 0)
    total = filters.sum(axis=1, keepdims=True)
    return np.asarray(filters / np.where(total > 0, total, 1))


def _read_wav(name: str, content: bytes) -> tuple[int, Array]:
    from scipy.io import wavfile

    rate, sound = wavfile.read(io.BytesIO(content))
    must(sound.ndim == 1, name, "of one channel", list(sound.shape))
    return rate, sound


LETTERS = " '" + "".join(map(chr, range(ord("A"), ord("Z") + 1)))
"""What the sentences of LibriSpeech are written with. Labels count from 1, since 0 is the blank of CTC."""


def convert_librispeech(files: Files) -> Arrays:
    """A folder of subsets: ``dev-clean/84/121123/84-121123.trans.txt`` and a FLAC or wav file for each of its lines.

    Frames of all sentences follow one another, 32 mel bands each, every 20 milliseconds. So do the letters. Speakers
    are clients; ``subset`` says which subset a sentence is from.
    """
    (folder,) = files.values()
    features: list[Array] = []
    texts: list[Array] = []
    speakers: list[str] = []
    subsets: list[str] = []
    for listing in sorted(folder.glob("*/*/*/*.trans.txt")):
        for line in listing.read_text(encoding="utf-8").splitlines():
            name, _, sentence = line.partition(" ")
            odd = sorted(set(sentence) - set(LETTERS))
            must(not odd, listing.name, "of capital letters, blanks and apostrophes", "".join(odd))
            features.append(_read_sentence(listing.parent, name))
            texts.append(np.array([LETTERS.index(letter) + 1 for letter in sentence], np.uint8))
            speakers.append(listing.parts[-3])
            subsets.append(listing.parts[-4])
    must(bool(texts), folder.name, "a folder of subsets such as dev-clean/84/121123", f"{folder}, without any")
    names, client = np.unique(np.array(speakers), return_inverse=True)
    kinds, subset = np.unique(np.array(subsets), return_inverse=True)
    return {
        "features": np.concatenate(features),
        "frames": np.array([len(each) for each in features], np.int32),
        "letters": np.concatenate(texts),
        "lengths": np.array([len(text) for text in texts], np.int32),
        "client": client.astype(np.int32),
        "client_names": names,
        "subset": subset.astype(np.uint8),
        "subset_names": kinds,
    }


def _read_sentence(folder: Path, name: str) -> Array:
    """The features uint8 [frames, 32] of one recording of 16 kHz."""
    must(re.fullmatch(r"[\w-]+", name) is not None, "sentence", "letters, digits and hyphens", repr(name))
    wav, flac = folder / f"{name}.wav", folder / f"{name}.flac"
    if wav.is_file():
        rate, sound = _read_wav(wav.name, wav.read_bytes())
    else:
        must(flac.is_file(), name, f"a FLAC or wav file in {folder}", "none")
        rate, sound = _read_flac(flac)
    must(rate == 16_000, name, "of 16,000 samples a second", rate)
    samples = np.asarray(sound, dtype=np.float64)
    long_enough = np.concatenate([samples, np.zeros(max(0, 512 - len(samples)))])
    return _scale_levels(_compute_mel_power(long_enough, 512, 320, 16_000, 32))


def _read_flac(path: Path) -> tuple[int, Array]:
    try:
        import soundfile
    except ImportError:
        refuse("soundfile", "installed to read FLAC files", "nothing", "Use: pip install 'moiety[speech]'.")
    sound, rate = soundfile.read(path, dtype="int16")
    return rate, sound
