"""The state of a client that keeps a whole model of its own beside the shared one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moiety.local import either
from moiety.types import Params


class Own(NamedTuple):
    """The client's own values of the shared and of the personal part, and whether it was ever asked."""

    shared: Params
    personal: Params
    asked: Tensor


def never_asked(shared: Params, personal: Params) -> Own:
    """The state of a client before it is asked, from the first values of both parts."""
    return Own(shared, personal, next(iter(shared.values())).new_zeros((), dtype=torch.bool))


def own_model(received: Params, state: Own) -> tuple[Params, Params]:
    """The two parts that a client predicts with: its own, or what it received as long as it was never asked."""
    return either(state.asked, state.shared, received), state.personal
