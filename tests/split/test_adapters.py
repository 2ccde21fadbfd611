"""Adapters: structure against NumPy, counts of FACTS, neutrality, gradients, detection and bad input."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from example_models import SmallResNet, SmallTransformer, get_model
from torch import Tensor, nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.run.build import split_from
from moiety.split import adapters
from moiety.split.grafts import Bottleneck, Residual
from moiety.task import from_module
from moiety.types import Partial


class TinyBlock(nn.Module):
    """A post-norm block whose attention is one linear layer, and whose feed-forward is an ``nn.Sequential``."""

    def __init__(self, tuples: bool) -> None:
        super().__init__()
        self.attention = Pair() if tuples else nn.Linear(3, 3)
        self.norm1 = nn.LayerNorm(3)
        self.feed_forward = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        self.norm2 = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.attention(x)
        u = self.norm1(x + (a[0] if isinstance(a, tuple) else a))
        return self.norm2(u + self.feed_forward(u))


class Pair(nn.Linear):
    """An attention that gives its weights too, as torch's does."""

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def tiny_model(tuples: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), TinyBlock(tuples), nn.Linear(3, 2)).double()


def randomise(model: nn.Module, seed: int = 1) -> nn.Module:
    """All parameters at random, so that no zero or one hides a mistake."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p) * 0.5 + 0.1)
    return model


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {n: p.detach().numpy() for n, p in model.named_parameters()}


@pytest.mark.parametrize("tuples", [False, True])
def test_a_transformer_block_with_adapters_is_the_formula(tuples: bool) -> None:
    """FACTS.md: u = LN1(x + adapter(attention(x))), z = LN2(adapter(u) + FFN(u)), adapter(h) = h + U relu(D h + d) + e.

    Written out in NumPy from the values of the grafted model.
    """
    model = randomise(get_model(adapters(tiny_model(tuples), width=2)))
    w = arrays(model)
    x = np.random.default_rng(0).normal(size=(5, 2))

    def lin(h: np.ndarray, name: str) -> np.ndarray:
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def adapter(h: np.ndarray, name: str) -> np.ndarray:
        return h + lin(np.maximum(lin(h, f"{name}.down"), 0), f"{name}.up")

    def layer_norm(h: np.ndarray, name: str) -> np.ndarray:
        centred = h - h.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    h = lin(x, "0")
    u = layer_norm(h + adapter(lin(h, "1.attention"), "1.attention.adapter"), "1.norm1")
    ffn = lin(np.maximum(lin(u, "1.feed_forward.0"), 0), "1.feed_forward.2")
    z = layer_norm(adapter(u, "1.feed_forward.2.adapter") + ffn, "1.norm2")
    output = model(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(output, lin(z, "2"), rtol=1e-12)


def test_a_residual_adapter_is_the_formula() -> None:
    """conv1x1(GN(y)) + y with y the convolution's output, before its norm; GN with 2 groups of 8 channels."""
    model = mo.models.resnet18_gn(classes=3, image=(1, 8, 8), width=8).double()
    split = adapters(model)
    block = randomise(get_model(split).get_submodule("stage2.0"))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 8, 6, 6)))
    w = arrays(block)
    y = torch.nn.functional.conv2d(x, block.conv1.weight, stride=2, padding=1).detach().numpy()
    groups = model.get_submodule("stage2.0").norm1.num_groups
    assert block.conv1.adapter.norm.num_groups == groups == 2
    rows = y.reshape(2, groups, -1)
    centred = rows - rows.mean(2, keepdims=True)
    normal = (centred / np.sqrt((centred**2).mean(2, keepdims=True) + 1e-5)).reshape(y.shape)
    scaled = normal * w["conv1.adapter.norm.weight"][:, None, None] + w["conv1.adapter.norm.bias"][:, None, None]
    expected = y + np.einsum("oi,nihw->nohw", w["conv1.adapter.conv.weight"][:, :, 0, 0], scaled)
    np.testing.assert_allclose(block.conv1(x).detach().numpy(), expected, rtol=1e-10)


LM, WRITING, LANDMARKS = "transformer_lm", "resnet18_gn", "resnet18_gn large"
TABLES = [
    (LM, mo.split.first_block, (5_731_092, 4_942_356, 788_736)),
    (LM, mo.split.last_block, (5_731_092, 4_942_356, 788_736)),
    (LM, adapters, (5_798_804, 5_726_996, 71_808)),
    (WRITING, mo.split.input_layer, (11_199_486, 11_198_782, 704)),
    (WRITING, mo.split.output_layer, (11_199_486, 11_167_680, 31_806)),
    (WRITING, adapters, (12_599_806, 11_191_678, 1_408_128)),
    (LANDMARKS, adapters, (13_617_196, 12_209_068, 1_408_128)),
]


