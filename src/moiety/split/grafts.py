"""Small personal modules in a copy of a shared model, and the hooks that call them.

A graft is a child of the module that it works on, so that the names of the model's own parameters do not change. Its
hook is a function of this file, which looks the graft up on the module that it is called for. So a grafted model can
be copied, pickled, traced and called with other parameters like any model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from moiety.errors import SEED, must, whole
from moiety.random import torch_seed
from moiety.split.base import Split
from moiety.split.names import Patterns, read_names

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]
Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Bottleneck(nn.Module):
    """x + up(relu(down(x))): the adapter of Houlsby et al. (2019), weights from N(0, 0.01^2) and biases 0."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(size, width), nn.Linear(width, size)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)

    def branch(self, x: Tensor) -> Tensor:
        """What is added to x."""
        return self.up(functional.relu(self.down(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """The input and the branch."""
        return x + self.branch(x)


class Residual(nn.Module):
    """x + conv(norm(x)) with a square 1 x 1 convolution: the adapter of Rebuffi et al. (2017), from N(0, 0.0001^2)."""

    def __init__(self, after: Conv, norm: nn.Module) -> None:
        super().__init__()
        kind = next(each for each in CONVS if isinstance(after, each))
        self.norm = norm
        self.conv = kind(after.out_channels, after.out_channels, 1, bias=False)
        nn.init.normal_(self.conv.weight, std=1e-4)

    def forward(self, x: Tensor) -> Tensor:
        """The input and the convolution of its normalised values."""
        return x + self.conv(self.norm(x))  # type: ignore[no-any-return]


class LowRank(nn.Module):
    """scale B A x: A is ``down``, from N(0, 1/inputs), and B is ``up``, which starts at 0 (Hu et al. 2021).

    For a convolution, A is one of the same kernel to ``rank`` channels, and B one of 1 x 1.
    """

    def __init__(self, layer: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        inputs, outputs = layer_sides(layer)
        if isinstance(layer, nn.Conv2d):
            options: dict[str, Any] = {name: getattr(layer, name) for name in ("stride", "padding", "dilation")}
            self.down: nn.Conv2d | nn.Linear = nn.Conv2d(
                layer.in_channels, rank, cast(Any, layer.kernel_size), bias=False, **options
            )
            self.up: nn.Conv2d | nn.Linear = nn.Conv2d(rank, outputs, 1, bias=False)
        else:
            self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.normal_(self.down.weight, std=inputs**-0.5)
        nn.init.zeros_(self.up.weight)

    def branch(self, x: Tensor) -> Tensor:
        """What is added to the layer's output."""
        return self.scale * self.up(self.down(x))  # type: ignore[no-any-return]

    def change(self) -> Tensor:
        """scale B A, as it is added to the layer's weight [outputs, inputs]."""
        down, up = self.down.weight, self.up.weight
        product = up.reshape(len(up), -1) @ down.reshape(len(down), -1)
        return self.scale * product.reshape(len(up), *down.shape[1:])


def layer_sides(layer: nn.Module) -> tuple[int, int]:
    """How many inputs each output of a layer has, and how many outputs there are."""
    weight = cast(Tensor, layer.weight)
    if isinstance(layer, nn.Linear | nn.Conv2d):
        return weight[0].numel(), len(weight)
    return int(weight.shape[0]), int(weight.shape[1])  # the Conv1D of GPT-2


class LinearWithUpdate(nn.Linear):
    """A linear layer with an update of low rank, without a hook: ``torch.jit.script`` takes it."""

    if TYPE_CHECKING:  # torch.jit.script reads what is annotated
        adapter: LowRank

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the update's."""
        return functional.linear(x, self.weight, self.bias) + self.adapter.branch(x)


def remove_hooks(model: nn.Module) -> nn.Module:
    """Let the linear layers of a model with updates of low rank call these themselves; names stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear and isinstance(module._modules.get("adapter"), LowRank):
            _drop_hook(module)
            module.__class__ = LinearWithUpdate
    return model


def merge_updates(model: nn.Module) -> int:
    """Add updates of low rank to the weights of their layers and remove them; how many there were."""
    layers = [module for module in model.modules() if isinstance(module._modules.get("adapter"), LowRank)]
    for layer in layers:
        change = cast(LowRank, layer.adapter).change()
        with torch.no_grad():
            weight = cast(Tensor, layer.weight)
            weight += change if isinstance(layer, nn.Linear | nn.Conv2d) else change.t()
        if isinstance(layer, LinearWithUpdate):
            layer.__class__ = nn.Linear  # type: ignore[assignment]
        _drop_hook(layer)
        del layer.adapter
    return len(layers)


def _drop_hook(module: nn.Module) -> None:
    for key in [key for key, hook in module._forward_hooks.items() if hook is add_branch]:
        del module._forward_hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)


def adapt_output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Apply the graft to the module's output; where that is a tuple, as attention's may be, to its first part."""
    graft = _find_home(module).get_submodule("adapter")
    return (graft(output[0]), *output[1:]) if isinstance(output, tuple) else graft(output)


def add_branch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Add what the graft makes of the module's input to its output."""
    graft = cast(Bottleneck | LowRank, _find_home(module).get_submodule("adapter"))
    return output + graft.branch(args[0] if args else next(iter(kwargs.values())))


def _find_home(module: nn.Module) -> nn.Module:
    """The module that holds the graft. ``nn.Sequential`` would run a new child, so its last module holds it."""
    while isinstance(module, nn.Sequential):
        module = module[-1]
    return module


class Spot(NamedTuple):
    """A module of the copy to put a graft into, the hook that calls the graft, and the maker of the graft."""

    name: str
    module: nn.Module
    hook: Hook
    make: Callable[[], nn.Module]


def graft(
    model: nn.Module,
    find: Callable[[nn.Module], Iterable[Spot]],
    seed: int,
    purpose: str,
    *,
    frozen: Patterns,
    shared: Patterns,
    running_stats: str,
    personal: Callable[[nn.Module], set[str]] = lambda clone: set(),
) -> Split:
    """The split of a copy of ``model`` with a personal graft, called ``adapter``, in every spot that ``find`` gives.

    Args:
        model: the user's module, which is not changed.
        find: gives the spots of the copy.
        seed: seed of the grafts' first weights.
        purpose: what the seed is mixed with.
        frozen: patterns on the names of ``model``, as in ``by_name``; grafts are never frozen.
        shared: likewise.
        running_stats: as in ``by_name``.
        personal: gives the names of the copy's own parameters that are personal too, unless frozen or shared.
    """
    whole("seed", seed, 0, SEED)
    original = read_names(model)
    groups = original.match(frozen=frozen, shared=shared)
    clone = copy.deepcopy(model)
    like = next(clone.parameters())
    personal_names = personal(clone).difference(*groups.values())
    spots = list(find(clone))
    with torch_seed(seed, purpose):
        for spot in spots:
            home = _find_home(spot.module)
            constraint = f"without a module or value called adapter in {spot.name}"
            must(
                not hasattr(home, "adapter"),
                "model",
                constraint,
                "one",
                "Make the split from a model without adapters.",
            )
            home.add_module("adapter", spot.make().to(like.device, like.dtype).train(home.training))
            spot.module.register_forward_hook(spot.hook, with_kwargs=True)
    listing = read_names(clone)
    new = set(listing.parameters) - set(original.parameters)
    return listing.split({"personal": new | personal_names, **groups}, running_stats, original=model)
