"""The words of the house as types. No logic lives here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters and buffers by name, flat, names as in ``named_parameters()`` and ``named_buffers()``."""

Batch = dict[str, Tensor]
"""Named columns with a leading example axis. Blocks of clients that were padded to one shape carry a ``mask``
column too, 1 for a real row and 0 for padding; where every row is real there is none."""

Tree = Any
"""Nested tuples, NamedTuples, lists and dicts of tensors and numbers."""

Names = tuple[str, ...]


LossFunction = Callable[[Params, Batch], tuple[Tensor, Params]]
"""One loss per example, and the buffers that the forward pass changed."""


class Metric(NamedTuple):
    """A number per example and the direction in which it is good.

    ``weight(batch)`` says how much each example counts (its tokens, its words), 1 each by default: a client's metric is
    the weighted mean over its examples, and clients are averaged by the sums of their weights.
    """

    name: str
    higher_is_better: bool
    per_example: Callable[[Tensor, Batch], Tensor]
    weight: Callable[[Batch], Tensor] | None = None


class SetMetric(NamedTuple):
    """A number for a set of examples that is no mean over them (AUROC, say), and the direction in which it is good.

    ``compute(outputs, batch)`` takes the model's outputs and the columns of all rows of the set. It gives NaN where the
    metric is not defined for them.

    >>> worst = SetMetric("worst error", False, lambda outputs, batch: float((outputs[:, 0] - batch["y"]).abs().max()))
    >>> worst.compute(torch.tensor([[1.0], [2.0]]), {"y": torch.tensor([1.0, 5.0])})  # then fit(..., metric=worst)
    3.0
    """

    name: str
    higher_is_better: bool
    compute: Callable[[Tensor, Batch], float]


@dataclass(frozen=True)
class Partial:
    """A task while only some parameters are trained: features that stay the same, and the loss from them.

    ``features(params, batch)`` gives columns with a row per example; ``loss(params, batch)`` is the task's loss of a
    batch that holds those columns, in which the columns ``spare`` are no longer needed.
    """

    features: Callable[[Params, Batch], Batch]
    loss: LossFunction
    spare: Names


