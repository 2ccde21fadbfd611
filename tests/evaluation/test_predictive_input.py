"""What is no prediction is one line; what NumPy takes for an array is one."""

import numpy as np
import pytest
import torch

from moiety.errors import MoietyError
from moiety.evaluation.calibration import calibration_rows
from moiety.evaluation.predictive import Predictive


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_lists_and_tensors_are_arrays(kind):
    predictive = Predictive(kind([[[0.0, float(np.log(3))]]]))
    np.testing.assert_allclose(predictive.probabilities, [[0.25, 0.75]], rtol=1e-6)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([1.0, 2.0], r"`outputs` must be of shape \[draws, examples, ...\], got \(2,\)"),
        (np.zeros((0, 3, 2)), r"`outputs` must be of shape \[draws, examples, ...\], got \(0, 3, 2\)"),
        ([[[0.0, np.nan]]], "`outputs` must be finite everywhere, got"),
        ([["a"]], "`outputs` must be numbers, got"),
    ],
)
def test_other_outputs_are_one_line(outputs, text):
    with pytest.raises(MoietyError, match=text):
        Predictive(outputs)


@pytest.mark.parametrize(
    ("predictions", "text"),
    [
        ([1], "`predictions` must be probabilities and labels by client"),
        ({"a": 3}, r"`predictions\['a'\]` must be \(probabilities"),
    ],
)
def test_predictions_by_client_are_pairs(predictions, text):
    with pytest.raises(MoietyError, match=text):
        calibration_rows(predictions)
