"""Data sets of sequences: plays by role and texts by user, as characters or words; spoken numbers and sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from moiety.data.catalogue import DATA_SETS
from moiety.data.checks import PADDING
from moiety.data.federated import Array, FederatedData, Ints
from moiety.data.sources.files import (
    AGAIN,
    Shape,
    Source,
    as_images,
    check_range,
    first_file,
    make_columns,
    read_archive,
)
from moiety.errors import choice, must, whole
from moiety.random import generator

_ROLES, _TFF, _SPEECH = "shakespeare_roles.npz", "shakespeare_tff.npz", "audiomnist_mel32.npz"
_LIBRI = "librispeech.npz"
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SENTENCE_ENDS = re.compile(r"[.?!\n]")
_PAD, _BEGIN, _END = -1, -2, -3  # until the vocabulary is known


def _make_plays(name: str, first_line: str, *files: str) -> Callable[..., Source]:
    def source(
        unit: str = "character", length: int | None = None, vocabulary: int | None = None, roles: int | None = None
    ) -> Source:
        """Characters: a role's text is cut into sequences of ``length`` that do not overlap; a shorter rest is dropped.

        Words, as in Pillutla et al. (2022), appendix B.1.1: a sequence is a sentence, in small letters and without
        punctuation, between a begin and an end token; it is cut or padded to ``length`` tokens. With a vocabulary of W
        words, ids 0 to W - 1 are the words that are most frequent in the training sequences of all clients, W stands
        for any other, W + 1 is padding, W + 2 begins and W + 3 ends: W + 4 classes. Padding has the label -100. Column
        ``counted`` marks the labels that are words of the vocabulary, for the metric ``token_accuracy``; the loss sees
        the out-of-vocabulary and end tokens too.

        Roles with fewer than two sequences are dropped (none with the default lengths). Sequences are later split into
        training and test at random, not by time.

        Args:
            unit: ``character`` or ``word``.
            length: of a sequence; 80 characters or 20 words by default.
            vocabulary: how many words; 10,000 by default.
            roles: use only this many roles, those with most text.
        """
        choice("unit", unit, ["character", "word"])
        length = {"character": 80, "word": 20}[unit] if length is None else length
        whole("length", length, 1)
        hint = "Use unit word."
        must(vocabulary is None or unit == "word", "vocabulary", "left out for characters", vocabulary, hint)
        vocabulary = 10_000 if vocabulary is None else vocabulary
        whole("vocabulary", vocabulary, 1)
        texts = _read_texts(first_file(*files))
        longest = _choose_longest(texts, "roles", roles)
        if unit == "character":
            return _make_characters(texts, longest, length)
        return _make_words(texts, longest, length, vocabulary)

    source.__name__, source.__doc__ = name, f"{first_line}\n\n{source.__doc__}"
    return source


shakespeare = _make_plays(
    "shakespeare",
    "The lines of 773 roles in 37 plays; x and y [80] characters, y one further on, 82 classes; or words.",
    _ROLES,
    _TFF,
)
shakespeare_roles = _make_plays("shakespeare-roles", DATA_SETS["shakespeare-roles"].about, _ROLES)
shakespeare_tff = _make_plays("shakespeare-tff", DATA_SETS["shakespeare-tff"].about, _TFF)


def stackoverflow(length: int = 20, vocabulary: int = 10_000, users: int | None = None) -> Source:
    """Questions and answers of 1,000 users, for next-word prediction; from your own file.

    Sentences are numbered as the words of ``shakespeare``.

    Args:
        length: of a sequence, in words.
        vocabulary: how many words.
        users: use only this many users, those with most text.
    """
    whole("length", length, 1)
    whole("vocabulary", vocabulary, 1)
    texts = _read_texts("stackoverflow.npz")
    return _make_words(texts, _choose_longest(texts, "users", users), length, vocabulary)


class Texts(NamedTuple):
    """The characters of all roles, where each role's begin, the roles' names, and what the characters are."""

    codes: Ints
    offsets: Ints
    names: Array
    alphabet: str


def _choose_longest(texts: Texts, name: str, count: int | None) -> Ints:
    """The positions of the ``count`` clients with most text, ascending; all of them by default."""
    total = len(texts.names)
    if count is not None:
        whole(name, count, 1)
        must(count <= total, name, f"at most the {total} there are", count)
    return np.sort(np.argsort(-np.diff(texts.offsets), kind="stable")[: total if count is None else count])


def _read_texts(file: str) -> Texts:
    a = read_archive(file, {"codes": ("n",), "offsets": ("o",), "client_names": ("roles",), "vocab": ()})
    offsets, names, alphabet = a["offsets"].astype(np.int64), a["client_names"], str(a["vocab"])
    inside = len(offsets) == len(names) + 1 and offsets[0] >= 0 and offsets[-1] <= len(a["codes"])
    ascending = bool(inside) and bool((np.diff(offsets) >= 0).all())
    must(ascending, f"{file}: offsets", "ascending, one more than roles", "others", AGAIN)
    must(len(a["codes"]) > 0, f"{file}: codes", "at least one", "none", AGAIN)
    check_range(f"{file}: codes", a["codes"], len(alphabet))
    return Texts(a["codes"].astype(np.int64), offsets, names, alphabet)


def _make_characters(texts: Texts, roles: Ints, length: int) -> Source:
    codes, offsets, names, alphabet = texts
    size = np.zeros(len(names), dtype=np.int64)
    size[roles] = np.diff(offsets)[roles]
    count = np.maximum(size - 1, 0) // length  # the last character of a sequence needs one to follow it
    count[count < 2] = 0
    must(bool(count.any()), "length", "such that some role has two sequences", length, "Use a smaller one.")
    role = np.repeat(np.arange(len(names)), count)
    place = np.arange(len(role)) - np.repeat(np.cumsum(count) - count, count)
    at = (offsets[role] + place * length)[:, None] + np.arange(length)
    return Source({"x": codes[at], "y": codes[at + 1]}, classes=len(alphabet), client=role, names=names)


def _make_words(texts: Texts, roles: Ints, length: int, vocabulary: int) -> Source:
    codes, offsets, names, alphabet = texts
    letters = np.array([letter.lower() for letter in alphabet])  # a few become two
    sentences: list[list[str]] = []
    role: list[int] = []
    for i in roles.tolist():
        text = "".join(letters[codes[offsets[i] : offsets[i + 1]]])
        lines = [words for part in _SENTENCE_ENDS.split(text) if (words := _WORD.findall(part))]
        if len(lines) >= 2:
            sentences += lines
            role += [i] * len(lines)
    must(len(sentences) > 0, "roles", "such that some role has two sentences", "none")
    dictionary = {word: i for i, word in enumerate(sorted({word for words in sentences for word in words}))}
    tokens = np.full((len(sentences), length + 1), _PAD, dtype=np.int64)
    for row, words in zip(tokens, sentences, strict=True):
        ids = [_BEGIN, *(dictionary[word] for word in words[:length]), _END][: length + 1]
        row[: len(ids)] = ids

    def finish(fed: FederatedData) -> FederatedData:
        return _number_words(fed, len(dictionary), vocabulary)

    return Source({"tokens": tokens}, vocabulary + 4, client=np.array(role), names=names, finish=finish)


def _number_words(fed: FederatedData, words: int, vocabulary: int) -> FederatedData:
    """Inputs and labels from ``tokens``, with words numbered by their frequency in training, equals by alphabet."""
    tokens = fed.columns["tokens"]
    training = tokens[fed.all_rows("train")]
    counts = np.bincount(training[training >= 0], minlength=words)
    frequent = np.argsort(-counts, kind="stable")[: min(vocabulary, int((counts > 0).sum()))]
    ids = np.full(words + 3, vocabulary)  # one that is not in the vocabulary
    ids[frequent] = np.arange(len(frequent))
    ids[[_PAD, _BEGIN, _END]] = vocabulary + np.array([1, 2, 3])
    x, y = ids[tokens[:, :-1]], ids[tokens[:, 1:]]
    columns = {"x": x, "y": np.where(y == vocabulary + 1, PADDING, y), "counted": y < vocabulary}
    return replace(fed, columns=columns)


def connected_digits(shortest: int = 3, longest: int = 6, seed: int = 0) -> Source:
    """Numbers of 3 to 6 digits said by 60 speakers, as mel spectrograms x [192, 32] in time, loss ctc; 11 classes.

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
    a = read_archive(_SPEECH, {"X": ("n", 32, 32), "y": ("n",), "client": ("n",)})
    clips = make_columns(_SPEECH, as_images(a["X"])[:, 0].transpose(0, 2, 1), a["y"], 10)
    sound = clips["x"].max(axis=2) > 0
    ends = np.where(sound.any(axis=1), 32 - sound[:, ::-1].argmax(axis=1), 1)
    sequences: list[Ints] = []
    for speaker in np.unique(a["client"]):
        rng = generator(seed, "data", "sequences", int(speaker))
        sequences += _cut_clips(rng.permutation(np.flatnonzero(a["client"] == speaker)), shortest, longest, rng)
    must(len(sequences) > 0, "shortest", "such that some speaker has as many clips", shortest)
    x = np.zeros((len(sequences), 32 * longest, 32), dtype=np.float32)
    y = np.full((len(sequences), longest), PADDING)
    frames = np.array([ends[sequence].sum() for sequence in sequences])
    for i, sequence in enumerate(sequences):
        x[i, : frames[i]] = np.concatenate([clips["x"][clip, : ends[clip]] for clip in sequence])
        y[i, : len(sequence)] = clips["y"][sequence] + 1
    speakers = a["client"][[sequence[0] for sequence in sequences]]
    return Source({"x": x, "y": y, "frames": frames}, classes=11, client=speakers)


