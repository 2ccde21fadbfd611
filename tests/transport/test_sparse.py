"""Sparse tensors on the wire: sizes by hand, and there and back."""

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.errors import MoietyError
from moiety.transport import pack, unpack
from moiety.transport.sparse import count_active, sparse_bytes, sparse_pack, sparse_unpack


def example(size, count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=draw)[:count]] = True
    values = torch.where(mask, torch.randn(size, generator=draw), 0)
    return values.view(-1, 5), mask.view(-1, 5)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 50, 100])
def test_there_and_back(count):
    values, mask = example(100, count)
    whole = {"w": values, "b": torch.randn(3)}
    packed = unpack(pack(sparse_pack(whole, {"w": mask})))
    tensors, masks = sparse_unpack(packed, whole)
    assert torch.equal(tensors["w"], values)
    assert torch.equal(tensors["b"], whole["b"])
    assert torch.equal(masks["w"], mask)
    payload = unpack(pack(sparse_pack(whole, {"w": mask}, mask_known=True)))
    assert set(payload) == {"w", "b"}
    assert torch.equal(sparse_unpack(payload, whole, {"w": mask})[0]["w"], values)


def test_bits_or_places_whichever_is_shorter():
    """100 numbers are 13 bytes of bits; 3 places of 4 bytes are 12, 4 are 16."""
    for count, key, size in ((3, "places:w", 12), (4, "bits:w", 13)):
        values, mask = example(100, count)
        packed = sparse_pack({"w": values}, {"w": mask})
        assert packed[key].numel() * packed[key].element_size() == size
        assert len(packed) == 2


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("count", [0, 3, 40, 100])
def test_the_bill_is_the_length_of_what_is_packed(count, known):
    values, mask = example(100, count)
    whole = {"w": values, "b": torch.randn(3)}
    packed = pack(sparse_pack(whole, {"w": mask}, mask_known=known))
    assert sparse_bytes(whole, count_active({"w": mask}), mask_known=known) == (4 * count + 12, len(packed))


def test_the_codec_loses_nothing_and_sends_what_is_shorter():
    values, _ = example(1000, 300)
    upload = {"w": values, "b": torch.randn(7), "n": torch.tensor([0, 3])}
    codec = mo.codec.sparse()
    packed = codec.encode(upload, np.random.default_rng(0))
    assert set(packed) == {"w", "bits:w", "b", "n"}  # a tensor without zeros goes whole
    back = codec.decode(unpack(pack(packed)), upload)
    assert all(torch.equal(back[name], p) for name, p in upload.items())
    assert len(pack(packed)) < len(pack(upload)) - 4 * 700 + 125 + 200


def test_a_payload_that_does_not_fit_is_refused():
    values, mask = example(100, 50)
    packed = sparse_pack({"w": values}, {"w": mask})
    for payload in (
        {},
        packed | {"w": packed["w"][1:]},
        packed | {"bits:w": packed["bits:w"][1:]},
        {"w": torch.ones(1), "places:w": torch.tensor([100], dtype=torch.int32)},
    ):
        with pytest.raises(MoietyError, match="`payload` must be"):
            sparse_unpack(payload, {"w": values})
