"""Predictions of a client's model from several draws of its personal part."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from moiety.errors import choice, must, number, proper_fraction
from moiety.evaluation.calibration import as_numbers
from moiety.evaluation.chains import AGREE

KINDS = ("function", "observations")
"""What an interval may be of."""
FEWEST = 10
"""Effective draws below which an interval of observations is too narrow to go unmentioned."""
HALVINGS = 80
"""Steps of the bisection for a quantile; each halves the error."""


@dataclass(frozen=True)
class Predictive:
    """Outputs of one model for each draw of its personal part, [draws, examples, ...]; there may be one draw only.

    For classification outputs are logits, and predictions are averaged as probabilities (Bayesian model averaging).
    ``loss`` is the name of the loss that the model was trained with, None for a user's own function: only outputs of
    ``cross_entropy`` have probabilities. ``noise`` is the deviation of observations around the outputs, where the
    algorithm has learned or was told it. ``effective`` says how many independent draws these are worth, and ``rhat``
    how far the halves of their chain agree; both are None where nobody knows.
    """

    outputs: np.ndarray
    loss: str | None = "cross_entropy"
    noise: float | None = None
    effective: float | None = None
    rhat: float | None = None

    def __post_init__(self) -> None:
        """Turn the outputs into an array."""
        outputs = as_numbers("outputs", self.outputs)
        must(outputs.ndim > 1 and outputs.size > 0, "outputs", "of shape [draws, examples, ...]", outputs.shape)
        object.__setattr__(self, "outputs", outputs)

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
        return _compute_entropy(self.probabilities)

    @property
    def mutual_information(self) -> np.ndarray:
        """How much of the entropy comes from the personal part, that is from draws that disagree, in nats.

        It is the entropy of the mean prediction minus the mean entropy of predictions, 0 where all draws agree.
        """
        each = _compute_entropy(np.exp(self._log_probabilities())).mean(0)
        return np.asarray(np.maximum(self.entropy - each, 0.0))

    def interval(
        self, level: float = 0.9, *, of: str = "function", noise: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds ``level`` of the posterior, for each output.

        The k-th smallest of M independent draws is the quantile k / (M + 1): a further draw lies between the i-th and
        the j-th with probability (j - i) / (M + 1). So 0.9 needs 19 draws, and a level that is too high is refused.
        Draws of a chain that resemble each other count for fewer: where too few are effective, or where the halves of
        their chain disagree (split R-hat above ``moiety.evaluation.chains.AGREE``), a warning says so.

        An interval of observations is that of the mixture of normals around the draws, which are first moved apart so
        that its spread is, on average, that of observations around the mean of M draws. For a normal posterior and
        level 0.9 it covers 0.85 to 0.9 from 10 draws and 0.75 to 0.9 from 5, least where the noise is small compared
        with the posterior. One draw has no spread: the interval is then that of the noise of the one model.

        Args:
            level: the share of the posterior, between 0 and 1.
            of: ``function`` for the output itself, the mean of observations; ``observations`` for a new observation,
                which has noise of its own.
            noise: the standard deviation of observations around the output; what the algorithm knows by default. Given
                and above 0, it asks for observations.
        """
        proper_fraction("level", level)
        choice("of", of, KINDS)
        if noise is None and of == "observations":
            hint = "Give `noise`, or train with fedpop and the loss mse, which learns it."
            must(self.noise is not None, "noise", "known for an interval of observations", self.noise, hint)
            noise = self.noise
        noise = 0.0 if noise is None else noise
        number("noise", noise, ">= 0 and finite", lambda x: 0 <= x < np.inf)
        low, high = (1 - level) / 2, (1 + level) / 2
        if noise > 0:
            self._warn_of_chain(FEWEST, f"an interval of observations needs {FEWEST}")
            centres = self._spread_out()
            return _find_quantile(centres, low, noise), _find_quantile(centres, high, noise)
        self._check_level(level)
        ends = np.quantile(self.outputs, [low, high], axis=0, method="weibull")
        return ends[0], ends[1]

    def _warn_of_chain(self, least: int, why: str) -> None:
        """Warn in one line where the draws are worth fewer than are needed, or the halves of their chain disagree."""
        count, faults = len(self.outputs), []
        if self.effective is not None and self.effective < least - 0.5:
            draws = "1 draw is" if count == 1 else f"{count} draws are"
            faults.append(f"{draws} worth {self.effective:.1f} independent ones, {why}: it is too narrow")
        if self.rhat is not None and self.rhat > AGREE:
            faults.append(
                f"the halves of the chain of these draws disagree (split R-hat {self.rhat:.2f}, above {AGREE})"
            )
        if faults:
            more = f"Ask for more: run.predictive(client, x, draws={max(100, 2 * count)})."
            warnings.warn(f"{'; '.join(faults)}. {more}", stacklevel=3)

    def _check_level(self, level: float) -> None:
        """Refuse a level whose ends would lie outside all draws."""
        count = len(self.outputs)
        least = math.ceil((1 + level) / (1 - level) - 1e-9)  # 19 for 0.9, whose quotient is rounded up
        hint = "A model without a posterior has one: give `noise` for an interval of observations. With a posterior,"
        hint += f" ask run.predictive for draws={least} or more."
        must(count > 1, "draws", "several for an interval of the output", count, hint)
        most = (count - 1) / (count + 1)
        hint = f"Ask run.predictive for draws={least} or more, or lower the level."
        must(count >= least, "level", f"<= {most:.4g}, the most that {count} draws can hold", level, hint)
        self._warn_of_chain(least, f"an interval of level {level:g} needs {least}")

    def _spread_out(self) -> np.ndarray:
        """The draws, moved away from their mean.

        The squared distance of a further draw of variance v from the mean of M is v (M + 1) / M on average; the
        variance of the draws themselves is v (M - 1) / M.
        """
        count = len(self.outputs)
        if count == 1:
            return self.outputs
        return np.asarray(self.mean + math.sqrt((count + 1) / (count - 1)) * (self.outputs - self.mean))

    def _log_probabilities(self) -> np.ndarray:
        from scipy.special import logsumexp  # a tenth of a second to import

        hint = "Where outputs are logits, `Predictive(outputs)` takes them for such; else see `mean` and `interval`."
        loss = "a function of your own" if self.loss is None else self.loss
        must(self.loss == "cross_entropy", "loss", "cross_entropy for probabilities", loss, hint)
        shape = self.outputs.shape
        must(len(shape) == 3, "outputs", "one row of logits per example for probabilities", shape[1:])
        must(shape[2] > 1, "outputs", "logits of two classes or more for probabilities", shape[2])
        return np.asarray(self.outputs - logsumexp(self.outputs, axis=-1, keepdims=True))


def _find_quantile(centres: np.ndarray, share: float, noise: float) -> np.ndarray:
    """The point below which a share of the mixture of normals round the centres lies, by bisection."""
    from scipy.special import ndtr, ndtri

    far = noise * abs(float(ndtri(share)))
    low, high = centres.min(0) - far, centres.max(0) + far
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = ndtr((middle - centres) / noise).mean(0) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def _compute_entropy(probabilities: np.ndarray) -> np.ndarray:
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logs).sum(-1))
