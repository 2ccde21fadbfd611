"""Who takes part: the server's list of devices, by name and position, in its folder.

A position is given once and stays, for keys and shuffles belong to it. A device is known again by its token, whatever
id its node has.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moiety.data import FederatedData, Preprocessing
from moiety.data.agree import check_summary
from moiety.data.federated import check_names
from moiety.data.preprocess import sort_labels
from moiety.deploy.site import check_alike, data_without_rows, describe_layout
from moiety.deploy.tables import recipe_columns
from moiety.errors import is_whole, must
from moiety.seals import digest, read_sealed, write_sealed

ROSTER = "devices.json"
TYPES = ("bool", "uint8", "int64", "float32", "float64")
"""The types that columns have."""
DESCRIBED = ("sizes", "columns", "classes", "table")
"""What is kept of what a device says of its data."""
MOST_ROWS, MOST_NUMBERS = 1 << 26, 1 << 28
"""The most rows of a device, and the most numbers of a column in one row: the server makes lists of this length."""
MOST = 1 << 20
"""The most devices of one run; the files that have room for them take none before they come."""


@dataclass
class Member:
    """One device: its name, its node's present id, what its token hashes to, and what its data look like."""

    name: str
    node: int
    token: str
    described: dict[str, Any]
    joined: bool = False
    """Whether the device has said that it takes part, since the server began."""


@dataclass
class Roster:
    """All devices of a run, in the order of their positions."""

    members: list[Member] = field(default_factory=list)
    preprocessing: Preprocessing | None = None
    most: int = MOST
    """How many devices there is room for."""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        """Take in a device that said hello; one that is known keeps its position, if it has the same token."""
        old = next((each for each in self.members if each.name == member.name), None)
        if old is not None:
            constraint = f"{old.name} itself, or of another name"
            must(old.token == member.token, "device", constraint, f"another device that calls itself {old.name}")
            old.node, old.joined = member.node, False
            return
        hint = "With privacy they are fewer than 1 / delta."
        must(len(self.members) < self.most, "devices", f"at most {self.most}", "more", hint)
        if self.members:
            check_alike(member.name, member.described, self.members[0].described)
        self.members.append(member)

    def position(self, member: Member) -> int:
        """The position of a device."""
        return next(i for i, each in enumerate(self.members) if each is member)

    def as_data(self) -> FederatedData:
        """The clients, by name and size."""
        names, descriptions, recipe = (
            [m.name for m in self.members],
            [m.described for m in self.members],
            self.preprocessing,
        )
        layout = descriptions[0]["columns"] if recipe is None else recipe_columns(recipe)
        data = data_without_rows(names, descriptions, layout)
        if recipe is None:
            return data
        classes = len(recipe.class_names) or None
        # The last class, so that a model without an output for it is refused.
        y = data.columns["y"] if classes is None else np.broadcast_to(np.int64(classes - 1), data.columns["y"].shape)
        return replace(data, columns={**data.columns, "y": y}, preprocessing=recipe, classes=classes)

    def save(self, folder: Path, run: str) -> None:
        """Write the list; nodes' ids as text, for JSON readers round numbers of 64 bits."""
        members = [{**asdict(each), "node": str(each.node), "joined": False} for each in self.members]
        recipe = None if self.preprocessing is None else self.preprocessing.as_dict()
        write_sealed(folder / ROSTER, {"members": members, "preprocessing": recipe}, run)


def load_roster(folder: Path, run: str) -> Roster:
    """The list that ``save`` wrote; an empty one where there is none yet."""
    if not (folder / ROSTER).exists():
        return Roster()
    table = read_sealed(folder / ROSTER, run, ("members", "preprocessing"))
    members = [Member(**{**each, "node": int(each["node"])}) for each in table["members"]]
    recipe = table["preprocessing"]
    return Roster(members, None if recipe is None else Preprocessing.from_dict(recipe))


def sort_members(members: Iterable[Member]) -> list[Member]:
    """Devices in the order of their names, as numbers where all are."""
    each = list(members)
    order = {name: place for place, name in enumerate(sort_labels([member.name for member in each]))}
    return sorted(each, key=lambda member: order[member.name])


def find_layout(members: Sequence[Member]) -> dict[str, Any]:
    """How the data of most of these devices are laid out; of layouts that as many have, that of the first."""
    layouts = [describe_layout(member.described) for member in members]
    return max(layouts, key=layouts.count)


def sort_odd_members(members: Sequence[Member]) -> list[Member]:
    """The devices with categories or classes that no other has, those with the most of these names first."""
    names = [_list_names(member.described) for member in members]
    owners = Counter(name for each in names for name in each)
    counts = [sum(owners[name] == 1 for name in each) for each in names]
    order = sorted(range(len(members)), key=lambda place: -counts[place])
    return [members[place] for place in order if counts[place]]


def _list_names(described: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The categories and classes in a device's table, each with its column; classes have no column's name."""
    table = described.get("table")
    if table is None:
        return set()
    columns = {**table["categories"], "": table["classes"]}
    return {(column, label) for column, labels in columns.items() for label in labels}


def read_hello(node: int, head: Mapping[str, Any]) -> Member:
    """A device from what it said of itself."""
    name, token, sizes = head.get("name"), head.get("token"), head.get("sizes")
    fits = isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()  # logs and tables show it
    must(fits, "name", "that of a device, of up to 200 characters that can be printed", repr(name)[:80])
    check_names("name", [name])
    must(
        isinstance(token, str) and re.fullmatch(r"[0-9a-f]{64}", str(token)) is not None, "token", "a device's", "none"
    )
    fits = isinstance(sizes, list) and len(sizes) == 3 and all(is_whole(n) and 0 <= n < MOST_ROWS for n in sizes)
    must(fits, "sizes", f"counts of train, validation and test rows, each below {MOST_ROWS}", f"{sizes!r:.80}")
    must(sizes[0] > 0, "data", "at least one training example on every device", f"none for {name}")  # type: ignore[index]
    description = {key: head[key] for key in DESCRIBED if key in head}
    if "table" in description:
        check_summary(description["table"], sum(sizes))  # type: ignore[arg-type]
    columns, classes = description.get("columns"), description.get("classes")
    fits = isinstance(columns, dict) and len(columns) <= 64 and all(map(_is_layout, columns.values()))
    must(fits, "columns", "types and shapes by name", f"{columns!r:.80}")
    valid = classes is None or (is_whole(classes) and 0 < classes < 1 << 31)
    must(valid, "classes", "a number of classes", f"{classes!r:.40}")
    return Member(str(name), node, digest(str(token).encode()), description)


def _is_layout(column: Any) -> bool:
    """Whether this says the type and the shape of a column."""
    if not (isinstance(column, list) and len(column) == 2 and isinstance(column[1], list)):
        return False
    shape = column[1]
    fits = len(shape) <= 8 and all(is_whole(n) and 0 <= n < MOST_NUMBERS for n in shape)
    return column[0] in TYPES and fits and math.prod(shape) < MOST_NUMBERS
