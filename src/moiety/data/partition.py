"""How a pool of rows is dealt to clients.

A partition is a frozen record of one function, made by a builder that records its arguments. To add your own, write
``deal(labels, rows, clients, generator)`` that returns the client of each row (-1 where a row is not used).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moiety.data.federated import Array, Ints
from moiety.errors import MoietyError, message, must, positive, refuse, whole
from moiety.spec import recorded

Deal = Callable[[Ints | None, int, int, np.random.Generator], Ints]

_TRIES = 100


@dataclass(frozen=True, eq=False)
class Partition:
    """``deal(labels or None, rows, clients, generator)`` gives the client of each row, int64 [rows], -1 for unused.

    ``natural`` is set where rows belong to clients already: by ``ids``, or else by the data set itself.
    """

    deal: Deal
    natural: bool = False
    ids: Array | None = None
    spec: dict[str, Any] = field(default_factory=dict)


def deal(partition: Partition, labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
    """Deal rows by a partition, and check that every client got some.

    >>> np.bincount(deal(iid(), None, 7, 3, np.random.default_rng(0))).tolist()
    [3, 2, 2]
    """
    whole("clients", clients, 1)
    must(clients <= rows, "clients", f"at most the number of rows, {rows}", clients, "Use fewer clients.")
    owner = np.asarray(partition.deal(labels, rows, clients, generator))
    must(owner.shape == (rows,), "partition", f"one that deals {rows} rows", f"shape {list(owner.shape)}")
    inside = owner.dtype.kind == "i" and int(owner.min()) >= -1 and int(owner.max()) < clients
    must(inside, "partition", f"one that deals to clients 0 to {clients - 1}", f"{owner.dtype}, or others")
    idle = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=clients) == 0)
    hint = "Use fewer clients or another partition."
    must(len(idle) == 0, "partition", "one that gives every client a row", f"none for {len(idle)} clients", hint)
    return owner.astype(np.int64)


@recorded
def iid() -> Partition:
    """Every client's rows are drawn alike; sizes differ by at most one.

    >>> import moiety as mo
    >>> fed = mo.data.load("digits", clients=10, partition=mo.data.iid(), test=0)
    >>> sorted(set(fed.sizes().tolist()))  # of 1,797 rows
    [179, 180]
    """

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        return generator.permutation(np.arange(rows) % clients)

    return Partition(deal)


@recorded
def dirichlet(alpha: float, balanced: bool = True, min_examples: int = 2) -> Partition:
    """Label ratios drawn from a Dirichlet distribution: small ``alpha``, few labels per client.

    ``balanced`` (Hsu et al. 2019, arXiv:1909.06335; FedSpa, appendix B.1): every client has the same number of rows
    and draws its label ratios from Dir(alpha C prior), where the prior is each label's share of all rows and C is the
    number of labels: Dir(alpha, ..., alpha) where labels are equally frequent, as the field quotes ``alpha`` (Hsu et
    al. leave out C: their 1 is our 1 / C). Rows are drawn without replacement; a label that runs out is removed and
    the ratios are scaled up. Rows that do not divide evenly are left out.

    Not ``balanced``: each label's rows are dealt over clients by Dir(alpha, ..., alpha). Sizes are uneven, and it is
    drawn again until every client has ``min_examples``.

    >>> import moiety as mo
    >>> fed = mo.data.load("digits", clients=10, partition=mo.data.dirichlet(0.1), test=0)
    >>> set(fed.sizes().tolist())
    {179}
    """
    positive("alpha", alpha)
    whole("min_examples", min_examples, 1)

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        pools = _shuffle_pools("dirichlet", labels, generator)
        sizes = np.array([len(pool) for pool in pools])
        if balanced:
            _check_enough(rows, clients, min_examples)
            return _deal_pools(pools, _draw_balanced_counts(sizes, clients, alpha, generator), rows)
        return _deal_pools(pools, _draw_uneven_counts(sizes, clients, alpha, min_examples, generator), rows)

    return Partition(deal)


@recorded
def classes_per_client(classes: int) -> Partition:
    """Every client has exactly ``classes`` labels, drawn so that all labels are held by equally many clients.

    The rows of a label are dealt evenly to the clients that hold it.

    >>> import moiety as mo
    >>> fed = mo.data.load("digits", clients=10, partition=mo.data.classes_per_client(2), test=0)
    >>> {len(set(fed.client(k)["y"].tolist())) for k in range(10)}
    {2}
    """
    whole("classes", classes, 1)

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        pools = _shuffle_pools("classes_per_client", labels, generator)
        must(classes <= len(pools), "classes", f"at most the {len(pools)} there are", classes)
        hint = "Use more clients or more classes for each."
        must(clients * classes >= len(pools), "clients", f"enough to hold all {len(pools)} classes", clients, hint)
        has_label = np.zeros((clients, len(pools)), dtype=bool)
        for client in generator.permutation(clients):
            # Labels with fewest holders first, equals by lot: labels stay even, and which go together is random.
            rarest = np.lexsort((generator.random(len(pools)), has_label.sum(axis=0)))[:classes]
            has_label[client, rarest] = True
        counts = np.zeros((clients, len(pools)), dtype=np.int64)
        for k, pool in enumerate(pools):
            holders = generator.permutation(np.flatnonzero(has_label[:, k]))
            hint = "Use fewer clients, or fewer classes for each."
            problem = f"{len(holders)} holders of a label with {len(pool)} rows"
            must(
                len(holders) <= len(pool), "clients", "few enough that all holders of a label get a row", problem, hint
            )
            counts[holders, k] = _even_sizes(len(pool), len(holders))
        return _deal_pools(pools, counts, rows)

    return Partition(deal)


@recorded
def shards(per_client: int = 2) -> Partition:
    """Rows sorted by label, cut into equal shards, ``per_client`` shards dealt to each (McMahan et al. 2017).

    >>> import moiety as mo
    >>> fed = mo.data.load("digits", clients=10, partition=mo.data.shards(per_client=1), test=0)
    >>> max(len(set(fed.client(k)["y"].tolist())) for k in range(10)) <= 3  # a shard is as long as a label, or so
    True
    """
    whole("per_client", per_client, 1)

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        y = _need_labels("shards", labels)
        count = clients * per_client
        must(count <= rows, "per_client", f"such that {rows} rows make {clients} x per_client shards", per_client)
        owner = np.empty(rows, dtype=np.int64)
        holder = generator.permutation(count) // per_client
        owner[np.argsort(y, kind="stable")] = np.repeat(holder, _even_sizes(rows, count))
        return owner

    return Partition(deal)


@recorded
def quantity(alpha: float, min_examples: int = 2) -> Partition:
    """Labels alike, sizes uneven: ``min_examples`` each, and the rest shared by one draw of Dir(alpha, ..., alpha).

    >>> import moiety as mo
    >>> fed = mo.data.load("digits", clients=10, partition=mo.data.quantity(0.5, min_examples=20), test=0)
    >>> int(fed.sizes().min()) >= 20, int(fed.sizes().sum())
    (True, 1797)
    """
    positive("alpha", alpha)
    whole("min_examples", min_examples, 1)

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        _check_enough(rows, clients, min_examples)
        shares = generator.dirichlet(np.full(clients, float(alpha)))
        sizes = min_examples + _cut_rows(rows - clients * min_examples, shares)
        return generator.permutation(np.repeat(np.arange(clients), sizes))

    return Partition(deal)


@recorded
def natural(ids: ArrayLike | None = None) -> Partition:
    """The natural clients of the data set (its writers, speakers, people), or the clients that ``ids`` names.

    >>> deal(natural(["ward", "clinic", "ward"]), None, 3, 2, np.random.default_rng(0)).tolist()  # in order of names
    [1, 0, 1]
    """
    names = None if ids is None else np.asarray(ids)
    if names is not None:
        fits = names.ndim == 1 and names.dtype.kind in "iuU"
        must(fits, "ids", "one integer or string for each row", f"{names.dtype} of shape {list(names.shape)}")

    def deal(labels: Ints | None, rows: int, clients: int, generator: np.random.Generator) -> Ints:
        if names is None or len(names) != rows:
            refuse("ids", f"one for each of {rows} rows", "none" if names is None else len(names))
        return np.unique(names, return_inverse=True)[1]

    return Partition(deal, natural=True, ids=names)


_BUILDERS = (iid, dirichlet, classes_per_client, shards, quantity, natural)
PARTITIONS: dict[str, Callable[..., Partition]] = {builder.__name__: builder for builder in _BUILDERS}
"""The builders by the names that a configuration file gives them."""


def _draw_balanced_counts(sizes: Ints, clients: int, alpha: float, generator: np.random.Generator) -> Ints:
    """How many rows of each label every client draws; all clients have the same total."""
    each = int(sizes.sum()) // clients
    stock = sizes.copy()
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    # Labels may have run out for later clients. The order is random, so a client's number says nothing about that.
    for client in generator.permutation(clients):
        ratios = generator.dirichlet(alpha * len(sizes) * sizes / sizes.sum())
        need = each
        while need:
            # Draws of a label beyond its pool are repeated among the others. That is the same as drawing one row at
            # a time, and takes as many steps as there are labels that run out.
            open_ratios = np.where(stock > 0, ratios, 0.0)
            if not open_ratios.any():  # every label of this client has run out: take from what there is
                open_ratios = stock.astype(float)
            open_ratios /= open_ratios.max()  # before the sum, which may underflow
            draw = np.minimum(generator.multinomial(need, open_ratios / open_ratios.sum()), stock)
            counts[client] += draw
            stock -= draw
            need -= int(draw.sum())
    return counts


def _draw_uneven_counts(
    sizes: Ints, clients: int, alpha: float, min_examples: int, generator: np.random.Generator
) -> Ints:
    """How many rows of each label every client gets, each label shared out by its own draw."""
    best = 0
    for _ in range(_TRIES):
        shares = generator.dirichlet(np.full(clients, float(alpha)), size=len(sizes))
        counts = np.stack([_cut_rows(int(size), share) for size, share in zip(sizes, shares, strict=True)], axis=1)
        smallest = int(counts.sum(axis=1).min())
        if smallest >= min_examples:
            return counts
        best = max(best, smallest)
    hint = "Use fewer clients, a larger alpha, a smaller min_examples or balanced=True."
    problem = f"at best {best} for some client in {_TRIES} draws"
    raise MoietyError(message("partition", f"one that gives every client {min_examples} rows", problem, hint))


def _check_enough(rows: int, clients: int, min_examples: int) -> None:
    """Raise unless there are ``min_examples`` rows for every client."""
    hint = "Use fewer clients or a smaller min_examples."
    must(clients * min_examples <= rows, "clients", f"such that each has {min_examples} of {rows} rows", clients, hint)


def _need_labels(name: str, labels: Ints | None) -> Ints:
    """The labels; raise where there are none."""
    if labels is None:
        hint = "Use iid, quantity or natural."
        refuse("partition", "one that needs no labels, as the data has none", name, hint)
    return labels


def _shuffle_pools(name: str, labels: Ints | None, generator: np.random.Generator) -> list[Ints]:
    """The rows of each label that occurs, in random order."""
    y = _need_labels(name, labels)
    rows = generator.permutation(len(y))
    order = rows[np.argsort(y[rows], kind="stable")]
    _, starts = np.unique(y[order], return_index=True)
    return np.split(order, starts[1:])


def _deal_pools(pools: list[Ints], counts: Ints, rows: int) -> Ints:
    """Deal each pool's rows in order: ``counts[client, label]`` of them to each client."""
    owner = np.full(rows, -1, dtype=np.int64)
    for k, pool in enumerate(pools):
        holders = np.repeat(np.arange(len(counts)), counts[:, k])
        owner[pool[: len(holders)]] = holders
    return owner


def _cut_rows(rows: int, shares: NDArray[np.float64]) -> Ints:
    """Whole numbers in about the given shares, with sum ``rows``."""
    ends = np.floor(np.cumsum(shares) * rows + 0.5).astype(np.int64)
    ends[-1] = rows
    return np.diff(np.minimum(ends, rows), prepend=0)


def _even_sizes(rows: int, count: int) -> Ints:
    """``count`` sizes with sum ``rows`` that differ by at most one."""
    return rows // count + (np.arange(count) < rows % count).astype(np.int64)
