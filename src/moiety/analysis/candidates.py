"""What ``recommend`` compares: one model for all, each client alone, and the personal parts that a model offers.

Every candidate but local training continues from the same model, trained by FedAvg for half of the time. So candidates
differ in what they do from there on, and in nothing else.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from torch import nn

from moiety.algorithms import ditto, fedalt, fedavg, fedpop, fedsim, finetune, local_only
from moiety.analysis.recommendation import ONE
from moiety.data import FederatedData
from moiety.errors import MoietyError, kind, must, report_errors
from moiety.local import Optimiser
from moiety.server.optimisers import adam
from moiety.split import Split, adapters, by_name, everything, input_layer, lora, norms, output_layer
from moiety.split.layers import is_norm, list_layers
from moiety.types import Algorithm

Build = Callable[[float, float], Algorithm]
"""Makes the algorithm from the learning rate that is tuned, and from that of the shared part."""
Own = Split | Callable[[float], Algorithm | tuple[Algorithm, Split]]
"""A candidate of the user's: a split, or a function of a learning rate."""
ALONE = "local only"
BLOCKS = 8
"""The most groups of layers that are tried, besides input and output."""
RANK = 4
PULL = 0.1
FEW_ROWS = 30
"""FedPop joins where the median client has at most this many training rows."""
DRAWS = 4
TWICE = 2
"""How many splits are trained by FedSim besides FedAlt."""


@dataclass(frozen=True)
class Candidate:
    """A way to train: its name in tables, the words that begin a sentence about it, and what makes its algorithm.

    ``passes`` counts gradient evaluations for each training row of a client's turn. ``local`` marks local training,
    which continues from clients that trained alone.
    """

    name: str
    title: str
    build: Build
    split: Split | None = None
    passes: int = 1
    local: bool = False

    @property
    def place(self) -> str:
        """Its name as a folder."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-").lower()

    def rounds(self, rounds: float) -> int:
        """How many rounds of this one cost as much as ``rounds`` of FedAvg, at least one."""
        return max(1, round(rounds / self.passes))

    def cost(self, rounds: float) -> int:
        """What these cost, in rounds of FedAvg: about ``rounds``."""
        return self.rounds(rounds) * self.passes


def list_splits(model: nn.Module) -> dict[str, Split]:
    """The personal parts that fit the model, by name; those that say the same as an earlier one are left out.

    >>> list(list_splits(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))))
    ['output layer', 'input layer', 'LoRA', 'layer 1']
    """
    splits: dict[str, Split] = {}
    for name, make in _offer_splits(model):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that a rank is smaller in small layers
                split = make()
        except MoietyError:  # it does not fit: no norms, tied weights, nothing to adapt
            continue
        same = any(split.trained_personal == other.trained_personal for other in splits.values())
        if split.trained_personal and split.trained_shared and not same:
            splits[name] = split
    return splits


def _offer_splits(model: nn.Module) -> Iterator[tuple[str, Callable[[], Split]]]:
    yield "output layer", lambda: output_layer(model)
    yield "input layer", lambda: input_layer(model)
    yield "norms", lambda: norms(model)
    yield "adapters", lambda: adapters(model)
    yield "LoRA", lambda: lora(model, rank=RANK)
    for block in group_layers(model):
        name = block[0] if len(block) == 1 else f"{block[0]} to {block[-1]}"
        yield (
            f"layer {name}" if len(block) == 1 else f"layers {name}",
            lambda block=block: by_name(  # type: ignore[misc]
                model, personal=list(block)
            ),
        )


def group_layers(model: nn.Module, most: int = BLOCKS) -> list[list[str]]:
    """The layers of a model in at most so many groups of neighbours; a normalisation goes with the layer before it.

    Layers that belong to one module are kept together where there are too many of them.

    >>> group_layers(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2)))
    [['0', '1'], ['2']]
    """
    groups: list[list[str]] = []
    for layer in list_layers(model):
        if groups and is_norm(layer.module):
            groups[-1].append(layer.name)
        else:
            groups.append([layer.name])
    depth = max((name.count(".") for group in groups for name in group), default=0)
    while len(groups) > most and depth > 0:
        groups = _merge(groups, lambda group, depth=depth: ".".join(group[0].split(".")[:depth]))  # type: ignore[misc]
        depth -= 1
    if len(groups) > most:  # a long chain
        size = -(-len(groups) // most)
        groups = [list(chain.from_iterable(groups[at : at + size])) for at in range(0, len(groups), size)]
    return groups


def _merge(groups: Sequence[list[str]], owner: Callable[[list[str]], str]) -> list[list[str]]:
    unions: list[list[str]] = []
    for group in groups:
        if unions and owner(unions[-1]) == owner(group):
            unions[-1] = unions[-1] + group
        else:
            unions.append(group)
    return unions


def list_candidates(
    model: nn.Module,
    data: FederatedData,
    work: Optimiser,
    splits: Mapping[str, Split],
    *,
    loss: object,
    simultaneous_first: bool = False,
    own: Mapping[str, Own] | None = None,
) -> list[Candidate]:
    """The candidates, one model for all first, and last those that a small budget does without.

    Args:
        model: the model.
        data: the examples of all clients.
        work: local work; its learning rate is set anew for each candidate.
        splits: the personal parts to try, the most promising first: FedSim trains the first two besides FedAlt.
        loss: the loss; FedPop needs one that is a likelihood.
        simultaneous_first: FedSim before FedAlt.
        own: the user's own candidates.
    """

    def at(lr: float, **changes: Any) -> Optimiser:
        return replace(work, lr=lr, **changes)

    whole = everything(model)
    candidates = [
        Candidate(ONE, "One model for all", lambda rate, shared: fedavg(shared=at(rate))),
        Candidate("finetuning", "Finetuning", lambda rate, shared: finetune(personal=at(rate)), whole),
    ]
    kind("also", own, (Mapping, type(None)), "splits, or functions of a learning rate, by name")
    for name, entry in (own or {}).items():
        candidates.append(_read_own(name, entry, at))
    names = list(splits)
    for name in names[:TWICE]:
        pair = [_alternate(name, splits[name], at), _train_at_once(name, splits[name], at)]
        candidates += pair[::-1] if simultaneous_first else pair
    build_ditto: Build = lambda rate, shared: ditto(personal=at(rate, pull=PULL), form="finetune")  # noqa: E731
    candidates += [
        Candidate(ALONE, "Each client alone", lambda rate, shared: local_only(personal=at(rate)), whole, local=True),
        Candidate("Ditto", "A model for each client near the shared one (Ditto)", build_ditto),
    ]
    has_few_rows = median(data.sizes("train").tolist()) <= FEW_ROWS
    if has_few_rows and loss in ("cross_entropy", "mse") and "output layer" in splits:
        candidates.append(_sample(splits["output layer"]))
    candidates += [_alternate(name, splits[name], at) for name in names[TWICE:]]
    places = [each.place for each in candidates]
    twice = sorted({each.name for each in candidates if places.count(each.place) > 1})
    hint = "Capital letters and signs do not tell names apart: they name folders too."
    must(not twice, "also", "names that no other candidate has", ", ".join(twice), hint)
    return candidates


def _title(name: str, method: str) -> str:
    article = "" if name in ("norms", "adapters", "LoRA") or name.startswith("layers") else "A "
    words = f"{article}personal {name} ({method})"
    return words[0].upper() + words[1:]


def _alternate(name: str, split: Split, at: Callable[..., Optimiser]) -> Candidate:
    build: Build = lambda rate, shared: fedalt(shared=at(shared), personal=at(rate))  # noqa: E731
    return Candidate(f"{name}, FedAlt", _title(name, "FedAlt"), build, split, passes=2)


def _train_at_once(name: str, split: Split, at: Callable[..., Optimiser]) -> Candidate:
    build: Build = lambda rate, shared: fedsim(shared=at(shared), personal=at(rate))  # noqa: E731
    return Candidate(f"{name}, FedSim", _title(name, "FedSim"), build, split)


def _sample(split: Split) -> Candidate:
    """FedPop. The server's Adam takes steps of a quarter of the rate: they do not shrink with the gradient."""

    def build(rate: float, shared: float) -> Algorithm:
        return fedpop(shared=1.0, samples=DRAWS, server=adam(lr=rate / 4))

    return Candidate("output layer, FedPop", _title("output layer", "FedPop"), build, split, passes=2 * DRAWS)