@dataclass(frozen=True)
class PartialScores:
    """Scores of models that differ in some parameters alone, in evaluation mode.

    ``features(params, batch)`` gives columns that are the same for all of them; ``scores(params, batch)`` is that of
    the task for a batch that holds those columns.
    """

    features: Callable[[Params, Batch], Batch]
    scores: Callable[[Params, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A functional view of an ``nn.Module`` or of plain functions.

    ``init`` holds the first values of all parameters and buffers, ``buffers`` names the latter. ``loss`` is per
    example, in training mode, and comes with the new values of the buffers that the forward pass changed. ``predict``
    and ``scores`` (loss and metric per example, from one forward pass) are in evaluation mode.

    >>> from moiety.task import from_functions
    >>> task = from_functions({"w": torch.tensor(2.0)}, lambda p, batch: (p["w"] * batch["x"] - batch["y"]).square())
    >>> task.loss(task.init, {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([2.0, 5.0])})[0].tolist()
    [0.0, 1.0]
    """

    init: Params
    buffers: frozenset[str]
    loss: LossFunction
    predict: Callable[[Params, Batch], Tensor]
    scores: Callable[[Params, Batch], tuple[Tensor, Tensor]]
    metric: Metric
    sets: tuple[SetMetric, ...] = ()
    """Metrics of all rows of a client at once, in addition to ``metric``."""
    set_decides: bool = False
    """Whether gains are counted in the first of ``sets``, and not in ``metric``."""
    score_outputs: Callable[[Tensor, Batch], tuple[Tensor, Tensor]] | None = None
    """Loss and metric per example of given outputs; None where they cannot be told from outputs alone."""
    mixes_examples: bool = False
    """True where one example's output depends on the others in its batch (BatchNorm while training)."""
    unvectorised: str | None = None
    """Why the task cannot be computed for many clients at once; None where it can."""
    partial: Callable[[frozenset[str], Params, Batch], Partial | str | None] = lambda trained, params, batch: None
    """Says how to train the named parameters alone, and tries that on a few rows. None where nothing comes before them,
    a text with the reason where the whole model must be run."""
    partial_scores: Callable[[frozenset[str], Params, Batch], PartialScores | None] = lambda own, params, batch: None
    """Says how to score models that differ in the named parameters alone; None where each must be run as a whole."""

    @property
    def deciding(self) -> Metric | SetMetric:
        """The metric that gains are counted in."""
        return self.sets[0] if self.set_decides else self.metric


Objective = Callable[[Params], tuple[Tensor, Params]]
"""From the block being trained to its loss and the buffers that the forward pass changed."""


class Gradient(Protocol):
    """Given by the engine: ``(gradients, loss, changed buffers)`` of an objective at a point."""

    def __call__(self, objective: Objective, at: Params, /) -> tuple[Params, Tensor, Params]:
        """Differentiate the objective at a point."""
        ...


Reuse = Callable[[Params, frozenset[str], Iterable[Batch]], tuple[LossFunction, Iterable[Batch]]]


@dataclass(frozen=True)
class Work:
    """All that one client has at hand in one round: its batches, the loss, and the engine's gradient.

    ``shared`` and ``personal`` name the trainable parameters of each part. ``compose`` makes a whole model of the two
    parts and ``parts`` takes it apart again, buffers included.
    """

    task: Task
    shared: Names
    personal: Names
    compose: Callable[[Params, Params], Params]
    parts: Callable[[Params], tuple[Params, Params]]
    batches: Callable[[str], Iterable[Batch]]
    gradient: Gradient
    scale: float
    """The schedule's factor on client learning rates in this round."""
    examples: Tensor
    """The number of training examples, as a float64 tensor without axes."""
    key: Tensor = field(default_factory=lambda: torch.tensor(0))
    """The client's own key for ``moiety.random``, an int64 tensor without axes, the same in all its turns."""
    turn: int = 0
    """A number for this turn (its purpose and its round), by which ``moiety.random`` tells its draws from others."""
    round: int = 0
    """The number of rounds before this turn."""
    elapsed: float = 0.0
    """How far the run is: 0 in its first round, 1 in its last."""
    round_trip: Tensor = field(default_factory=lambda: torch.tensor(0))
    """Rounds from a broadcast to the aggregation of what the client makes of it, an int64 tensor without axes; more
    than 0 where ``moiety.clock.delayed`` says so."""
    reuse: Reuse | None = None
    """Given by the engine: the loss and the batches of a phase that trains only some parameters of a model, with what
    these do not reach computed once per row."""
    partial: Callable[[frozenset[str]], Partial | None] = lambda trained: None
    """Given by the engine: the task with only the named parameters trained; None where the whole model must be run."""
    score_cut: Callable[[frozenset[str]], PartialScores | None] = lambda own: None
    """Given by the engine: how to score models that differ in the named parameters alone; None where each must be run
    as a whole."""


class ClientUpdate(NamedTuple):
    """What one client's local work gives: all of it leaves the client.

    ``upload`` is what the server joins, by the ``weight``, which must be >= 0. ``info`` is for the record: single
    numbers, one of them the ``loss``. The guard sees to it.
    """

    upload: Params
    weight: Tensor
    info: dict[str, Tensor]


class Phase(NamedTuple):
    """How long a client works on one block: a number of ``epochs`` or of ``steps``, one of them set.

    With ``walk``, the steps of a round go on in the data where those of the round before ended. ``newcomer_steps`` is
    the number of steps for a client that keeps no state or was never seen, where that differs. ``repeats`` says for a
    turn (``Work.turn``) how often the client goes through the rows. ``search`` marks a phase that searches for masks
    with the whole model. A batch is computed in ``accumulate`` pieces, one after the other.
    """

    epochs: int | None
    steps: int | None
    batch_size: int
    shuffle: bool
    walk: bool = False
    newcomer_steps: int | None = None
    repeats: Callable[[int], int] = lambda turn: 1
    search: bool = False
    accumulate: int = 1


@dataclass(frozen=True)
class Recorded:
    """A value that a file can describe: ``spec`` holds the name of its builder and the arguments of the call."""

    spec: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)


@dataclass(frozen=True)
class Schedule(Recorded):
    """A factor on the client learning rate: ``factor(t, rounds)`` with t counted from 0."""

    factor: Callable[[int, int], float]


@dataclass(frozen=True)
class ServerOptimiser(Recorded):
    """``init(shared)`` makes its state; ``step(shared, change, state)`` moves the shared parameters."""

    init: Callable[[Params], Tree]
    step: Callable[[Params, Params, Tree], tuple[Params, Tree]]


@dataclass(frozen=True)
class Codec(Recorded):
    """How uploads are written for the wire.

    ``encode(upload, generator)`` gives tensors to pack, ``decode(packed, like)`` what arrives, laid out as ``like``.
    ``names`` are the beginnings of the names that a message may have besides those of the upload; no other is sent.
    """

    encode: Callable[[Params, np.random.Generator], Params]
    decode: Callable[[Params, Params], Params]
    names: Names = ()


class Traffic(NamedTuple):
    """How to count bytes where messages are sparse: those of the values alone, and those on the wire.

    ``down(received, state)`` counts what one client is sent, given its state before its turn; ``up(update)`` what it
    sends. ``extra(update)`` counts what goes up besides the tensors of the upload, also where a codec packs these.
    """

    down: Callable[[Params, Tree], tuple[int, int]]
    up: Callable[[ClientUpdate], tuple[int, int]]
    extra: Callable[[ClientUpdate], int] = lambda update: 0


class Packing(NamedTuple):
    """How messages are packed for a wire where both sides know something of a client, its mask say.

    ``facts(state)`` are what the server knows of a client with that state; the device has them too. All other functions
    take the client's ``key`` and the facts before its turn. ``pack_down(key, received, facts)`` and ``pack_up(key,
    upload, facts, after)`` give tensors to pack; ``after`` are the facts when the turn is over. ``unpack_down(key,
    packed, like, facts)`` gives what the client received, and ``unpack_up(key, packed, like, facts)`` the upload and
    ``after``.
    """

    facts: Callable[[Tree], Tree]
    pack_down: Callable[[Tensor, Params, Tree], Params]
    unpack_down: Callable[[Tensor, Params, Params, Tree], Params]
    pack_up: Callable[[Tensor, Params, Tree, Tree], Params]
    unpack_up: Callable[[Tensor, Params, Params, Tree], tuple[Params, Tree]]


class Wire(NamedTuple):
    """What crosses between server and clients, where it is not just the shared part both ways.

    ``layout(shared, personal)`` turns the first values of both parts into what goes down and what goes up (names,
    shapes and types); no name of the personal part may be among them. ``uncompressed(name)`` says which tensors of an
    upload a codec leaves as they are. ``traffic`` counts the bytes of messages, ``packing`` makes them.
    """

    layout: Callable[[Params, Params], tuple[Params, Params]] | None = None
    traffic: Traffic | None = None
    packing: Packing | None = None
    uncompressed: Callable[[str], bool] = lambda name: False


class Posterior(NamedTuple):
    """Draws of the personal part, for an algorithm that has a posterior.

    ``samples(received, state)`` gives a client's draws, one below the other on the first axis. ``population(key,
    received, state, count)`` makes the state of a client without data. ``clients`` is the number of clients that the
    algorithm is made for, where it must know it. ``go_on(work, received, state)`` goes on with a client's chain, by a
    step for each batch: all its points, and the state after them. ``noise(received)`` is the deviation of
    observations around the outputs, None where it is not known. ``report(state)`` says how a chain fares:
    ``diverges``, and its ``step`` and ``acceptance`` where it finds its own step size. ``for_loss(loss)`` is the
    algorithm that takes this one's place with a loss, None where it stays.
    """

    samples: Callable[[Params, Tree], Params]
    population: Callable[..., Tree]
    clients: int | None = None
    go_on: Callable[[Work, Params, Tree], tuple[Params, Tree]] | None = None
    noise: Callable[[Params], float | None] = lambda received: None
    report: Callable[[Tree], dict[str, float | bool]] = lambda state: {}
    for_loss: Callable[[Any], Algorithm | None] = lambda loss: None


class Delay(NamedTuple):
    """What a delayed clock must respect.

    ``longest_round_trip`` is the largest ``Work.round_trip`` that client states have room for, None for any.
    ``evaluates_at`` is ``dispatch`` or ``arrival``.
    """

    longest_round_trip: int | None
    evaluates_at: str


class Sparsity(NamedTuple):
    """Masks over the shared weights.

    ``densities(state)`` gives the share of active weights by parameter name, by which arithmetic is counted.
    ``shared_model(received, state)`` gives the two parts of the shared model, where they are not those of a client in
    its first state. ``first_mask(key, received, state)`` makes the state that a client predicts with, where a client
    that was never asked draws a mask of its own. No engine runs it, so it may look at values. ``for_seed(seed)`` is the
    algorithm that takes this one's place in a run with a seed, where masks follow from it.
    """

    densities: Callable[[Tree], dict[str, float]]
    shared_model: Callable[[Params, Tree], tuple[Params, Params]] | None = None
    first_mask: Callable[[Tensor, Params, Tree], Tree] | None = None
    for_seed: Callable[[int], Algorithm] | None = None


@dataclass(frozen=True)
class Algorithm(Recorded):
    """A federated algorithm as a frozen record of pure functions, made by one builder.

    ``init_server(shared, statistics, personal)`` makes the server's state from the first values of the shared
    parameters, the shared buffers and the personal part; ``init_client(shared, personal)`` the first state of a client.
    ``broadcast(server)`` is what goes down. ``client_update(work, received, state)`` is the local work of one client.
    ``aggregator(updates)`` joins uploads; it is None where clients send nothing, so that the server never moves.
    ``server_update(server, aggregate, share)`` moves the server; ``share`` is the share of all clients whose uploads
    are in the aggregate. ``personal_model(received, state)`` gives the two parts of a client's model. ``adapt(work,
    received, state)`` is the algorithm's own rule for a client that keeps no state or was never seen. ``default_split``
    names the split for a user who gives none; ``nothing`` and ``everything`` are then the only ones possible.
    """

    phases: Mapping[str, Phase]
    init_server: Callable[[Params, Params, Params], Tree]
    init_client: Callable[[Params, Params], Tree]
    broadcast: Callable[[Tree], Params]
    client_update: Callable[[Work, Params, Tree], tuple[ClientUpdate, Tree]]
    aggregator: Callable[[Sequence[ClientUpdate]], Params] | None
    server_update: Callable[[Tree, Params, float], Tree]
    personal_model: Callable[[Params, Tree], tuple[Params, Params]]
    adapt: Callable[[Work, Params, Tree], Tree]
    schedule: Schedule
    stateful: bool = True
    default_split: str | None = None
    wire: Wire = Wire()  # noqa: RUF009 (it is immutable)
    posterior: Posterior | None = None
    delay: Delay | None = None
    sparsity: Sparsity | None = None

    @property
    def name(self) -> str:
        """The name of its builder."""
        return str(self.spec.get("name", "an algorithm of your own"))

    @property
    def needs(self) -> str:
        """What a split must leave personal: ``any``, ``nothing``, something ``personal``, or ``everything``."""
        if self.default_split in ("nothing", "everything"):
            return self.default_split
        return "personal" if self.posterior or self.aggregator is None else "any"


@dataclass(frozen=True)
class RoundRecord:
    """What one round did. ``dropped`` names clients whose update was not finite, ``reasons`` says why, one by one.

    ``left_out`` is true where too few updates were left for the aggregator, so that nothing moved. With a clock,
    ``time`` is the virtual time at its end, and ``staleness`` has for each upload that arrived the number of steps that
    the server made since the broadcast it was computed with.
    """

    round: int
    cohort: tuple[int, ...]
    train_loss: float
    dropped: tuple[str, ...]
    evaluation: Mapping[str, Any] | None
    time: float | None = None
    staleness: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: bool = False
