"""A device that is not there: tensors lie in ordinary memory, but behave as if some of them lay on a GPU.

A storage is marked where a tensor was made on the device, moved there, or computed from one that is there. As with a
real one, an operation on tensors of both places fails (a CPU tensor without axes is welcome everywhere), and so does
``numpy()`` on the device. This sees every operation that is computed, under vmap and in backward passes too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

AWAY, HOME = torch.device("cuda"), torch.device("cpu")
ops = torch.ops.aten
MIXED = {ops.copy_.default, ops._to_copy.default, ops.index.Tensor, ops.index_put_.default, ops.index_put.default}
"""Operations that a GPU does with tensors of both places."""


class Places:
    """Which storages are on the device. They are kept, so that no other takes their place in memory."""

    def __init__(self) -> None:
        self.storages: dict[int, Any] = {}
        self.made = 0

    def holds(self, tensor: Tensor) -> bool:
        while functorch.is_batchedtensor(tensor) or functorch.is_gradtrackingtensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        return tensor.untyped_storage()._cdata in self.storages

    def add(self, tensor: Tensor) -> None:
        while functorch.is_batchedtensor(tensor) or functorch.is_gradtrackingtensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage


PLACES = Places()


def tensors_in(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, Tensor)]


class Compute(TorchDispatchMode):
    """Below vmap and autograd: refuses to mix places, and marks results."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places


def compute(self: Compute, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    inputs = tensors_in(args, kwargs)
    away = [self.places.holds(x) for x in inputs]
    strangers = [x for x, remote in zip(inputs, away, strict=True) if not remote and x.dim()]
    if any(away) and strangers and func not in MIXED:
        raise RuntimeError(f"{func} got tensors on {AWAY} and on cpu: {[tuple(x.shape) for x in inputs]}")
    result = func(*args, **(kwargs or {}))
    if any(away) and func is not ops.copy_.default:
        for each in tensors_in(result):
            self.places.add(each)
    return result


# Not in the body of the class, where it would load PyTorch's compiler.
Compute.__torch_dispatch__ = compute  # type: ignore[method-assign]


class Calls(TorchFunctionMode):
    """Above them: takes the device out of calls, answers where a tensor is, and moves tensors."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return AWAY if self.places.holds(args[0]) else HOME
        if func is Tensor.numpy and self.places.holds(args[0]):
            raise TypeError(f"can't convert a tensor on {AWAY} to numpy")
        if func is Tensor.cpu:
            return self.move(args[0], HOME)
        if func is Tensor.to:
            target, rest = kwargs.pop("device", None), list(args[1:])
            if rest and isinstance(rest[0], str | torch.device):
                target = rest.pop(0)
            if rest and isinstance(rest[0], Tensor):  # to the place and type of another
                target, rest = (AWAY if self.places.holds(rest[0]) else HOME), [rest[0].dtype]
            tensor = args[0] if target is None else self.move(args[0], torch.device(target))
            return func(tensor, *rest, **kwargs) if rest or kwargs else tensor
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == AWAY.type:
            result = func(*args, **kwargs | {"device": HOME})
            for each in tensors_in(result):
                self.places.add(each)
            self.places.made += 1
            return result
        if kwargs.get("device") is not None and torch.device(kwargs["device"]) == HOME and tensors_in(args):
            raise NotImplementedError(f"{func} of a tensor with device=cpu")
        return func(*args, **kwargs)

    def move(self, tensor: Tensor, target: torch.device) -> Tensor:
        remote = self.places.holds(tensor)
        if remote == (target.type == AWAY.type):
            return tensor
        if remote:
            fresh = torch.empty(0).new_empty(tensor.shape, dtype=tensor.dtype)
            return fresh.copy_(tensor.detach())
        fresh = tensor.clone()
        self.places.add(fresh)
        return fresh


@contextlib.contextmanager
def pretend_device() -> Iterator[Places]:
    """Within the block there is a device ``cuda``. What is on it stays there: moiety keeps first masks, for one."""
    with Calls(PLACES), Compute(PLACES):
        PLACES.made = 0
        yield PLACES
