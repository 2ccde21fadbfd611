"""What a client's model predicts when its personal part is not one value but several draws of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from moiety.errors import must, number

HALVINGS = 80
"""Steps of the bisection for a quantile; each halves the error."""


@dataclass(frozen=True)
class Predictive:
    """Outputs of one model for each draw of its personal part, [draws, examples, ...]; one draw where there is no more.

    For classification outputs are logits, and predictions are averaged as probabilities (Bayesian model averaging).
    """

    outputs: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean output of each example."""
        return np.asarray(self.outputs.mean(0))

    @property
    def probabilities(self) -> np.ndarray:
        """The mean over draws of the classes' probabilities, [examples, classes]."""
        return np.asarray(np.exp(self._log_probabilities()).mean(0))

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of the averaged prediction of each example, in nats."""
        return _entropy(self.probabilities)

    @property
    def mutual_information(self) -> np.ndarray:
        """How much of the entropy is about the personal part: what draws disagree on, in nats.

        It is the entropy of the mean prediction minus the mean entropy of predictions, 0 where all draws agree.
        """
        each = _entropy(np.exp(self._log_probabilities())).mean(0)
        return np.asarray(np.maximum(self.entropy - each, 0.0))

    def interval(self, level: float = 0.9, *, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds ``level`` of the posterior, for each output.

        Args:
            level: its share, between 0 and 1.
            noise: the standard deviation of observations round the output: the interval is then one of observations;
                by default it is one of the output itself.
        """
        number("level", level, "> 0 and < 1", lambda x: 0 < x < 1)
        number("noise", noise, ">= 0 and finite", lambda x: 0 <= x < np.inf)
        low, high = (1 - level) / 2, (1 + level) / 2
        if noise == 0:
            found = np.quantile(self.outputs, [low, high], axis=0)
            return found[0], found[1]
        return self._quantile(low, noise), self._quantile(high, noise)

    def _quantile(self, share: float, noise: float) -> np.ndarray:
        """The point below which a share of the mixture of normals round the draws lies, by bisection."""
        far = noise * abs(float(ndtri(share)))
        low, high = self.outputs.min(0) - far, self.outputs.max(0) + far
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = ndtr((middle - self.outputs) / noise).mean(0) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray((low + high) / 2)

    def _log_probabilities(self) -> np.ndarray:
        shape = self.outputs.shape
        must(len(shape) == 3, "outputs", "one row of logits per example for probabilities", shape[1:])
        logits = self.outputs.astype(np.float64)
        return np.asarray(logits - logsumexp(logits, axis=-1, keepdims=True))


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logs).sum(-1))