def paper_model(name: str) -> nn.Module:
    with torch.device("meta"):
        if name == LM:
            return mo.models.transformer_lm()
        return mo.models.resnet18_gn(**({"image": (3, 224, 224), "classes": 2028} if name == LANDMARKS else {}))


@pytest.mark.parametrize(("name", "builder", "counts"), TABLES, ids=[f"{n}, {b.__name__}" for n, b, _ in TABLES])
def test_the_counts_of_tables_5_to_7(name: str, builder: Any, counts: tuple[int, int, int]) -> None:
    """FACTS.md. By hand for the adapters: 8 (256*16 + 16 + 16*256 + 256) + 8*512 = 71,808 for the transformer.

    ResNet: 4 (64^2 + 128^2 + 256^2 + 512^2) + 4*2*960 + 4*2*960 + 128 = 1,408,128 (convolutions, their norms, the
    norms of the blocks, that of the stem).
    """
    sizes = builder(paper_model(name)).counts()
    assert (sizes["total"], sizes["shared"], sizes["personal"], sizes["frozen"]) == (*counts, 0)


def test_the_summary_has_the_numbers_of_table_5() -> None:
    """0.07M on the device and 5.7M shared."""
    row = adapters(paper_model(LM)).summary().splitlines()[1]
    assert row.startswith("Adapters ")
    assert row.endswith("71,808 (0.07M)     5,726,996 (5.7M)")


def test_the_speech_model_of_table_8() -> None:
    """Adapters 12 (384*16 + 16 + 16*384 + 384) = 152,256, the table's 0.15M, where its norms stay shared."""
    with torch.device("meta"):
        model = mo.models.speech_transformer()
    assert adapters(model, norms=False).counts()["personal"] == 152_256
    assert adapters(model).counts()["personal"] == 152_256 + 12 * 768


def test_which_norms_are_personal() -> None:
    """Stem and blocks, not the shortcuts; adapters have a norm of their own."""
    names = adapters(paper_model(WRITING)).personal
    assert {"stem.norm.weight", "stage2.0.norm1.bias", "stage2.0.conv1.adapter.norm.weight"} < set(names)
    assert not [n for n in names if "shortcut" in n or n.startswith(("head", "stem.conv"))]
    without = adapters(paper_model(WRITING), norms=False).personal
    assert without == tuple(n for n in names if ".adapter." in n)
    groups = [8] * 8 + [16] * 4 + [32] * 4
    inner = [m.norm.num_groups for m in get_model(adapters(paper_model(WRITING))).modules() if isinstance(m, Residual)]
    assert inner == groups


CASES: dict[str, tuple[Any, Any]] = {
    "words": (
        lambda: mo.models.transformer_lm(vocabulary=9, length=4, width=8, blocks=2, heads=2, feed_forward=6),
        lambda: torch.arange(12).reshape(3, 4) % 9,
    ),
    "images": (
        lambda: mo.models.resnet18_gn(classes=3, image=(1, 8, 8), width=8),
        lambda: torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8),
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, batch_first=True), 2),
        lambda: torch.linspace(-1, 1, 48).reshape(2, 3, 8),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_adapters_at_zero_change_nothing(case: str) -> None:
    """Figure 2a: an adapter collapses to the identity if v_i = 0; for that the last weights alone suffice."""
    model, x = CASES[case][0](), CASES[case][1]()
    before = copy.deepcopy(model.state_dict())
    output = model(x)
    graft = get_model(adapters(model, width=3))
    assert 0 < (graft(x) - output).abs().max() < 0.05
    for names in ((".up.", "adapter.conv"), (".adapter.",)):
        zeroed = copy.deepcopy(graft)
        with torch.no_grad():
            for name, p in zeroed.named_parameters():
                if any(part in name for part in names):
                    p.zero_()
        assert torch.equal(zeroed(x), output)
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(p, dict(graft.named_parameters())[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("case", CASES)
def test_copies_and_modes_agree(case: str) -> None:
    model, x = CASES[case][0](), CASES[case][1]()
    split = adapters(model, width=3)
    graft = randomise(get_model(split)).train()
    output = graft(x)
    assert torch.equal(copy.deepcopy(graft)(x), output)
    assert torch.equal(pickle.loads(pickle.dumps(split)).model(x), output)
    with torch.no_grad():
        torch.testing.assert_close(graft.eval()(x), output)


def test_first_weights() -> None:
    """Bottleneck N(0, 0.01^2) with biases 0, residual N(0, 0.0001^2) with norms 1 and 0; the same for the same seed.

    8 x 4096 x 2 draws lie within 2 per cent of the standard deviation (its error is 1 / sqrt(2 n), under 0.3 per cent).
    """
    words = mo.models.transformer_lm(vocabulary=9, width=256, blocks=4, feed_forward=8)
    before = torch.get_rng_state()
    first, again, other = (dict(get_model(adapters(words, seed=s)).named_parameters()) for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    new = [n for n in first if ".adapter." in n]
    weights = torch.cat([first[n].detach().flatten() for n in new if n.endswith("weight")])
    assert weights.std() == pytest.approx(0.01, rel=0.02)
    assert abs(weights.mean()) < 2e-4
    assert all(not first[n].any() for n in new if n.endswith("bias"))
    assert all(torch.equal(first[n], again[n]) for n in new)
    assert not any(torch.equal(first[n], other[n]) for n in new if n.endswith("weight"))
    images = mo.models.resnet18_gn(width=16, image=(1, 8, 8))
    residuals = [m for m in get_model(adapters(images)).modules() if isinstance(m, Residual)]
    assert torch.cat([m.conv.weight.detach().flatten() for m in residuals]).std() == pytest.approx(1e-4, rel=0.02)
    assert all(bool((m.norm.weight == 1).all()) and not m.norm.bias.any() for m in residuals)


def test_gradients_against_central_differences() -> None:
    """In float64, step 1e-6: the error of a central difference is about 1e-9 here."""
    split = adapters(tiny_model(), width=2)
    model = randomise(get_model(split))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2)))
    model(x).square().mean().backward()
    count = 0
    for name, p in model.named_parameters():
        if name not in split.personal:
            continue
        flat = p.data.reshape(-1)
        for i in range(len(flat)):
            at, values = float(flat[i]), []
            for step in (1e-6, -1e-6):
                flat[i] = at + step
                with torch.no_grad():
                    values.append(float(model(x).square().mean()))
            flat[i] = at
            assert p.grad is not None
            assert float(p.grad.reshape(-1)[i]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)
            count += 1
    assert count == split.counts()["personal"] == 2 * (3 * 2 + 2 + 2 * 3 + 3) + 2 * 6


