"""Panels of lines hold the points that they were given, on logarithmic axes."""

import pytest

from moiety.errors import MoietyError

pytest.importorskip("matplotlib")

from moiety.reports.lines import courses, log_panels

SHOWN = {
    "one": {"a": [(1, 10.0), (2, 0.1)], "b": [(1, 5.0), (2, 0.0), (3, 0.5)]},
    "two": {"a": [(1, 1.0)]},
    "three": {"a": [(1, 1.0)]},
}


def test_lines_and_axes():
    figure = log_panels(SHOWN, y="error", title="all")
    first, second, third, spare = figure.axes
    assert [axes.get_title() for axes in (first, second, third)] == ["one", "two", "three"]
    assert {axes.get_yscale() for axes in (first, second, third)} == {"log"}
    assert [line.get_label() for line in first.lines] == ["a", "b"]
    # 0 has no place on a logarithmic axis.
    assert [tuple(line.get_xydata().ravel()) for line in first.lines] == [(1, 10, 2, 0.1), (1, 5, 3, 0.5)]
    assert len({(line.get_color(), line.get_linestyle()) for line in first.lines}) == 2
    assert not spare.get_visible()
    assert figure.get_size_inches()[0] * figure.dpi == 1000


@pytest.mark.parametrize("series", [{}, {"one": {}}])
def test_nothing_to_show(series):
    with pytest.raises(MoietyError, match=r"^`series` must be panels with at least one line each, got none\.$"):
        log_panels(series, y="error")


def test_many_seeds_are_pale_and_their_mean_is_drawn_over_them():
    """Nine lines with ends 1 to 9, one of them shorter; the mean goes as far as all lines do."""
    lines = [([0, 10 * k], [0, k]) for k in range(1, 9)] + [([0], [9])]
    (axes,) = courses({"a": lines}, across="seconds", label="score", scale=2).axes
    *pale, mean = axes.lines
    assert [line.get_alpha() for line in pale] == [0.2] * 9
    assert (mean.get_label(), mean.get_alpha()) == ("a", None)
    assert mean.get_xydata().tolist() == [[0, 2]]
    (axes,) = courses({"a": lines[:8]}, across="seconds", label="score").axes
    assert [line.get_alpha() for line in axes.lines] == [1.0] * 8
    (axes,) = courses({"a": [*lines[:8], lines[0]]}, across="seconds", label="score").axes
    assert axes.lines[-1].get_xydata().ravel().tolist() == pytest.approx([0, 0, 370 / 9, 37 / 9])
