import pytest
import torch

from moiety.errors import MoietyError
from moiety.transport import PrivacyError, check

LAYOUT = {"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float64)}


def good():
    return {"b": torch.ones(2, dtype=torch.float64), "w": torch.full((2, 3), float("nan"))}


def test_names_shapes_and_types_are_all_that_is_looked_at():
    check(good(), LAYOUT, where="client 3, round 2")
    check({}, {}, where="nothing")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"v": torch.zeros(1)}, "v too"),
        ({"w": torch.zeros(3, 2)}, "w of shape (3, 2)"),
        ({"w": torch.zeros(1, 2, 3)}, "w of shape (1, 2, 3)"),
        ({"w": torch.zeros(2, 3, dtype=torch.float16)}, "torch.float16"),
        ({"w": None}, "none named w"),
    ],
)
def test_anything_else_is_stopped(change, text):
    payload = {k: v for k, v in (good() | change).items() if v is not None}
    with pytest.raises(PrivacyError) as error:
        check(payload, LAYOUT, where="client 3, round 2")
    assert text in str(error.value)
    assert "client 3, round 2" in str(error.value)
    assert "\n" not in str(error.value)


def test_it_is_one_of_the_houses_errors():
    assert issubclass(PrivacyError, MoietyError)
