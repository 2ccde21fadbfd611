"""The format of Unix ``compress`` (.Z), which old archives of UCI hold and Python's library cannot read."""

from __future__ import annotations

from collections.abc import Iterator

from moiety.errors import must, refuse

_MAGIC = b"\x1f\x9d"
_CLEAR = 256


def decompress_z(name: str, content: bytes, most: int) -> bytes:
    """What ``compress`` packed: Lempel-Ziv-Welch codes, 9 to 16 bits wide, lowest bit first.

    A code stands for a sequence of bytes. Each code but the first adds a sequence to the table: the one before and the
    first byte of its own.
    """
    must(content[:2] == _MAGIC and len(content) > 3, name, "a file that compress wrote", "another one")
    widest, clears = content[2] & 0x1F, bool(content[2] & 0x80)
    must(9 <= widest <= 16, name, "of codes of 9 to 16 bits", widest)
    table = [bytes([value]) for value in range(256)] + ([b""] if clears else [])
    first = len(table)
    parts: list[bytes] = []
    size, before = 0, b""
    reader = _Codes(content, widest)
    for code in reader:
        if clears and code == _CLEAR:
            del table[first:]
            before = b""
            reader.widen(9)
            continue
        if code < len(table):
            sequence = table[code]
        elif code == len(table) and before:
            sequence = before + before[:1]
        else:
            refuse(name, "a whole file of compress", "a damaged one")
        parts.append(sequence)
        size += len(sequence)
        must(size <= most, name, f"at most {most:,} bytes when unpacked", "more", "Do not open it.")
        if before and len(table) < 1 << widest:
            table.append(before + sequence[:1])
        before = sequence
        if len(table) + 1 > 1 << reader.width and reader.width < widest:
            reader.widen(reader.width + 1)
    return b"".join(parts)


class _Codes:
    """The codes of a file. They are written eight at a time, so a change of width skips to the next eight."""

    def __init__(self, content: bytes, widest: int):
        self._content, self._at = content, 3
        self.width = 9
        self._rest: list[int] = []

    def widen(self, width: int) -> None:
        """Let codes have this width from the next eight on."""
        self.width = width
        self._rest = []

    def __iter__(self) -> Iterator[int]:
        while True:
            if not self._rest:
                group = self._content[self._at : self._at + self.width]
                self._at += self.width
                bits, mask = int.from_bytes(group, "little"), (1 << self.width) - 1
                count = 8 * len(group) // self.width
                self._rest = [bits >> self.width * at & mask for at in reversed(range(count))]
                if not self._rest:
                    return
            yield self._rest.pop()
