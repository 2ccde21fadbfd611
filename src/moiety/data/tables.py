"""Tables that a user has, as blocks of Arrow columns: a data frame of any library, or files of CSV or Parquet.

A table is read several times, block by block, and never held whole: a file may be larger than memory. Every block
knows where its rows lie, so that messages can name them.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from moiety.errors import MoietyError, kind, must, refuse

if TYPE_CHECKING:
    import narwhals as nw

ROWS_AT_ONCE = 65_536
EARLY = 5
"""Up to this line, a wrong number of values may be due to a title above the heading."""
BLOCK_BYTES = 1 << 22
"""How much of a CSV file is read at a time."""
CSV, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
COMPRESSED = (".gz", ".bz2", ".zst")
MARKS = (",", ";", "\t", "|")
"""What may stand between the values of a CSV file."""
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL")
"""What stands for a missing value in a CSV file, unless it is in quotes."""
FRAMES = "a data frame of pandas, polars or pyarrow, or the path of CSV or Parquet files"


class Block(NamedTuple):
    """Some rows of a table: its columns, how many rows it has, and where a row of it is, in words."""

    columns: dict[str, pa.Array]
    rows: int
    place: Callable[[int], str]


@dataclass(frozen=True)
class Table:
    """A table that can be read again and again: the types of its columns, and ``read(names)``, which gives blocks.

    The columns ``as_written`` are texts where a CSV file has them, although other files may have them as numbers.
    """

    types: dict[str, pa.DataType]
    read: Callable[[Sequence[str]], Iterator[Block]]
    paths: tuple[str, ...] = ()
    as_written: frozenset[str] = frozenset()


def open_table(
    data: Any, is_unused: Callable[[str], bool] = lambda name: False, as_written: Sequence[str] = ()
) -> Table:
    """The table that a user names: a data frame, a path, a pattern of paths, or a list of paths.

    Columns whose name ``is_unused`` may hold anything; those of a data frame are not converted, and have the type null.
    Columns ``as_written`` are read from CSV files as texts: 007 is not 7.
    """
    if isinstance(data, list | tuple) and data and all(isinstance(each, str | os.PathLike) for each in data):
        return _open_files([path for each in data for path in _find_files(each)], as_written)
    if isinstance(data, str | os.PathLike):
        return _open_files(_find_files(data), as_written)
    return _open_frame(data, is_unused)


def _open_frame(data: Any, is_unused: Callable[[str], bool]) -> Table:
    """A data frame, through narwhals: its columns become Arrow arrays, mostly without a copy."""
    import narwhals as nw  # not above: runs on arrays do without

    data = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        wrapper = nw.from_native(data, allow_series=False)
        frame = wrapper.collect() if isinstance(wrapper, nw.LazyFrame) else wrapper
    except nw.exceptions.DuplicateError as error:
        names = re.findall(r"'(.+)' \d+ times", str(error))
        _refuse_twice(", ".join(map(repr, names)) or "some", "the data frame")
    except TypeError:
        refuse("data", FRAMES, f"{type(data).__name__}", "For arrays use moiety.data.from_arrays.")
    _check_names(frame.columns, "the data frame")
    rows = len(frame)
    columns = {name: pa.nulls(rows) if is_unused(name) else _convert_column(frame, name) for name in frame.columns}

    def read(names: Sequence[str]) -> Iterator[Block]:
        for first in range(0, rows, ROWS_AT_ONCE):
            size = min(ROWS_AT_ONCE, rows - first)
            slices = {name: columns[name].slice(first, size) for name in names}
            yield Block(slices, size, lambda row, first=first: f"row {first + row}")  # type: ignore[misc]

    return Table({name: column.type for name, column in columns.items()}, read)


def _convert_column(frame: nw.DataFrame[Any], name: str) -> pa.Array:
    """One column of a data frame; one of values of several types is refused with the row where they change."""
    try:
        column = frame[name].to_arrow()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        values = frame[name].to_list()
        first = next((value for value in values if value is not None), None)
        row = next((i for i, v in enumerate(values) if v is not None and type(v) is not type(first)), None)
        if row is None:
            refuse(f"column {name!r}", "of numbers, booleans or texts", f"{type(first).__name__} ({error})")
        problem = f"{values[row]!r:.40} ({type(values[row]).__name__}) at row {row} after {first!r:.40}"
        refuse(f"column {name!r}", "of values of one type", problem, "Make them all numbers, or all texts.")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _find_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of a path, which may have the wildcards ``*``, ``?`` and ``**``."""
    text = os.fspath(path)
    must(bool(text) and "\0" not in text, "path", "that of a file", repr(text))
    if os.path.exists(text):
        hint = f"Name its files, as in {os.path.join(text, '*.parquet')!r}."
        must(not os.path.isdir(text), "path", "a file of CSV or Parquet", f"the folder {text}", hint)
        return [text]
    files = sorted(each for each in glob.glob(text, recursive=True) if os.path.isfile(each))
    must(bool(files), "path", "that of a file, or a pattern that some files have", f"{text}, where there is none")
    return files


