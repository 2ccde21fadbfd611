"""The input layer split in two: private features enter through personal parameters alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from moiety.errors import must, whole
from moiety.spec import recorded
from moiety.split.base import Split, fingerprint
from moiety.split.features import as_columns, checked_features
from moiety.split.layers import is_norm, layers
from moiety.split.listing import Patterns, make, matched, read


class Halves(nn.Module):
    """Two linear layers on different columns of the input, their outputs one after the other."""

    def __init__(self, layer: nn.Linear, private: Sequence[int], units: int) -> None:
        super().__init__()
        public = [feature for feature in range(layer.in_features) if feature not in set(private)]
        self.public, self.private = as_columns(public), as_columns(private)
        cut = layer.out_features - units
        self.shared = _part(layer, slice(0, cut), public)
        self.personal = _part(layer, slice(cut, None), private)

    def forward(self, x: Tensor) -> Tensor:
        """The shared units, then the personal ones."""
        return torch.cat([self.shared(x[..., self.public]), self.personal(x[..., self.private])], -1)


def _part(layer: nn.Linear, units: slice, features: Sequence[int]) -> nn.Linear:
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
    units, ``personal`` sees the private ones and gives the last. Weights between the two are gone, the others keep
    their values; layers above keep theirs, and are shared.

    So no shared input weight is ever multiplied by a private feature, and its gradient holds a private feature only
    through the errors that come down from above; shared layers above do see what the personal units make of them.

    Args:
        model: the module to split; it is not changed.
        private: indices of the private features, as a list or a range.
        units: how many units of the first layer are personal; by default in proportion to the private features.
        frozen: what nobody trains, by patterns on the names of ``split.model``.
        shared: likewise buffers to share.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> split = horizontal(net, private=[3, 4], units=1)
    >>> {name: split.sizes[name] for name in split.personal}
    {'0.personal.weight': 2, '0.personal.bias': 1}
    """
    read(model)
    grown = copy.deepcopy(model)
    found = layers(grown)
    name, layer = found[0]
    got = f"{name or 'model'} ({type(layer).__name__})"
    must(type(layer) is nn.Linear, "model", "one whose first layer is an nn.Linear on a flat input", got)
    assert isinstance(layer, nn.Linear)
    must(len(found) > 1 and bool(name), "model", "one with layers above the first", f"{got} alone")
    _check_alone(grown, name, layer)
    features = checked_features("private", private, layer.in_features)
    inputs, outputs = layer.in_features, layer.out_features
    must(len(features) < inputs, "private", f"fewer than all {inputs} features", len(features), "Use input_layer.")
    must(outputs >= 2, "model", "one whose first layer has two units or more", outputs)
    if units is None:
        units = min(max(round(outputs * len(features) / inputs), 1), outputs - 1)
    whole("units", units, 1, outputs - 1)
    above, _, child = name.rpartition(".")
    setattr(grown.get_submodule(above), child, Halves(layer, features, units).train(layer.training))
    listing = read(grown)
    still, common = matched(listing, "frozen", frozen), matched(listing, "shared", shared)
    own = {n for n in listing.trainable if n.startswith(f"{name}.personal.")} - still
    split = make(listing, {"personal": own, "frozen": still, "shared": common}, running_stats)
    return replace(split, model=grown, source=fingerprint(model))


def _check_alone(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Whether nothing mixes features before the layer, and nothing else uses its weights."""
    for other, module in model.named_modules():
        if module is layer:
            break
        must(not is_norm(module), "model", f"one without a norm before {name}, which would mix features", other)
    names = [n for n, value in model.named_parameters(remove_duplicate=False) for p in layer.parameters() if value is p]
    tied = [n for n in names if not n.startswith(f"{name}.")]
    must(not tied, "model", "one whose first layer has its parameters to itself", f"{name} tied to {', '.join(tied)}")
