"""Sparse tensors on the wire: the values of active places, and where these are, if the receiver does not know it.

Places are a bit for each number of the tensor, eight to a byte, or a list of 32-bit places where that is shorter (fewer
than one in 32 active).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moiety.errors import must
from moiety.spec import recorded
from moiety.transport.wire import payload_bytes
from moiety.types import Codec, Params

BITS, PLACES = "bits:", "places:"


@recorded
def sparse() -> Codec:
    """Zeros are not sent: of every floating-point tensor the other values, and their places, where that is shorter.

    Nothing is lost: what arrives is what was sent. It pays for uploads of clients with masks.
    """

    def encode(upload: Params, rng: np.random.Generator) -> Params:
        masks = {name: p != 0 for name, p in upload.items() if p.is_floating_point()}
        return sparse_pack(upload, {name: mask for name, mask in masks.items() if _is_shorter(mask, upload[name])})

    return Codec(encode, lambda packed, like: sparse_unpack(packed, like)[0], (BITS, PLACES))


def _is_shorter(mask: Tensor, like: Tensor) -> bool:
    """Whether a tensor is shorter without its zeros."""
    count, size = int(mask.sum()), mask.numel()
    return count * like.element_size() + min(4 * count, -(-size // 8)) < size * like.element_size()


def sparse_pack(values: Params, masks: Params, *, mask_known: bool = False) -> Params:
    """Tensors to pack: the values at active places, and the masks unless the receiver knows them (``mask_known``).

    Tensors without a mask go whole.

    >>> packed = sparse_pack({"w": torch.tensor([[5.0, 0.0], [0.0, 7.0]])}, {"w": torch.eye(2, dtype=torch.bool)})
    >>> packed["w"].tolist(), packed["bits:w"].tolist()
    ([5.0, 7.0], [144])
    """
    packed: Params = {}
    for name, p in values.items():
        mask = masks[name].reshape(-1) if name in masks else None
        packed[name] = p if mask is None else p.reshape(-1)[mask]
    return packed if mask_known else packed | pack_masks({name: masks[name] for name in values if name in masks})


def pack_masks(masks: Params) -> Params:
    """Tensors to pack that say where the active places of each mask are."""
    packed: Params = {}
    for name, mask in masks.items():
        flat = mask.reshape(-1)
        if _lists_places(int(flat.sum()), flat.numel()):
            packed[PLACES + name] = flat.nonzero().reshape(-1).to(torch.int32)
        else:
            packed[BITS + name] = torch.from_numpy(np.packbits(flat.cpu().numpy()))
    return packed


def sparse_unpack(packed: Params, like: Params, masks: Params | None = None) -> tuple[Params, Params]:
    """The inverse: whole tensors laid out as ``like``, 0 where nothing is active, and the masks they came with.

    ``masks`` are those that the receiver knows, where none were sent.
    """
    values, active_places = {}, {}
    for name, p in like.items():
        must(name in packed, "payload", f"one that holds {name}", "none of that name")
        mask = read_mask(packed, name, p) if masks is None else masks.get(name)
        if mask is None:
            values[name] = packed[name]
            continue
        many, count = int(mask.sum()), len(packed[name])
        must(count == many, "payload", f"{many} values of {name}, as its mask says", count)
        flat = p.new_zeros(p.numel())
        flat[mask.reshape(-1)] = packed[name]
        values[name], active_places[name] = flat.view(p.shape), mask
    return values, active_places


def read_mask(packed: Params, name: str, like: Tensor) -> Tensor | None:
    """The mask that was sent for a tensor, None where it went whole."""
    if PLACES + name in packed:
        mask = torch.zeros(like.numel(), dtype=torch.bool)
        places = packed[PLACES + name].long()
        fits = bool(((places >= 0) & (places < like.numel())).all())
        must(fits, "payload", f"one with places of {name} below {like.numel()}", "others")
        mask[places] = True
        return mask.view(like.shape)
    if BITS + name in packed:
        bits = packed[BITS + name].cpu().numpy()
        long = -(-like.numel() // 8)
        must(len(bits) == long, "payload", f"one with {long} bytes of bits of {name}", len(bits))
        bits = np.unpackbits(bits, count=like.numel())
        return torch.from_numpy(bits.astype(bool)).view(like.shape)
    return None


def sparse_bytes(like: Params, counts: dict[str, int], *, mask_known: bool = False) -> tuple[int, int]:
    """Bytes of the active values alone, and of all that ``pack`` makes of ``sparse_pack``, without packing anything.

    ``counts`` says how many places of each tensor that has a mask are active.
    """
    layout: Params = {}
    values = 0
    for name, p in like.items():
        count = counts.get(name, p.numel())
        values += count * p.element_size()
        layout[name] = p.new_empty((count,) if name in counts else p.shape, device="meta")
        if name in counts and not mask_known:
            places = _lists_places(count, p.numel())
            size, dtype = (count, torch.int32) if places else (-(-p.numel() // 8), torch.uint8)
            layout[(PLACES if places else BITS) + name] = torch.empty(size, dtype=dtype, device="meta")
    return values, payload_bytes(layout)


def count_active(masks: Params) -> dict[str, int]:
    """How many places of each mask are active."""
    return {name: int(mask.sum()) for name, mask in masks.items()}


def _lists_places(active: int, size: int) -> bool:
    """Whether a list of places is shorter than a bit for each."""
    return 4 * active < -(-size // 8)
