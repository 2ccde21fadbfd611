"""Tables, letter by letter."""

from __future__ import annotations

import json
import math

import pytest

from moiety.errors import MoietyError
from moiety.reports.tables import markdown, write_table

ROWS = [
    {"row": "FedAlt", "paper": 93.57, "ours": 91.234, "low": 91.0, "high": 91.468, "seeds": 5, "verdict": "holds"},
    {"row": "a | b\nc", "paper": None, "ours": math.nan, "low": None, "high": None, "seeds": 1, "verdict": None},
]


def test_the_two_files(tmp_path):
    write_table(tmp_path / "new", ROWS, name="table4", title="Table 4", note="Accuracy in per cent.")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["table4.json", "table4.md"]
    assert (tmp_path / "new" / "table4.md").read_text() == (
        "# Table 4\n"
        "\n"
        "|  | paper | ours | 95% interval over seeds | seeds | verdict |\n"
        "|:---|---:|---:|---:|---:|:---|\n"
        "| FedAlt | 93.57 | 91.23 | 91.00 to 91.47 | 5 | holds |\n"
        "| a \\| b c | - | - | - | 1 | - |\n"
        "\n"
        "Accuracy in per cent.\n"
    )
    found = json.loads((tmp_path / "new" / "table4.json").read_text())
    assert found == {"title": "Table 4", "note": "Accuracy in per cent.", "rows": [ROWS[0], {**ROWS[1], "ours": None}]}


def test_other_columns_and_values(tmp_path):
    rows = [{"value": 0.1, "names": ["a", "b"], "deep": {1: (math.inf, 2)}}, {"value": 1, "names": [], "deep": None}]
    write_table(tmp_path, rows, columns={"value": "weight decay", "names": "hurt"}, digits=1)
    assert (tmp_path / "table.md").read_text() == (
        "| weight decay | hurt |\n|---:|---:|\n| 0.1 | ['a', 'b'] |\n| 1 | [] |\n"
    )
    found = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert found == [
        {"value": 0.1, "names": ["a", "b"], "deep": {"1": [None, 2]}},
        {"value": 1, "names": [], "deep": None},
    ]


def test_what_is_there_is_replaced_whole(tmp_path):
    for note in ("long " * 100, "short"):
        write_table(tmp_path, ROWS, note=note)
    assert (tmp_path / "table.md").read_text().endswith("\n\nshort\n")
    assert not list(tmp_path.glob(".*"))


def test_bad_input(tmp_path):
    with pytest.raises(MoietyError, match="`name` must be the name of a file"):
        write_table(tmp_path, ROWS, name="../elsewhere")
    with pytest.raises(MoietyError, match="`columns` must be at least one"):
        markdown(ROWS, columns={})
    (tmp_path / "file").write_text("")
    with pytest.raises(MoietyError, match="`out` must be a folder that can be written"):
        write_table(tmp_path / "file", ROWS)