def _open_files(paths: Sequence[str], as_written: Sequence[str]) -> Table:
    """All files as one table; they must have the same columns, of types that go together."""
    parts = [_open_file(path, as_written) for path in dict.fromkeys(paths)]
    text_columns = frozenset().union(*(part.as_written for part in parts))
    types = dict(parts[0].types)
    for part in parts[1:]:
        place, first = part.paths[0], parts[0].paths[0]
        for one, other, file in ((types, part.types, place), (part.types, types, first)):
            odd = [name for name in one if name not in other]
            must(not odd, "columns", "the same in every file", f"no {', '.join(map(repr, odd[:3]))} in {file}")
        for name, now in part.types.items():
            wide = pa.string() if name in text_columns else _join_types(types[name], now)
            if wide is None:
                refuse(f"column {name!r}", f"of type {types[name]} as in {parts[0].paths[0]}", f"{now} in {place}")
            types[name] = wide

    def read(names: Sequence[str]) -> Iterator[Block]:
        for part in parts:
            yield from part.read(names)

    return Table(types, read, tuple(path for part in parts for path in part.paths), text_columns)


def _join_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that holds what both hold: one of both, or None where they do not go together."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one) or (is_number(one) and pa.types.is_floating(other)):
        return other
    alike = (is_number, is_text, is_time)
    return one if any(same(one) and same(other) for same in alike) else None


def _open_file(path: str, as_written: Sequence[str]) -> Table:
    name = path.lower()
    for end in COMPRESSED:
        name = name.removesuffix(end)
    if name.endswith(CSV):
        return _open_csv(path, as_written)
    if path.lower().endswith(PARQUET):
        return _open_parquet(path)
    hint = SHEET if ".xls" in name or name.endswith(".ods") else ""
    return refuse("path", f"a file that ends in {', '.join((*CSV, *PARQUET))}", path, hint)


def _open_parquet(path: str) -> Table:
    errors = (pa.ArrowException, OSError, ValueError)

    def open_again() -> pq.ParquetFile:
        return pq.ParquetFile(path, pre_buffer=False)

    try:
        with open_again() as file:
            schema = file.schema_arrow
    except errors as error:
        _refuse_file(path, "Parquet", error)
    _check_names(schema.names, path)

    def read(names: Sequence[str]) -> Iterator[Block]:
        first = 0
        try:
            with open_again() as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(names), use_threads=False):
                    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                    yield Block(columns, len(batch), lambda row, first=first: f"row {first + row} of {path}")  # type: ignore[misc]
                    first += len(batch)
        except errors as error:
            _refuse_file(path, "Parquet", error)

    return Table(dict(zip(schema.names, schema.types, strict=True)), read, (path,))


def _open_csv(path: str, as_written: Sequence[str]) -> Table:
    parse = pa.csv.ParseOptions(delimiter=_find_delimiter(path), newlines_in_values=True)
    names, types = _settle_types(path, parse, as_written)
    schema = dict(zip(names, types, strict=True))

    def read(names: Sequence[str]) -> Iterator[Block]:
        first = 0
        for batch in _stream_csv(path, parse, {name: schema[name] for name in names}, names):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            # As a spreadsheet numbers them: the heading is line 1.
            yield Block(columns, len(batch), lambda row, first=first: f"line {first + row + 2} of {path}")  # type: ignore[misc]
            first += len(batch)

    return Table(schema, read, (path,), frozenset(name for name in as_written if name in schema))


SHEET = "Save the sheet as CSV."
FORMS = {
    b"PK\x03\x04": ("a workbook of a spreadsheet or a zip archive", SHEET),
    b"\xd0\xcf\x11\xe0": ("a workbook of a spreadsheet", SHEET),
    b"\x1f\x8b": ("compressed", "Call it .csv.gz."),
    b"PAR1": ("a file of Parquet", "Call it .parquet."),
}
"""What a file is that is called CSV but begins with these bytes, and what to do about it."""


