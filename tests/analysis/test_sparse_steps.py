"""The steps that ``benchmarks/sparse.py`` times compute the same numbers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "sparse.py"
spec = importlib.util.spec_from_file_location("sparse_program", PROGRAM)
sparse = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sparse)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_masked_and_sparse_steps_are_those_of_numpy():
    """y = x W^T, dW = g^T x and dx = g W, by NumPy, with W and dW at the active places."""
    rng = np.random.default_rng(0)
    x, g, w = (rng.normal(size=shape).astype("float32") for shape in ((4, 6), (4, 5), (5, 6)))
    mask = rng.random((5, 6)) < 0.4
    active = w * mask
    expected = (x @ active.T, (g.T @ x)[mask], g @ active)
    tensors = [torch.from_numpy(each) for each in (x, w, g, mask)]
    y, dw, dx = sparse.make_masked(*tensors)()
    for ours, theirs in zip((y, dw[tensors[3]], dx), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not dw[~tensors[3]].any()
    y, dw, dx = sparse.make_csr(*tensors)()
    for ours, theirs in zip((y.T, dw, dx.T), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    y, dw, dx = sparse.make_dense(*tensors[:3])()
    for ours, theirs in zip((y, dw, dx), (x @ w.T, g.T @ x, g @ w), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