def _read_own(name: str, entry: Own, at: Callable[..., Optimiser]) -> Candidate:
    kind("also", name, str, "names of candidates that are text")
    must(any(map(str.isalnum, name)), "also", "names with a letter or a digit", repr(name))
    if isinstance(entry, Split):
        return replace(_alternate(name, entry, at), name=name, title=f"{name[:1].upper()}{name[1:]} (FedAlt)")
    must(callable(entry), "also", "splits, or functions of a learning rate", f"{entry!r:.60}")

    def build(rate: float, shared: float) -> Algorithm:
        answer = entry(rate)
        return answer[0] if isinstance(answer, tuple) and answer else answer

    hint = "As in lambda rate: mo.apfl(shared=rate, personal=rate)."
    with report_errors("also", "functions of a learning rate", where=f" ({name})", hint=hint):
        first = entry(0.1)
    split = first[1] if isinstance(first, tuple) and len(first) == 2 else None
    kind("also", split, (Split, type(None)), "functions that give an algorithm, or one and its split", hint)
    algorithm = build(0.1, 0.1)
    kind("also", algorithm, Algorithm, "functions that give an algorithm, or one and its split", hint)
    return Candidate(name, f"{name[:1].upper()}{name[1:]}", build, split, passes=count_passes(algorithm, 32))


def describe_candidate(candidate: Candidate) -> dict[str, Any]:
    """What tells a candidate of the user's from another of that name: its algorithm, and what is personal."""
    personal = None if candidate.split is None else list(candidate.split.trained_personal)
    return {"algorithm": candidate.build(0.1, 0.1).spec, "personal": personal}


def count_passes(algorithm: Algorithm, rows: int) -> int:
    """Gradient evaluations for each row of a client with so many rows, in one turn, at least one.

    >>> from moiety.algorithms import fedalt, fedavg
    >>> count_passes(fedavg(shared=0.1), 32), count_passes(fedalt(shared=0.1, personal=0.1), 32)
    (1, 2)
    """
    total = 0.0
    for phase in algorithm.phases.values():
        epochs = phase.epochs or (phase.steps or 0) * min(phase.batch_size, rows) / rows
        total += epochs * phase.repeats(1)
    return max(1, round(total))
