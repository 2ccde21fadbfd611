"""Splits by name: patterns, all, none."""

from __future__ import annotations

from torch import nn

from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.listing import Patterns, make, matched, read


@recorded
def by_name(
    model: nn.Module,
    *,
    personal: Patterns = (),
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Name what is personal, frozen or shared by patterns; what no pattern names is shared.

    A pattern is a glob (``*``, ``?``, ``[ab]``; ``*`` crosses dots) on the full dotted names of parameters, buffers
    and modules; a module means everything in it, so ``head`` and ``head.*`` say the same. A tied parameter is one
    parameter: any of its names will do, and it goes into one group.

    Parameters with ``requires_grad=False`` are frozen. Running statistics of batch and instance normalisation follow
    ``running_stats`` unless a pattern names them. Every other buffer has to be named.

    Args:
        model: the module to split.
        personal: what each client keeps for itself.
        frozen: what nobody trains.
        shared: what all train together; only needed to place buffers, since it is the rule for parameters.
        running_stats: ``personal`` or ``shared``.

    Returns:
        The split; ``print(split.summary())`` shows it.

    >>> from collections import OrderedDict
    >>> net = nn.Sequential(OrderedDict(body=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    >>> split = by_name(net, personal=["head"])
    >>> split.personal, split.counts()
    (('head.weight', 'head.bias'), {'total': 23, 'shared': 15, 'personal': 8, 'frozen': 0})
    >>> split.spec
    {'name': 'by_name', 'personal': ['head']}
    """
    listing = read(model)
    patterns = {"personal": personal, "frozen": frozen, "shared": shared}
    return make(listing, {k: matched(listing, k, v) for k, v in patterns.items()}, running_stats)


@recorded
def everything(model: nn.Module, *, frozen: Patterns = (), running_stats: str = "personal") -> Split:
    """Keep the whole model personal: clients share nothing.

    Buffers that are no running statistics are personal too; frozen patterns and ``running_stats`` are as in
    ``by_name``.

    >>> everything(nn.Linear(3, 2)).counts()
    {'total': 8, 'shared': 0, 'personal': 8, 'frozen': 0}
    """
    listing = read(model)
    still = matched(listing, "frozen", frozen)
    others = set(listing.buffers) - listing.statistics
    return make(listing, {"frozen": still, "personal": {*listing.trainable, *others} - still}, running_stats)


@recorded
def nothing(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Share the whole model, as federated averaging does.

    Running statistics follow ``running_stats`` all the same, and other buffers have to be named, as in ``by_name``.

    >>> nothing(nn.Linear(3, 2)).counts()
    {'total': 8, 'shared': 8, 'personal': 0, 'frozen': 0}
    """
    listing = read(model)
    named = {"frozen": matched(listing, "frozen", frozen), "shared": matched(listing, "shared", shared)}
    return make(listing, named, running_stats)
