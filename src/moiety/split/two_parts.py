"""Models with a shared and a personal half: two models fused, an input layer cut in two, a model and its centre."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.errors import choice, kind, must, number, refuse, whole
from moiety.spec import recorded, spec_of
from moiety.split.base import Split
from moiety.split.layers import Layer, check_not_tied, is_norm, list_layers
from moiety.split.names import Patterns, read_names
from moiety.types import Params

Columns = list[int] | slice
"""What a tensor's last axis is indexed with: a slice where the columns are neighbours, which copies nothing."""
MIXTURES = ("sum", "convex")


def check_features(name: str, features: Sequence[int], below: int | None = None) -> list[int]:
    """The indices; raise unless they are distinct, at least one, and less than ``below`` where that is known."""
    must(isinstance(features, list | tuple | range), name, "a list of feature indices or a range", repr(features))
    most = float("inf") if below is None else below - 1
    for feature in features:
        whole(name, feature, 0, most)
    must(len(features) > 0, name, "at least one feature", "none")
    twice = sorted({feature for feature in features if list(features).count(feature) > 1})
    must(not twice, name, "features that are named once each", ", ".join(map(str, twice)))
    return [int(feature) for feature in features]


def as_columns(features: Sequence[int]) -> Columns:
    """The index of those columns.

    >>> as_columns([2, 3, 4]), as_columns([0, 2])
    (slice(2, 5, None), [0, 2])
    """
    first, count = features[0], len(features)
    return slice(first, first + count) if list(features) == list(range(first, first + count)) else list(features)


@fx.wrap
def add_outputs(h: Tensor, h_i: Tensor) -> Tensor:
    """h + h_i, of one shape. One operation to ``torch.fx``, which cannot look at shapes."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_shapes(h, h_i)
    return h + h_i


@fx.wrap
def mix_outputs(h: Tensor, h_i: Tensor, logit: Tensor) -> Tensor:
    """log(theta softmax(h) + (1 - theta) softmax(h_i)) with theta the sigmoid of ``logit``, without underflow."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_shapes(h, h_i)
    first = h.log_softmax(-1) + functional.logsigmoid(logit)
    return torch.logaddexp(first, h_i.log_softmax(-1) + functional.logsigmoid(-logit))


def _check_shapes(h: Tensor, h_i: Tensor) -> None:
    shapes = f"{tuple(h_i.shape)} beside {tuple(h.shape)}"
    must(h.shape == h_i.shape, "local_model", "one whose output has the shared model's shape", shapes)


class Selection(nn.Module):
    """Some columns of the input."""

    def __init__(self, features: Sequence[int]) -> None:
        super().__init__()
        self.features = list(features)
        self.first, self.stop = features[0], features[0] + len(features)
        self.neighbours = isinstance(as_columns(features), slice)

    def forward(self, x: Tensor) -> Tensor:
        """A view of columns next to each other, else a copy."""
        if self.neighbours:
            return x[..., self.first : self.stop]
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return x.index_select(-1, torch.tensor(self.features, device=x.device))
        return x[..., self.features]