def _cut_clips(clips: Ints, shortest: int, longest: int, rng: np.random.Generator) -> list[Ints]:
    """The clips in order, cut into sequences of random length; a rest that is too short is dropped."""
    lengths = rng.integers(shortest, longest, size=len(clips) // shortest, endpoint=True)
    pieces = np.split(clips, np.cumsum(lengths))
    return [piece for piece in pieces[: len(lengths)] if len(piece) >= shortest]


def librispeech(longest: int = 800) -> Source:
    """Read English by speaker: log-mel features x [frames, 32], letters y (loss ctc); from your own files.

    ``frames`` is the number of frames of a sentence, one every 20 milliseconds; those after it are 0. ``y`` holds the
    letters (1 blank, 2 apostrophe, 3 to 28 A to Z; 0 is the blank of CTC), and -100 after the last: 29 classes.

    Args:
        longest: the most frames of a sentence; longer ones are left out.
    """
    whole("longest", longest, 1)
    shapes: dict[str, Shape] = {"features": ("all", 32), "frames": ("n",), "letters": ("text",), "lengths": ("n",)}
    a = read_archive(_LIBRI, {**shapes, "client": ("n",), "client_names": ("speakers",)})
    check_range(f"{_LIBRI}: letters", a["letters"], 29)
    check_range(f"{_LIBRI}: client", a["client"], len(a["client_names"]))
    frames, lengths = a["frames"].astype(np.int64), a["lengths"].astype(np.int64)
    whole_file = (frames.sum(), lengths.sum()) == (len(a["features"]), len(a["letters"]))
    must(bool(whole_file) and bool((frames > 0).all()), f"{_LIBRI}: frames", "those of all sentences", "others", AGAIN)
    short = np.flatnonzero(frames <= longest)
    must(len(short) > 0, "longest", f"at least {frames.min()}, the frames of the shortest sentence", longest)
    x = np.zeros((len(short), int(frames[short].max()), 32), dtype=np.float32)
    y = np.full((len(short), int(lengths[short].max())), PADDING)
    starts, text_starts = np.cumsum(frames) - frames, np.cumsum(lengths) - lengths
    for row, i in enumerate(short):
        x[row, : frames[i]] = a["features"][starts[i] : starts[i] + frames[i]] / np.float32(255)
        y[row, : lengths[i]] = a["letters"][text_starts[i] : text_starts[i] + lengths[i]]
    columns = {"x": x, "y": y, "frames": frames[short]}
    return Source(columns, classes=29, client=a["client"][short], names=a["client_names"])
