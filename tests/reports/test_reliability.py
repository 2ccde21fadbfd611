"""Reliability diagrams and densities show the rows they were given."""

import numpy as np
import pytest

from moiety.errors import MoietyError
from moiety.reports.reliability import densities, reliability_diagram

ROWS = [
    {"low": 0.4, "high": 0.6, "n": 1, "confidence": 0.6, "accuracy": 0.0},
    {"low": 0.6, "high": 0.8, "n": 3, "confidence": 0.7, "accuracy": 0.5},
]


def test_bars_are_accuracies_and_points_stand_at_confidences():
    figure = reliability_diagram({"one": ROWS, "other": ROWS[1:]}, title="above")
    first = figure.axes[0]
    assert [(bar.get_x(), bar.get_height()) for bar in first.patches] == [(0.4, 0.0), (0.6, 0.5)]
    (shares, points) = first.collections
    np.testing.assert_allclose(points.get_offsets(), [[0.6, 0.0], [0.7, 0.5]])
    # (1 * 0.6 + 3 * 0.2) / 4
    assert first.get_title() == "one: calibration error 0.300"
    np.testing.assert_allclose(shares.get_segments(), [[[0.4, 0.25], [0.6, 0.25]], [[0.6, 0.75], [0.8, 0.75]]])


def test_bins_without_examples_have_no_line():
    rows = [{**ROWS[0], "low": 0.2, "high": 0.3, "n": 9}, {**ROWS[1], "low": 0.5, "high": 0.6, "n": 1}]
    (shares, _) = reliability_diagram({"one": rows}).axes[0].collections
    np.testing.assert_allclose(shares.get_segments(), [[[0.2, 0.9], [0.3, 0.9]], [[0.5, 0.1], [0.6, 0.1]]])


def test_every_name_has_a_panel_and_the_rest_is_empty():
    figure = reliability_diagram({str(i): ROWS for i in range(4)})
    assert [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2


def test_densities_have_an_area_of_one():
    figure = densities({"a client": {"its own": [0.1, 0.2, 0.9], "others": [1.0, 2.0]}})
    own = figure.axes[0].patches[0].get_xy()
    width, height = np.diff(own[:, 0]), own[:-1, 1]
    assert (np.abs(width) * height).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("draw", [reliability_diagram, densities])
@pytest.mark.parametrize("series", [{}, {"a": []}])
def test_nothing_to_show_is_one_line(draw, series):
    with pytest.raises(MoietyError, match="`series` must be"):
        draw(series)


def test_rows_that_lack_something_are_one_line():
    with pytest.raises(MoietyError, match=r"`series\['a'\]` must be rows with low, high, n.*, got none with accuracy"):
        reliability_diagram({"a": [{"n": 1}]})
    with pytest.raises(MoietyError, match="`series` must be scores"):
        densities({"a": {"own": []}})