class Additive(nn.Module):
    """h(u, x) and h_i(v_i, x), fused; with ``theta`` as a convex mixture of probabilities, else as a sum."""

    def __init__(
        self,
        shared: nn.Module,
        personal: nn.Module,
        theta: nn.Parameter | None,
        features: tuple[Sequence[int] | None, Sequence[int] | None],
    ) -> None:
        super().__init__()
        self.shared, self.personal = shared, personal
        self.shared_columns, self.personal_columns = (
            nn.Identity() if each is None else Selection(each) for each in features
        )
        self.register_parameter("theta_logit", theta)

    def forward(self, x: Tensor) -> Tensor:
        """The fused output: log-probabilities for a mixture."""
        h, h_i = self.shared(self.shared_columns(x)), self.personal(self.personal_columns(x))
        if self.theta_logit is None:
            return add_outputs(h, h_i)
        return mix_outputs(h, h_i, self.theta_logit)  # type: ignore[arg-type]


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
    squared error each model fits the residual of the other; with cross-entropy logits are added. ``convex`` is for
    classification: theta p(u, x) + (1 - theta) p_i(v_i, x), where both models' outputs go through a softmax and theta,
    in (0, 1), is learnt and starts at 1/2. The output is then the logarithm of these probabilities, for which
    ``cross_entropy`` is the right loss.

    Both models are copied into ``split.model``, as ``shared`` and ``personal``; parameters that share a name in the two
    models stay apart. Give ``fit`` the shared model, or ``split.model``.

    Args:
        model: the shared model, of one input.
        local_model: the personal model, of the same input and with an output of the same shape. In a configuration
            file, a table as under ``[model]`` with all its sizes.
        mixture: ``sum`` or ``convex``.
        theta: with ``convex``, whether the weight theta is ``personal`` (the default) or ``shared``.
        global_features: indices of the input's columns that the shared model sees, all by default.
        local_features: those that the personal model sees.
        frozen: what nobody trains, by patterns on the names of ``split.model`` (``shared.*``, ``personal.*``).
        shared: buffers to share, likewise.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> split = additive(nn.Linear(4, 1), nn.Linear(2, 1, bias=False), local_features=[1, 3])
    >>> split.shared, split.personal
    (('shared.weight', 'shared.bias'), ('personal.weight',))
    """
    read_names(model)
    kind("local_model", local_model, nn.Module, "a torch.nn.Module")
    choice("mixture", mixture, MIXTURES)
    must(theta is None or mixture == "convex", "theta", "left out where mixture is sum, which has none", repr(theta))
    choice("theta", theta or "personal", ("personal", "shared"))
    features = (
        _check_features_of("global_features", global_features, model),
        _check_features_of("local_features", local_features, local_model),
    )
    like = next(model.parameters())
    logit = nn.Parameter(torch.zeros((), dtype=like.dtype, device=like.device)) if mixture == "convex" else None
    joint = Additive(copy.deepcopy(model), copy.deepcopy(local_model).to(like.device, like.dtype), logit, features)
    listing = read_names(joint.train(model.training))
    personal = {n for n in {*listing.trainable, *listing.other_buffers} if n.startswith("personal.")}
    personal |= {"theta_logit"} if logit is not None and theta != "shared" else set()
    must(bool(personal), "local_model", "a module with parameters to train", type(local_model).__name__)
    if spec_of(model) is not None:  # a run with the joint module is resumed from the shared model's table
        object.__setattr__(joint, "spec", spec_of(model))
    return listing.split_personal(personal, frozen=frozen, shared=shared, running_stats=running_stats, original=model)


def _check_features_of(name: str, features: Sequence[int] | None, model: nn.Module) -> list[int] | None:
    """The checked indices, as many as the model's first layer takes where that is a linear one."""
    if features is None:
        return None
    columns = check_features(name, features)
    first = next((layer.module for layer in list_layers(model)), None)
    if isinstance(first, nn.Linear):
        must(len(columns) == first.in_features, name, f"as many as its model takes, {first.in_features}", len(columns))
    return columns


class Halves(nn.Module):
    """Two linear layers on different columns of the input, their outputs one after the other."""

    def __init__(self, layer: nn.Linear, private: Sequence[int], units: int) -> None:
        super().__init__()
        public = [feature for feature in range(layer.in_features) if feature not in set(private)]
        self.public, self.private = as_columns(public), as_columns(private)
        cut = layer.out_features - units
        self.shared = _cut_layer(layer, slice(0, cut), public)
        self.personal = _cut_layer(layer, slice(cut, None), private)

    def forward(self, x: Tensor) -> Tensor:
        """The shared units, then the personal ones."""
        return torch.cat([self.shared(x[..., self.public]), self.personal(x[..., self.private])], -1)