@pytest.mark.parametrize("case", ["words", "images"])
def test_partial_evaluation_gives_the_whole_models_numbers(case: str) -> None:
    model, x = CASES[case][0](), CASES[case][1]()
    last = {"words": "blocks.1.", "images": "stage4.1."}[case]
    split = adapters(model, width=3)
    task = from_module(randomise(get_model(split)), loss="cross_entropy")
    y = torch.tensor([[0, 1, 2, 3]] * 3) if case == "words" else torch.tensor([0, 2])
    batch = {"x": x, "y": y}
    names = frozenset(n for n in split.personal if n.startswith(last))
    part = task.partial(names, task.init, batch)
    assert isinstance(part, Partial)
    values = {n: p + 0.1 if n in names else p for n, p in task.init.items()}
    whole, _ = task.loss(values, batch)
    columns = {**batch, **part.features(task.init, batch)}
    del columns["x"]
    torch.testing.assert_close(part.loss(values, columns)[0], whole)
    assert not torch.allclose(task.loss(task.init, batch)[0], whole)


@pytest.mark.parametrize("case", ["words", "images"])
def test_clients_side_by_side(case: str) -> None:
    """Three personal parts under vmap equal three calls."""
    model, x = CASES[case][0](), CASES[case][1]()
    split = adapters(model, width=3)
    graft = get_model(split)
    shared, personal = split.parts({n: p.detach() for n, p in graft.named_parameters()})
    draw = torch.Generator().manual_seed(0)
    three = {n: torch.randn((3, *p.shape), generator=draw) * 0.3 for n, p in personal.items()}

    def predict(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(graft, split.compose(shared, own, {}), x)

    outputs = torch.func.vmap(predict)(three)
    expected = torch.stack([predict({n: p[i] for n, p in three.items()}) for i in range(3)])
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_makes_adapters_with_batch_norm() -> None:
    split = adapters(SmallResNet())
    inner = [m for m in get_model(split).modules() if isinstance(m, Residual)]
    assert [type(m.norm) for m in inner] == [nn.BatchNorm2d] * 2
    assert "block.conv1.adapter.norm.running_mean" in split.personal
    assert "block.down.norm.weight" in split.shared
    split = adapters(SmallResNet(), running_stats="shared")
    assert "block.conv1.adapter.norm.running_mean" in split.shared
    assert split.trained_personal[:3] == ("stem.norm.weight", "stem.norm.bias", "block.conv1.adapter.norm.weight")


def test_torchs_own_layer_is_adapted_in_series() -> None:
    """norm2(u + adapter(linear2(relu(linear1(u))))): its feed-forward is no module that could be bypassed."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True).double()
    split = adapters(nn.Sequential(layer), width=2)
    assert {n.rpartition(".adapter")[0] for n in split.personal if ".adapter" in n} == {"0.self_attn", "0.linear2"}
    graft = randomise(get_model(split))[0]
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 4)))

    def adapter(h: Tensor, m: Bottleneck) -> Tensor:
        return h + (h @ m.down.weight.T + m.down.bias).relu() @ m.up.weight.T + m.up.bias

    bare = copy.deepcopy(graft.self_attn)
    bare._forward_hooks.clear()
    u = graft.norm1(x + adapter(bare(x, x, x)[0], graft.self_attn.adapter))
    f = (u @ graft.linear1.weight.T + graft.linear1.bias).relu() @ graft.linear2.weight.T + graft.linear2.bias
    torch.testing.assert_close(graft(x), graft.norm2(u + adapter(f, graft.linear2.adapter)))


def test_targets_of_the_users_own() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Conv2d(4, 2, 5), nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(8, 3)
    )
    split = adapters(net, targets=["0", "2", "5"], width=7, norms=False)
    model = get_model(split)
    assert [type(model[i].adapter) for i in (0, 2, 5)] == [Residual, Residual, Bottleneck]
    assert [model[i].adapter.norm.num_groups for i in (0, 2)] == [1, 2]
    assert split.counts()["personal"] == (16 + 8) + (4 + 4) + (3 * 7 + 7 + 7 * 3 + 3)
    assert "3.weight" in split.shared
    assert "3.weight" in adapters(net, targets="5").personal
    assert adapters(SmallTransformer(), targets=["embed", "attention"], width=2, frozen="mask").counts()["total"] > 0
    model = get_model(adapters(nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten(), nn.Linear(4, 1)), targets="0"))
    assert model(torch.ones(2, 3, 4)).shape == (2, 1)


def test_patterns_name_the_given_model_and_never_the_adapters() -> None:
    model = CASES["words"][0]()
    split = adapters(model, frozen="*")
    assert all(".adapter." in n for n in split.personal)
    assert (split.shared, set(split.frozen)) == ((), {n for n, _ in model.named_parameters()})
    split = adapters(model, frozen=["blocks.0.attention"], shared=["blocks.0.norm1"])
    assert "blocks.0.attention.query.weight" in split.frozen
    assert {"blocks.0.norm1.weight"} < set(split.shared)
    assert {"blocks.0.attention.adapter.up.bias", "blocks.0.norm2.weight"} < set(split.personal)
    still = CASES["words"][0]().requires_grad_(False)
    assert all(".adapter." in n for n in adapters(still).personal)


def test_a_file_can_name_it() -> None:
    model = CASES["words"][0]()
    split = adapters(model, width=3, seed=5, frozen=["embedding"])
    assert split.spec == {"name": "adapters", "width": 3, "seed": 5, "frozen": ["embedding"]}
    again = split_from(split.spec, model)
    assert (again.shared, again.personal) == (split.shared, split.personal)
    for one, other in zip(get_model(split).parameters(), get_model(again).parameters(), strict=True):
        assert torch.equal(one, other)


NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2))
BAD = {
    "no blocks": (
        {},
        "`model` must be a module with transformer blocks, or with residual blocks of 3 x 3 convolutions and norms, "
        "got Sequential. Name the modules to adapt with targets=[...], for instance '0', '3'.",
    ),
    "width": ({"width": 0, "targets": "3"}, "`width` must be >= 1, got 0."),
    "half a width": ({"width": 1.5, "targets": "3"}, "`width` must be a whole number, got 1.5."),
    "seed": ({"seed": -1, "targets": "3"}, "`seed` must be >= 0, got -1."),
    "no such module": (
        {"targets": ["3", "head"]},
        "`targets` must be globs that each match a module, got 'head'. Known: 0, 1, 2, 3.",
    ),
    "no width": (
        {"targets": "1"},
        "`targets` must be modules with an output of known width, got 1 (ReLU). Give a convolution, or a module with a "
        "linear layer.",
    ),
    "no pattern": ({"targets": 3}, "`targets` must be a name pattern or a list of them, got 3."),
    "frozen": (
        {"targets": "3", "frozen": "haed"},
        "`frozen` must be patterns that each match a parameter, a buffer or a module, got 'haed'. Known: 0, 0.bias, "
        "0.weight, 3, 3.bias, 3.weight.",
    ),
    "statistics": ({"targets": "3", "running_stats": "mine"}, "`running_stats` must be one of the known names, got"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(case: str) -> None:
    arguments, text = BAD[case]
    with pytest.raises(MoietyError, match="^" + re.escape(text)) as error:
        adapters(NET, **arguments)
    assert "\n" not in str(error.value)


def test_a_model_with_adapters_gets_no_more() -> None:
    model = get_model(adapters(NET, targets="3"))
    with pytest.raises(MoietyError, match=r"^`model` must be without a module or value called adapter in 3, got one\."):
        adapters(model, targets="3")
    with pytest.raises(MoietyError, match=r"^`model` must be a torch\.nn\.Module, got a dict"):
        adapters({})  # type: ignore[arg-type]
