"""What is put into a copy of a model: small modules beside its own, and the hooks that bring them in.

A graft is a child of the module that it works on, so that the names of the model's own parameters stay as they were.
Its hook is a function of this file, which looks the graft up on the module that it is called for: so a grafted model
can be copied, pickled, traced and called with other parameters like any model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional

from moiety.errors import must

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
    """scale B A x: A is ``down``, from N(0, 1/inputs), and B is ``up``, which starts at 0 (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=layer.in_features**-0.5)
        nn.init.zeros_(self.up.weight)

    def branch(self, x: Tensor) -> Tensor:
        """What is added to the layer's output."""
        return self.scale * self.up(self.down(x))  # type: ignore[no-any-return]


def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """The graft of the module's output; where that is a tuple, as attention's may be, of its first part."""
    graft = _home(module).get_submodule("adapter")
    return (graft(output[0]), *output[1:]) if isinstance(output, tuple) else graft(output)


def beside(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """The module's output and what the graft makes of its input."""
    graft = cast(Bottleneck | LowRank, _home(module).get_submodule("adapter"))
    return output + graft.branch(args[0] if args else next(iter(kwargs.values())))


def _home(module: nn.Module) -> nn.Module:
    """Where the graft of a module lives. ``nn.Sequential`` would run a child of its own: so in the last it holds."""
    while isinstance(module, nn.Sequential):
        module = module[-1]
    return module


def attach(target: nn.Module, name: str, graft: nn.Module, hook: Hook, like: Tensor) -> None:
    """Put ``graft`` into ``target``, called ``adapter``, with the type and on the device of ``like``."""
    home = _home(target)
    hint = "Make the split from a model without adapters."
    must(not hasattr(home, "adapter"), "model", f"without a module or value called adapter in {name}", "one", hint)
    home.add_module("adapter", graft.to(like.device, like.dtype).train(home.training))
    target.register_forward_hook(hook, with_kwargs=True)
