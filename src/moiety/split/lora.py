"""Low-rank updates of linear layers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from moiety.errors import must, near, number, whole
from moiety.random import torch_seed
from moiety.spec import recorded
from moiety.split.base import Split, fingerprint
from moiety.split.grafts import LowRank, attach, beside
from moiety.split.listing import Patterns, listed, make, matched, paths, read


@recorded
def lora(
    model: nn.Module,
    *,
    rank: int,
    targets: Patterns = "*",
    alpha: float | None = None,
    seed: int = 0,
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Give linear layers a personal update of low rank: W x + (alpha / rank) B A x.

    Hu et al. (2021). A starts from N(0, 1/inputs) and B at 0, so the model does exactly what it did. The model is
    copied and the updates are put into the copy, ``split.model``; names and values of the model's own parameters stay
    as they are, and these are shared: the shared phase of an algorithm trains them. With ``frozen="*"`` nobody does,
    which is LoRA as it was first meant.

    Args:
        model: the module to split; it is not changed.
        rank: of the update; at most the smaller side of each layer.
        targets: globs on the names of ``nn.Linear`` layers or of modules that hold some; all by default. The layers
            inside ``nn.MultiheadAttention`` are left out, since torch uses their weights without calling them.
        alpha: the update is scaled by alpha / rank; by default by 1.
        seed: of the first A.
        frozen: what nobody trains, by patterns on the given model's names.
        shared: likewise buffers to share.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> lora(net, rank=2, targets="0").personal
    ('0.adapter.down.weight', '0.adapter.up.weight')
    """
    whole("rank", rank, 1)
    whole("seed", seed, 0)
    if alpha is not None:
        number("alpha", alpha, "> 0 and finite", lambda a: 0 < a < math.inf)
    base = read(model)
    named = {"frozen": matched(base, "frozen", frozen), "shared": matched(base, "shared", shared)}
    grown = copy.deepcopy(model)
    like = next(grown.parameters())
    with torch_seed(seed, "lora"):
        for name, layer in _chosen(grown, targets).items():
            side = min(layer.in_features, layer.out_features)
            must(rank <= side, "rank", f"<= {side}, the smaller side of {name}", rank)
            graft = LowRank(layer, rank, 1.0 if alpha is None else alpha / rank)
            attach(layer, name, graft, beside, like)
    listing = read(grown)
    new = set(listing.parameters) - set(base.parameters)
    split = make(listing, {"personal": new, **named}, running_stats)
    return replace(split, model=grown, source=fingerprint(model))


def _chosen(model: nn.Module, targets: Patterns) -> dict[str, nn.Linear]:
    """The linear layers that the globs mean."""
    inside = {
        id(m) for module in model.modules() if isinstance(module, nn.MultiheadAttention) for m in module.modules()
    }
    known = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) not in inside}
    found: dict[str, nn.Linear] = {}
    for pattern in listed("targets", targets):
        hits = {n: m for n, m in known.items() if any(fnmatchcase(path, pattern) for path in paths(n))}
        hint = near(pattern, known)
        must(bool(hits), "targets", "globs that each match an nn.Linear that is called", repr(pattern), hint)
        found |= hits
    must(bool(found), "targets", "at least one glob", repr(targets))
    return found
