"""Data sets of sequences: Shakespeare's plays by speaking role, as characters or words, and spoken numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from moiety.data.checks import PADDING
from moiety.data.federated import Array, FederatedData, Ints
from moiety.data.sources.files import AGAIN, Source, as_images, check_range, make_columns, read_archive
from moiety.errors import choice, must, whole
from moiety.random import generator

_ROLES, _SPEECH = "shakespeare_roles.npz", "audiomnist_mel32.npz"
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SENTENCE_ENDS = re.compile(r"[.?!\n]")
_PAD, _BEGIN, _END = -1, -2, -3  # until the vocabulary is known


def shakespeare(
    unit: str = "character", length: int | None = None, vocabulary: int | None = None, roles: int | None = None
) -> Source:
    """The lines of 773 roles in 37 plays; x and y [80] characters, y one further on, 82 classes; or words.

    Characters: a role's text is cut into sequences of ``length`` that do not overlap; a shorter rest is dropped.

    Words, as in Pillutla et al. (2022), appendix B.1.1: a sequence is a sentence, in small letters and without
    punctuation, between a begin and an end token; it is cut or padded to ``length`` tokens. With a vocabulary of W
    words, ids 0 to W - 1 are the words that are most frequent in the training sequences of all clients, W stands for
    any other, W + 1 is padding, W + 2 begins and W + 3 ends: W + 4 classes. Padding has the label -100. Column
    ``counted`` marks the labels that are words of the vocabulary, for the metric ``token_accuracy``; the loss sees the
    out-of-vocabulary and end tokens too.

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
    must(vocabulary is None or unit == "word", "vocabulary", "left out for characters", vocabulary, "Use unit word.")
    vocabulary = 10_000 if vocabulary is None else vocabulary
    whole("vocabulary", vocabulary, 1)
    texts = _read_texts()
    known = len(texts.names)
    if roles is not None:
        whole("roles", roles, 1)
        must(roles <= known, "roles", f"at most the {known} there are", roles)
    longest = np.sort(np.argsort(-np.diff(texts.offsets), kind="stable")[: known if roles is None else roles])
    if unit == "character":
        return _make_characters(texts, longest, length)
    return _make_words(texts, longest, length, vocabulary)


class Texts(NamedTuple):
    """The characters of all roles, where each role's begin, the roles' names, and what the characters are."""

    codes: Ints
    offsets: Ints
    names: Array
    alphabet: str


def _read_texts() -> Texts:
    a = read_archive(_ROLES, {"codes": ("n",), "offsets": ("o",), "client_names": ("roles",), "vocab": ()})
    offsets, names, alphabet = a["offsets"].astype(np.int64), a["client_names"], str(a["vocab"])
    inside = len(offsets) == len(names) + 1 and offsets[0] >= 0 and offsets[-1] <= len(a["codes"])
    ascending = bool(inside) and bool((np.diff(offsets) >= 0).all())
    must(ascending, f"{_ROLES}: offsets", "ascending, one more than roles", "others", AGAIN)
    must(len(a["codes"]) > 0, f"{_ROLES}: codes", "at least one", "none", AGAIN)
    check_range(f"{_ROLES}: codes", a["codes"], len(alphabet))
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
    letters = np.array(list(alphabet.lower()))
    sentences: list[list[str]] = []
    role: list[int] = []
    for i in roles.tolist():
        text = "".join(letters[codes[offsets[i] : offsets[i + 1]]])
        spoken = [words for part in _SENTENCE_ENDS.split(text) if (words := _WORD.findall(part))]
        if len(spoken) >= 2:
            sentences += spoken
            role += [i] * len(spoken)
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
