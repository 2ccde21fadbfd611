"""Codecs: how an upload is written for the wire.

Both codecs here are unbiased: the mean of what arrives, over the codec's own draws, is what was sent. So they
compress changes and gradients of any algorithm that averages them, and satisfy the assumption H3 of Kotelevskii et al.
2022 (FedPop). With x the numbers that are compressed and C(x) what arrives,

    E C(x) = x,    E ||C(x) - x||^2 <= omega ||x||^2.

Compressed are floating-point tensors. Whole numbers and truth values (a BatchNorm's count of batches, say) pass as they
are. Tensors arrive in the type and the shape in which they were sent.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from moiety.errors import must, number, whole
from moiety.local import from_vector, take_floats, to_vector
from moiety.random import generator
from moiety.spec import recorded
from moiety.transport.sparse import sparse
from moiety.types import Codec, Names, Params

NORMS, CODES = "qsgd:norms", "qsgd:codes"
SEED, VALUES = "rand_k:seed", "rand_k:values"
PIECE = 1 << 16
"""Numbers are packed in pieces of this many, so that the bits of a large model never lie in memory one a byte."""


@recorded
def qsgd(*, levels: int) -> Codec:
    """QSGD: every tensor as its Euclidean norm, and each number as one of s steps of that norm with its sign.

    Alistarh, Grubic, Li, Tomioka, Vojnovic 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding", section 3.1: ``C(x)_i = ||x|| sign(x_i) l_i / s``, where ``l_i`` is ``s |x_i| / ||x||`` rounded down or
    up at random, so that the mean is right. omega is ``min(d / s^2, sqrt(d) / s)`` for a tensor of d numbers (their
    Lemma 3.1).

    On the wire a number is ``1 + ceil(log2(s + 1))`` bits, packed without gaps over all tensors: 2 bits for s = 1, 8
    for s = 127. ``levels`` one below a power of two use their bits up. A norm is a float32, or, where some tensor is
    float64, a float64. The paper's code of variable length (Elias) is not used.

    Args:
        levels: s, the steps between 0 and the norm.
    """
    whole("codec.levels", levels, 1, (1 << 31) - 1)
    bits = 1 + int(levels).bit_length()

    def encode(floats: Params, rng: np.random.Generator) -> Params:
        wide = any(p.dtype == torch.float64 for p in floats.values())
        exact = torch.tensor([_norm(_flatten(p)) for p in floats.values()], dtype=torch.float64)
        norms = exact.to(torch.float64 if wide else torch.float32)
        pairs = zip(floats.values(), norms.tolist(), strict=True)
        codes = [_round_to_levels(_flatten(p), norm, levels, rng) for p, norm in pairs]
        # From -s..s to 0..2s.
        return {NORMS: norms, CODES: torch.from_numpy(pack_bits(np.concatenate(codes) + levels, bits))}

    def decode(packed: Params, like: Params) -> Params:
        count = sum(p.numel() for p in like.values())
        norms = _take(packed, NORMS, len(like))
        codes = _take(packed, CODES, -(-count * bits // 8))
        steps = unpack_bits(codes.cpu().numpy(), bits, count) - levels
        # Not finite where the norm is not, the zeros too: the server leaves such an upload out.
        with np.errstate(invalid="ignore"):
            sizes = [p.numel() for p in like.values()]
            return _lay_out(np.repeat(norms.double().cpu().numpy(), sizes) * (steps / levels), like)

    return _make_float_codec(encode, decode, (NORMS, CODES))


@recorded
def rand_k(*, k: int | float) -> Codec:
    """Random sparsification: k of the d numbers of an upload, drawn without replacement, times d / k; the others 0.

    Wangni, Wang, Liu, Zhang 2018, "Gradient Sparsification for Communication-Efficient Distributed Optimization", with
    equal probabilities; "rand-k" in Stich, Cordonnier, Jaggi 2018. d counts all floating-point numbers of the upload,
    whatever tensor they are in. omega is ``d / k - 1``, which is not only a bound but the value.

    On the wire are a seed of 8 bytes, from which the receiver draws the same k places, and the k values, unscaled, in
    the widest type among the tensors: float64 stays float64.

    Args:
        k: how many, as a whole number; or which share of d, above 0 and at most 1 (rounded up).
    """
    share = not isinstance(k, numbers.Integral)
    if share:
        number("codec.k", k, "a whole number >= 1, or a share > 0 and <= 1", lambda part: 0 < part <= 1)
    else:
        whole("codec.k", k, 1)

    def count_kept(count: int) -> int:
        # The decimal that was written, not the binary number next to it: 0.07 of 100 is 7.
        many = math.ceil(Fraction(str(k)) * count) if share else int(k)
        hint = "A share of them is a number below 1."
        must(many <= count, "codec.k", f"<= {count}, the numbers of an upload", k, hint)
        return many

    def encode(floats: Params, rng: np.random.Generator) -> Params:
        widest = functools.reduce(torch.promote_types, [p.dtype for p in floats.values()])
        flat = to_vector({name: p.detach().to(widest) for name, p in floats.items()})
        seed = int(rng.integers(1 << 63))
        places = torch.from_numpy(draw_places(seed, len(flat), count_kept(len(flat))))
        return {SEED: torch.tensor([seed]), VALUES: flat[places.to(flat.device)]}

    def decode(packed: Params, like: Params) -> Params:
        count = sum(p.numel() for p in like.values())
        many = count_kept(count)
        seed, values = _take(packed, SEED, 1), _take(packed, VALUES, many)
        flat = np.zeros(count)
        flat[draw_places(int(seed), count, many)] = values.double().cpu().numpy() * (count / many)
        return _lay_out(flat, like)

    return _make_float_codec(encode, decode, (SEED, VALUES))


def _make_float_codec(
    encode: Callable[[Params, np.random.Generator], Params],
    decode: Callable[[Params, Params], Params],
    names: Names,
) -> Codec:
    """A codec that compresses floating-point tensors, in an order that both sides know; the others pass as they are."""

    def split(params: Params) -> tuple[Params, Params]:
        floats = {name: p for name, p in sorted(take_floats(params).items()) if p.numel()}
        return floats, {name: p for name, p in params.items() if name not in floats}

    def encode_all(upload: Params, rng: np.random.Generator) -> Params:
        floats, others = split(upload)
        return {**others, **(encode(floats, rng) if floats else {})}

    def decode_all(packed: Params, like: Params) -> Params:
        floats, others = split(like)
        tensors = {name: _take(packed, name, p.numel()) for name, p in others.items()}
        tensors |= decode(packed, floats) if floats else {}
        return {name: tensors[name] for name in like}

    return Codec(encode_all, decode_all, names)


def draw_places(seed: int, count: int, many: int) -> np.ndarray:
    """``many`` of the numbers below ``count``, all subsets equally likely, ascending.

    >>> draw_places(0, 5, 5).tolist()
    [0, 1, 2, 3, 4]
    """
    return np.sort(generator(seed, "rand_k").choice(count, many, replace=False, shuffle=False))


def pack_bits(symbols: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers below ``2^bits`` one after another, the lowest bit first, as bytes.

    >>> pack_bits(np.array([1, 2, 3, 0, 1]), 2).tolist()  # 01 10 11 00 from the right, then 01
    [57, 1]
    """
    at = np.arange(bits)
    # A piece is a multiple of 8 symbols, so that its bits end with a byte.
    pieces = [
        np.packbits(((symbols[i : i + PIECE, None] >> at) & 1).astype(np.uint8).reshape(-1), bitorder="little")
        for i in range(0, len(symbols), PIECE)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)


