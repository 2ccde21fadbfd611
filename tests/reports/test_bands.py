"""What the bands show is what the rows say; read back from the axes."""

import pytest

from moiety.errors import MoietyError
from moiety.reports.figures import COLOURS
from moiety.reports.lines import bands, forest


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


def test_names_that_are_not_joined_stand_side_by_side_with_bars():
    figure = bands({"a": {"one": line(3, 5), "two": line(3, 2)}}, x="problem", y="score", joined=False)
    (axes,) = figure.axes
    one, two = axes.lines[:2]
    assert one.get_ydata().tolist() == [3, 5]
    assert {one.get_linestyle(), two.get_linestyle()} == {"None"}
    assert one.get_xdata()[0] < 0 < two.get_xdata()[0]
    bars = [[pair[:, 1].tolist() for pair in each.get_segments()] for each in axes.collections]
    assert bars == [[[2, 4], [4, 6]], [[2, 4], [1, 3]]]


def test_intervals_of_shares_stay_within_0_and_100():
    figure = bands({"a": {"one": line(99.5, 0.5, width=2)}}, x="round", y="test accuracy (%)")
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 100)


def test_a_forest_says_where_its_line_is_and_has_room_for_every_row():
    rows = [{"row": "one", "mean": -2.0, "low": -4.0, "high": 0.0}, {"row": "two", "mean": -5.0}]
    (axes,) = forest(rows, x="points, 99% interval", line=-3.0).axes
    assert axes.get_xlabel() == "points, 99% interval; the grey line is at -3"
    low, high = axes.get_ylim()
    assert low < -1
    assert high > 0
    assert forest(rows, x="points").axes[0].get_xlabel() == "points"


@pytest.mark.parametrize("series", [{}, {"a": {}}, {"a": {str(k): line(1) for k in range(7)}}])
def test_bad_input(series):
    with pytest.raises(MoietyError, match="`series` must be"):
        bands(series, x="x", y="y")
