"""The rows of Tables 5 to 8 of Pillutla et al. (2022) whose personal part is adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import moiety as mo
from moiety.models import resnet18_gn, speech_transformer, transformer_lm
from moiety.task import from_module
from moiety.types import Partial

ROWS: dict[str, tuple[Any, dict[str, Any], bool, int, int]] = {
    "words": (transformer_lm, {}, True, 5_798_804, 71_808),
    "landmarks": (resnet18_gn, {"image": (3, 224, 224), "classes": 2028}, True, 13_617_196, 1_408_128),
    "handwriting": (resnet18_gn, {}, True, 12_599_806, 1_408_128),
    "speech": (speech_transformer, {}, False, 13_530_697, 152_256),
}


@pytest.mark.parametrize(("build", "sizes", "norms", "total", "personal"), ROWS.values(), ids=ROWS)
def test_counts(build: Any, sizes: dict[str, Any], norms: bool, total: int, personal: int) -> None:
    """Adapters of width 16, with the norms personal but for speech.

    Words: 8 of 2 * 256 * 16 + 16 + 256 = 8,464, on 5,731,092; with the norms' 4 * 4 * 256 = 4,096 personal 71,808.
    Images: 4 of n^2 + 2 n for each of n = 64, 128, 256, 512, which are 1,400,320, on 11,199,486 and 12,216,876; with
    7,680 of the blocks' norms and 128 of the stem's personal 1,408,128. Speech: 12 of 2 * 384 * 16 + 16 + 384 =
    12,688, on 13,378,441; the table prints 0.15M, and 0.16M it would be with the norms' 9,216.
    """
    with torch.device("meta"):
        model = build(**sizes)
        counts = mo.split.adapters(model, width=16, norms=norms).counts()
    assert counts == {"total": total, "shared": total - personal, "personal": personal, "frozen": 0}


BLOCKS = {"width": 8, "blocks": 2, "heads": 2, "feed_forward": 12}


@pytest.mark.parametrize("kind", ["words", "speech", "images"])
def test_what_comes_before_the_adapters_is_cut_off(kind: str) -> None:
    """At least the stem, or the first attention: the adapters hang on modules that ``torch.fx`` looks into."""
    draw = torch.Generator().manual_seed(0)
    model, x = {
        "words": (transformer_lm(vocabulary=9, length=6, **BLOCKS), torch.randint(0, 9, (4, 5), generator=draw)),
        "speech": (
            speech_transformer(vocabulary=9, mels=3, channels=6, **BLOCKS),
            torch.randn(4, 9, 3, generator=draw),
        ),
        "images": (resnet18_gn(classes=4, image=(1, 8, 8), width=8), torch.randn(4, 1, 8, 8, generator=draw)),
    }[kind]
    split = mo.split.adapters(model, width=3, norms=False)
    assert split.model is not None
    task = from_module(split.model, loss=lambda output, batch: output.flatten(1).square().mean(1))
    cut = task.partial(frozenset(split.trained_personal), task.init, {"x": x})
    assert isinstance(cut, Partial), cut
    params = {n: p + 0.3 * torch.randn(p.shape, generator=draw) for n, p in task.init.items()}
    parts, _ = cut.loss(params, {"x": x, **cut.features(params, {"x": x})})
    whole = torch.func.functional_call(split.model, params, (x,)).flatten(1).square().mean(1)
    torch.testing.assert_close(parts, whole)
