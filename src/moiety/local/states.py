"""States that clients keep from round to round, shared by several algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.local.sgd import Kept, Optimiser
from moiety.local.verbs import select
from moiety.types import Params, Work


class Personal(NamedTuple):
    """The personal parameters, personal running statistics of BatchNorm, and what their optimiser keeps."""

    personal: Params
    memory: Kept = ()


def begin_personal(optimiser: Optimiser) -> Callable[[Params, Params], Personal]:
    """Make the first state of a client whose personal part this optimiser trains."""
    return lambda shared, personal: Personal(personal, optimiser.begin(personal))


class OwnModel(NamedTuple):
    """A whole model of the client's own, in its shared and its personal part, and whether it was ever asked."""

    shared: Params
    personal: Params
    asked: Tensor


def begin_own_model(shared: Params, personal: Params) -> OwnModel:
    """The state of a client before it is asked, from the first values of both parts."""
    return OwnModel(shared, personal, next(iter(shared.values())).new_zeros((), dtype=torch.bool))


def keep_own_model(work: Work, model: Params, state: OwnModel) -> OwnModel:
    """The state of a client that has trained the whole ``model``."""
    return OwnModel(*work.parts(model), torch.ones_like(state.asked))


def own_model(received: Params, state: OwnModel) -> tuple[Params, Params]:
    """The two parts that a client predicts with: its own, or what it received as long as it was never asked."""
    return select(state.asked, state.shared, received), state.personal
