"""Digits spoken one after another, joined from the clips of AudioMNIST: a small task of speech recognition."""

from __future__ import annotations

import numpy as np

from moiety.data.checks import PADDING
from moiety.data.federated import Ints
from moiety.data.sources.files import Source, images, labelled, read
from moiety.errors import must, whole
from moiety.random import generator

_FILE = "audiomnist_mel32.npz"


def connected_digits(shortest: int = 3, longest: int = 6, seed: int = 0) -> Source:
    """Numbers of 3 to 6 digits said by 60 speakers, as mel spectrograms x [192, 32] in time, for ctc; 11 classes.

    A speaker's clips are drawn in random order and joined to sequences of ``shortest`` to ``longest`` digits, every
    length equally likely. Each clip is in one sequence only, so no clip is in two parts however sequences are split.
    Clips that remain at the end are not used. The silence after a clip's last sound is cut off.

    ``frames`` is the number of frames of a sequence; frames after it are 0. ``y`` [``longest``] holds the digits plus
    1 (0 is the blank of CTC), and -100 after the last digit.

    Args:
        shortest: the smallest number of digits in a sequence.
        longest: the largest number of digits.
        seed: seed of the draw; ``load`` passes its own.
    """
    whole("shortest", shortest, 1)
    whole("longest", longest, 1)
    must(shortest <= longest, "shortest", f"at most {longest}, the longest", shortest)
    a = read(_FILE, {"X": ("n", 32, 32), "y": ("n",), "client": ("n",)})
    clips = labelled(_FILE, images(a["X"])[:, 0].transpose(0, 2, 1), a["y"], 10)
    sound = clips["x"].max(axis=2) > 0
    ends = np.where(sound.any(axis=1), 32 - sound[:, ::-1].argmax(axis=1), 1)
    sequences: list[Ints] = []
    for speaker in np.unique(a["client"]):
        rng = generator(seed, "data", "sequences", int(speaker))
        sequences += _cut(rng.permutation(np.flatnonzero(a["client"] == speaker)), shortest, longest, rng)
    must(len(sequences) > 0, "shortest", "such that some speaker has as many clips", shortest)
    x = np.zeros((len(sequences), 32 * longest, 32), dtype=np.float32)
    y = np.full((len(sequences), longest), PADDING)
    frames = np.array([ends[sequence].sum() for sequence in sequences])
    for i, sequence in enumerate(sequences):
        x[i, : frames[i]] = np.concatenate([clips["x"][clip, : ends[clip]] for clip in sequence])
        y[i, : len(sequence)] = clips["y"][sequence] + 1
    speakers = a["client"][[sequence[0] for sequence in sequences]]
    return Source({"x": x, "y": y, "frames": frames}, classes=11, client=speakers)


def _cut(clips: Ints, shortest: int, longest: int, rng: np.random.Generator) -> list[Ints]:
    """The clips in order, cut into sequences of random length; a rest that is too short is dropped."""
    lengths = rng.integers(shortest, longest, size=len(clips) // shortest, endpoint=True)
    pieces = np.split(clips, np.cumsum(lengths))
    return [piece for piece in pieces[: len(lengths)] if len(piece) >= shortest]
