"""A generalised additive model: a shared model and a personal one, their outputs fused."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.errors import choice, kind, must
from moiety.spec import recorded, spec_of
from moiety.split.base import Split, fingerprint
from moiety.split.features import as_columns, checked_features
from moiety.split.layers import layers
from moiety.split.listing import Patterns, make, matched, read

MIXTURES = ("sum", "convex")


@fx.wrap
def added(h: Tensor, h_i: Tensor) -> Tensor:
    """h + h_i, of one shape. One operation to ``torch.fx``, which cannot look at shapes."""
    _same_shape(h, h_i)
    return h + h_i


@fx.wrap
def mixed(h: Tensor, h_i: Tensor, logit: Tensor) -> Tensor:
    """log(theta softmax(h) + (1 - theta) softmax(h_i)) with theta the sigmoid of ``logit``, without underflow."""
    _same_shape(h, h_i)
    first = h.log_softmax(-1) + functional.logsigmoid(logit)
    return torch.logaddexp(first, h_i.log_softmax(-1) + functional.logsigmoid(-logit))


def _same_shape(h: Tensor, h_i: Tensor) -> None:
    got = f"{tuple(h_i.shape)} beside {tuple(h.shape)}"
    must(h.shape == h_i.shape, "local_model", "one whose output has the shared model's shape", got)


class Additive(nn.Module):
    """h(u, x) and h_i(v_i, x), fused; with ``theta`` as a convex mixture of probabilities, else as a sum."""

    theta_logit: nn.Parameter | None

    def __init__(
        self,
        shared: nn.Module,
        personal: nn.Module,
        theta: nn.Parameter | None,
        features: tuple[Sequence[int] | None, Sequence[int] | None],
    ) -> None:
        super().__init__()
        self.shared, self.personal = shared, personal
        self.shared_columns, self.personal_columns = (None if each is None else as_columns(each) for each in features)
        self.register_parameter("theta_logit", theta)

    def forward(self, x: Tensor) -> Tensor:
        """The fused output: log-probabilities for a mixture."""
        h = self.shared(x if self.shared_columns is None else x[..., self.shared_columns])
        h_i = self.personal(x if self.personal_columns is None else x[..., self.personal_columns])
        return added(h, h_i) if self.theta_logit is None else mixed(h, h_i, self.theta_logit)


@recorded
def additive(
    model: nn.Module,
    local_model: nn.Module,
    *,
    mixture: str = "sum",
    theta: str | None = None,
    global_features: Sequence[int] | None = None,
    local_features: Sequence[int] | None = None,
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Add a personal model to a shared one: their outputs are summed, or their probabilities mixed.

    The generalised additive model of Figure 2b of Pillutla et al. (2022). ``sum`` gives h(u, x) + h_i(v_i, x): with
    squared error the personal model fits the residual of the shared one, and the other way round; with cross-entropy
    logits are added. ``convex`` is for classification: theta p(u, x) + (1 - theta) p_i(v_i, x), where both models'
    outputs go through a softmax and theta, in (0, 1), is learnt from 1/2 on. The output is then the logarithm of these
    probabilities, of which ``cross_entropy`` takes the right loss.

    Both models are copied into ``split.model``, as ``shared`` and ``personal``; parameters that share a name in the two
    models stay apart. Give ``fit`` the shared model, or ``split.model``.

    Args:
        model: the shared model, of one input.
        local_model: the personal model, of the same input and with an output of the same shape. In a configuration
            file, a table as under ``[model]`` with all its sizes.
        mixture: ``sum`` or ``convex``.
        theta: with ``convex``, whose the weight theta is: ``personal`` (the default) or ``shared``.
        global_features: indices of the input's columns that the shared model sees, all by default.
        local_features: likewise for the personal model.
        frozen: what nobody trains, by patterns on the names of ``split.model`` (``shared.*``, ``personal.*``).
        shared: likewise buffers to share.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> split = additive(nn.Linear(4, 1), nn.Linear(2, 1, bias=False), local_features=[1, 3])
    >>> split.shared, split.personal
    (('shared.weight', 'shared.bias'), ('personal.weight',))
    """
    read(model)
    kind("local_model", local_model, nn.Module, "a torch.nn.Module")
    choice("mixture", mixture, MIXTURES)
    must(theta is None or mixture == "convex", "theta", "left out where mixture is sum, which has none", repr(theta))
    choice("theta", theta or "personal", ("personal", "shared"))
    chosen = (
        _features("global_features", global_features, model),
        _features("local_features", local_features, local_model),
    )
    like = next(model.parameters())
    logit = nn.Parameter(torch.zeros((), dtype=like.dtype, device=like.device)) if mixture == "convex" else None
    joint = Additive(copy.deepcopy(model), copy.deepcopy(local_model).to(like.device, like.dtype), logit, chosen)
    listing = read(joint.train(model.training))
    still, common = matched(listing, "frozen", frozen), matched(listing, "shared", shared)
    others = set(listing.buffers) - listing.statistics
    own = {n for n in {*listing.trainable, *others} if n.startswith("personal.")}
    own |= {"theta_logit"} if logit is not None and theta != "shared" else set()
    must(bool(own), "local_model", "a module with parameters to train", type(local_model).__name__)
    split = make(listing, {"personal": own - still - common, "frozen": still, "shared": common}, running_stats)
    known = spec_of(model)
    if known is not None:  # a run that is given the joint module is resumed from the shared model's table
        object.__setattr__(joint, "spec", known)
    return replace(split, model=joint, source=fingerprint(model))


def _features(name: str, features: Sequence[int] | None, model: nn.Module) -> list[int] | None:
    """The checked indices, as many as the model's first layer takes where that is a linear one."""
    if features is None:
        return None
    found = checked_features(name, features)
    first = next((layer.module for layer in layers(model)), None)
    if isinstance(first, nn.Linear):
        must(len(found) == first.in_features, name, f"as many as its model takes, {first.in_features}", len(found))
    return found
