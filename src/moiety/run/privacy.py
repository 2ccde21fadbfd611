"""The privacy of a run: what it can go with, what its folder counts, and what it has cost."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

from moiety.algorithms import ALGORITHMS
from moiety.clients.clock import Clock, Synchronous
from moiety.errors import is_real, is_whole, must, refuse
from moiety.loop.round import Loop
from moiety.seals import read_sealed, write_sealed
from moiety.server.mean import RUNNING
from moiety.server.robust import Aggregator
from moiety.transport.accounting import add_sums, count_sums, find_noise, spend_at_rates, spend_epsilon
from moiety.transport.privacy import Gaussian, PrivacyState
from moiety.types import Algorithm

COUNTED = "privacy.json"
"""The noise of a run, and how many noisy sums were ever drawn, written before each draw.

A run that is killed goes on from a checkpoint that is some rounds old. It draws those again, and both count.
"""
LOST = "Restore it from a copy: without it nobody knows how many sums were drawn."


def check_privacy(
    privacy: Gaussian, algorithm: Algorithm, aggregator: Aggregator | None, clock: Clock | None, clients: int
) -> None:
    """Raise where a run cannot keep what privacy promises."""
    name = algorithm.name
    must(
        algorithm.aggregator in RUNNING, "privacy", f"left out for {name}, which joins uploads by no mean or sum", "it"
    )
    joins = aggregator is None or privacy.local
    hint = 'Or let devices add the noise, with where="local".'
    must(joins, "aggregator", "left out with central privacy, which sums uploads", "one", hint)
    in_time = clock is None or isinstance(clock, Synchronous)
    must(in_time, "clock", "synchronous, or left out, with privacy", "another", "A sum must be that of one round.")
    must(privacy.delta < 1 / clients, "delta", f"below 1 / {clients}, one over the number of clients", privacy.delta)
    weighting = find_weighting(algorithm)
    hint = f'Make it as {name}(weighting="uniform", ...).'
    must(weighting in (None, "uniform"), "weighting", "uniform with privacy", weighting, hint)


def count_clients(delta: float) -> int:
    """The most clients for which ``delta`` is below one over their number.

    >>> count_clients(0.01), count_clients(0.3), count_clients(1e-5)
    (99, 3, 99999)
    """
    most = int(1 / delta) + 1
    while most > 1 and delta >= 1 / most:
        most -= 1
    return most


def find_weighting(algorithm: Algorithm) -> str | None:
    """The argument ``weighting`` that the algorithm was made with; None for one that has none, or is the user's own."""
    builder = ALGORITHMS.get(algorithm.name)
    parameters = {} if builder is None else inspect.signature(builder).parameters
    weighting: str | None = algorithm.spec.get(
        "weighting", parameters["weighting"].default if "weighting" in parameters else None
    )
    return weighting


def begin_privacy(
    privacy: Gaussian | None, participation: str, rounds: int | None, cohort: int | None, clients: int
) -> PrivacyState | None:
    """The state before the first round; where epsilon is given, with the noise that so many rounds need for it."""
    if privacy is None:
        return None
    assert rounds is not None
    assert cohort is not None
    rate = privacy.sampling_rate(cohort, clients, independent=participation == "bernoulli")
    if privacy.noise is not None:
        spend_epsilon(privacy.shrink(privacy.noise), rounds, rate, privacy.delta)  # refuses where the library is absent
        return PrivacyState(float(privacy.noise), privacy.clip)
    assert privacy.epsilon is not None
    multiplier = find_noise(privacy.epsilon, rounds, rate, privacy.delta)
    return PrivacyState(multiplier / privacy.shrink(1.0), privacy.clip)


def check_draws(privacy: Gaussian, noise: float, draws: int) -> None:
    """Raise where so many uploads of one client, each with local ``noise``, cost it more than the epsilon asked for."""
    if privacy.epsilon is None:
        return
    multiplier = privacy.shrink(noise)
    if spend_epsilon(multiplier, draws, 1.0, privacy.delta) > privacy.epsilon:
        most = count_sums(privacy.epsilon, multiplier, draws, 1.0, privacy.delta)
        refuse("turn", f"one of the {most} that epsilon {privacy.epsilon:g} is for", draws, "Each costs privacy.")


def write_counted(folder: Path, state: PrivacyState, run: str) -> None:
    """Write down how many sums were drawn."""
    write_sealed(folder / COUNTED, state._asdict(), run)


def read_counted(folder: Path, run: str) -> PrivacyState:
    """What ``write_counted`` wrote."""
    must((folder / COUNTED).exists(), COUNTED, "there for a run with privacy", f"none in {folder}", LOST)
    table = read_sealed(folder / COUNTED, run, PrivacyState._fields, LOST)
    table = {key: table[key] for key in PrivacyState._fields}
    fits = is_real(table["noise"]) and is_real(table["clip"]) and is_whole(table["sums"])
    fits = fits and isinstance(table["rates"], list) and sum(sums for _, sums in table["rates"]) == table["sums"]
    must(fits, COUNTED, "as it was written", f"{table!r:.60} in {folder}", LOST)
    return PrivacyState.from_dict(table)


def count_again(loop: Loop, folder: Path) -> None:
    """Let a run that goes on count all sums that it ever drew.

    Raise where the rounds that are left would cost more than the epsilon that was asked for.
    """
    privacy, now = loop.uploads.privacy, loop.progress
    assert privacy is not None
    record = read_counted(folder, now.run)
    # Without a checkpoint the run begins again, with the first clip.
    clip = privacy.clip if now.privacy is None else now.privacy.clip
    now.privacy = record._replace(clip=clip)
    if privacy.epsilon is None:
        return
    rest, multiplier = loop.rounds - now.round, privacy.shrink(now.privacy.noise)
    rates, rate = now.privacy.rates, loop.sampling_rate
    if spend_at_rates(multiplier, add_sums(rates, rate, rest), privacy.delta) <= privacy.epsilon:
        return
    fits = now.round + count_sums(privacy.epsilon, multiplier, rest, rate, privacy.delta, rates)
    fault = f"{loop.rounds}: {now.privacy.sums} noisy sums were drawn for {now.round} rounds"
    must(False, "rounds", f"at most {fits} for epsilon {privacy.epsilon:g}", fault)


def report_privacy(loop: Loop) -> dict[str, Any]:
    """What a row of the history and the ledger say: epsilon (None for infinity), delta, the clip, the noisy sums."""
    privacy, state = loop.uploads.privacy, loop.progress.privacy
    if privacy is None or state is None:
        return {}
    epsilon = spend_at_rates(privacy.shrink(state.noise), state.rates, privacy.delta)
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": privacy.delta,
        "noise": state.noise,
        "clip": state.clip,
        "noisy_sums": state.sums,
    }
