"""Panels of lines hold the points that they were given, on logarithmic axes."""

import pytest

from moiety.errors import MoietyError

pytest.importorskip("matplotlib")

from moiety.reports.lines import log_panels

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
