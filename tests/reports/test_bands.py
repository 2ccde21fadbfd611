"""What the bands show is what the rows say; read back from the axes."""

import pytest

from moiety.errors import MoietyError
from moiety.reports.figures import COLOURS
from moiety.reports.lines import bands


def line(*means, width=1.0):
    return [{"x": 10 * k, "mean": m, "low": m - width, "high": m + width} for k, m in enumerate(means)]


def test_lines_and_intervals_are_those_of_the_rows():
    figure = bands({"a": {"one": line(3, 5), "two": line(1, 2)}, "b": {"two": line(7, 8)}}, x="clients", y="score")
    first, second = figure.axes
    assert [ln.get_ydata().tolist() for ln in first.lines[:2]] == [[3, 5], [1, 2]]
    assert first.lines[0].get_xdata().tolist() == [0, 10]
    path = first.collections[0].get_paths()[0].vertices
    assert (path[:, 1].min(), path[:, 1].max()) == (2, 6)
    # A name has its colour in every panel.
    assert second.lines[0].get_color() == first.lines[1].get_color() == COLOURS[1]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert (first.get_title(), first.get_xlabel(), first.get_ylabel()) == ("a", "clients", "score")


def test_panels_that_are_left_over_are_not_shown():
    figure = bands({name: {"one": line(1, 2)} for name in "abcd"}, x="x", y="y")
    assert [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2


def test_without_intervals_there_are_lines_alone():
    figure = bands({"a": {"one": [{"x": 0, "mean": 1}, {"x": 1, "mean": 2}]}}, x="x", y="y")
    assert not figure.axes[0].collections


@pytest.mark.parametrize("series", [{}, {"a": {}}, {"a": {str(k): line(1) for k in range(7)}}])
def test_bad_input(series):
    with pytest.raises(MoietyError, match="`series` must be"):
        bands(series, x="x", y="y")
