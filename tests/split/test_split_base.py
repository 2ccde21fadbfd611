from __future__ import annotations

import pickle

import pytest
import torch
from example_models import ResNet18, SmallResNet, SmallTransformer, expect_error
from torch import nn

from moiety.split import Split, by_name, everything, input_layer, nothing, output_layer
from moiety.split.base import short_count


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}


def hand_made(**changes: object) -> Split:
    fields: dict[str, object] = {
        "shared": ("a", "s"),
        "personal": ("b",),
        "frozen": ("c",),
        "buffers": frozenset({"s"}),
        "sizes": {"a": 3, "s": 5, "b": 7, "c": 11},
    }
    return Split(**{**fields, **changes})  # type: ignore[arg-type]


def test_counts_leave_buffers_out() -> None:
    """a = 3, b = 7, c = 11; s = 5 is a buffer: 21 in all."""
    assert hand_made().counts() == {"total": 21, "shared": 3, "personal": 7, "frozen": 11}
    assert hand_made().trained_shared == ("a",)
    assert hand_made(buffers=frozenset({"s", "b"})).trained_personal == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"personal": ("a", "b")}, "`split` must be three groups without a common name, got a."),
        ({"frozen": ()}, "`split` must be three groups that cover every name of `sizes` and no other, got c."),
        ({"buffers": frozenset({"z"})}, "`split` must be made with buffers of the model, got z."),
        ({"statistics": frozenset({"a"})}, "`split` must be made with buffers of the model, got a."),
    ],
)
def test_a_split_made_by_hand_is_checked(changes: dict[str, object], text: str) -> None:
    with expect_error(text):
        hand_made(**changes)


def test_parts_and_compose_are_inverse() -> None:
    model = SmallResNet()
    split = by_name(model, personal=["head"], frozen=["stem.conv"])
    values = whole(model)
    shared, personal = split.parts(values)
    assert list(personal)[:2] == ["head.weight", "head.bias"]
    again = split.compose(shared, personal, split.select(values, split.frozen))
    assert again.keys() == values.keys()
    assert all(again[name] is values[name] for name in values)


def test_compose_refuses_a_missing_or_a_strange_name() -> None:
    a, b, c, s = (torch.zeros(n) for n in (3, 7, 11, 5))
    split = hand_made()
    assert list(split.compose({"a": a, "s": s}, {"b": b}, {"c": c})) == ["a", "s", "b", "c"]
    with expect_error("`shared` must be exactly the names of the shared part, got no s."):
        split.compose({"a": a}, {"b": b}, {"c": c})
    with expect_error("`frozen` must be exactly the names of the frozen part, got no c."):
        split.compose({"a": a, "s": s}, {"b": b}, {})
    # The personal value would win in silence if only the union were looked at.
    with expect_error("`shared` must be exactly the names of the shared part, got b besides."):
        split.compose({"a": a, "s": s, "b": b}, {"b": b}, {"c": c})


def test_select_refuses_an_unknown_name() -> None:
    with expect_error(
        "`params` must be a dict that holds head.wieght, got none of that name. Did you mean head.weight?"
    ):
        Split.select({"head.weight": torch.zeros(1)}, ["head.wieght"])


def test_compose_works_under_vmap() -> None:
    """Two clients, shared weight 2 and biases 1 and 10, at x = 3: 7 and 16."""
    model = nn.Linear(1, 1)
    split = by_name(model, personal="bias")

    def predict(personal: dict[str, torch.Tensor]) -> torch.Tensor:
        params = split.compose({"weight": torch.tensor([[2.0]])}, personal, {})
        return torch.func.functional_call(model, params, torch.tensor([[3.0]]))

    outputs = torch.func.vmap(predict)({"bias": torch.tensor([[1.0], [10.0]])})
    assert outputs.flatten().tolist() == [7.0, 16.0]


def test_a_split_can_be_sent_to_a_worker() -> None:
    split = by_name(SmallResNet(), personal=["head"])
    again = pickle.loads(pickle.dumps(split))
    assert (again.shared, again.personal, again.sizes, again.spec) == (
        split.shared,
        split.personal,
        split.sizes,
        split.spec,
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (99, "99"),
        (100, "0.1K"),
        (704, "0.7K"),
        (850, "0.9K"),
        (4_000, "4K"),
        (4_999, "5K"),
        (5_000, "0.01M"),
        (94_999, "0.09M"),
        (95_000, "0.1M"),
        (999_999, "1M"),
        (5_726_996, "5.7M"),
        (12_209_068, "12.2M"),
        (1_234_567_890, "1234.6M"),
    ],
)
def test_rounding(count: int, text: str) -> None:
    assert short_count(count) == text


def test_summary_has_the_columns_and_the_numbers_of_table_7() -> None:
    """Table 7: output layer 0.03M and 11.2M, input layer 0.7K and 11.2M; exact counts from FACTS.md."""
    with torch.device("meta"):
        model = ResNet18()
    assert output_layer(model).summary().splitlines() == [
        "Personalisation type  Layers on device  # personal params  # shared params",
        "Output layer          head              31,806 (0.03M)     11,167,680 (11.2M)",
        "Total: 11,199,486 (11.2M) parameters, frozen: 0",
        "Running statistics: none",
        "Other buffers: none",
    ]
    assert "Input layer           conv, norm        704 (0.7K)" in input_layer(model).summary()
    assert "conv, norm, blocks.0.conv1 and 38 more" in everything(model).summary()


def test_summary_says_where_buffers_go() -> None:
    """The small ResNet has 4 batch norms (stem, two in the block, one down): 12 running statistics."""
    model = SmallResNet()
    assert "Running statistics: 12 personal\nOther buffers: none" in nothing(model).summary()
    assert "Nothing               none " in nothing(model).summary()
    split = by_name(model, shared=["stem.norm.running_*"], frozen=["stem.conv"])
    assert "frozen: 18\nRunning statistics: 10 personal, 2 shared" in split.summary()
    assert "Other buffers: 1 frozen" in nothing(SmallTransformer(), frozen=["mask"]).summary()
    assert hand_made().summary().splitlines()[1].startswith("Custom")
