"""Messages of algorithms whose clients have masks: only active values cross, and a mask where it is a new one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moiety.errors import must
from moiety.local.masked import OwnMask
from moiety.local.verbs import drop_prefix
from moiety.transport.sparse import pack_masks, read_mask, sparse_pack, sparse_unpack
from moiety.types import Packing, Params


def masked_packing(
    own_mask: Callable[[Tensor, Params, OwnMask], Params], *, tell_first: bool, with_masks: str | None = None
) -> Packing:
    """The packing of messages that both sides mask.

    Args:
        own_mask: a client's mask, from its key, parameters laid out as the shared ones, and what is known of it.
        tell_first: whether the first broadcast to a client says what its mask is.
        with_masks: where uploads hold masks, what the names of these begin with; values are then at the places of the
            new mask, else at those of the mask that the client was given.
    """

    def pack_down(key: Tensor, received: Params, facts: OwnMask) -> Params:
        mask = own_mask(key, received, facts)
        return sparse_pack(received, mask, mask_known=not tell_first or bool(facts.asked))

    def unpack_down(key: Tensor, packed: Params, like: Params, facts: OwnMask) -> Params:
        mask = own_mask(key, like, facts)
        check_names(packed, like, mask)
        return sparse_unpack(packed, like, mask)[0]

    def take_values(upload: Params) -> Params:
        return upload if with_masks is None else drop_prefix(upload, with_masks)

    def pack_up(key: Tensor, upload: Params, facts: OwnMask, after: OwnMask) -> Params:
        values = take_values(upload)
        before = own_mask(key, values, facts)
        new = any(bool((before[name] != mask).any()) for name, mask in after.mask.items())
        packed = sparse_pack(values, before if with_masks is None else after.mask, mask_known=True)
        return packed | (pack_masks(after.mask) if new else {})

    def unpack_up(key: Tensor, packed: Params, like: Params, facts: OwnMask) -> tuple[Params, OwnMask]:
        layout = take_values(like)
        before = own_mask(key, layout, facts)
        check_names(packed, layout, before)
        masks = {name: read_mask(packed, name, layout[name]) for name in before}
        after = {name: before[name] if mask is None else mask for name, mask in masks.items()}
        values = sparse_unpack(packed, layout, before if with_masks is None else after)[0]
        if with_masks is not None:
            values |= {with_masks + name: mask.byte() for name, mask in after.items()}
        return {name: values[name] for name in like}, OwnMask({}, after, torch.ones_like(facts.asked))

    return Packing(lambda state: state._replace(personal={}), pack_down, unpack_down, pack_up, unpack_up)


def check_names(packed: Params, like: Params, masks: Params) -> None:
    """Refuse a message with a tensor that is neither one of ``like``, in its type, nor the mask of one."""
    names = {*like, *(before + name for name in masks for before in ("bits:", "places:"))}
    odd = sorted(packed.keys() - names)
    must(not odd, "payload", "one with the declared tensors and their masks alone", ", ".join(odd[:3]))
    for name, p in like.items():
        fits = name in packed and packed[name].dtype == p.dtype and (name in masks or packed[name].shape == p.shape)
        must(fits, "payload", f"one that holds {name} as declared", "another")
