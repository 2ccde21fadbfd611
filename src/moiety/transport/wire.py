"""What crosses the wire: named tensors as safetensors bytes, which cannot carry code."""

from __future__ import annotations

import functools

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from moiety.errors import MoietyError
from moiety.types import Params


def pack(params: Params) -> bytes:
    """The bytes that go over the wire."""
    return save({name: p.detach().contiguous() for name, p in params.items()})


def unpack(payload: bytes) -> Params:
    """The inverse of ``pack``."""
    try:
        return load(payload)
    except SafetensorError as error:
        raise MoietyError(f"`payload` must be whole safetensors bytes, got {len(payload)} bytes: {error}.") from None


def value_bytes(params: Params) -> int:
    """Bytes of the values alone."""
    return sum(p.numel() * p.element_size() for p in params.values())


def payload_bytes(params: Params) -> int:
    """Length of ``pack(params)``; nothing to send costs nothing."""
    return _count_packed_bytes(tuple((n, p.shape, p.dtype) for n, p in params.items())) if params else 0


def message_bytes(params: Params) -> tuple[int, int]:
    """Bytes of the values alone, and of the message on the wire."""
    return value_bytes(params), payload_bytes(params)


@functools.lru_cache(maxsize=64)
def _count_packed_bytes(layout: tuple[tuple[str, torch.Size, torch.dtype], ...]) -> int:
    # The length depends on names, shapes and types alone: every client's upload has the same.
    return len(pack({name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in layout}))
