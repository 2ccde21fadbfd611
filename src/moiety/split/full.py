"""Full personalisation: every client has a whole model, pulled towards a shared one."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

from torch import Tensor, nn

from moiety.errors import must, number
from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.names import Patterns, read
from moiety.types import Params


@dataclass(frozen=True)
class Pull:
    """(strength / 2) times the squared distance between the personal parameters and their centre."""

    strength: float
    centres: dict[str, str]
    """The name of each personal parameter's centre."""

    def __call__(self, params: Params) -> Tensor:
        """The penalty of a whole model."""
        terms = [(params[name] - params[centre]).square().sum() for name, centre in self.centres.items()]
        return 0.5 * self.strength * sum(terms[1:], terms[0])


@recorded
def full(model: nn.Module, *, pull: float, frozen: Patterns = (), running_stats: str = "personal") -> Split:
    """Keep a whole model personal and pull it towards a shared one: full personalisation as partial personalisation.

    Equation 2 of Pillutla et al. (2022) written as their problem 3 (section 2): u is the reference model w_0, v_i the
    client's model w_i, and F_i(u, v_i) = F_i(v_i) + (pull / 2) ||v_i - u||^2. Predictions are those of v_i. So FedAlt
    and FedSim train it as they are; a device holds two models.

    In a copy of the model, ``split.model``, its own parameters are personal, and each trained one has a centre, a
    shared parameter of the whole module: that of ``head.weight`` is ``centre/head/weight``.

    Args:
        model: the module to split; it is not changed. Its values are the first ones of both parts.
        pull: lambda, the same for all clients; 0 is local training.
        frozen: what nobody trains, by patterns as in ``by_name``; it has no centre.
        running_stats: ``personal`` or ``shared``, as in ``by_name``; other buffers are personal.

    >>> split = full(nn.Linear(3, 1), pull=0.1)
    >>> split.personal, split.shared
    (('weight', 'bias'), ('centre/weight', 'centre/bias'))
    """
    number("pull", pull, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    original = read(model)
    fixed = original.match(frozen=frozen)["frozen"]
    trained = set(original.trainable) - fixed
    must(bool(trained), "model", "one with parameters to train", f"{type(model).__name__} with none")
    old = [name for name in original.parameters if name.startswith("centre/")]
    hint = "Make the split from the model itself."
    must(not old, "model", "one without centres of its own", ", ".join(old[:3]), hint)
    copied = copy.deepcopy(model)
    centres = {name: "centre/" + name.replace(".", "/") for name in original.parameters if name in trained}
    for name, value in dict(copied.named_parameters()).items():
        if name in centres:
            copied.register_parameter(centres[name], nn.Parameter(value.detach().clone()))
    personal = trained | original.other_buffers - fixed
    split = read(copied).split({"personal": personal, "frozen": fixed}, running_stats, original=model)
    mirrors = {centre: name for name, centre in centres.items()}
    return replace(split, penalty=Pull(float(pull), centres), mirrors=mirrors)
