"""The figure of clients shows the rows of the description."""

import numpy as np
import pytest

from moiety.data.describe import Description
from moiety.errors import MoietyError
from moiety.reports import draw_clients


def test_panels_show_clients_in_ascending_order_and_labels_from_the_commonest():
    rows = ({"client": "a", "train": 5, "test": 0}, {"client": "b", "train": 2, "test": 0})
    description = Description("two", rows, {"no": 0.25, "yes": 0.75}, {"age": 3, "ward": 0}, ())
    figure = draw_clients(description, title="above")
    sizes, labels, missing = (axes for axes in figure.axes if axes.get_visible())  # nobody has test rows
    heights = sizes.collections[0].get_paths()[0].vertices[:, 1]
    assert sizes.get_title() == "training rows"
    assert heights.max() == 5
    assert sizes.get_xlabel() == "2 clients, in ascending order"
    assert [bar.get_height() for bar in labels.patches] == [0.75, 0.25]
    assert [text.get_text() for text in labels.get_xticklabels()] == ["yes", "no"]
    np.testing.assert_allclose([bar.get_height() for bar in missing.patches], [3, 0])


def test_what_is_no_description_is_refused():
    with pytest.raises(MoietyError, match=r"what FederatedData\.describe gives"):
        draw_clients("data")
