"""New draws of clients' personal parts, until as many as were asked for are effective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from moiety import tree
from moiety.engines.base import Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.evaluation import Row
from moiety.evaluation.chains import AGREE, LEAST_DRAWS, judge_chain
from moiety.loop.evaluate import adapt_phases
from moiety.loop.round import Loop
from moiety.types import Algorithm, Params, Tree

CHUNK = 100
"""Steps of a chain in one call."""
FIRST_LOOK, LONGEST = 4, 400
"""Steps for each draw that was asked for: when a chain is first judged, and when it ends in any case."""


class Draws(NamedTuple):
    """Draws one below the other, what they are worth, and how far the halves of their chain agree (split R-hat)."""

    points: Params
    effective: float
    rhat: float
    diverges: bool = False


def draw_enough(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    clients: Sequence[int],
    states: Sequence[Tree],
    draws: int,
    *,
    round: int,
    keys: Sequence[int] | None = None,
) -> list[Draws]:
    """Go on with clients' chains from ``states`` until ``draws`` of their points are effective.

    The longer a chain, the more rarely it is judged. Its points are then thinned to ``draws``, evenly. A chain that has
    fewer effective draws after ``LONGEST`` steps for each ends there.

    Args:
        problem: whose data has the clients.
        algorithm: with a posterior.
        engine: with the functions of ``client_functions``.
        received: what the server sends.
        clients: their positions.
        states: theirs, with chains that are past their burn-in.
        draws: how many effective draws to make.
        round: how many rounds were trained.
        keys: of the clients' random numbers, where they are newcomers.
    """
    assert algorithm.posterior is not None
    phases = {name: phase for name, phase in adapt_phases(algorithm).items() if name == "sample"}
    phases["sample"] = phases["sample"]._replace(steps=CHUNK)
    pieces: list[list[Params]] = [[] for _ in clients]
    now, complete = list(states), [False] * len(clients)
    results: list[Draws] = [Draws({}, 0.0, math.inf)] * len(clients)
    length, turn = max(FIRST_LOOK * draws, LEAST_DRAWS), 0
    while not all(complete):
        some = [i for i, end in enumerate(complete) if not end]
        jobs = problem.make_jobs(
            phases, [clients[i] for i in some], [now[i] for i in some], "draw", round, turn, part="train"
        )
        if keys is not None:
            jobs = [job._replace(key=keys[i]) for i, job in zip(some, jobs, strict=True)]
        for i, (points, state) in zip(some, engine.map("go_on", jobs, received, RoundInfo(round)), strict=True):
            pieces[i].append(tree.clone(points))
            now[i] = tree.clone(state)
        turn += 1
        if turn * CHUNK < length:
            continue
        length = min(2 * length, LONGEST * draws)
        for i in some:
            chain = {name: torch.cat([piece[name] for piece in pieces[i]]) for name in pieces[i][0]}
            effective, rhat = judge_draws(chain)
            complete[i] = effective >= draws or turn * CHUNK >= LONGEST * draws
            if complete[i]:
                ends = torch.from_numpy(np.linspace(0, turn * CHUNK, draws + 1)[1:].astype(int) - 1)
                thin = {name: z[ends.to(z.device)] for name, z in chain.items()}
                diverges = bool(algorithm.posterior.report(now[i]).get("diverges", False))
                results[i] = Draws(thin, min(effective, draws), rhat, diverges)
                pieces[i] = []
    return results


def judge_draws(points: Params) -> tuple[float, float]:
    """Effective sample size and split R-hat of draws by name, by the tenth of their numbers that mixes worst."""
    if not points:
        return math.nan, math.nan
    count = len(next(iter(points.values())))
    return judge_chain(torch.cat([z.reshape(count, -1).double() for z in points.values()], dim=1).cpu().numpy())


def describe_shortfall(draws: int, effective: float | None, rhat: float | None) -> str:
    """What to warn of where ``draws`` were asked for: fewer are effective, or the halves of their chain disagree.

    >>> describe_shortfall(100, 12.0, 1.31)
    '12.0 of 100 draws are effective after the longest chain, split R-hat is 1.31: trust them as far as that.'
    """
    if effective is None or rhat is None:
        return ""
    if effective < draws:
        text = f"{effective:.1f} of {draws} draws are effective after the longest chain"
        return f"{text}, split R-hat is {rhat:.2f}: trust them as far as that."
    if rhat > AGREE:
        text = f"The halves of the chain of these draws disagree (split R-hat {rhat:.2f}, above {AGREE})"
        return f"{text}. Ask for more: draws={max(100, 2 * draws)}."
    return ""


def add_chain_columns(loop: Loop, rows: Sequence[Row]) -> None:
    """Let clients' rows say what the draws that they keep are worth, and how their chains fare.

    ``effective_draws`` and ``rhat`` are None for too few draws, all columns for a client that keeps none. One warning
    names chains that left their density.
    """
    posterior, store = loop.algorithm.posterior, loop.progress.store
    if posterior is None or not loop.keeps_states or loop.on_devices:
        return
    received = loop.problem.broadcast(loop.algorithm, loop.progress.server)
    owners, index, failures = set(store.owners()), loop.problem.data.index, []
    names = ("effective_draws", "rhat", *posterior.report(loop.problem.first_state(loop.algorithm)))
    for row in rows:
        row.update(dict.fromkeys(names))
        client = index(row["client"])
        if client in owners:
            (state,) = store.get([client])
            effective, rhat = judge_draws(posterior.samples(received, state))
            row.update(posterior.report(state))
            row.update(effective_draws=or_none(effective), rhat=or_none(rhat))
            failures += [row["client"]] if row.get("diverges") else []
    if failures:
        some = ", ".join(failures[:3]) + (", ..." if len(failures) > 3 else "")
        text = f"The chains of {len(failures)} of {len(rows)} clients left their density in their last turn: {some}."
        loop.problem.warn_once([f"{text} Make the kernel's step smaller, or let mo.kernel.mala() find it."])


def or_none(value: float) -> float | None:
    """The number; None for NaN."""
    return None if math.isnan(value) else value