def _find_delimiter(path: str) -> str:
    """What stands between the names of the heading, outside of quotes: the mark that is there most often."""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            start = stream.read(1 << 16)
    except (pa.ArrowException, OSError) as error:
        _refuse_file(path, "CSV", error)
    for mark, (form, hint) in FORMS.items():
        must(not start.startswith(mark), "path", "a CSV file in UTF-8", f"{path}, which is {form}", hint)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        refuse("path", "a CSV file in UTF-8", f"{path}, which is in UTF-16 or no text", "Save it as UTF-8.")
    try:
        line = start.partition(b"\n")[0].decode()
    except UnicodeDecodeError:
        refuse("path", "a CSV file in UTF-8", f"{path}, whose heading is not", "Save it as UTF-8.")
    separator = re.fullmatch(r"\ufeff?sep=.", line.strip())
    heading = f"{line.strip()!r} in {path}"
    must(separator is None, "path", "a CSV file whose first line names the columns", heading, "Remove that line.")
    bare = re.sub(r'"[^"]*"', "", line)
    return max(MARKS, key=bare.count)


def _settle_types(
    path: str, parse: pa.csv.ParseOptions, as_written: Sequence[str]
) -> tuple[list[str], list[pa.DataType]]:
    """The names and types of the columns, such that all rows fit; only the first block is looked at to guess them."""
    names: list[str] | None = None
    types: dict[str, pa.DataType] = {name: pa.string() for name in as_written}
    while True:
        position = -1
        try:
            for batch in _stream_csv(path, parse, types, None, convert=False):
                if names is None:
                    names = list(batch.schema.names)
                    _check_names(names, path)
                    types = dict(zip(names, batch.schema.types, strict=True))
        except pa.ArrowInvalid as error:
            place = re.search(r"In CSV column #(\d+)", str(error))
            if names is None or place is None:
                _refuse_csv(path, error)
            position = int(place[1])
        odd = [name for name, type_ in types.items() if pa.types.is_binary(type_)]
        name = odd[0] if odd else list(types)[position]
        if odd or (position >= 0 and pa.types.is_string(types[name])):
            refuse(f"column {name!r}", "text in UTF-8", f"other bytes in {path}", "Save the file as UTF-8.")
        if position < 0:
            return list(types), list(types.values())
        wider = {pa.null(): pa.int64(), pa.int64(): pa.float64()}
        types[name] = wider.get(types[name], pa.string())


def _stream_csv(
    path: str,
    parse: pa.csv.ParseOptions,
    types: dict[str, pa.DataType],
    names: Sequence[str] | None,
    *,
    convert: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The blocks of a CSV file; where errors are not to be ``convert``-ed to moiety's, Arrow's own are raised."""
    options = pa.csv.ConvertOptions(
        column_types=types,
        include_columns=None if names is None else list(names),
        null_values=list(MISSING),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    read_options = pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    try:
        with pa.csv.open_csv(path, read_options=read_options, parse_options=parse, convert_options=options) as reader:
            empty = True
            for batch in reader:
                empty = False
                yield batch
            if empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
    except pa.ArrowInvalid as error:
        if not convert:
            raise
        _refuse_csv(path, error)
    except (pa.ArrowException, OSError) as error:
        _refuse_file(path, "CSV", error)


def _refuse_csv(path: str, error: Exception) -> NoReturn:
    """Raise moiety's error for a row of a CSV file that cannot be read."""
    place = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
    if place is None:
        _refuse_file(path, "CSV", error)
    problem = f"{place[2]:.80} at line {place[1]} of {path}"
    hint = "Its first line must name the columns." if int(place[1]) <= EARLY else ""
    refuse("path", "a CSV file with a value for each column in every line", problem, hint)


def _refuse_file(path: str, form: str, error: Exception) -> NoReturn:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    raise MoietyError(
        f"`path` must be a file of {form} that can be read, got {path}: {reason:.120}".rstrip(".") + "."
    ) from None


def _check_names(names: Sequence[object], where: str) -> None:
    """Raise unless all columns have names, each its own."""
    must(len(names) > 0, "columns", "at least one", f"none in {where}")
    for place, name in enumerate(names, 1):
        kind("columns", name, str, f"named by texts in {where}", "Rename them.")
        problem, hint = f"no name for column {place} of {where}", "Name or remove it. pandas writes none for an index."
        must(bool(str(name).strip()), "columns", "named in the heading", problem, hint)
    twice = sorted({str(name) for name in names if list(names).count(name) > 1})
    if twice:
        _refuse_twice(", ".join(map(repr, twice[:3])), where)


def _refuse_twice(names: str, where: str) -> NoReturn:
    refuse("columns", "of different names", f"{names} twice in {where}", "Rename or remove one.")


def is_number(type_: pa.DataType) -> bool:
    """Whether a column of this type holds numbers; booleans are not numbers here."""
    types = pa.types
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def is_text(type_: pa.DataType) -> bool:
    """Whether a column of this type holds texts, one by one or by their codes."""
    types = pa.types
    if types.is_dictionary(type_):
        return is_text(type_.value_type)
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def is_time(type_: pa.DataType) -> bool:
    """Whether a column of this type holds dates or times."""
    return bool(pa.types.is_temporal(type_))
