"""Tables, letter by letter."""

from __future__ import annotations

import math

import pytest

from moiety.errors import MoietyError
from moiety.reports.tables import markdown

ROWS = [
    {"row": "FedAlt", "paper": 93.57, "ours": 91.234, "low": 91.0, "high": 91.468, "seeds": 5, "verdict": "holds"},
    {"row": "a | b\nc", "paper": None, "ours": math.nan, "low": None, "high": None, "seeds": 1, "verdict": None},
]


def test_the_usual_columns():
    assert markdown(ROWS) == (
        "|  | paper | ours | 95% interval over seeds | seeds | verdict |\n"
        "|:---|---:|---:|---:|---:|:---|\n"
        "| FedAlt | 93.57 | 91.23 | 91.00 to 91.47 | 5 | holds |\n"
        "| a \\| b c | - | - | - | 1 | - |"
    )


def test_other_columns_and_values():
    rows = [{"value": 0.1, "names": ["a", "b"], "deep": {1: (math.inf, 2)}}, {"value": 1, "names": [], "deep": None}]
    text = markdown(rows, columns={"value": "weight decay", "names": "hurt"}, digits=1)
    assert text == "| weight decay | hurt |\n|---:|---:|\n| 0.1 | ['a', 'b'] |\n| 1 | [] |"


def test_bad_input():
    with pytest.raises(MoietyError, match="`columns` must be at least one"):
        markdown(ROWS, columns={})


def test_numbers_of_a_run_that_diverged_can_be_read():
    text = markdown(
        [{"row": "mean", "ours": 2.6e46, "low": -1.5, "high": 12345678.9}], columns={"ours": "ours", "interval": "95%"}
    )
    assert "| 2.6e+46 | -1.50 to 1.235e+07 |" in text
    assert "| 99999.25 |" in markdown([{"ours": 99999.25}], columns={"ours": "ours"})
