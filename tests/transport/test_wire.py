import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.errors import MoietyError
from moiety.transport import pack, payload_bytes, unpack, value_bytes

SIZE = {torch.float32: 4, torch.float64: 8, torch.int64: 8, torch.float16: 2, torch.bool: 1}
PARAMS = st.dictionaries(
    st.text("abc._", min_size=1, max_size=5),
    st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(list(SIZE))),
    min_size=1,
    max_size=4,
).map(lambda d: {n: torch.ones(shape, dtype=dtype) for n, (shape, dtype) in d.items()})


@settings(max_examples=60, deadline=None)
@given(PARAMS)
def test_bytes_against_the_formats_own_header(params):
    """Safetensors: 8 bytes that say how long the header is, the header (JSON), then the values and nothing else."""
    payload = pack(params)
    values = sum(p.numel() * SIZE[p.dtype] for p in params.values())
    header = int.from_bytes(payload[:8], "little")
    assert json.loads(payload[8 : 8 + header]).keys() == params.keys()
    assert len(payload) == 8 + header + values
    assert value_bytes(params) == values
    assert payload_bytes(params) == len(payload)
    back = unpack(payload)
    assert back.keys() == params.keys()
    assert all(back[n].dtype == p.dtype and torch.equal(back[n], p) for n, p in params.items())


def test_views_are_packed_as_what_they_show():
    whole = torch.arange(6.0).reshape(2, 3)
    back = unpack(pack({"t": whole.T, "row": whole[1]}))
    assert back["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert back["row"].tolist() == [3, 4, 5]
    assert payload_bytes({"t": whole.T, "row": whole[1]}) == len(pack({"t": whole.T, "row": whole[1]}))


def test_nothing_costs_nothing():
    assert payload_bytes({}) == value_bytes({}) == 0


def test_a_broken_payload_is_one_line():
    for payload in (b"", b"12345678", pack({"a": torch.ones(3)})[:-1]):
        with pytest.raises(MoietyError, match=r"^`payload` must be whole safetensors bytes, got \d+ bytes"):
            unpack(payload)
