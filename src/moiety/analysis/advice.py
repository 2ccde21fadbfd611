"""Advice on FedAlt and FedSim as a record that can be read."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from moiety.analysis.theory import Constants, Terms

NAMES = {"fedalt": "FedAlt", "fedsim": "FedSim"}


@dataclass(frozen=True)
class Advice:
    """What was found and what follows.

    ``better`` is ``fedalt``, ``fedsim``, ``alike`` or ``undecided``. ``factor`` is FedSim's leading term divided by
    FedAlt's, from ``low`` to ``high`` over the points and over resampled clients; ``factor_as_printed`` is the same
    with the variances as Theorems 1 and 2 print them. ``constants`` are the largest values met, ``typical`` the
    medians. ``alt`` and ``sim`` are the terms of the two bounds after the given number of rounds.
    """

    better: str
    factor: float
    low: float
    high: float
    factor_as_printed: float
    constants: Constants
    typical: dict[str, float]
    gap: float
    alt: Terms
    sim: Terms
    rounds: int
    clients: int
    points: int
    examples: int

    @property
    def chi(self) -> float:
        """The cross-sensitivity of (5)."""
        return math.sqrt(self.constants.chi2)

    @property
    def sentence(self) -> str:
        """The advice in words."""
        size = max(self.factor, 1 / self.factor) if self.factor else math.inf
        span = f"{self.low:.3g} to {self.high:.3g}" if self.better != "fedsim" else _inverse(self.low, self.high)
        looked = f"over {_count(self.points, 'point')} and {_count(self.clients, 'client')}"
        if self.better == "alike":
            said = f"The leading terms of FedAlt and FedSim are alike (ratio {self.factor:.3g}, {span} {looked})."
        elif self.better == "undecided":
            said = (
                "Not decided by what was looked at: FedSim's leading term divided by FedAlt's is "
                f"{self.factor:.3g}, but {span} {looked}."
            )
        else:
            other = NAMES["fedsim" if self.better == "fedalt" else "fedalt"]
            said = (
                f"{NAMES[self.better]} has the better leading term: {other}'s is {size:.3g} times as large "
                f"({span} {looked})."
            )
        return " ".join([said, *self._notes()])

    def _notes(self) -> list[str]:
        """What the reader should know before relying on it."""
        notes = []
        if (self.factor - 1) * (self.factor_as_printed - 1) < 0:
            notes.append(
                "With the variances as Theorems 1 and 2 print them, without the 1/m of their proofs, it is the other "
                f"way round (ratio {self.factor_as_printed:.3g})."
            )
        small = [name for name, t in (("FedAlt", self.alt), ("FedSim", self.sim)) if t.leading < max(t.second, t.last)]
        if small:
            who = " and ".join(small)
            notes.append(f"After {_count(self.rounds, 'round')} the leading term is not yet the largest for {who}.")
        notes.append("Estimates are lower bounds at the points looked at, and bounds are known up to constants only.")
        return notes

    def __str__(self) -> str:
        c = self.constants
        rows = [
            ("L_u", "curvature in the shared part", c.L_u, self.typical["L_u"]),
            ("L_v", "curvature in the personal part", c.L_v, self.typical["L_v"]),
            ("L_uv = L_vu", "how one part moves the other's gradient", c.L_uv, self.typical["L_uv"]),
            ("chi", "cross-sensitivity, max(L_uv, L_vu) / sqrt(L_u L_v)", self.chi, None),
            ("sigma_u^2", "variance of a batch's shared gradient", c.sigma_u2, self.typical["sigma_u2"]),
            ("sigma_v^2", "variance of a batch's personal gradient", c.sigma_v2, self.typical["sigma_v2"]),
            ("delta^2", "diversity of the clients' shared gradients", c.delta2, self.typical["delta2"]),
            ("Delta F_0", "loss at the start above its least value, at most", self.gap, None),
        ]
        lines = [f"{'':14}{'largest':>10}{'median':>10}"]
        for name, meaning, most, middle in rows:
            lines.append(f"{name:14}{most:>10.3g}{'' if middle is None else f'{middle:.3g}':>10}   {meaning}")
        lines += ["", f"{f'bound, T = {self.rounds}':22}{'T^-1/2':>10}{'T^-2/3':>10}{'1/T':>10}"]
        for name, terms in (("FedAlt (Theorem 1)", self.alt), ("FedSim (Theorem 2)", self.sim)):
            lines.append(f"{name:22}" + "".join(f"{term:>10.3g}" for term in terms))
        return "\n".join([*lines, "", textwrap.fill(self.sentence, 100)])


def _inverse(low: float, high: float) -> str:
    return f"{1 / high:.3g} to {1 / low:.3g}" if low else f"{1 / high:.3g} and more"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
