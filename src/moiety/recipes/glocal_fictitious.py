"""Figures 3 and 4 of the Glocal paper: Glocal.SGD and Glocal.ERM find the best pair, fictitious play gets stuck.

Appendix C: one client, x^g = (a + e, b), x^l = (1 - a, 1 - b) with a and b standard normal and e of variance 0.25,
y = 1; both sides start at (1, 0), and (0, 1) for both has no loss. 50 rollouts of 20,000 steps, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.glocal_trials import Result, begun, cell

if TYPE_CHECKING:
    import numpy as np

NAME = "glocal-fictitious"
LABELS = {"sgd": "Glocal.SGD", "erm": "Glocal.ERM", "fictitious": "fictitious play"}
ABOUT = (
    '"Global and Local Learning for Distributed Personalization", appendix C. One client whose shared part must go from'
    " (1, 0) to (0, 1) together with its personal part, without delay. *Glocal.SGD* (Algorithm 5) steps along both"
    " gradients, *Glocal.ERM* (Algorithm 6) refits either side on all examples so far with the newest values of the"
    " other, *fictitious play* (Algorithm 7) keeps the other side's values of each time."
)
NOTES = (
    "Glocal.SGD has Adagrad (footnote 5) with the paper's rate 1.0; plain SGD at that rate diverges, since a step of 2"
    " x x^T is longer than what the loss allows.",
    "N(0, 0.25) is read as a variance. Where examples are too few to determine a refit, the solution nearest to the"
    " present value is taken.",
    "The paper prints no numbers for these figures.",
)


@dataclass(frozen=True)
class Size:
    """How much of it."""

    rollouts: int
    rounds: int


FULL = Size(50, 20_000)
SIZES = {"ci": Size(3, 300), "laptop": FULL, "paper": FULL}


def glocal_fictitious(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """Three ways to find the best pair, and one that does not.

    Args: as in ``glocal_table1``; ``rounds`` are the steps.
    """
    from moiety.recipes.glocal_fictitious_report import report

    asked = begun(NAME, out, rounds, seed, engine, resume, scale)
    size = SIZES[asked["scale"]]
    steps = asked["rounds"] or size.rounds
    cells = {
        name: cell(out, name, partial(run, asked["seed"], size.rollouts, steps))
        for name, run in {"sgd": _sgd, "erm": _erm, "fictitious": _fictitious}.items()
    }
    text, sentence = report(NAME, asked, cells, out)
    return Outcome({}, sentence, text)


def rollouts(seed: int, count: int, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """C.1: global features, local features [rollouts, rounds, 1, 2] and targets [rollouts, rounds, 1]."""
    import numpy as np

    from moiety.random import generator

    draw = generator(seed, "appendix C")
    a, b = draw.normal(size=(2, count, rounds, 1))
    noise = draw.normal(scale=0.5, size=a.shape)
    return np.stack([a + noise, b], axis=-1), np.stack([1 - a, 1 - b], axis=-1), np.ones_like(a)


def _sgd(seed: int, count: int, rounds: int) -> Result:
    """Every rollout is a trial of one client, whose global features are the first two and local ones the others."""
    import torch

    from moiety.recipes.glocal_block import Block, Trials, play

    g, own, y = (torch.from_numpy(each).float() for each in rollouts(seed, count, rounds))
    x = torch.cat([g, own], dim=-1).movedim(1, 2)
    rows = torch.arange(rounds).reshape(1, -1, 1).expand(count, rounds, 1)
    first = torch.tensor([1.0, 1, 0, 0]).expand(count, 4)
    block = Block(
        torch.arange(count), torch.ones(count), torch.zeros(count, dtype=torch.int64), globally=first, locally=1 - first
    )
    start = torch.tensor([[1.0], [0], [0], [0]]), torch.tensor([[0.0], [0], [1], [0]])
    found = play(Trials(x, y.movedim(1, 2)[..., None], rows), block, start=start, keep=1)
    return _result(found.losses.double().numpy(), found.moments[:, :, :2, 0].movedim(0, 1).double().numpy())


def _erm(seed: int, count: int, rounds: int) -> Result:
    from moiety.analysis.glocal_erm import glocal_erm

    return _refitted(glocal_erm(*rollouts(seed, count, rounds), shared=[1.0, 0.0], personal=[1.0, 0.0]))


def _fictitious(seed: int, count: int, rounds: int) -> Result:
    from moiety.analysis.glocal_erm import fictitious_play

    return _refitted(fictitious_play(*rollouts(seed, count, rounds), shared=[1.0, 0.0], personal=[1.0, 0.0]))


def _refitted(found: Any) -> Result:
    return _result(found.losses[..., 0], found.shared[:, 1:])


def _result(losses: np.ndarray, shared: np.ndarray) -> Result:
    """Average losses and parameters at rounds that a logarithmic axis shows evenly, of every rollout."""
    import numpy as np

    rounds = losses.shape[1]
    shown = np.unique(np.geomspace(1, rounds, 60).astype(int))
    averages = np.cumsum(losses, axis=1) / np.arange(1, rounds + 1)
    kept: Mapping[str, np.ndarray] = {"losses": averages[:, shown - 1], "shared": shared[:, shown - 1]}
    return {"rounds": rounds, "shown": shown.tolist(), **{k: v.tolist() for k, v in kept.items()}}
