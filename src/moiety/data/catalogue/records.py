"""What is known of a data set before any of it is read: its originals, its terms, its file, and what that holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GIGABYTE = 10**9


@dataclass(frozen=True, kw_only=True)
class Original:
    """One file of the publisher.

    Args:
        name: the file's name, by which the converter asks for it.
        addresses: where it can be had, in order of preference; none for files that the user must bring.
        check: the published or widely pinned checksum, as "sha256:..." or "md5:..."; nothing where none is known.
        size: its bytes where they are known. A download stops beyond them.
        folder: whether it is a folder of files that the user has, which no checksum covers.
    """

    name: str
    addresses: tuple[str, ...] = ()
    check: str = ""
    size: int | None = None
    folder: bool = False

    @property
    def most(self) -> int:
        """The most bytes that a download may have."""
        return self.size or 2 * GIGABYTE


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One row of the catalogue: a data set, or one variant of it.

    Args:
        name: by which ``load`` and ``moiety data fetch`` know it.
        about: what the data is, in one line.
        file: the npz file that moiety reads.
        originals: the publisher's files.
        converter: the function from those files to the arrays of the npz file, as "module:function" of
            ``moiety.data.originals``.
        licence: the terms, as far as they are known.
        citation: the paper or the person to cite.
        page: where people read about it.
        layout: the arrays of the file where they are of a common kind, see ``sources/plain.py``; nothing where a
            function of its own reads them.
        row: the shape of a row, for a common layout.
        classes: the number of classes, for a common layout.
        lengths: how many rows some arrays must have, where the publisher says so.
        note: what a user should know about the conversion.
    """

    name: str
    about: str
    file: str
    originals: tuple[Original, ...]
    converter: str
    licence: str
    citation: str
    page: str
    layout: str = ""
    row: tuple[int, ...] = ()
    classes: int = 0
    lengths: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def by_hand(self) -> bool:
        """Whether the user must bring some of the originals."""
        return any(not original.addresses for original in self.originals)

    @property
    def command(self) -> str:
        """The command that makes the file."""
        return f"moiety data fetch {self.name}{' --from FOLDER' if self.by_hand else ''}"
