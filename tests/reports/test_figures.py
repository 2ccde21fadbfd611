"""What figures show is what the rows say; read back from the axes."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from moiety.errors import MoietyError
from moiety.reports import figures
from moiety.reports.figures import accuracy_against_parameters, save, scatter_change, seed_bands, violins


def make_changes(*gains, train=None, sizes=(4, 9, 16, 25, 36)):
    train = train or [None] * len(gains)
    return [
        {"client": str(i), "n": n, "n_test": 5, "test": gain, "train": other}
        for i, (n, gain, other) in enumerate(zip(sizes, gains, train, strict=False))
    ]


def points(axes):
    """All points of a scatter by their label."""
    return {c.get_label(): c.get_offsets().tolist() for c in axes.collections}


def test_scatter_shows_every_client_by_its_size():
    figure = scatter_change(
        {
            "full": make_changes(0.5, -0.25, 0.0, train=[0.25, 0.5, 0.75]),
            "output layer": make_changes(0.125, 0.25, None, train=[0.0, 0.5, 0.5]),
        },
        title="Digits",
    )
    assert [axes.get_title() for axes in figure.axes] == [
        "full, training rows",
        "full, test rows",
        "output layer, training rows",
        "output layer, test rows",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["change (percentage points)"] * 4
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", *["training rows of the client"] * 2]
    assert points(figure.axes[0]) == {"helped: 3 of 3": [[4, 25], [9, 50], [16, 75]]}
    assert points(figure.axes[1]) == {
        "helped: 1 of 3": [[4, 50]],
        "unchanged: 1 of 3": [[16, 0]],
        "hurt: 1 of 3": [[9, -25]],
    }
    assert points(figure.axes[3]) == {"helped: 2 of 2": [[4, 12.5], [9, 25]]}
    assert figure.get_suptitle() == "Digits"


def test_scatter_without_training_rows_and_with_far_sizes():
    figure = scatter_change({"adapter": make_changes(1.0, 2.0, sizes=(2, 200))}, unit="mse", scale=1)
    (axes,) = figure.axes
    assert (axes.get_ylabel(), axes.get_xscale()) == ("change (mse)", "log")
    assert points(axes) == {"helped: 2 of 2": [[2, 1], [200, 2]]}
    assert scatter_change({"adapter": make_changes(1.0, 2.0)}).axes[0].get_xscale() == "linear"


def test_legends_stand_outside_of_the_panels():
    """A point or an interval may be anywhere in them."""
    scatter, parts = scatter_change({"full": make_changes(0.5, -0.25, 0.0)}), accuracy_against_parameters(ROWS)
    for figure in (scatter, parts):
        figure.draw_without_rendering()
    panel = scatter.axes[0]
    assert panel.get_legend().get_window_extent().y0 >= panel.get_window_extent().y1
    assert panel.title.get_window_extent().y0 >= panel.get_legend().get_window_extent().y1
    assert parts.axes[0].get_legend() is None
    assert parts.legends[0].get_window_extent().y1 <= parts.axes[0].get_window_extent().y0


def test_violins_mark_median_quartiles_and_range():
    """0, 1, 2, 3, 10 in points: quartiles 1, 2, 3. -4, -2 and one without rows: quartiles -3.5, -3, -2.5."""
    figure = violins(
        {"none": [0.0, 0.1, 0.02, 0.03, 0.01], "much": [-0.04, None, -0.02]}, label="dropout", title="Digits"
    )
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["none\n0% hurt", "much\n100% hurt"]
    assert (axes.get_xlabel(), axes.get_title()) == ("dropout", "Digits")
    assert axes.get_ylabel() == "change (percentage points)"
    lines = [np.array(c.get_segments()[0])[:, 1].tolist() for c in axes.collections if hasattr(c, "get_segments")]
    assert lines == [pytest.approx(pair) for pair in ([0, 10], [1, 3], [-4, -2], [-3.5, -2.5])]
    dots = [c.get_offsets().tolist() for c in axes.collections if type(c).__name__ == "PathCollection"]
    assert dots == [[[1, 2]], [[2, -3]]]


def test_violins_of_one_client_and_of_equal_ones():
    (axes,) = violins({"one": [0.5], "equal": [0.1, 0.1, 0.1]}).axes
    dots = [c.get_offsets().tolist() for c in axes.collections if type(c).__name__ == "PathCollection"]
    assert dots == [[[1, 50]], [[2, 10]]]


def test_bands_go_from_least_to_largest():
    rows = [
        {"client": "d", "n": 3, "mean": -0.2, "min": -0.3, "max": -0.1, "hurt": 3, "seeds": 3},
        {"client": "b", "n": 3, "mean": -0.1, "min": -0.4, "max": 0.2, "hurt": 2, "seeds": 3},
        {"client": "a", "n": 3, "mean": 0.2, "min": 0.1, "max": 0.3, "hurt": 0, "seeds": 3},
    ]
    figure = seed_bands(rows)
    (axes,) = figure.axes
    line = next(line for line in axes.lines if line.get_label() == "mean over seeds")
    assert line.get_xydata().tolist() == [[1, pytest.approx(-20)], [2, -10], [3, 20]]
    band, dots, always = axes.collections
    corners = {tuple(np.round(xy, 6)) for xy in band.get_paths()[0].vertices}
    assert corners == {(1, -30), (1, -10), (2, -40), (2, 20), (3, 10), (3, 30)}
    assert dots.get_offsets().tolist() == [[2, -10]]
    assert always.get_offsets().tolist() == [[1, pytest.approx(-20)]]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "least to largest of 3 seeds",
        "mean over seeds",
        "hurt in some seeds only: 1 of 3",
        "hurt in every seed: 1 of 3",
    ]


ROWS = [
    {"row": "adapter", "personal": 100, "share": 0.125, "difference": 0.01, "low": None, "high": None},
    {"row": "everything", "personal": 800, "share": 1.0, "difference": 0.02, "low": 0.015, "high": 0.03},
]


def test_parameters_are_on_a_logarithmic_axis_with_intervals():
    figure = accuracy_against_parameters(ROWS, title="Digits")
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_title()) == ("log", "personal parameters", "Digits")
    one, other = axes.containers
    assert [c.lines[0].get_xydata().tolist() for c in (one, other)] == [[[100, 1]], [[800, 2]]]
    assert not one.has_yerr
    assert np.array(other.lines[2][0].get_segments()[0]) == pytest.approx(np.array([[800, 1.5], [800, 3]]))
    assert [c.get_label() for c in (one, other)] == ["adapter: 100 (12.5% of all)", "everything: 800 (100% of all)"]


def test_parts_of_one_size_stand_side_by_side_and_a_short_axis_has_plain_numbers():
    same = [{**ROWS[1], "row": name, "personal": 5000} for name in ("input", "output")]
    figure = accuracy_against_parameters([*same, {**ROWS[1], "row": "all", "personal": 40_000}])
    (axes,) = figure.axes
    first, second, _ = (container.lines[0].get_xdata()[0] for container in axes.containers)
    assert first == 5000 < second < 5500
    figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_xticklabels(which="both") if label.get_text()]
    assert {"10,000", "20,000", "40,000"} <= set(labels)
    assert all(re.fullmatch(r"[\d,]+", label) for label in labels)


def test_files_are_png_of_a_thousand_pixels_and_the_same_each_time(tmp_path):
    for name in ("first", "second"):
        save(accuracy_against_parameters(ROWS), tmp_path / "new" / f"{name}.png")
    first, second = ((tmp_path / "new" / f"{name}.png").read_bytes() for name in ("first", "second"))
    assert first == second
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(first[16:20], "big") == 1000
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: scatter_change({}), "`series` must be at least one"),
        (lambda: scatter_change({"a": make_changes(None)}), "`series` must be rows with changes"),
        (lambda: violins({"a": [None]}), "at least one client for every name"),
        (lambda: violins({}), "at least one client"),
        (lambda: seed_bands([]), "`rows` must be"),
        (lambda: accuracy_against_parameters([]), "`rows` must be at least one"),
        (lambda: accuracy_against_parameters([{**ROWS[0], "personal": 0}]), "parts with personal parameters"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(MoietyError, match=message):
        draw()


def test_without_the_extra_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MoietyError, match=r"pip install 'moiety\[report\]'"):
        figures.violins({"a": [1.0]})


def test_importing_figures_does_not_import_matplotlib():
    assert not hasattr(figures, "Figure")  # a name for type checkers alone


def test_no_client_hides_behind_another():
    tied = scatter_change({"full": make_changes(0.5, 0.5, 0.5, 0.1, sizes=(4, 4, 4, 36))})
    (axes,) = tied.axes
    (places,) = points(axes).values()
    assert len({tuple(place) for place in places}) == 4
    assert [y for _, y in places] == [50, 50, 50, 10]
    assert sum(x for x, _ in places[:3]) / 3 == pytest.approx(4)  # moved apart around their place
    assert places[3] == [36, 10]


def test_clients_of_one_size_stand_in_the_order_of_their_change():
    (axes,) = scatter_change({"full": make_changes(0.5, -0.25, 0.0, sizes=(28, 28, 28))}).axes
    assert points(axes) == {"hurt: 1 of 3": [[1, -25]], "unchanged: 1 of 3": [[2, 0]], "helped: 1 of 3": [[3, 50]]}
    assert axes.get_xlabel() == "clients by their change, 28 rows each"


def test_a_legend_has_as_many_columns_as_fit():
    def columns(label):
        figure, axes = figures.make_axes(5.5, x="", y="", title="")
        for name in "abc":
            axes.plot([0, 1], [0, 1], label=f"{name} {label}")
        figures.legend_below(figure, 3)
        return figure.legends[0]._ncols

    assert (columns("short"), columns("a label of some forty letters, or more"), columns(100 * "x")) == (3, 2, 1)