def unpack_bits(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The inverse of ``pack_bits``, for ``count`` numbers.

    >>> unpack_bits(np.array([57, 1], np.uint8), 2, 5).tolist()
    [1, 2, 3, 0, 1]
    """
    weights = 1 << np.arange(bits, dtype=np.int64)
    symbols = np.empty(count, np.int64)
    for i in range(0, count, PIECE):
        many = min(PIECE, count - i)
        piece = np.unpackbits(packed[i * bits // 8 :], count=many * bits, bitorder="little")
        symbols[i : i + many] = piece.reshape(many, bits) @ weights
    return symbols


def _flatten(p: Tensor) -> np.ndarray:
    """The numbers of a tensor one after another, in float64."""
    return p.detach().double().cpu().numpy().reshape(-1)


def _norm(x: np.ndarray) -> float:
    """The Euclidean norm; the largest number first, so that squares neither vanish nor overflow."""
    most = float(np.abs(x).max())
    return most * float(np.sqrt(np.square(x / most).sum())) if 0 < most < math.inf else most


def _round_to_levels(x: np.ndarray, norm: float, levels: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers from -s to s. Chance is drawn for every number, whatever it is."""
    chance = rng.random(len(x))
    if not 0 < norm < math.inf:
        return np.zeros(len(x), np.int64)
    # The norm as it is sent, at which the mean is right. Rounding keeps it at or above the largest number.
    share = levels * (np.abs(x) / norm)
    low = np.floor(share)
    level = np.minimum(low + (chance < share - low), levels)
    values: np.ndarray = (np.sign(x) * level).astype(np.int64)
    return values


def _lay_out(flat: np.ndarray, like: Params) -> Params:
    """The numbers one after another as tensors like those of ``like``."""
    return from_vector(torch.from_numpy(flat).to(next(iter(like.values())).device), like)


def _take(packed: Params, name: str, count: int) -> Tensor:
    """The payload's tensor of this name, if it holds ``count`` numbers."""
    size = packed[name].numel() if name in packed else "none"
    must(size == count, "payload", f"one with {count} numbers {name}", size, "Both sides need the same codec.")
    return packed[name]


CODECS: dict[str, Callable[..., Codec]] = {"qsgd": qsgd, "rand_k": rand_k, "sparse": sparse}
