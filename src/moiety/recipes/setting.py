"""A setting of Pillutla et al. 2022, section 4: data, a model, the parts of it to keep personal, sizes and rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moiety.errors import choice, whole

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.split import Split

SCALES = ("ci", "laptop", "paper")
"""``ci`` ends in seconds and shows nothing but that it runs, ``laptop`` in minutes, ``paper`` has the paper's sizes."""

FULL = "full"
"""The name of the split that keeps the whole model personal."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One option of the finetuning of one split at several values, the first of which is without it (Figure 10).

    ``option`` is ``weight_decay`` of ``moiety.finetune``, ``pull`` of ``moiety.ditto`` (then ``split`` is ``full``),
    or ``dropout``: then the setting's model is made with it.
    """

    option: str
    split: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        choice("option", self.option, ("weight_decay", "pull", "dropout"))


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Sizes and rates of the three stages (appendices B.2 and B.3, Table 9) at one scale.

    (a) ``rounds`` of FedAvg; (b) ``personal_rounds`` of FedAlt or FedSim, both parts at one rate; (c)
    ``finetune_epochs`` of the personal part alone, by every client. Clients make one pass over their rows in (a), and
    one for each part in (b). A rate is one number, or several: then the best of them on validation rows is taken.
    ``federated``, ``personalised`` and ``finetuned`` are more options of the algorithms of (a), (b) and (c), such as a
    server optimiser, a schedule or a largest gradient norm. ``pull`` is the weight of the l2 term of Ditto and,
    where ``pfedme_pull`` is not given, of pFedMe; ``pfedme_lr`` is the rate of pFedMe's shared model and
    ``pfedme_steps`` the number of its steps on a batch. ``stateless`` names the split of Table 13.
    """

    seeds: int
    cohort: int
    batch_size: int
    rounds: int
    personal_rounds: int
    finetune_epochs: int = 5
    lr: tuple[float, ...]
    personal_lr: tuple[float, ...]
    finetune_lr: tuple[float, ...]
    pull: float = 0.1
    pfedme_pull: float | None = None
    pfedme_lr: float = 1.0
    pfedme_steps: int = 5
    federated: Mapping[str, Any] = field(default_factory=dict)
    personalised: Mapping[str, Any] = field(default_factory=dict)
    finetuned: Mapping[str, Any] = field(default_factory=dict)
    stateless: str | None = None
    sweeps: tuple[Sweep, ...] = ()

    def with_rounds(self, rounds: int | None) -> Stages:
        """As asked on the command line: that many rounds of (a), and of (b) in the same ratio."""
        if rounds is None:
            return self
        whole("rounds", rounds, 1)
        return replace(self, rounds=rounds, personal_rounds=max(1, round(rounds * self.personal_rounds / self.rounds)))


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What the paper prints for the task that is nearest, in the unit of its tables (per cent).

    ``table`` has a row for each split with FT (part.), FedAlt and FedSim (Table 4, or Tables 3 and 11), ``baselines``
    the numbers by method (Table 2), ``final`` the change by the final finetuning of FedAlt and FedSim (Table 12),
    ``stateless`` is as ``table`` (Table 13), ``memory`` in megabytes by split, with ``none`` and ``full`` (Table 10).
    What the paper does not have is left out.
    """

    task: str
    table: Mapping[str, tuple[float | None, float | None, float | None]]
    baselines: Mapping[str, float]
    final: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    stateless: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set with one model at one scale; ``partial_table`` makes the paper's tables of it.

    ``data(seed)`` keeps validation rows apart, which are counted as training rows once the rates are chosen.
    ``model(seed)`` makes the model (``model(seed, dropout=p)`` where a sweep asks for it). ``splits`` are the rows of
    the table, from a name (``input``, ``output``, ``adapter``) to a builder. ``fit`` holds more options of
    ``moiety.fit``: loss, metric, inputs. Two scores within ``margin`` of each other (in the metric's own unit)
    count as close. ``notes`` are printed with the table.
    """

    name: str
    title: str
    data: Callable[[int], FederatedData]
    model: Callable[..., nn.Module]
    splits: Mapping[str, Callable[[nn.Module], Split]]
    stages: Stages
    paper: Paper
    margin: float
    fit: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
