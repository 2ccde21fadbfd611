"""Layer densities by hand, and choices against NumPy's sort by (value, place)."""

import math
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import moiety as mo
from moiety.errors import MoietyError
from moiety.local.verbs import apply_masks, spread_masks
from moiety.split.masks import (
    anneal_rate,
    draw_masks,
    find_maskable,
    hamming_distance,
    layer_counts,
    mask_highest,
    update_mask,
)

LENET = {n: p.detach() for n, p in mo.models.lenet5().named_parameters()}


def test_masked_are_weights_of_convolutions_and_linear_layers():
    model = mo.models.vgg11_gn()
    names = find_maskable(dict(model.named_parameters()))
    assert names == (*(f"conv{i}.weight" for i in range(1, 9)), "head.weight")


def test_erk_of_lenet_by_hand():
    """61,706 parameters, half of them are 30,853; 236 biases leave 30,617 for the weights.

    Sizes 150, 2400, 48000, 10080, 840; sums of sides 6+1+5+5 = 17, 16+6+5+5 = 32, 120+400 = 520, 84+120 = 204,
    10+84 = 94, in all 867. At 30617 / 867 = 35.3 for each unit of a side the first would have 600 of 150 and the last
    3319 of 840: both are full. The others share 30617 - 990 = 29627 by 32 : 520 : 204, of 756:

        29627 * 32 / 756 = 1254.05    29627 * 520 / 756 = 20378.36    29627 * 204 / 756 = 7994.59

    Rounded down that is one too few, which goes to the largest remainder, the last.
    """
    counts = layer_counts(LENET, 0.5, "erk")
    expected = {"conv1": 150, "conv2": 1254, "hidden1": 20378, "hidden2": 7995, "head": 840}
    assert counts == {f"{layer}.weight": count for layer, count in expected.items()}
    assert sum(counts.values()) + 236 == 30853


def test_uniform_of_lenet_by_hand():
    """30617 of 61470: 74.71, 1195.39, 23907.76, 5020.63, 418.39; down 30614, so 3 go to .71, .76 and .63."""
    counts = layer_counts(LENET, 0.5, "uniform")
    assert list(counts.values()) == [75, 1195, 23908, 5021, 418]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    st.floats(0.2, 1.0),
    st.sampled_from(["erk", "uniform"]),
)
def test_the_total_is_what_was_asked(shapes, density, densities):
    """Nearest whole number of density times all, a half upwards; every layer within its size."""
    params = {str(i): torch.zeros(shape) for i, shape in enumerate(shapes)}
    total = sum(p.numel() for p in params.values())
    active = int((Decimal(str(density)) * total).to_integral_value(ROUND_HALF_UP))
    dense = sum(p.numel() for p in params.values() if p.dim() < 2)
    if active - dense < len(find_maskable(params)):
        with pytest.raises(MoietyError, match="`density` must be >= "):
            layer_counts(params, density, densities)
        return
    counts = layer_counts(params, density, densities)
    assert sum(counts.values()) + dense == active
    assert all(1 <= count <= params[name].numel() for name, count in counts.items())


@pytest.mark.parametrize("densities", ["erk", "uniform"])
def test_every_layer_has_a_weight(densities):
    """0.202 of 2002 numbers are 404 (404.4); 400 are biases, and of 4 weights the layer of 2 would have none.

    By sides 80 : 3 and by sizes 1600 : 2 its share is 0.14 and 0.005.
    """
    params = {"a": torch.zeros(40, 40), "b": torch.zeros(1, 2), "c": torch.zeros(400)}
    assert layer_counts(params, 0.202, densities) == {"a": 3, "b": 1}


@given(st.floats(0.2, 1.0))
@settings(max_examples=20, deadline=None)
def test_erk_never_makes_a_smaller_layer_sparser_than_a_larger_one_of_the_same_kind(density):
    """Equation of Evci et al.: density is proportional to (n_in + n_out) / (n_in n_out), falling in both."""
    params = {str(n): torch.zeros(n, n) for n in (8, 16, 32)}
    counts = layer_counts(params, density, "erk")
    shares = [counts[str(n)] / n**2 for n in (8, 16, 32)]
    assert shares[0] + 1 / 64 >= shares[1]
    assert shares[1] + 1 / 256 >= shares[2]


