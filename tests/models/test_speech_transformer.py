from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle_transformer import Array, arrays, block, select_part, shake

import moiety as mo
from moiety.models import speech_frames, speech_transformer

TINY = {"vocabulary": 5, "mels": 3, "channels": 6, "width": 4, "blocks": 2, "heads": 2, "feed_forward": 7}


def sound(rows: int, frames: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(rows, frames, 3)))


def test_counts_of_table_8() -> None:
    """To the precision that the paper prints, in millions.

    Convolutions 3 * 40 * 640 + 640 + 3 * 320 * 768 + 768 = 815,488. A block: 4 * 384^2 = 589,824; 384 * 1,536 + 1,536 =
    591,360; 1,536 * 384 + 384 = 590,208, the layer that is personal in the second row; norms 4 * 384 = 1,536. That is
    1,772,928, six of them 10,637,568; head 384 * 5,001 + 5,001 = 1,925,385. Together 13,378,441, which is the 13.4M
    that the row of the adapters shares.
    """
    with torch.device("meta"):
        model = speech_transformer()
    rows = {"subsampler": ("0.8", "12.6"), "blocks.5.feed_forward.second": ("0.6", "12.8")}
    exact = {"subsampler": 815_488, "blocks.5.feed_forward.second": 590_208}
    for part, (personal, shared) in rows.items():
        counts = mo.split.by_name(model, personal=[part]).counts()
        assert (counts["total"], counts["personal"]) == (13_378_441, exact[part])
        assert (f"{counts['personal'] / 1e6:.1f}", f"{counts['shared'] / 1e6:.1f}") == (personal, shared)
    assert f"{13_378_441 / 1e6:.1f}" == "13.4"
    assert list(model.buffers()) == []


def halve(x: Array, weight: Array, bias: Array) -> Array:
    """[frames, channels] through a convolution of kernel 3, stride 2, padding 1, and a gated linear unit."""
    x = np.pad(x, ((1, 1), (0, 0)))
    steps = [np.einsum("ock,kc->o", weight, x[t : t + 3]) + bias for t in range(0, len(x) - 2, 2)]
    a, b = np.split(np.stack(steps), 2, axis=1)
    return a / (1 + np.exp(-b))


def positions(length: int, width: int) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / width)), PE(pos, 2i + 1) = cos of the same."""
    table = np.zeros((length, width))
    for pos in range(length):
        for i in range(width):
            angle = pos / 10_000 ** ((i - i % 2) / width)
            table[pos, i] = np.cos(angle) if i % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("sizes", [{}, {"width": 3, "heads": 1}], ids=["even", "odd"])
@pytest.mark.parametrize("frames", [1, 8, 11])
def test_the_model_is_that_of_numpy(frames: int, sizes: dict[str, int]) -> None:
    width, heads = sizes.get("width", 4), sizes.get("heads", 2)
    model = shake(speech_transformer(**{**TINY, **sizes}))  # type: ignore[arg-type]
    p, x = arrays(model), sound(2, frames)
    expected = []
    for row in x.numpy():
        for conv in ("conv1", "conv2"):
            row = halve(row, p[f"subsampler.{conv}.weight"], p[f"subsampler.{conv}.bias"])
        h = row * np.sqrt(width) + positions(len(row), width)
        for place in range(2):
            h = block(h, select_part(p, f"blocks.{place}"), heads, np.ones((len(h), len(h)), bool))
        expected.append(h @ p["head.weight"].T + p["head.bias"])
    np.testing.assert_allclose(model(x).detach().numpy(), np.stack(expected), rtol=0, atol=1e-11)


@pytest.mark.parametrize("frames", range(1, 14))
def test_padding_changes_nothing_and_frames_are_as_said(frames: int) -> None:
    model = shake(speech_transformer(**TINY))  # type: ignore[arg-type]
    x = sound(2, frames)
    bare = model(x)
    assert bare.shape == (2, speech_frames(frames), 5)
    for more in (1, 2, 3, 4, 9):
        padded = model(torch.cat([x, x.new_zeros(2, more, 3)], 1))
        assert padded.shape[1] == speech_frames(frames + more)
        torch.testing.assert_close(padded[:, : bare.shape[1]], bare, rtol=0, atol=1e-12)


def test_each_row_has_its_own_padding() -> None:
    model, x = shake(speech_transformer(**TINY)), sound(2, 9)  # type: ignore[arg-type]
    x[0, 5:] = 0
    x[1, 3:6] = 0  # silence between sounds is heard
    output = model(x)
    torch.testing.assert_close(output[:1, :2], model(x[:1, :5]), rtol=0, atol=1e-12)
    torch.testing.assert_close(output[1:], model(x[1:]), rtol=0, atol=1e-12)


def test_each_frame_attends_to_all() -> None:
    model, x = shake(speech_transformer(**TINY)), sound(1, 20)  # type: ignore[arg-type]
    other = x.clone()
    other[0, -1] += 1
    assert torch.all((model(other) - model(x)).abs().amax(-1) > 0)


def test_a_row_of_padding_gives_numbers() -> None:
    """Engines pad blocks of clients with rows that do not count; they must not turn gradients into NaN."""
    model = speech_transformer(**TINY)  # type: ignore[arg-type]
    model(torch.zeros(2, 8, 3)).square().sum().backward()
    assert all(torch.isfinite(value.grad).all() for value in model.parameters() if value.grad is not None)


def test_frames_of_a_tensor() -> None:
    """ceil(ceil(n / 2) / 2), for the lengths that torch's CTC loss wants."""
    lengths = torch.tensor([1, 4, 5, 8, 9, 1601])
    assert speech_frames(lengths).tolist() == [1, 1, 2, 2, 3, 401]


def test_first_values() -> None:
    model = speech_transformer(vocabulary=500, mels=20, channels=64, width=64, blocks=1, heads=4, feed_forward=128)
    for name, value in model.named_parameters():
        if "conv" in name:
            bound = (3 * (20 if "conv1" in name else 32)) ** -0.5  # torch's: uniform, one over the root of fan-in
            assert 0.8 * bound < float(value.detach().abs().max()) <= bound, name
        elif "norm" in name:
            assert torch.all(value == (1 if name.endswith("weight") else 0)), name
        elif name.endswith("bias"):
            assert torch.all(value == 0), name
        else:
            assert float(value.detach().std()) == pytest.approx(0.02, rel=4 / np.sqrt(2 * value.numel())), name


def test_it_learns_with_ctc() -> None:
    """Two tones in either order; the loss falls from about -log of the chance of guessing to almost nothing."""
    model = speech_transformer(vocabulary=3, mels=2, channels=16, width=16, blocks=1, heads=2, feed_forward=32)
    y = torch.tensor([[1, 2], [2, 1]])
    x = torch.eye(2)[y - 1].repeat_interleave(12, dim=1) * 3
    best = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        scores = model(x).log_softmax(-1).transpose(0, 1)
        loss = torch.nn.functional.ctc_loss(scores, y, speech_frames(torch.tensor([24, 24])), torch.tensor([2, 2]))
        best.zero_grad()
        loss.backward()
        best.step()
        losses.append(loss.item())
    assert losses[0] > 0.5
    assert losses[-1] < 0.05