def _cut_layer(layer: nn.Linear, units: slice, features: Sequence[int]) -> nn.Linear:
    """The rows and columns of a linear layer, as a layer."""
    weight = layer.weight.detach()[units][:, list(features)]
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias is not None, device="meta")
    part.weight = nn.Parameter(weight.clone(), layer.weight.requires_grad)
    if layer.bias is not None:
        part.bias = nn.Parameter(layer.bias.detach()[units].clone(), layer.bias.requires_grad)
    return part


@recorded
def horizontal(
    model: nn.Module,
    *,
    private: Sequence[int],
    units: int | None = None,
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Split the input layer sideways: private features go through personal weights, the others through shared ones.

    Figure 1c of Pillutla et al. (2022), after Bui et al. (2019). In a copy of the model, ``split.model``, the first
    layer, an ``nn.Linear`` on a flat input, becomes two: ``shared`` sees the public features and gives the first
    units, ``personal`` sees the private ones and gives the last. Weights between the two are dropped, all others keep
    their values; the layers above are shared.

    So no shared input weight is ever multiplied by a private feature, and private features reach its gradient only
    through the errors from the layers above. Those shared layers do see the outputs of the personal units.

    Args:
        model: the module to split; it is not changed.
        private: indices of the private features, as a list or a range.
        units: how many units of the first layer are personal; by default in proportion to the private features.
        frozen: what nobody trains, by patterns on the names of ``split.model``.
        shared: buffers to share, likewise.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> split = horizontal(net, private=[3, 4], units=1)
    >>> {name: split.sizes[name] for name in split.personal}
    {'0.personal.weight': 2, '0.personal.bias': 1}
    """
    read_names(model)
    clone = copy.deepcopy(model)
    every = list_layers(clone)
    name, layer = every[0]
    place = f"{name or 'model'} ({type(layer).__name__})"
    if type(layer) is not nn.Linear:
        refuse("model", "one whose first layer is an nn.Linear on a flat input", place)
    must(len(every) > 1 and bool(name), "model", "one with layers above the first", f"{place} alone")
    _check_input_layer(clone, name, layer)
    features = check_features("private", private, layer.in_features)
    inputs, outputs = layer.in_features, layer.out_features
    must(len(features) < inputs, "private", f"fewer than all {inputs} features", len(features), "Use input_layer.")
    must(outputs >= 2, "model", "one whose first layer has two units or more", outputs)
    if units is None:
        units = min(max(round(outputs * len(features) / inputs), 1), outputs - 1)
    whole("units", units, 1, outputs - 1)
    above, _, child = name.rpartition(".")
    setattr(clone.get_submodule(above), child, Halves(layer, features, units).train(layer.training))
    listing = read_names(clone)
    personal = {n for n in listing.trainable if n.startswith(f"{name}.personal.")}
    return listing.split_personal(personal, frozen=frozen, shared=shared, running_stats=running_stats, original=model)


def _check_input_layer(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Raise where a norm mixes features before the layer, or another layer uses its parameters too."""
    for other, module in model.named_modules():
        if module is layer:
            break
        must(not is_norm(module), "model", f"one without a norm before {name}, which would mix features", other)
    check_not_tied(model, [Layer(name, layer)], "horizontal")


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
    original = read_names(model)
    fixed = original.match(frozen=frozen)["frozen"]
    names = set(original.trainable) - fixed
    must(bool(names), "model", "one with parameters to train", f"{type(model).__name__} with none")
    old = [name for name in original.parameters if name.startswith("centre/")]
    hint = "Make the split from the model itself."
    must(not old, "model", "one without centres of its own", ", ".join(old[:3]), hint)
    clone = copy.deepcopy(model)
    centres = {name: "centre/" + name.replace(".", "/") for name in original.parameters if name in names}
    for name, value in dict(clone.named_parameters()).items():
        if name in centres:
            clone.register_parameter(centres[name], nn.Parameter(value.detach().clone()))
    personal = names | original.other_buffers - fixed
    split = read_names(clone).split({"personal": personal, "frozen": fixed}, running_stats, original=model)
    mirrors = {centre: name for name, centre in centres.items()}
    return replace(split, penalty=Pull(float(pull), centres), mirrors=mirrors)