def test_density_one_is_full():
    for densities in ("erk", "uniform"):
        assert layer_counts(LENET, 1.0, densities) == {n: LENET[n].numel() for n in find_maskable(LENET)}


def test_the_annealing_formula():
    """alpha_t = 0.5 alpha_0 (1 + cos(t pi / (T - 1))): T = 7 rounds, cosines 1, sqrt(3)/2, 1/2, 0, ... -1."""
    cosines = [1, math.sqrt(3) / 2, 0.5, 0, -0.5, -math.sqrt(3) / 2, -1]
    rates = [anneal_rate(0.5, t / 6) for t in range(7)]
    assert rates == pytest.approx([0.25 * (1 + c) for c in cosines], abs=1e-15)


def by_numpy(score, count):
    """Highest first, NaN before all, of equal ones the earlier: np.lexsort sorts by its last key first."""
    flat = np.asarray(score).reshape(-1)
    mask = np.zeros(flat.size, bool)
    mask[np.lexsort((np.arange(flat.size), -flat, ~np.isnan(flat)))[:count]] = True
    return mask.reshape(np.shape(score))


SCORES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, -math.inf, math.inf, math.nan])
TIED = st.lists(SCORES, min_size=24, max_size=24)


@settings(max_examples=200, deadline=None)
@given(TIED, st.integers(0, 13))
def test_the_highest_of_tied_scores_alone_and_in_a_block(values, count):
    score = torch.tensor(values, dtype=torch.float32).view(2, 3, 4)
    expected = np.stack([by_numpy(s, count) for s in score.numpy()])
    assert np.array_equal(torch.stack([mask_highest(s, count) for s in score]).numpy(), expected)
    assert np.array_equal(torch.func.vmap(lambda s: mask_highest(s, count))(score).numpy(), expected)
    counts = torch.tensor([count, count // 2])  # also where the number differs from client to client
    other = np.stack([by_numpy(s, int(k)) for s, k in zip(score.numpy(), counts, strict=True)])
    assert np.array_equal(torch.func.vmap(mask_highest)(score, counts).numpy(), other)


def numpy_next(mask, weight, score, rate, regrow_pruned):
    """Algorithm 2, lines 7 and 8, place by place."""
    mask = mask.copy()
    old = mask.copy()
    on = [i for i in range(mask.size) if mask[i]]
    count = math.floor(rate * len(on) + 1e-9)  # 0.29 of 100 is 29, also in binary
    removals = sorted(on, key=lambda i: (abs(weight[i]), i))[:count]
    mask[removals] = False
    dormant = sorted((i for i in range(mask.size) if not old[i]), key=lambda i: (-score[i], i))
    again = sorted(removals, key=lambda i: (-score[i], i))
    additions = (dormant + again)[:count]  # those just pruned come back only where nothing else is left
    if regrow_pruned:  # Evci et al. 2020: all compete that are not active after pruning
        additions = sorted(dormant + again, key=lambda i: (-score[i], i))[:count]
    mask[additions] = True
    return mask, set(removals), set(additions)


WEIGHTS = st.sampled_from([-2.0, -1.0, -1e-38, -0.0, 0.0, 1e-38, 1.0, 2.0, math.inf, -math.inf])
GRADIENTS = st.sampled_from([-0.0, 0.0, 1e-38, 1.0, 2.0, math.inf])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(WEIGHTS, min_size=12, max_size=12),
    st.lists(GRADIENTS, min_size=12, max_size=12),
    st.floats(0, 1),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.booleans(),
)
def test_prune_and_regrow_against_numpy(mask, weight, score, rate, kind, regrow_pruned):
    m, w, s = np.array(mask), np.array(weight, float), np.array(score, float)
    expected, removals, additions = numpy_next(m, w, s, rate, regrow_pruned)
    tensors = [torch.tensor(m).view(3, 4), *(torch.tensor(x).to(kind).view(3, 4) for x in (w, s))]
    active = int(m.sum())
    options = {"active": active, "rate": rate, "regrow_pruned": regrow_pruned}
    actual = update_mask(*tensors, **options)
    assert np.array_equal(actual.numpy().reshape(-1), expected)
    assert int(actual.sum()) == active  # the volume of the layer is constant
    if len(removals) <= m.size - active and not regrow_pruned:  # not forced
        assert not removals & additions
    block = torch.func.vmap(lambda a, b, c: update_mask(a, b, c, **options))
    assert torch.equal(block(*(torch.stack([t, t]) for t in tensors))[1], actual)


def test_a_full_layer_stays_full():
    full = torch.ones(3, 3, dtype=torch.bool)
    assert update_mask(full, torch.randn(3, 3), torch.rand(3, 3), active=9, rate=0.5).all()


def test_drawn_masks_have_their_numbers_and_depend_on_the_key():
    counts = layer_counts(LENET, 0.3, "erk")
    one, again, other = (draw_masks(torch.tensor(k), LENET, counts, "mask", 0) for k in (1, 1, 2))
    assert {n: int(m.sum()) for n, m in one.items()} == counts
    assert all(torch.equal(m, again[n]) for n, m in one.items())
    gap = float(hamming_distance(one, other))
    # Independent masks of density d differ in 2 d (1 - d) of the places, here summed over layers.
    sizes = {n: LENET[n].numel() for n in counts}
    expected = sum(2 * c * (1 - c / sizes[n]) for n, c in counts.items()) / sum(sizes.values())
    assert gap == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_lets_nothing_through_that_is_not_active(kind):
    """Not even what no product with 0 removes; and the sign of what stays is kept."""
    values = torch.tensor([[1.5, -0.0, math.inf, -math.inf, math.nan, -2.0]], dtype=kind).repeat(3, 1)
    masks = torch.tensor([[True] * 6, [False] * 6, [True, False] * 3])
    expected = np.where(masks.numpy(), values.double().numpy(), 0.0)

    def check(params):
        assert params["w"].dtype is kind
        actual = params["w"].double().numpy()
        assert np.array_equal(actual, expected, equal_nan=True)
        assert np.array_equal(np.signbit(actual), np.signbit(expected))

    for bits in (masks, spread_masks({"w": values}, {"w": masks})["w"]):
        with torch.no_grad():
            check(apply_masks({"w": values.t().contiguous().t()}, {"w": bits}))
            check(torch.func.vmap(lambda w, m: apply_masks({"w": w}, {"w": m}))(values, bits))
        check(apply_masks({"w": values}, {"w": bits}))  # where a gradient may be asked for
    slope = torch.func.grad(lambda w: apply_masks({"w": w}, {"w": masks[2]})["w"].sum())(torch.ones(6))
    assert slope.tolist() == [1.0, 0.0] * 3


def test_masked_leaves_vectors_alone():
    params = {"w": torch.tensor([[1.0, math.nan]]), "b": torch.ones(2)}
    result = apply_masks(params, {"w": torch.tensor([[True, False]])})
    assert result["w"].tolist() == [[1.0, 0.0]]
    assert result["b"] is params["b"]


def test_the_least_density_that_is_named_works():
    """The nearest number to density times d must leave a weight, so density >= (dense + 1 - 1/2) / d, shown upwards.

    133,334 numbers, 33,334 of them dense: 33,334.5 / 133,334 = 0.2500075.
    """
    like = {"w": torch.empty(1000, 100, device="meta"), "b": torch.empty(33_334, device="meta")}
    with pytest.raises(MoietyError, match=r"`density` must be >= 0.2501 for this model, got 0.25\."):
        layer_counts(like, 0.25, "erk")
    assert layer_counts(like, 0.25001, "erk")["w"] >= 1


def test_shares_to_prune_are_decimals():
    """0.29 of 100 is 29, though the binary number next to 0.29 is a little less."""
    mask = torch.arange(200) < 100
    after = update_mask(mask, torch.arange(200.0), torch.arange(200.0), active=100, rate=0.29)
    assert int((mask & ~after).sum()) == 29
